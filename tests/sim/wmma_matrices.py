"""Matrices of wmma for its tests: which lane holds what, as memory has them, and launches that load them."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from machine import kernel

import ptxrt
from ptxrt import Device, KernelSource

Form = tuple[str, str, str]

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "f64": 64, "u8": 8, "s8": 8, "u4": 4, "s4": 4, "b1": 1, "s32": 32}
WIDE = ("m16n16k16", "m32n8k16", "m8n32k16")

FORMS: dict[Form, str] = {
    **{("a", "m16n16k16", kind): "right: 0,0 8,0 0,8 8,8" for kind in ("f16", "bf16")},
    **{("b", "m16n16k16", kind): "down: 0,0 8,0 0,8 8,8" for kind in ("f16", "bf16")},
    **{("a", "m32n8k16", kind): "right: 0,0 8,0 0,8 8,8 16,0 24,0 16,8 24,8" for kind in ("f16", "bf16")},
    **{("b", "m32n8k16", kind): "down: 0,0 8,0" for kind in ("f16", "bf16")},
    **{("a", "m8n32k16", kind): "right: 0,0 0,8" for kind in ("f16", "bf16")},
    **{("b", "m8n32k16", kind): "down: 0,0 0,8 8,0 8,8 0,16 0,24 8,16 8,24" for kind in ("f16", "bf16")},
    **{("a", "m16n16k16", kind): "right: 0,0 8,0" for kind in ("u8", "s8")},
    **{("b", "m16n16k16", kind): "down: 0,0 0,8" for kind in ("u8", "s8")},
    **{("a", "m32n8k16", kind): "right: 0,0 8,0 16,0 24,0" for kind in ("u8", "s8")},
    **{("b", "m32n8k16", kind): "down: 0,0" for kind in ("u8", "s8")},
    **{("a", "m8n32k16", kind): "right: 0,0" for kind in ("u8", "s8")},
    **{("b", "m8n32k16", kind): "down: 0,0 0,8 0,16 0,24" for kind in ("u8", "s8")},
    ("a", "m16n16k8", "tf32"): "right: 0,0 8,0 0,4 8,4",
    ("b", "m16n16k8", "tf32"): "down: 0,0 4,0 0,8 4,8",
    ("a", "m8n8k4", "f64"): "right: 0,0",
    ("b", "m8n8k4", "f64"): "down: 0,0",
    **{("a", "m8n8k32", kind): "right: 0,0" for kind in ("u4", "s4")},
    **{("b", "m8n8k32", kind): "down: 0,0" for kind in ("u4", "s4")},
    ("a", "m8n8k128", "b1"): "right: 0,0",
    ("b", "m8n8k128", "b1"): "down: 0,0",
    ("c", "m16n16k16", "f16"): "right: 0,0 8,0 0,8 8,8",
    ("c", "m32n8k16", "f16"): "right: 0,0 8,0 16,0 24,0",
    ("c", "m8n32k16", "f16"): "down: 0,0 0,8 0,16 0,24",
    **{("c", "m16n16k16", kind): "right: 0,0 0,1 8,0 8,1 0,8 0,9 8,8 8,9" for kind in ("f32", "s32")},
    **{("c", "m32n8k16", kind): "right: 0,0 0,1 8,0 8,1 16,0 16,1 24,0 24,1" for kind in ("f32", "s32")},
    **{("c", "m8n32k16", kind): "down: 0,0 1,0 0,8 1,8 0,16 1,16 0,24 1,24" for kind in ("f32", "s32")},
    ("c", "m16n16k8", "f32"): "right: 0,0 0,1 8,0 8,1 0,8 0,9 8,8 8,9",
    ("c", "m8n8k4", "f64"): "right: 0,0 0,1",
    **{("c", shape, "s32"): "right: 0,0 0,1" for shape in ("m8n8k32", "m8n8k128")},
}
"""By matrix, shape and type: row and column of the first element of each register of lane 0, from sm_80 on.

