"""AMD code objects, written field by field, so that no test of what they say needs a compiler."""

from __future__ import annotations

import struct

import pytest

msgpack = pytest.importorskip("msgpack")
pytest.importorskip("elftools")

CODE = bytes(range(16))
KERNEL = {
    ".name": "scale",
    ".symbol": "scale.kd",
    ".args": [
        {".offset": 0, ".size": 8, ".value_kind": "global_buffer", ".name": "x"},
        {".offset": 8, ".size": 4, ".value_kind": "by_value"},
        {".offset": 16, ".size": 16, ".value_kind": "by_value", ".value_type": "struct"},
        {".offset": 32, ".size": 4, ".value_kind": "hidden_block_count_x"},
    ],
    ".kernarg_segment_size": 288,
    ".group_segment_fixed_size": 256,
    ".private_segment_fixed_size": 48,
    ".vgpr_count": 57,
    ".agpr_count": 3,
    ".sgpr_count": 38,
    ".vgpr_spill_count": 2,
    ".sgpr_spill_count": 1,
    ".wavefront_size": 64,
    ".max_flat_workgroup_size": 256,
}
METADATA = {"amdhsa.kernels": [KERNEL], "amdhsa.target": "amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-"}


def note(description: bytes, kind: int = 32, name: bytes = b"AMDGPU\0") -> bytes:
    padded = name + b"\0" * (-len(name) % 4) + description + b"\0" * (-len(description) % 4)
    return struct.pack("<III", len(name), len(description), kind) + padded


def elf(notes: bytes, machine: int = 224) -> bytes:
    """An ELF with one PT_NOTE segment, a .text of CODE at 0x1000, and a symbol table that names parts of it."""
    names = b"\0.text\0.symtab\0.strtab\0"
    strings = b"\0scale\0data\0"
    symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 2, 0, 1, 0x1004, 8) + struct.pack("<IBBHQQ", 7, 1, 0, 1, 0x1000, 4)
    parts = {"notes": notes, "code": CODE, "symbols": symbols, "strings": strings, "names": names}
    offsets, body, at = {}, b"", 64 + 56
    for key, part in parts.items():
        offsets[key] = at + len(body)
        body += part + b"\0" * (-len(part) % 8)
    sections = [
        bytes(64),
        struct.pack("<IIQQQQIIQQ", 1, 1, 6, 0x1000, offsets["code"], len(CODE), 0, 0, 4, 0),
        struct.pack("<IIQQQQIIQQ", 7, 2, 0, 0, offsets["symbols"], len(symbols), 3, 1, 8, 24),
        struct.pack("<IIQQQQIIQQ", 15, 3, 0, 0, offsets["strings"], len(strings), 0, 0, 1, 0),
        struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, offsets["names"], len(names), 0, 0, 1, 0),
    ]
    header = b"\x7fELF\2\1\1\x40\4".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, at + len(body), 0, 64, 56, 1, 64, len(sections), 4
    )
    segment = struct.pack("<IIQQQQQQ", 4, 4, offsets["notes"], 0, 0, len(notes), len(notes), 4)
    return header + segment + body + b"".join(sections)


def code_object(metadata: object = METADATA) -> bytes:
    return elf(note(msgpack.packb(metadata)))
