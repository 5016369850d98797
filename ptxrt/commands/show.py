"""What ``ptxrt show ENTRY`` prints: a kernel that comes with ptxrt, its text, ABI, resources and machine code."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

from ptxrt import ops
from ptxrt.commands._sections import sections
from ptxrt.commands.tables import table
from ptxrt.compilers import ParamInfo, hiprtc, nvjitlink
from ptxrt.compilers.ptx_text import output_arch, scan
from ptxrt.errors import BackendUnavailable, InvalidArgument
from ptxrt.ops.framework import KernelSpec
from ptxrt.runtime.device import Device

__all__ = ["run"]

_Lines = list[str]


def run(
    entry: str, arch: str, device: Device | None, say: Callable[[str], None], complain: Callable[[str, int], int]
) -> int:
    """Print a kernel that comes with ptxrt as it is compiled for `arch`, and as `device` has it loaded, if given.

    For AMD it is the one in HIP, else the one in PTX. Returns the exit code: 0 too where a compiler or a disassembler
    is missing, which is complained of, since the rest is of use without it.
    """
    spec = _spec(entry, "hip" if arch.startswith("gfx") else "ptx")
    behind, missing = _hip(spec, arch) if spec.language == "hip" else _ptx(spec, arch)
    if device is not None:
        behind += ["", *_loaded_resources(spec, device)]
    say(spec.source.text.rstrip("\n") + "\n\n" + "\n".join(f"// {line}".rstrip() for line in behind))
    return complain("; ".join(missing), 0) if missing else 0


def _ptx(spec: KernelSpec, arch: str) -> tuple[_Lines, _Lines]:
    """Return what stands behind the text, and what is missing."""
    source = spec.source
    header = scan(source.text, source.name)
    behind = [f"{spec.entry}, of kernels_ptx/{source.name}", "", "ABI"]
    behind += _abi(spec, header.entries[spec.entry].params)
    try:
        binary = nvjitlink.compile_ptx(
            source.text, output_arch(header.target, arch), name=source.name, entry=spec.entry
        )
    except BackendUnavailable as error:
        return behind, [f"no resources for {arch}: {error}"]
    lines, missing = sections(binary, spec.entry)
    return behind + lines, missing


def _hip(spec: KernelSpec, arch: str) -> tuple[_Lines, _Lines]:
    """Return what stands behind the text, and what is missing."""
    source = spec.source
    behind = [f"{spec.entry}, of kernels_hip/{source.name}", "", "ABI"]
    try:
        binary = hiprtc.compile_hip(source.text, arch, entry=spec.entry, name=source.name)
    except BackendUnavailable as error:
        return [*behind, *_abi(spec, None)], [f"no resources for {arch}: {error}"]
    symbol = binary.symbols[spec.entry]
    lines, missing = sections(binary, symbol)
    return [*behind, *_abi(spec, binary.entries[symbol].params), *lines], missing


def _loaded_resources(spec: KernelSpec, device: Device) -> _Lines:
    """Return what the driver of `device` says of the loaded kernel, as lines."""
    used = spec.load(device).resources
    return [
        f"Resources, as {device} ({device.name}) has it loaded",
        f"  registers a thread            {used.registers}",
        f"  shared bytes a block          {used.shared_bytes}",
        f"  local bytes a thread          {used.local_bytes}",
        f"  constant bytes                {used.constant_bytes}",
        f"  threads a block, at most      {used.max_threads}",
    ]


def _spec(entry: str, language: str) -> KernelSpec:
    specs = {spec.entry: spec for spec in ops.kernels() if spec.language == language}
    if entry in specs:
        return specs[entry]
    close = difflib.get_close_matches(entry, specs, n=3, cutoff=0.4)
    raise InvalidArgument(
        op="show",
        argument="ENTRY",
        expected=f"a file that ends in .ptx, .cu or .hip, or an entry of a kernel that comes with ptxrt in {language}",
        given=repr(entry),
        fix=f"Did you mean {' or '.join(close)}?" if close else "ptxrt kernels lists them",
    )


def _abi(spec: KernelSpec, params: Sequence[ParamInfo] | None) -> _Lines:
    """Return the declared parameters beside those of the text or the binary, as lines."""
    offsets = spec.signature.offsets
    rows = []
    for index, parameter in enumerate(spec.signature.parameters):
        binary = params[index] if params is not None and index < len(params) else None
        kind = getattr(binary, "kind", None) or "not reported"
        name = getattr(binary, "name", "")
        rows.append((str(index), str(parameter), name, kind, str(parameter.size), str(offsets[index])))
    head = ("#", "declared", "in the text", "class", "bytes", "offset")
    return [f"  {line}" for line in table(head, rows, (0, 4, 5)).splitlines()]
