"""Running a grid of a loaded program."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

import numpy as np

from ptxrt.errors import InvalidArgument, LaunchError
from ptxrt.sim._load import Loaded
from ptxrt.sim._machine.allocations import Store
from ptxrt.sim._machine.checks import chosen
from ptxrt.sim._machine.chunk import Chunk, Job
from ptxrt.sim._machine.code import Code
from ptxrt.sim._machine.element_types import ArrayParam, declared_elements
from ptxrt.sim._machine.global_races import GlobalRaces
from ptxrt.sim._machine.last_write import LastWrite
from ptxrt.sim._machine.layout import RESERVED_SHARED_BYTES
from ptxrt.sim._machine.memory import READ_ONLY_BIT, GlobalMemory
from ptxrt.sim._machine.profile import Profile, instrument
from ptxrt.sim._machine.shape import Shape
from ptxrt.sim._machine.visits import Visits
from ptxrt.symbols import function_name

__all__ = ["LaunchReport", "launch"]

_CHUNK_LANES = 1 << 15
_CHUNK_BYTES = 256 << 20
_MOST_LOCAL = 512 << 10
_FREED_BYTES = 30 << 20
_MOST_AT_ONCE = 8 << 30
_WORKSPACE_BYTES = 8


@dataclass(frozen=True)
class LaunchReport:
    """What a launch did: instructions issued (each for a group of lanes), and those times their lanes."""

    instructions: int
    lane_instructions: int
    threads: int
    chunks: int


def launch(
    loaded: Loaded,
    entry: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    params: bytes,
    *,
    arrays: Sequence[ArrayParam] = (),
    shared_bytes: int = 0,
    cooperative: bool = False,
    budget: int | None = None,
    races: bool = True,
    checks: Iterable[str] | None = None,
    profile: Profile | None = None,
    visits: Visits | None = None,
    watch: LastWrite | None = None,
    output: TextIO | None = None,
    arch: str = "sm_90",
) -> LaunchReport:
    """Run a grid to its end.

    Parameters
    ----------
    loaded
        What `load` gave.
    entry
        Name of the kernel.
    grid, block
        Sizes along x, y, z; the limits of a device are the caller's to check.
    params
        The packed parameters, by the offsets of ``Entry.params``.
    arrays
        Which of them are arrays, as the signature declares them.
    shared_bytes
        Dynamic shared memory.
    cooperative
        Run all blocks at a time, so that they can wait for each other, and give the kernel the memory that
        cooperative_groups waits in.
    budget
        Instructions that a chunk of blocks may issue; None for PTXRT_SIM_BUDGET, or as many as docs/sim.md says.
    races
        Look for data races in shared memory, which costs a kernel that lives there much of its time.
    checks
        Names of further checks to make: ``uninitialised`` (reads of bytes of global or shared memory that nobody has
        written; what a launch without this check wrote to counts as written throughout), ``global-races`` (data races
        in global memory within the launch), ``shuffles`` (shfl from a lane that takes no part), or ``all``. None for
        those that PTXRT_SIM_CHECKS names, separated by commas (``none`` for no check); where it names none,
        ``uninitialised`` and ``global-races`` for the first accesses of the launch, as many as docs/sim.md says.
    profile
        Where to count what each line does; a fault leaves the counts up to it.
    visits
        Where to note which lines ran, and which ways of branches; a fault leaves what ran up to it.
    watch
        A byte whose last write is asked for; races in global memory are not looked for then.
    output
        Where printf writes to; the sys.stdout of the moment if left out.
    arch
        The architecture whose tensor cores compute, ``sm_80`` for those of an A100.

    Raises
    ------
    InvalidArgument
        For an unknown entry or check, or parameters of the wrong length.
    MemoryFault, Deadlock, DataRace
        For what the kernel does wrong. The memory can be used afterwards.
    SimFault
        For a shuffle from a lane that takes no part, if that is checked.
    LaunchError
        For the instruction trap, an assert that fails, a grid that is no multiple of the kernel's cluster, or one that
        is too large to run all blocks at a time.
    """
    program = loaded.program
    found = program.entries.get(entry)
    if found is None:
        raise InvalidArgument(
            op="launch",
            argument="entry",
            expected=f"one of {', '.join(program.entries) or 'no entry at all'}",
            given=entry,
        )
    if len(params) != found.params_bytes:
        raise InvalidArgument(
            op=function_name(entry),
            argument="params",
            expected=f"{found.params_bytes} bytes",
            given=f"{len(params)} bytes",
        )
    total = found.code.dynamic_offset + shared_bytes if shared_bytes else found.shared_bytes
    # Behind the kernel's own bytes, at a multiple of 16.
    reserved = -total % 16 + RESERVED_SHARED_BYTES if found.code.reserved_shared else 0
    cluster = found.cluster or (1, 1, 1)
    shape = Shape(
        grid, block, found.shared_bytes, total + reserved, cluster, found.cluster is not None, reserved, shared_bytes
    )
    if any(size % part for size, part in zip(grid, shape.cluster, strict=True)):
        raise LaunchError(
            op=function_name(entry), argument="grid", expected=f"a multiple of the cluster {found.cluster}", given=grid
        )
    if found.code.local_bytes > _MOST_LOCAL:
        raise LaunchError(
            op=function_name(entry),
            argument="local memory",
            expected=f"at most {_MOST_LOCAL} bytes a thread",
            given=found.code.local_bytes,
        )
    if cooperative:
        _check_memory(entry, found.code, shape)
    names, allowance = chosen(checks)
    watcher: GlobalRaces | LastWrite | None = watch
    if watch is None and "global-races" in names and found.code.global_word and shape.threads * shape.blocks > 1:
        watcher = GlobalRaces(shape, found.code.global_word, by_default=allowance is not None)
    if budget is None and os.environ.get("PTXRT_SIM_BUDGET"):
        budget = _budget(os.environ["PTXRT_SIM_BUDGET"])
    step = shape.blocks if cooperative else _blocks_at_once(found.code, shape)
    code = found.code if visits is None else visits.noting(found.code)
    job = Job(
        source=program.source,
        code=code if profile is None else instrument(code, profile),
        shape=shape,
        workspace=_workspace(loaded.memory) if cooperative else 0,
        memory=loaded.memory,
        addresses=loaded.addresses,
        params=Store(np.frombuffer(_with_read_only(params, arrays), np.uint8)),
        elements=declared_elements(loaded.memory.table, params, found.params, arrays, found.code.float_types),
        budget=budget,
        races=races,
        checks=names,
        allowance=allowance,
        global_races=watcher,
        profile=profile,
        output=output,
        arch=int("".join(filter(str.isdigit, arch))),
    )
    instructions = lane_instructions = chunks = 0
    # glibc gives freed memory back to the system from a threshold on that follows the largest piece ever freed; without
    # this one (never touched) each instruction's result would be paged in anew, at a multiple of the cost.
    np.empty(_FREED_BYTES, np.uint8)
    try:
        with np.errstate(all="ignore"):
            for first in range(0, shape.blocks, step):
                chunk = Chunk(job, first, min(step, shape.blocks - first))
                try:
                    chunk.run()
                finally:  # a fault's cause is often in what was printed before
                    chunk.printed.flush()
                instructions += chunk.issued
                lane_instructions += chunk.lane_instructions
                chunks += 1
    finally:
        if job.workspace:
            loaded.memory.free(job.workspace)
    return LaunchReport(instructions, lane_instructions, shape.blocks * shape.threads, chunks)


def _with_read_only(params: bytes, arrays: Sequence[ArrayParam]) -> bytes:
    """Return the parameters with const pointers through which a kernel cannot write."""
    changed = bytearray(params)
    for array in arrays:
        if array.const and any(changed[array.offset : array.offset + 8]):
            changed[array.offset + 7] |= READ_ONLY_BIT >> 56
    return bytes(changed)


def _budget(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text)):
        raise InvalidArgument(
            op="PTXRT_SIM_BUDGET",
            argument="environment",
            expected="a number of instructions, 1 or more",
            given=repr(text),
        )
    return int(text)


def _workspace(memory: GlobalMemory) -> int:
    """Return the address of what cooperative_groups' grid barrier counts in: two words, zero at first."""
    address = memory.allocate(_WORKSPACE_BYTES, "the grid's barrier")
    memory.view(address, _WORKSPACE_BYTES, writable=True)[:] = 0
    return address