Where it says right, the further elements of a register are the next columns, and lane 4 i + j begins i rows below
lane 0 and j steps beside it; where it says down, rows and columns change parts. The eight registers of a and b of .f16
repeat what is here. This is the one place to mend if a GPU differs.
"""

OLDER = {("c", "m8n32k16", "s32"): "right: 0,0 0,1 0,8 0,9 0,16 0,17 0,24 0,25"}
"""What is different on sm_75."""

VOLTA: dict[tuple[str, str, str, str], dict[int, str]] = {
    ("a", "m16n16k16", "f16", "row"): {1: "1,0 1,1 1,2 1,3", 4: "8,0 8,1 8,2 8,3", 8: "0,0 0,1", 16: "4,0 4,1"},
    ("a", "m16n16k16", "f16", "col"): {1: "0,1 1,1 2,1 3,1 0,5 1,5", 4: "8,0 9,0", 8: "0,0 1,0", 16: "4,0 5,0"},
    ("b", "m16n16k16", "f16", "row"): {1: "1,0 1,1 1,2 1,3 5,0 5,1", 4: "0,0 0,1", 8: "0,8 0,9", 16: "0,4 0,5"},
    ("b", "m16n16k16", "f16", "col"): {1: "0,1 1,1 2,1 3,1 4,1 5,1", 4: "0,0 1,0", 8: "0,8 1,8", 16: "0,4 1,4"},
    ("c", "m16n16k16", "f16", "row"): {1: "1,0 1,1 1,2 1,3 1,4", 4: "8,0 8,1", 8: "0,8 0,9", 16: "4,0 4,1"},
    ("c", "m16n16k16", "f16", "col"): {1: "1,0 1,1 1,2 1,3 1,4", 4: "8,0 8,1", 8: "0,8 0,9", 16: "4,0 4,1"},
    ("c", "m16n16k16", "f32", "row"): {1: "1,0 1,1 3,0 3,1 1,4 1,5 3,4 3,5", 2: "0,2 0,3 2,2 2,3", 16: "4,0 4,1"},
    ("c", "m16n16k16", "f32", "col"): {1: "1,0 1,1 3,0 3,1 1,4 1,5 3,4 3,5", 2: "0,2 0,3 2,2 2,3", 16: "4,0 4,1"},
    ("a", "m32n8k16", "f16", "row"): {0: "0,0 0,1", 4: "8,0 8,1", 8: "16,0 16,1", 12: "24,0 24,1", 16: "4,0 4,1"},
    ("b", "m32n8k16", "f16", "col"): {0: "0,0 1,0", 4: "0,0 1,0", 8: "0,0 1,0", 12: "0,0 1,0", 17: "0,5 1,5"},
    ("c", "m32n8k16", "f32", "row"): {0: "0,0 0,1 2,0", 4: "8,0 8,1", 8: "16,0 16,1", 12: "24,0 24,1", 16: "4,0 4,1"},
    ("a", "m8n32k16", "f16", "col"): {0: "0,0 1,0", 4: "0,0 1,0", 8: "0,0 1,0", 12: "0,0 1,0", 17: "4,1 5,1"},
    ("b", "m8n32k16", "f16", "row"): {0: "0,0 0,1", 4: "0,8 0,9", 8: "0,16 0,17", 12: "0,24 0,25", 16: "0,4 0,5"},
    ("c", "m8n32k16", "f16", "row"): {0: "0,0 0,1 0,2", 4: "0,8 0,9", 8: "0,16 0,17", 12: "0,24 0,25", 16: "4,0 4,1"},
}
"""On sm_70: row and column of the first elements of some lanes."""


def sizes(shape: str) -> tuple[int, int, int]:
    m, n, k = map(int, re.findall("[0-9]+", shape))
    return m, n, k


def extent(role: str, shape: str) -> tuple[int, int]:
    m, n, k = sizes(shape)
    return {"a": (m, k), "b": (k, n)}.get(role, (m, n))


def orders(role: str, kind: str) -> tuple[str, ...]:
    """Return the layouts that there are."""
    if BITS[kind] < 8 and role in "ab":
        return ("row",) if role == "a" else ("col",)
    return "row", "col"


def places(form: Form, table: str) -> tuple[np.ndarray, np.ndarray]:
    """Return row and column at each (register, lane, part), as the table says."""
    role, _, kind = form
    way, *words = table.split()
    first = np.array([word.split(",") for word in words], np.int64)[:, None, None]
    lane = np.arange(32)[:, None]
    parts = max(32 // BITS[kind], 1)
    step = 2 if role == "c" else parts
    inner, outer = lane % 4 * step + np.arange(parts), lane // 4
    rows, columns = (outer, inner) if way == "right:" else (inner, outer)
    rows, columns = np.broadcast_arrays(first[..., 0] + rows, first[..., 1] + columns)
    copies = 8 // len(words) if kind == "f16" and role in "ab" else 1
    return np.tile(rows, (copies, 1, 1)), np.tile(columns, (copies, 1, 1))


def names(prefix: str, count: int) -> str:
    return "{" + ", ".join(f"{prefix}{place}" for place in range(count)) + "}"


def count_of(form: Form) -> int:
    """Return how many registers a lane has."""
    role, shape, kind = form
    rows, columns = extent(role, shape)
    return 8 if kind == "f16" and role in "ab" else rows * columns * BITS[kind] // 32 // (64 if kind == "f64" else 32)


def packed(matrix: np.ndarray, kind: str, order: str, stride: int) -> np.ndarray:
    """Return a matrix of raw bits as memory has it, row by row or column by column, as 32-bit words; gaps are ones."""
    bits = BITS[kind]
    lines = matrix if order == "row" else matrix.T
    held = np.full((len(lines), stride), (1 << bits) - 1, np.uint64)
    held[:, : lines.shape[1]] = lines
    raw = (held.reshape(-1, 1) >> np.arange(bits, dtype=np.uint64) & np.uint64(1)).astype(np.uint8)
    return np.packbits(raw.ravel(), bitorder="little").view(np.uint32)


def unpacked(memory: np.ndarray, form: Form, order: str, stride: int) -> np.ndarray:
    """Return what memory has at the matrix's elements, as raw bits."""
    role, shape, kind = form
    rows, columns = extent(role, shape)
    lines, length = (rows, columns) if order == "row" else (columns, rows)
    held = memory.view(f"u{BITS[kind] // 8}").reshape(-1, stride)[:lines, :length].astype(np.uint64)
    return held if order == "row" else held.T


