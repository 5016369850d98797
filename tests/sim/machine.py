"""What the tests of the PTX machine have in common: texts with little to write, one call from arrays to a launch."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from ptxrt import sim

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
OLD_HEAD = ".version 7.0\n.target sm_52\n.address_size 64\n"
_CODES = {".u8": "B", ".u16": "H", ".u32": "I", ".u64": "Q", ".s32": "i", ".s64": "q", ".f32": "f", ".f64": "d",
          ".b32": "I", ".b64": "Q"}  # fmt: skip


def kernel(body: str, params: str = ".param .u64 out", head: str = HEAD, module: str = "") -> str:
    """Return the text of an entry k with this body."""
    return f"{head}{module}\n.visible .entry k({params})\n{{\n{body}\nret;\n}}\n"


def run(
    text: str,
    *args: Any,
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (32, 1, 1),
    memory: sim.GlobalMemory | None = None,
    entry: str = "k",
    **options: Any,
) -> sim.LaunchReport:
    """Run an entry; arrays are mapped without a copy, so that results are seen in them.

    The checks that cost time are made where `options` names them.
    """
    options.setdefault("checks", ())
    program = sim.parse(text)
    memory = memory or sim.GlobalMemory()
    loaded = sim.load(program, memory)
    found = program.entries[entry]
    buffer = bytearray(found.params_bytes)
    adopted = []
    for param, value in zip(found.params, args, strict=True):
        number = value
        if isinstance(value, np.ndarray):
            number = memory.adopt(value, param.name)
            adopted.append(number)
        packed = number if isinstance(number, bytes) else struct.pack("<" + _CODES[param.type], number)
        buffer[param.offset : param.offset + len(packed)] = packed
    try:
        return sim.launch(loaded, entry, grid, block, bytes(buffer), **options)
    finally:
        for address in adopted:
            memory.free(address)
        sim.unload(loaded)


def apply(code: str, result: str, *inputs: np.ndarray, types: tuple[str, ...], head: str = HEAD) -> np.ndarray:
    """Run `code` on one thread an element and return the bytes of the results.

    Registers a, b, c come from `inputs`, register d goes to the result; q and r are predicates to use. `result` and
    `types` are PTX types without the dot; halves are moved as .b16.
    """
    params = [".param .u64 out", ".param .u32 count"]
    lines = [
        f".reg .u32 t, n, u; .reg .u64 p, o; .reg .pred q, r; .reg .{_register(result)} d;",
        "mov.u32 t, %tid.x; mov.u32 n, %ntid.x; mov.u32 u, %ctaid.x; mad.lo.u32 t, u, n, t;",
        "ld.param.u32 n, [count]; setp.ge.u32 q, t, n; @q bra DONE;",
    ]
    for name, kind in zip("abc", types, strict=False):
        params.append(f".param .u64 in_{name}")
        lines += [
            f".reg .{_register(kind)} {name};",
            f"ld.param.u64 p, [in_{name}]; mul.wide.u32 o, t, {_size(kind)}; add.u64 p, p, o;",
            f"ld.global.{_moved(kind)} {name}, [p];",
        ]
    lines += [
        code,
        f"ld.param.u64 p, [out]; mul.wide.u32 o, t, {_size(result)}; add.u64 p, p, o;",
        f"st.global.{_moved(result)} [p], d;",
        "DONE:",
    ]
    count = max(len(x) for x in inputs)
    out = np.zeros(count * _size(result), np.uint8)
    arrays = [np.ascontiguousarray(x) for x in inputs]
    text = kernel("\n".join(lines), ", ".join(params), head)
    run(text, out, count, *arrays, grid=((count + 127) // 128, 1, 1), block=(128, 1, 1))
    return out


def _size(kind: str) -> int:
    return int("".join(c for c in kind if c.isdigit())) // 8


def _register(kind: str) -> str:
    return {"f16": "b16", "bf16": "b16", "u8": "u16", "s8": "s16", "pred": "pred"}.get(kind, kind)


def _moved(kind: str) -> str:
    return {"f16": "b16", "bf16": "b16"}.get(kind, kind)
