"""Compares sim with a GPU: the kernels and the random instructions of tests/fidelity, as a table.

Writes ``fidelity-<device>.json`` and ``.md`` into --out. Exit status 1 if anything differs that should not.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "fidelity"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import sequences
from benchmarks import report
from comparison import CASES, KernelReport, SequenceReport, compare_cases, compare_sequences
from forms import FORMS
from sequences import Difference

import ptxrt

ROOT = Path(__file__).resolve().parents[1]

FREEDOM = """\
What is the hardware's or the compiler's freedom, and not counted as a difference:

- **tanh.approx and rsqrt.approx.f64**: sim computes them in float64 and rounds once. The table above has their bounds.
- **Which NaN**: an operation on two float64 NaN answers one of them, quieted; PTX does not say which, and ptxas may
  negate a constant NaN. Every other NaN is compared bit for bit: float32 and halves have one canonical NaN, float64
  passes its operand on.
- **ptxas's optimiser**: a line counts as optimised where the GPU's result is sim's once ptxas runs with -O0. Seen:
  a conversion of a conversion folded into one (NaN, and types of 16 bits mistaken for each other), min and max of one
  register twice answering it (payload of a NaN), constant fields of bfi. They are listed below; by the PTX ISA each
  line by itself has sim's result.
- **What the ISA leaves to the machine**, or says otherwise than the H200 does, follows the H200, and is compared bit
  for bit: integer division by zero; NaN to integers; NaN to tf32; 64-bit bit fields beyond 255 (clamped, where the ISA
  says masked); cvt.rm and .rp .ftz.f16.f32 (which flush no operand). Another GPU may do otherwise.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, write both files, and return 1 if anything differs that should not."""
    parser = argparse.ArgumentParser(prog="fidelity.py", description="Compare sim with a GPU.")
    report.add_out(parser)
    parser.add_argument("--device", default="cuda:0", help="what to compare sim with (cuda:0)")
    parser.add_argument("--instructions", type=int, default=24_000, metavar="N", help="drawn, at least (24000)")
    parser.add_argument("--seed", type=int, default=2026, help="of the drawing (2026)")
    parser.add_argument("--kernels", default="", metavar="PATTERN", help="only kernels whose name this matches")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="compilers at a time")
    given = parser.parse_args(arguments)
    try:
        sim, other = ptxrt.Device("sim:0"), ptxrt.Device(given.device)
        measurement = report.Measurement(given.out, ["ptxrt/sim", "tests/fidelity"])
    except (ptxrt.PtxrtError, report.NotStorable) as error:
        print(error, file=sys.stderr)
        return 2
    started = time.perf_counter()
    chosen = [case for case in CASES if re.search(given.kernels, case.name)]
    kernels = compare_cases(chosen, sim, other, threads=given.threads)
    edges = compare_sequences(sequences.edges(), sim, other, threads=given.threads)
    drawings = sequences.draw(given.instructions, seed=given.seed)
    drawn = compare_sequences(drawings, sim, other, threads=given.threads)
    record = {
        "seconds": round(time.perf_counter() - started, 1),
        "seed": given.seed,
        "kernels": [_kernel(one) for one in kernels],
        "edges": _sequences(edges),
        "sequences": _sequences(drawn),
        "threads": sequences.THREADS,
        "forms": len(FORMS),
        "bounds": {form.name: asdict(form.bound) for form in FORMS if form.bound is not None},
        # What tests/fidelity holds sim to where there is no GPU.
        "digests": sequences.digests(other, ("-O0",) if other.kind == "cuda" else ()),
    }
    for path in measurement.save(KIND, f"fidelity-{report.slug(other.name)}", other, record):
        print(path)
    wrong = [one for one in kernels if one.wrong]
    lines = [*edges.differences, *drawn.differences]
    print(f"{len(kernels)} kernels, {len(wrong)} differ")
    print(f"{drawn.instructions} drawn instructions, {len(lines)} differ")
    for kernel in wrong:
        print(f"  {kernel.case.name}: {kernel.wrong} of {kernel.results}, {kernel.example}")
    for line in _listed([_difference(one) for one in lines]):
        print(f"  {line}")
    return 1 if wrong or lines else 0


def _kernel(one: KernelReport) -> dict[str, Any]:
    case = one.case
    return {
        "name": case.name,
        "values": one.results,
        "equal": one.equal,
        "other_nan": one.nans,
        "worst_ulp": one.worst,
        "bound_ulp": case.ulps,
        "bound_absolute": case.absolute,
        "why": case.why,
        "wrong": one.wrong,
        "example": one.example,
    }


def _difference(one: Difference) -> dict[str, Any]:
    return {
        "form": one.drawn.form.name,
        "line": one.drawn.text,
        "threads": one.threads,
        "operands": one.operands,
        "sim": one.sim,
        "device": one.other,
        "ulp": str(one.ulps),
    }


def _sequences(one: SequenceReport) -> dict[str, Any]:
    return {
        "kernels": one.kernels,
        "instructions": one.instructions,
        "values": one.results,
        "other_nan": one.free,
        "counts": dict(sorted(one.counts.items())),
        "worst_ulp": dict(sorted(one.worst.items())),
        "differences": [_difference(line) for line in one.differences],
        "optimised": [_difference(line) for line in one.optimised],
    }


def _listed(lines: Iterable[report.Record]) -> list[str]:
    """One line for each form that differs."""
    forms: dict[str, list[report.Record]] = {}
    for one in lines:
        forms.setdefault(one["form"], []).append(one)
    return [
        f"{name}, {len(found)} lines: `{found[0]['line']}` of {', '.join(found[0]['operands'])}: "
        f"sim {', '.join(found[0]['sim'])}, device {', '.join(found[0]['device'])}"
        for name, found in sorted(forms.items())
    ]


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f"## {title}", "", *([f"- {line}" for line in lines] or ["None."]), ""]


def _body(record: report.Record) -> str:
    kernels, edges, drawn = record["kernels"], record["edges"], record["sequences"]
    exact = sum(not one["bound_ulp"] for one in kernels)
    values, equal = sum(one["values"] for one in kernels), sum(one["equal"] for one in kernels)
    wrong = sum(bool(one["wrong"]) for one in kernels)
    summary = [
        f"{len(kernels)} kernels of CUDA C++: {exact} equal by definition, {len(kernels) - exact} within a "
        f"bound; {wrong} differ. {equal} of {values} values are the same bit for bit.",
        f"{drawn['instructions']} instructions of {len(drawn['counts'])} of {record['forms']} forms drawn in "
        f"{drawn['kernels']} kernels of {record['threads']} threads, {drawn['values']} values: "
        f"{len(drawn['differences'])} lines differ, {len(drawn['optimised'])} were optimised, {drawn['other_nan']} "
        "values are another NaN.",
        f"{edges['kernels']} forms with chosen operands: {len(edges['differences'])} differ, {edges['other_nan']} "
        "values are another NaN.",
    ]
    head = ("kernel", "values", "equal", "worst, ulp", "bound", "why")
    rows = [
        (
            one["name"],
            str(one["values"]),
            str(one["equal"]),
            f"{one['worst_ulp']:g}",
            _bound(one["bound_ulp"], one["bound_absolute"]),
            one["why"],
        )
        for one in kernels
    ]
    lines = ["## Summary", "", *(f"- {line}" for line in summary), ""]
    lines += ["## Kernels", "", report.markdown_table(head, rows), ""]
    lines += ["## Instructions with a bound", "", _approximate(record), ""]
    lines += ["## Instructions drawn", "", _by_opcode(drawn["counts"]), ""]
    lines += ["The count of each form is in the .json file.", "", "## Freedom", "", FREEDOM]
    for title, name in (
        ("Lines that ptxas's optimiser made different", "optimised"),
        ("Differences", "differences"),
    ):
        lines += _section(title, _listed([*edges[name], *drawn[name]]))
    return "\n".join(lines)


def _bound(ulps: float, absolute: float) -> str:
    if not ulps and not absolute:
        return "equal"
    return f"{ulps:g} ulp" + (f" or {absolute:.1e}" if absolute else "")


def _approximate(record: report.Record) -> str:
    worst: dict[str, float] = {}
    for part in ("edges", "sequences"):
        for name, far in record[part]["worst_ulp"].items():
            worst[name] = max(far, worst.get(name, 0.0))
    rows = [
        (name, f"{worst[name]:g}", _bound(bound["ulps"], bound["absolute"]), bound["why"])
        for name, bound in record["bounds"].items()
        if name in worst
    ]
    return report.markdown_table(("form", "worst, ulp", "bound", "why"), rows)


def _by_opcode(counts: Mapping[str, int]) -> str:
    found: dict[str, list[int]] = {}
    for name, count in counts.items():
        found.setdefault(name.partition(".")[0], []).append(count)
    rows = [(name, str(len(each)), str(sum(each))) for name, each in sorted(found.items())]
    return report.markdown_table(("opcode", "forms", "times"), rows)


KIND = report.Kind("fidelity", lambda r: f"Fidelity of sim, compared with {r['environment']['device_name']}", _body)


if __name__ == "__main__":
    sys.exit(main())
