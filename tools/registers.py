"""Whether kernels are faster with other numbers of registers: ``python tools/registers.py [PATTERN] [--file FILE]``.

FILE has problems as ``ptxrt tune --file`` takes them. Each is run by the plan that is selected for it, and again for
each number of registers a thread with which one of its kernels in PTX spills nothing (``.maxnreg`` in a copy of its
text, ``.minnctapersm`` taken out). Each run's results are checked, and all are timed in turns. A line says what was the
fastest of a kernel. One that is faster than noise is worth a look: fewer registers may leave room for one more block a
multiprocessor (``ptxrt show``); more of them may have more loads on their way.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import ptxrt
from ptxrt.commands.tune import read_problems
from ptxrt.compilers import nvjitlink
from ptxrt.compilers.occupancy import occupancy
from ptxrt.ops import tuning
from ptxrt.ops.framework import KernelSpec, Launch, Plan, tuned
from ptxrt.ops.trials import Trial

__all__ = ["Limited", "Used", "limited", "main", "used"]

NUMBERS = (24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 128, 168)
PROBLEMS = Path(__file__).with_name("tuned_problems.json")
_NOISE = 1.02
_SHARE = (0.45, 1.7)  # of the registers that the assembler takes by itself: others spill, or change nothing
# A version of nvJitLink that crashes (13.0 and 13.5 did, of one kernel with one number) ends a process of its own.
_COUNT = [sys.executable, str(Path(__file__).resolve()), "--count"]


class Used(NamedTuple):
    """Registers of a thread, and bytes of code that spill one."""

    registers: int
    spilled: int


@dataclass(frozen=True)
class Limited(KernelSpec):
    """A kernel that is assembled with at most so many registers."""

    registers: int = 0

    @property
    def source(self) -> ptxrt.KernelSource:
        """The text with that limit."""
        whole = super().source
        return ptxrt.KernelSource.ptx(limited(whole.text, self.entry, self.registers), name=whole.name)


def limited(text: str, entry: str, registers: int) -> str:
    """Return the text with ``.maxnreg`` in the head of an entry, instead of what else limits registers there."""
    head = re.compile(rf"(\.entry\s+{re.escape(entry)}\s*\([^)]*\))([^{{]*)\{{")
    found = head.search(text)
    if found is None:
        raise ValueError(f"no entry {entry} is in the text")
    directives = re.sub(r"\.(?:minnctapersm|maxnreg)\s+\d+", "", found[2]).rstrip()
    return f"{text[: found.start()]}{found[1]}{directives}\n.maxnreg {registers}\n{{{text[found.end() :]}"


def used(text: str, entry: str, arch: str) -> Used | None:
    """Return what an entry uses, or None where the assembler refuses it, or crashes."""
    done = subprocess.run([*_COUNT, arch, entry], input=text, capture_output=True, text=True, check=False)
    return None if done.returncode else Used(*map(int, done.stdout.split()))


def _count(arch: str, entry: str) -> int:
    """Print what :func:`used` returns, of the text in standard input."""
    report = nvjitlink.compile_ptx(sys.stdin.read(), arch).reports[entry]
    print(report.registers, report.spill_store_bytes)
    return 0


def _numbers(spec: KernelSpec, arch: str, threads: int) -> tuple[Used | None, dict[int, Used]]:
    """Return what a kernel uses by itself, and with each limit that makes a difference: none that spills more.

    Nor any with which blocks of so many threads cannot be launched.
    """
    text = spec.source.text
    own = used(text, spec.entry, arch)
    if own is None:
        return None, {}
    limits = [number for number in NUMBERS if _SHARE[0] < number / own.registers < _SHARE[1]]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        counted = pool.map(lambda number: used(limited(text, spec.entry, number), spec.entry, arch), limits)
    found: dict[int, Used] = {}
    for number, each in zip(limits, counted, strict=True):
        if each is None or each.spilled > own.spilled:
            continue
        held = occupancy(arch, threads, each.registers, 0)
        known = {own.registers, *(other.registers for other in found.values())}
        if each.registers not in known and (held is None or held.blocks):
            found[number] = each
    return own, found


def _with_kernel(plan: Plan[Any, Any, Any], spec: KernelSpec, other: KernelSpec) -> Plan[Any, Any, Any]:
    """Return the plan with another kernel in one's place."""
    steps = tuple(
        replace(step, kernel=other) if isinstance(step, Launch) and step.kernel == spec else step
        for step in plan.schedule.steps
    )
    return type(plan)(plan.device, plan.descriptor, plan.variant, plan.config, replace(plan.schedule, steps=steps))


def _lines(plan: Plan[Any, Any, Any], rounds: int) -> Iterator[str]:
    """Yield a line for each kernel of a plan."""
    trial, clock = Trial(plan), tuning.events_of(plan.device)
    launched = {step.kernel: step.block for step in plan.schedule.steps if isinstance(step, Launch)}
    for spec, threads in launched.items():
        own, limits = _numbers(spec, plan.device.arch, threads)
        ways = [plan, *(_with_kernel(plan, spec, Limited(**vars(spec), registers=number)) for number in limits)]
        mine, *others = tuning.medians_of(trial, ways, rounds, clock)
        said = f"{spec.entry}: {own.registers if own else '?'} registers {mine:.1f} us"
        if others:
            least, registers = min(zip(others, (each.registers for each in limits.values()), strict=True))
            said += f", {registers} registers {least:.1f} us" + ("  faster" if mine > _NOISE * least else "")
        yield said


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0; 1 where a result is wrong or a kernel does not compile, 2 where there is nothing to run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "pattern", nargs="?", default="", help="only problems whose op, type, layout and class this matches"
    )
    parser.add_argument("--file", type=Path, default=PROBLEMS, help="problems, as ptxrt tune takes them (ptxrt's own)")
    parser.add_argument("--device", default="cuda:0", help="where to measure (cuda:0)")
    parser.add_argument("--rounds", type=int, default=11, help="runs of each (11)")
    parser.add_argument("--count", nargs=2, metavar=("ARCH", "ENTRY"), help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.count:
        return _count(*given.count)
    if reason := nvjitlink.available():
        print(reason, file=sys.stderr)
        return 2
    try:
        device = ptxrt.Device(given.device)
        problems = read_problems(str(given.file), device, "ptx")
    except ptxrt.PtxrtError as error:
        print(error, file=sys.stderr)
        return 2
    keys = [tuned.Key.of(device, problem.op, problem, "ptx") for problem in problems]
    named = {f"{k.op} {k.dtype} {k.layout} {k.problem}": problem for k, problem in zip(keys, problems, strict=True)}
    chosen = {name: problem for name, problem in named.items() if re.search(given.pattern, name)}
    if not chosen:
        print(f"{given.file} has no problem that {given.pattern!r} matches", file=sys.stderr)
        return 2
    for name, problem in chosen.items():
        try:
            plan = tuning.plan_of(problem.op).select(device, problem, ptxrt.PlanPreference(language="ptx"))
            print(f"{name}  {plan.variant}", flush=True)
            for line in _lines(plan, max(1, given.rounds)):
                print(f"    {line}", flush=True)
        except ptxrt.PtxrtError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
