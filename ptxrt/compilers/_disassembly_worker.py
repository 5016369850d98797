"""The process in which LLVM disassembles. A script: it reads a request from its standard input, and prints lines."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import struct
import sys
from typing import Any

__all__: list[str] = []

# ROCm's builds of zlib and zstd. The package's LLVM is linked with them but does not bring them along.
_COMPANIONS = ("librocm_sysdeps_z.so.1", "librocm_sysdeps_zstd.so.1")
_LONGEST = 256  # bytes of an instruction's text


def main() -> None:
    """Disassemble what standard input asks for."""
    request = json.load(sys.stdin)
    code, at = bytes.fromhex(request["code"]), 0
    disassembler = _llvm()
    context = disassembler.LLVMCreateDisasmCPUFeatures(
        b"amdgcn-amd-amdhsa", request["processor"].encode(), request["features"].encode(), None, 0, None, None
    )
    text = bytearray(_LONGEST)
    while at < len(code):
        where = request["address"] + at
        size = disassembler.LLVMDisasmInstruction(context, code[at:], len(code) - at, where, text, _LONGEST)
        words = text.partition(b"\0")[0].decode("ascii", "replace").strip().replace("\t", " ")
        if not size:
            size, words = 4, f".long 0x{int.from_bytes(code[at : at + 4], 'little'):08x}"
        print(f"{where:08x}  {words}")
        at += size


def _llvm() -> Any:
    """Return the bindings, with AMD's disassembler ready."""
    # No abspath: it wants a current folder, and that may have been removed.
    sys.path[:] = [folder for folder in sys.path if folder != os.path.dirname(__file__)]
    package = "rocm.bindings.llvm.c"
    try:
        importlib.import_module(f"{package}.disassembler")
    except ImportError as error:
        if not any(companion in str(error) for companion in _COMPANIONS):
            raise
        # Only where ROCm is installed are they found. A disassembler compresses nothing, so libraries of these names
        # without any function do, if functions are looked for at their first call and not before.
        sys.setdlopenflags(os.RTLD_LAZY)
        for companion in _COMPANIONS:
            _load(_empty_library(companion), companion)
    target = importlib.import_module(f"{package}.target")
    for what in ("TargetInfos", "TargetMCs", "Disassemblers"):
        getattr(target, f"LLVMInitializeAll{what}")()
    return importlib.import_module(f"{package}.disassembler")


def _load(library: bytes, name: str) -> None:
    # The file stays open: the loader takes two files of one path for the same.
    file = os.memfd_create(name)
    os.write(file, library)
    ctypes.CDLL(f"/proc/self/fd/{file}")


def _empty_library(name: str) -> bytes:
    """Return an ELF shared object for x86-64 that has a name and nothing else."""
    names = b"\0" + name.encode() + b"\0"
    names += b"\0" * (-len(names) % 8)
    dynamic = 64 + 2 * 56  # behind the header and two program headers
    strings = dynamic + 6 * 16
    symbols = strings + len(names)
    size = symbols + 24
    # DT_SONAME, DT_STRTAB, DT_STRSZ, DT_SYMTAB, DT_SYMENT, DT_NULL
    entries = ((14, 1), (5, strings), (10, len(names)), (6, symbols), (11, 24), (0, 0))
    header = b"\x7fELF\2\1\1".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0
    )
    load = struct.pack("<IIQQQQQQ", 1, 6, 0, 0, 0, size, size, 4096)
    where = struct.pack("<IIQQQQQQ", 2, 6, dynamic, dynamic, dynamic, 96, 96, 8)
    table = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    return header + load + where + table + names + b"\0" * 24


if __name__ == "__main__":
    main()