def _check_memory(entry: str, code: Code, shape: Shape) -> None:
    wanted = _block_bytes(code, shape) * shape.blocks
    if wanted > _MOST_AT_ONCE:
        raise LaunchError(
            op=function_name(entry),
            argument="grid",
            expected=f"a cooperative launch whose blocks take at most {_MOST_AT_ONCE} bytes of the host together",
            given=f"{shape.blocks} blocks, some {wanted} bytes",
            fix="Launch fewer blocks, and let each do more",
        )


def _block_bytes(code: Code, shape: Shape) -> int:
    """Return about how much memory a chunk takes for each of its blocks."""
    lane = code.lane_bytes + code.local_bytes + 64
    # The race model holds six numbers for each granule of shared memory, 36 bytes in all, and a mark for each byte.
    shared = shape.shared_total * (2 + 36 // code.shared_word) if code.shared_word else shape.shared_total
    return lane * shape.warps * 32 + shared


def _blocks_at_once(code: Code, shape: Shape) -> int:
    """Return how many blocks a chunk has: enough lanes to make NumPy's overhead small, few enough for the caches."""
    blocks = min(_CHUNK_LANES // max(shape.threads, 1), _CHUNK_BYTES // max(_block_bytes(code, shape), 1))
    # The blocks of a cluster run together.
    return max(1, blocks // shape.cluster_blocks) * shape.cluster_blocks
