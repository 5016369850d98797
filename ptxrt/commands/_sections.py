"""What ``ptxrt show`` says of a compiled kernel: its resources, how many fit a multiprocessor, its machine code."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ptxrt.commands.tables import table
from ptxrt.compilers import Binary, ParamInfo, Report
from ptxrt.compilers.disassembly import disassemble, sass
from ptxrt.compilers.occupancy import occupancy
from ptxrt.errors import BackendUnavailable

__all__ = ["machine_code", "parameters", "resources", "sections"]

_BLOCKS = (32, 64, 128, 256, 512, 1024)


def sections(binary: Binary, symbol: str) -> tuple[list[str], list[str]]:
    """Return lines on the kernel that is called `symbol` in `binary`, and what is missing for more of them."""
    lines = ["", *resources(binary, symbol)]
    try:
        return [*lines, "", *machine_code(binary, symbol)], []
    except BackendUnavailable as error:
        return lines, [str(error)]


def resources(binary: Binary, symbol: str) -> list[str]:
    """Return lines on what the kernel uses, and how many of its blocks a multiprocessor holds."""
    report = binary.reports.get(symbol, Report())
    amd = binary.kind == "hsaco"
    rows = [*(_of_amd(report) if amd else _of_nvidia(report)), ("code bytes", len(binary.code))]
    lines = [f"  {what:29} {'not reported' if number is None else number}" for what, number in rows]
    lines = [f"Resources, {binary.compiler} for {binary.arch}", *lines]
    return lines if amd else lines + _occupancy(binary.arch, report)


def machine_code(binary: Binary, symbol: str) -> list[str]:
    """Return the kernel's instructions, one a line, under a head.

    Raises
    ------
    BackendUnavailable
        There is no disassembler.
    """
    amd = binary.kind == "hsaco"
    code = (disassemble if amd else sass)(binary.code, symbol)
    head = "Machine code, by address" if amd else "SASS, by address"
    return [head, *(f"  {line}" for line in code.splitlines())]


def parameters(params: Sequence[ParamInfo] | None, signature: str = "") -> list[str]:
    """Return a kernel's parameter table, and the signature, if given, as lines."""
    if params is None:
        return ["  not told by the text"]
    rows = []
    for index, p in enumerate(params):
        name = "" if re.search(r"_param_\d+$", p.name) else p.name  # NVRTC's own
        rows.append((str(index), p.cxx or "-", name or "-", p.kind or "any", str(p.size), str(p.offset)))
    head = ("#", "type", "name", "class", "bytes", "offset")
    if not rows:
        return ["  none"]
    declared = [f"signature: {signature}"] if signature else []
    return [f"  {line}" for line in (*table(head, rows, (0, 4, 5)).splitlines(), *declared)]


def _of_nvidia(report: Report) -> list[tuple[str, object]]:
    return [
        ("registers a thread", report.registers),
        ("shared bytes a block", report.shared_bytes),
        ("barriers a block", report.barriers),
        ("stack bytes a thread", report.stack_bytes),
        ("spilled bytes stored, loaded", f"{report.spill_store_bytes}, {report.spill_load_bytes}"),
        ("constant bytes", report.constant_bytes),
    ]


def _of_amd(report: Report) -> list[tuple[str, object]]:
    return [
        ("VGPRs a thread", report.registers),
        ("AGPRs a thread", report.accumulation_registers),
        ("SGPRs a wave", report.scalar_registers),
        ("LDS bytes a block", report.shared_bytes),
        ("scratch bytes a thread", report.stack_bytes),
        ("spilled VGPRs, SGPRs", f"{report.spilled_registers}, {report.spilled_scalar_registers}"),
        ("lanes a wave", report.wave_size),
        ("threads a block, at most", report.max_threads),
        ("parameter bytes", report.kernarg_bytes),
    ]


def _occupancy(arch: str, report: Report) -> list[str]:
    """Return a small table: the blocks that a multiprocessor holds, by the size of a block."""
    if report.registers is None:
        return []
    rows = []
    for threads in _BLOCKS:
        held = occupancy(arch, threads, report.registers, report.shared_bytes or 0, report.barriers or 0)
        if held is None:
            return ["", f"Occupancy: the limits of {arch} are not known to ptxrt"]
        share = f"{100 * held.warps / held.most_warps:.0f}%"
        rows.append((str(threads), str(held.blocks), f"{held.warps} of {held.most_warps}", share, held.limit))
    head = ("threads a block", "blocks", "warps", "share", "limited by")
    behind = "without dynamic shared memory"
    return [
        "",
        f"Occupancy of a multiprocessor, {arch}, {behind}",
        *(f"  {line}" for line in table(head, rows, (0, 1, 2, 3)).splitlines()),
    ]