def distinct(form: Form) -> np.ndarray:
    """Return a matrix of raw bits, as different as so many bits can be; 0 and 1 of .b1 in no order."""
    role, shape, kind = form
    rows, columns = extent(role, shape)
    numbers = np.arange(rows * columns, dtype=np.uint64).reshape(rows, columns)
    drawn = np.random.default_rng(5).integers(0, 1 << min(BITS[kind], 32), (rows, columns), np.uint64)
    return drawn if BITS[kind] < 8 else numbers & np.uint64((1 << BITS[kind]) - 1)


HEADS = {70: ".version 6.3\n.target sm_70\n", 75: ".version 6.3\n.target sm_75\n", 80: ".version 7.1\n.target sm_80\n"}


def head_for(shape: str, *kinds: str) -> str:
    """Return the head of a text with elements of these types, for the oldest target that has them."""
    newest = max(
        80 if kind in ("bf16", "f64") or shape == "m16n16k8" else 75 if kind[0] in "usb" else 70 for kind in kinds
    )
    return HEADS[newest] + ".address_size 64\n"


REGISTERS = ".reg .b32 t, u, s, q<32>; .reg .b64 x, y, z, w, h<32>; .shared .align 128 .b8 tile[8192];" \
    "mov.u32 t, %tid.x;\n"  # fmt: skip


def prefix(kind: str) -> str:
    return "h" if kind == "f64" else "q"


def launch(device: Device, body: str, arrays: list[np.ndarray], out: int, head: str) -> np.ndarray:
    """Run one warp with arrays of 32-bit words and return so many more."""
    if device.kind == "cuda" and int("".join(filter(str.isdigit, device.arch))) < 80:
        pytest.skip("fragments of this architecture have no table")
    params = [f"p{place}" for place in range(len(arrays))] + ["out"]
    text = kernel(REGISTERS + body, ", ".join(f".param .u64 {name}" for name in params), head)
    given = [ptxrt.to_device(array, device) for array in arrays]
    result = ptxrt.zeros(out, np.uint32, device=device)
    signature = ", ".join([*(f"const u32* {name}" for name in params[:-1]), "u32* out"])
    ptxrt.load(KernelSource.ptx(text), "k", signature, device).launch(1, 32, *given, result)
    return np.asarray(result.to_host())


def fragments_of(device: Device, form: Form, order: str, stride: int | None = None) -> np.ndarray:
    """Return the registers (register, lane) that a load fills, as 32-bit words (register, lane, word)."""
    role, shape, kind = form
    rows, columns = extent(role, shape)
    wide = stride or (columns if order == "row" else rows)
    count, words = count_of(form), 2 if kind == "f64" else 1
    say = "" if stride is None else f", {stride}"
    size = 4 * words
    body = "ld.param.u64 x, [p0]; ld.param.u64 y, [out];" \
        f"wmma.load.{role}.sync.aligned.{order}.{shape}.global.{kind} {names(prefix(kind), count)}, [x]{say};" \
        f"mad.wide.u32 y, t, {size}, y;" + "".join(
            f"st.global.b{8 * size} [y+{32 * size * place}], {prefix(kind)}{place};" for place in range(count)
        )  # fmt: skip
    memory = packed(distinct(form), kind, order, wide)
    return launch(device, body, [memory], 32 * words * count, head_for(shape, kind)).reshape(count, 32, words)


def expected(form: Form, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the registers, as 32-bit words, that have the elements of these rows and columns."""
    kind = form[2]
    elements = distinct(form)[rows, columns]
    words = (elements << (np.arange(elements.shape[-1], dtype=np.uint64) * np.uint64(BITS[kind] % 64))).sum(-1)
    return np.asarray(words.astype(np.uint64 if kind == "f64" else np.uint32)[..., None].view(np.uint32))


DTYPES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "f32": np.float32,
                          "f64": np.float64, "s32": np.int32, "u8": np.uint8, "s8": np.int8}  # fmt: skip


def raw(values: np.ndarray, kind: str) -> np.ndarray:
    """Return the bits of values, cut to the width of the type."""
    if kind not in DTYPES:
        return np.asarray(values.astype(np.int64).view(np.uint64) & np.uint64((1 << BITS[kind]) - 1))
    return np.asarray(values.astype(DTYPES[kind]).view(f"u{BITS[kind] // 8}").astype(np.uint64))
