"""AMD's code object: an ELF whose NT_AMDGPU_METADATA note tells each kernel's parameters and resources.

The note's fields are those of LLVM's "User Guide for AMDGPU Backend", code object V3 and later. The bytes come from
outside, so nothing in them is believed: whatever is wrong ends in one InvalidArgument.
"""

from __future__ import annotations

import importlib
import io
import reprlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from ptxrt.compilers._binary import EntryInfo, ParamInfo, Report, VariableInfo
from ptxrt.errors import BackendUnavailable, InvalidArgument

__all__ = ["CodeObject", "machine_code", "read_code_object"]

_NOTE = 32  # NT_AMDGPU_METADATA
_TRIPLE = "amdgcn-amd-amdhsa--"
_POINTERS = {"global_buffer", "dynamic_shared_pointer"}
# In the order of the names in the note; each is a number where it is there.
_COUNTS = {
    "registers": ".vgpr_count",
    "stack_bytes": ".private_segment_fixed_size",
    "shared_bytes": ".group_segment_fixed_size",
    "scalar_registers": ".sgpr_count",
    "accumulation_registers": ".agpr_count",
    "spilled_registers": ".vgpr_spill_count",
    "spilled_scalar_registers": ".sgpr_spill_count",
    "wave_size": ".wavefront_size",
    "max_threads": ".max_flat_workgroup_size",
    "kernarg_bytes": ".kernarg_segment_size",
}
# What pyelftools raises for bytes that are no ELF, or a damaged one, besides its own ELFError.
_DAMAGED = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError, MemoryError, struct.error)


@dataclass(frozen=True)
class CodeObject:
    """What a code object tells.

    Attributes
    ----------
    target
        The processor with its feature flags, ``"gfx90a:sramecc+:xnack-"``. Flags that do not matter to the code are
        left out by the compiler.
    entries, reports
        By the kernel's name in the binary. Parameters are the declared ones: those that the runtime adds
        (``hidden_*``) are left out.
    variables
        By name, those that the host can find: its types are not told.
    """

    target: str
    entries: dict[str, EntryInfo]
    reports: dict[str, Report]
    variables: dict[str, VariableInfo] = field(default_factory=dict)


def read_code_object(code: bytes) -> CodeObject:
    """Read the metadata of a code object.

    Raises
    ------
    InvalidArgument
        `code` is no code object, or a damaged one.
    BackendUnavailable
        pyelftools or msgpack are not installed.
    """
    unpack = _package("msgpack", "msgpack").unpackb
    try:
        elf = _elf(code)
        notes = [
            note["n_descdata"]
            for segment in elf.iter_segments("PT_NOTE")
            for note in segment.iter_notes()
            if note["n_name"] == "AMDGPU" and note["n_type"] in (_NOTE, "NT_AMDGPU_METADATA")
        ]
        variables = {name: VariableInfo(name) for name in _objects(elf)}
    except _damage() as error:
        raise _wrong(f"one that cannot be read: {_said(error)}") from error
    if len(notes) != 1:
        raise _wrong(f"an ELF with {len(notes)} NT_AMDGPU_METADATA notes")
    try:
        root = unpack(notes[0], strict_map_key=False)
    # Of msgpack's own errors some are ValueErrors, the others UnpackExceptions.
    except (ValueError, TypeError, RecursionError, _package("msgpack", "msgpack").UnpackException) as error:
        raise _wrong(f"metadata that cannot be unpacked: {_said(error)}") from error
    target = _field(root, "amdhsa.target", str, "the metadata")
    entries, reports = {}, {}
    for kernel in _field(root, "amdhsa.kernels", list, "the metadata"):
        name = _field(kernel, ".name", str, "a kernel")
        # A kernel without parameters may have no table.
        table = _field(kernel, ".args", list, name) if isinstance(kernel, dict) and ".args" in kernel else []
        entries[name] = EntryInfo(name, tuple(_params(table, name)))
        counts = {field: _number(kernel, key, name) for field, key in _COUNTS.items() if key in kernel}
        reports[name] = Report(**counts)
    variables = {name: found for name, found in variables.items() if name.removesuffix(".kd") not in entries}
    return CodeObject(target.removeprefix(_TRIPLE), entries, reports, variables)


def machine_code(code: bytes, name: str) -> tuple[int, bytes]:
    """Return a kernel's address in the code object, and its instructions.

    Raises
    ------
    InvalidArgument
        `code` is no code object, or has no such kernel.
    """
    try:
        elf = _elf(code)
        for table in (".symtab", ".dynsym"):
            for symbol in getattr(elf.get_section_by_name(table), "iter_symbols", tuple)():
                if symbol.name == name and symbol["st_info"]["type"] == "STT_FUNC":
                    section = elf.get_section(symbol["st_shndx"])
                    start = symbol["st_value"] - section["sh_addr"]
                    return symbol["st_value"], section.data()[max(start, 0) : start + symbol["st_size"]]
    except _damage() as error:
        raise _wrong(f"one that cannot be read: {_said(error)}") from error
    raise _wrong(f"one without instructions of {name}")


def _objects(elf: Any) -> Iterator[str]:
    """Yield the names of the data that the host can find, the kernels' descriptors among them."""
    for symbol in getattr(elf.get_section_by_name(".dynsym"), "iter_symbols", tuple)():
        here = symbol["st_info"]["type"] == "STT_OBJECT" and symbol["st_shndx"] != "SHN_UNDEF"
        if here and not symbol.name.startswith("__hip_cuid_"):
            yield symbol.name


def _elf(code: bytes) -> Any:
    elf = _package("elftools.elf.elffile", "pyelftools").ELFFile(io.BytesIO(code))
    if elf["e_machine"] != "EM_AMDGPU":
        raise ValueError(f"an ELF for {elf['e_machine']}")
    return elf


def _damage() -> tuple[type[Exception], ...]:
    elftools = _package("elftools.common.exceptions", "pyelftools")
    construct = _package("elftools.construct", "pyelftools")
    return (*_DAMAGED, elftools.ELFError, construct.ConstructError)


def _params(table: list[Any], kernel: str) -> Iterator[ParamInfo]:
    for row in table:
        kind = _field(row, ".value_kind", str, f"a parameter of {kernel}")
        if kind.startswith("hidden_"):
            continue
        offset, size = _number(row, ".offset", kernel), _number(row, ".size", kernel)
        yield ParamInfo(offset, size, _kind(kind, row), _word(row, ".name"))


def _kind(value_kind: str, row: dict[str, Any]) -> Literal["float", "int", "pointer", "bits"] | None:
    if value_kind in _POINTERS:
        return "pointer"
    if value_kind != "by_value":
        return None  # images, samplers, pipes: nothing that a Signature declares
    # Up to code object V3 the compiler wrote a scalar's type down.
    letter = _word(row, ".value_type")[:1]
    return "float" if letter == "f" else "int" if letter in ("i", "u") else "bits"


def _word(row: dict[str, Any], key: str) -> str:
    value = row.get(key)
    return value if isinstance(value, str) else ""


def _number(record: Any, key: str, where: str) -> int:
    value = _field(record, key, int, where)
    if isinstance(value, bool) or not 0 <= value < 1 << 32:
        raise _wrong(f"metadata in which {key} of {where} is {value!r}")
    return int(value)


def _field(record: Any, key: str, kind: type, where: str) -> Any:
    value = record.get(key) if isinstance(record, dict) else None
    if not isinstance(value, kind):
        raise _wrong(f"metadata in which {key} of {where} is {reprlib.repr(value)}")
    return value


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _wrong(given: str) -> InvalidArgument:
    return InvalidArgument(op="code object", argument="code", expected="AMD's code object, V3 or later", given=given)


def _package(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BackendUnavailable(
            f'code object: the package {package} cannot be loaded ({error}). Install it: pip install "ptxrt[hip]"',
            op="code object",
            expected=package,
            given=str(error),
            fix='pip install "ptxrt[hip]"',
        ) from error
