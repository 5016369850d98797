"""wmma: products against NumPy and bit for bit; the faults of what the lanes move; what is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from machine import kernel, run
from wmma_matrices import (
    BITS,
    HEADS,
    REGISTERS,
    WIDE,
    count_of,
    extent,
    head_for,
    launch,
    names,
    orders,
    packed,
    prefix,
    raw,
    sizes,
    unpacked,
)

import ptxrt
from ptxrt import Device, KernelSource, sim
from ptxrt.backends import sim as sim_backend
from ptxrt.errors import CompileError, DataRace, Deadlock, MemoryFault, SimFault, Unsupported
from ptxrt.sim._instructions.tensor_cores import Kinds, multiply_add

Patch = pytest.MonkeyPatch


def product(device: Device, shape: str, kinds: Kinds, first: str, second: str, a: Any, b: Any, c: Any,
            more: str = "") -> np.ndarray:  # fmt: skip
    """Return d of matrices of raw bits, as raw bits; a and b lie as `first` and `second` say."""
    forms = {"a": ("a", shape, kinds.a), "b": ("b", shape, kinds.a), "c": ("c", shape, kinds.c)}
    d = ("c", shape, kinds.d)
    body, starts = "ld.param.u64 y, [out];", {"a": 0, "b": 8, "c": 16}
    lists = {}
    for place, (role, order) in enumerate((("a", first), ("b", second), ("c", "row"))):
        form = forms[role]
        letter = prefix(form[2])
        lists[role] = "{" + ", ".join(f"{letter}{starts[role] + at}" for at in range(count_of(form))) + "}"
        body += f"ld.param.u64 x, [p{place}];" \
            f"wmma.load.{role}.sync.aligned.{order}.{shape}.global.{form[2]} {lists[role]}, [x];"  # fmt: skip
    to = "{" + ", ".join(f"{prefix(kinds.d)}{24 + at}" for at in range(count_of(d))) + "}"
    types = f"{kinds.d}.{kinds.c}" if kinds.a == "f16" else f"{kinds.d}.{kinds.a}.{kinds.b}.{kinds.c}"
    operation = f".{kinds.operation}.popc" if kinds.operation else ""
    body += f"wmma.mma{operation}.sync.aligned.{first}.{second}.{shape}{more}.{types} " \
        f"{to}, {lists['a']}, {lists['b']}, {lists['c']};" \
        f"wmma.store.d.sync.aligned.row.{shape}.global.{kinds.d} [y], {to};"  # fmt: skip
    arrays = []
    for role, bits, order in (("a", a, first), ("b", b, second), ("c", c, "row")):
        rows, columns = extent(role, shape)
        arrays.append(packed(bits, forms[role][2], order, columns if order == "row" else rows))
    rows, columns = extent("c", shape)
    head = head_for(shape, kinds.a, kinds.c) if kinds.operation != "and" else HEADS[80] + ".address_size 64\n"
    got = launch(device, body, arrays, rows * columns * BITS[kinds.d] // 32, head)
    return unpacked(got, d, "row", columns)


PRODUCTS: dict[str, tuple[tuple[str, ...], tuple[tuple[str, str], ...]]] = {
    "f16": (WIDE, (("f32", "f32"), ("f16", "f16"), ("f16", "f32"), ("f32", "f16"))),
    "bf16": (WIDE, (("f32", "f32"),)),
    "tf32": (("m16n16k8",), (("f32", "f32"),)),
    "f64": (("m8n8k4",), (("f64", "f64"),)),
    **dict.fromkeys(("u8", "s8"), (WIDE, (("s32", "s32"),))),
    **dict.fromkeys(("u4", "s4"), (("m8n8k32",), (("s32", "s32"),))),
    "b1": (("m8n8k128",), (("s32", "s32"),)),
}
RANGES = {"u8": (0, 256), "s8": (-128, 128), "u4": (0, 16), "s4": (-8, 8), "b1": (0, 2)}
EVERY = [(shape, kind, *pair) for kind, (shapes, pairs) in PRODUCTS.items() for shape in shapes for pair in pairs]


def whole_numbers(shape: str, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a, b and c of whole numbers, of which every sum is exact."""
    drawn = np.random.default_rng(3)
    m, n, k = sizes(shape)
    low, high = RANGES.get(kind, (-5, 6))
    return drawn.integers(low, high, (m, k)), drawn.integers(low, high, (k, n)), drawn.integers(-500, 500, (m, n))


@pytest.mark.ptx
@pytest.mark.parametrize(("shape", "kind", "d", "c"), EVERY)
def test_products_of_whole_numbers(device: Device, shape: str, kind: str, d: str, c: str) -> None:
    a, b, sums = whole_numbers(shape, kind)
    wanted = a @ b + sums
    operation = "and" if kind == "b1" else ""
    for first in orders("a", kind):
        for second in orders("b", kind):
            got = product(device, shape, Kinds(d, kind, kind, c, operation=operation), first, second, raw(a, kind),
                          raw(b, kind), raw(sums, c))  # fmt: skip
            np.testing.assert_array_equal(got, raw(wanted, d), f"{first}.{second}")


@pytest.mark.parametrize("arch", ["sm_70", "sm_75", "sm_80"])
def test_products_of_whole_numbers_on_other_architectures(arch: str, monkeypatch: Patch) -> None:
    monkeypatch.setitem(sim_backend.BACKEND._archs, 0, arch)
    for shape, kind, d, c in EVERY:
        if kind == "b1" or int(re.findall("sm_([0-9]+)", head_for(shape, kind))[0]) > int(arch[3:]):
            continue
        test_products_of_whole_numbers(Device("sim:0"), shape, kind, d, c)


@pytest.mark.ptx
def test_xor_of_bits(device: Device) -> None:
    a, b, sums = whole_numbers("m8n8k128", "b1")
    wanted = (a[:, :, None] ^ b[None]).sum(1) + sums
    got = product(device, "m8n8k128", Kinds("s32", "b1", "b1", "s32", operation="xor"), "row", "col", raw(a, "b1"),
                  raw(b, "b1"), raw(sums, "s32"))  # fmt: skip
    np.testing.assert_array_equal(got, raw(wanted, "s32"))


@pytest.mark.ptx
@pytest.mark.parametrize(("shape", "kind"), [("m16n16k16", "u8"), ("m8n32k16", "s8"), ("m8n8k32", "s4"),
                                             ("m8n8k32", "u4")])  # fmt: skip
@pytest.mark.parametrize("end", [-(1 << 31), (1 << 31) - 1])
def test_sums_of_integers_wrap_or_saturate(device: Device, shape: str, kind: str, end: int) -> None:
    a, b, _ = whole_numbers(shape, kind)
    exact = a @ b + end
    sums = np.full(exact.shape, end)
    assert (exact != np.clip(exact, -(1 << 31), (1 << 31) - 1)).any() or (kind[0] == "u" and end < 0)
    for more, wanted in (("", exact), (".satfinite", np.clip(exact, -(1 << 31), (1 << 31) - 1))):
        got = product(device, shape, Kinds("s32", kind, kind, "s32"), "row", "col", raw(a, kind), raw(b, kind),
                      raw(sums, "s32"), more)  # fmt: skip
        np.testing.assert_array_equal(got, (wanted & 0xFFFFFFFF).astype(np.uint64))


def drawn_floats(shape: str, kind: str, c: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a, b and c of mixed magnitudes, with zeros, infinities and NaN in some rows."""
    drawn = np.random.default_rng(11)
    m, n, k = sizes(shape)

    def some(rows: int, columns: int) -> np.ndarray:
        return drawn.standard_normal((rows, columns)) * 2.0 ** drawn.integers(-6, 7, (rows, columns))

    a, b, sums = some(m, k), some(k, n), some(m, n)
    a[1, :3], a[2, 1], a[3, 0], sums[4, 0], sums[5, 1] = 0, np.inf, np.nan, -np.inf, np.nan
    sums[6] *= 2.0**20 if c != "f16" else 2.0**8
    # Between two numbers of f16, and a little more than f32 holds.
    a[7], a[7, 0], b[0, 0], sums[7, 0] = 0, 2.0**-12, 2.0**-13, 1 + 2.0**-11
    return a, b, sums


@pytest.mark.ptx
@pytest.mark.parametrize(("shape", "kind", "d", "c"), [one for one in EVERY if one[1] not in RANGES])
def test_products_of_floats_bit_for_bit(device: Device, shape: str, kind: str, d: str, c: str) -> None:
    """Sums of different types go by way of f32, and .tf32 is added in two steps."""
    a, b, sums = (raw(x, of) for x, of in zip(drawn_floats(shape, kind, c), (kind, kind, c), strict=True))
    got = product(device, shape, Kinds(d, kind, kind, c), "row", "col", a, b, sums)
    word = np.dtype(f"u{BITS[kind] // 8}")
    x, y, z = a.astype(word)[None], b.astype(word)[None], sums.astype(f"u{BITS[c] // 8}")[None]
    arch = int("".join(filter(str.isdigit, device.arch)))
    with np.errstate(all="ignore"):
        wanted = reference(Kinds(d, kind, kind, c), x, y, z, arch)
    np.testing.assert_array_equal(got, wanted.astype(np.uint64))


def reference(kinds: Kinds, x: np.ndarray, y: np.ndarray, z: np.ndarray, arch: int) -> np.ndarray:
    """Return d of one product, put together as ptxas does it."""
    kind, d, c = kinds.a, kinds.d, kinds.c
    if kind == "tf32":
        half = multiply_add(Kinds("f32", kind, kind, "f32"), x[..., :4], y[:, :4], z, arch)
        return np.asarray(multiply_add(Kinds("f32", kind, kind, "f32"), x[..., 4:], y[:, 4:], half, arch)[0])
    if d == c:
        return np.asarray(multiply_add(kinds, x, y, z, arch)[0])
    start = z if c == "f32" else z.view(np.float16).astype(np.float32).view(np.uint32)
    wanted = multiply_add(Kinds("f32", kind, kind, "f32"), x, y, start, arch)[0]
    if d == "f32":
        return np.asarray(wanted)
    halves = wanted.view(np.float32).astype(np.float16)
    return np.asarray(np.where(np.isnan(halves), np.uint16(0x7FFF), halves.view(np.uint16)))


@pytest.mark.ptx
@pytest.mark.parametrize("rounding", ["rn", "rz", "rm", "rp"])
def test_f64_rounds_as_it_says(device: Device, rounding: str) -> None:
    a, b, sums = np.zeros((8, 4)), np.zeros((4, 8)), np.full((8, 8), 1.0)
    a[:, 2], b[2] = 2.0**-53 * 1.5, np.where(np.arange(8) % 2, 1.0, -0.25)
    wanted = {
        "rn": (1 + 2.0**-52, 1.0),
        "rz": (1.0, 1 - 2.0**-53),
        "rm": (1.0, 1 - 2.0**-53),
        "rp": (1 + 2.0**-52, 1.0),
    }[rounding]
    got = product(device, "m8n8k4", Kinds("f64", "f64", "f64", "f64"), "row", "col", raw(a, "f64"), raw(b, "f64"),
                  raw(sums, "f64"), f".{rounding}")  # fmt: skip
    assert got.view(np.float64)[0, :2].tolist() == [wanted[1], wanted[0]]


@pytest.mark.ptx
def test_an_accumulator_is_worked_on_element_by_element(device: Device) -> None:
    """Scaled and shifted as epilogues do it, through registers that nobody says where they are."""
    a, b, _ = whole_numbers("m16n16k16", "f16")
    epilogue = "".join(f"fma.rn.f32 q{at}, q{at}, 0f40000000, 0f3F800000;" for at in range(24, 32))
    body = "ld.param.u64 y, [out]; ld.param.u64 x, [p0];" \
        f"wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {names('q', 8)}, [x]; ld.param.u64 x, [p1];" \
        "wmma.load.b.sync.aligned.col.m16n16k16.global.f16 {q8,q9,q10,q11,q12,q13,q14,q15}, [x];" \
        "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {q24,q25,q26,q27,q28,q29,q30,q31}, " \
        f"{names('q', 8)}, {{q8,q9,q10,q11,q12,q13,q14,q15}}, {{0f00000000,0f00000000,0f00000000,0f00000000," \
        f"0f00000000,0f00000000,0f00000000,0f00000000}};{epilogue}" \
        "wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [y], {q24,q25,q26,q27,q28,q29,q30,q31};"  # fmt: skip
    arrays = [packed(raw(a, "f16"), "f16", "row", 16), packed(raw(b, "f16"), "f16", "col", 16)]
    got = launch(device, body, arrays, 256, head_for("", "f16"))
    np.testing.assert_array_equal(got.view(np.float32).reshape(16, 16), a @ b * 2 + 1)


# -- faults --------------------------------------------------------------------------------------------------------

PARAMS = ".param .u64 in, .param .u64 out"
NEW = ".version 7.8\n.target sm_90\n.address_size 64\n"
OPEN = REGISTERS + ".reg .pred p; ld.param.u64 x, [in]; ld.param.u64 y, [out];\n"
LOAD_A = f"wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {names('q', 8)}, [x], 24;\n"


def store(space: str, at: str) -> str:
    return f"wmma.store.d.sync.aligned.row.m16n16k16.{space}.f32 [{at}], {names('q', 8)}, 16;\n"


def on_sim(body: str, x: np.ndarray, y: np.ndarray, threads: int = 32, head: str = NEW, **options: Any) -> Any:
    return run(kernel(OPEN + body, PARAMS, head), x, y, block=(threads, 1, 1), **options)


def test_rows_outside_of_an_array() -> None:
    y = np.zeros(256, np.float32)
    on_sim(LOAD_A, np.zeros(15 * 24 + 16, np.uint16), y)
    with pytest.raises(MemoryFault, match=r"read of 4 bytes (outside every allocation|across the end)") as caught:
        on_sim(LOAD_A, np.zeros(15 * 24 + 14, np.uint16), y)
    # Row 15 is that of the last lanes' second register; its last columns are lane 31's.
    assert caught.value.thread == (31, 0, 0)


def test_an_address_that_no_piece_can_begin_at() -> None:
    x, y = np.zeros(1024, np.uint16), np.zeros(256, np.float32)
    for way in ("add.u64 x, x, 2;", ""):
        with pytest.raises(MemoryFault, match="not a multiple of 4"):
            on_sim(way + (LOAD_A if way else LOAD_A.replace("24", "17")), x, y)


def test_a_store_to_what_is_const() -> None:
    table = "wmma.store.d.sync.aligned.row.m16n16k16.f32 [z], {};".format(names("q", 8))
    body = "mov.u64 z, table; cvta.const.u64 z, z;\n" + table
    text = kernel(OPEN + body, PARAMS, NEW, ".const .align 32 .f32 table[256];")
    with pytest.raises(MemoryFault, match="const"):
        run(text, np.zeros(4, np.uint16), np.zeros(4, np.uint16))


def test_elements_of_another_type() -> None:
    text = kernel(OPEN + LOAD_A, PARAMS, NEW)
    device = Device("sim:0")
    arrays = [ptxrt.zeros(1024, name, device=device) for name in ("float16", "bfloat16")]
    for array in arrays:
        loaded = ptxrt.load(KernelSource.ptx(text), "k", f"const {array.dtype.name}* in, u32* out".replace(
            "bfloat16", "bf16").replace("float16", "f16"), device)  # fmt: skip
        y = ptxrt.zeros(4, np.uint32, device=device)
        if array is arrays[0]:
            loaded.launch(1, 32, array, y)
        else:
            with pytest.raises(MemoryFault, match=r"read of \.f16 in in, which the signature declares as bf16"):
                loaded.launch(1, 32, array, y)


def test_a_store_races_with_another_warp() -> None:
    x, y = np.zeros(1024, np.uint16), np.zeros(1024, np.float32)
    apart = "and.b32 s, t, 32; mul.wide.u32 z, s, 32; add.u64 y, y, z;\n"
    with pytest.raises(DataRace):
        on_sim(store("global", "y"), x, y, 64, checks=["global-races"])
    on_sim(apart + store("global", "y"), x, y, 64, checks=["global-races"])
    load = f"wmma.load.c.sync.aligned.row.m16n16k16.shared.f32 {names('q', 8)}, [tile], 16;\n"
    only = "setp.lt.u32 p, t, 32; @p bra FIRST; bra OVER; FIRST:\n"
    body = only + store("shared", "tile") + "OVER: // BARRIER\n" + load
    with pytest.raises(DataRace):
        on_sim(body, x, y, 64, races=True)
    on_sim(body.replace("// BARRIER", "bar.sync 0;"), x, y, 64, races=True)


def test_halves_that_lanes_store_by_themselves_do_not_race() -> None:
    body = f"wmma.store.d.sync.aligned.col.m16n16k16.shared.f16 [tile], {names('q', 4)}, 16;\n"
    for arch in ("sm_70", "sm_90"):
        head = head_for("", "f16")
        run(kernel(OPEN + body, PARAMS, head), np.zeros(4), np.zeros(4), races=True, checks=["uninitialised"],
            arch=arch)  # fmt: skip


def test_a_matrix_that_nobody_has_written() -> None:
    x, y = np.zeros(1024, np.uint16), np.zeros(256, np.float32)
    load = f"wmma.load.b.sync.aligned.col.m16n16k16.shared.f16 {names('q', 8)}, [tile];"
    with pytest.raises(MemoryFault, match="nobody has written"):
        on_sim(load, x, y, checks=["uninitialised"])
    on_sim(store("shared", "tile") + load, x, y, checks=["uninitialised"])


@pytest.mark.parametrize("instruction", [
    LOAD_A, store("global", "y"),
    "wmma.mma.sync.aligned.row.col.m8n8k32.s32.s4.s4.s32 {q0, q1}, {q2}, {q3}, {q4, q5};",
])  # fmt: skip
def test_a_lane_that_is_missing(instruction: str) -> None:
    x, y = np.zeros(1024, np.uint16), np.zeros(256, np.float32)
    with pytest.raises(SimFault, match="not there, or exited"):
        on_sim("setp.eq.u32 p, t, 9; @p exit;\n" + instruction, x, y)
    with pytest.raises(Deadlock):
        on_sim("setp.eq.u32 p, t, 9; @p bra END;\n" + instruction + "END: bar.sync 0;", x, y)


def test_requests_and_sectors_are_those_of_the_lanes() -> None:
    x, y = np.zeros(1024, np.uint16), np.zeros(256, np.float32)
    for load, requests, sectors in (
        (LOAD_A.replace("24", "16"), 4, 4 * 8), (store("global", "y"), 4, 4 * 8),
        (LOAD_A.replace("24", "16").replace("row", "col"), 4, 4 * 8),
    ):  # fmt: skip
        profile = sim.Profile()
        on_sim(load, x, y, profile=profile)
        total = profile.total()
        assert (total.global_requests, total.sectors) == (requests, sectors)


REFUSED = {
    "wmma.sync.aligned.row.m16n16k16.f16 {q0}, [x];": "takes .load, .store or .mma",
    "wmma.load.a.aligned.row.m16n16k16.f16 {q0}, [x];": "takes .sync",
    "wmma.load.a.sync.row.m16n16k16.f16 {q0}, [x];": "takes .aligned from",
    "wmma.load.sync.aligned.row.m16n16k16.f16 {q0}, [x];": "takes which matrix",
    "wmma.store.c.sync.aligned.row.m16n16k16.f32 [y], {q0};": "takes which matrix",
    "wmma.load.a.sync.aligned.m16n16k16.f16 {q0}, [x];": "takes one layout",
    "wmma.load.a.sync.aligned.row.m16n16k16.f32 {q0}, [x];": "takes one type of a",
    "wmma.load.a.sync.aligned.row.m16n16k8.f16 {q0}, [x];": "takes .m16n16k16, .*, not .m16n16k8",
    "wmma.load.a.sync.aligned.row.f16 {q0}, [x];": "not no shape",
    "wmma.load.a.sync.aligned.col.m8n8k32.s4 {q0}, [x];": "takes a of .s4 as .row",
    "wmma.load.b.sync.aligned.row.m8n8k128.b1 {q0}, [x];": "takes b of .b1 as .col",
    "wmma.load.a.sync.aligned.row.m16n16k16.f16 {q0}, [x];": "a vector of 8",
    "wmma.load.a.sync.aligned.row.m8n8k4.f64 h0, [x];": "a vector of 1",
    "wmma.load.a.sync.aligned.row.m8n8k32.local.s4 {q0}, [x];": "unknown modifier .local",
    "wmma.load.a.sync.aligned.row.m8n8k32.s4 {q0}, [x], x;": "x is .b64",
    "wmma.load.a.sync.aligned.row.m8n8k32.s4 {h0}, [x];": "h0 is .b64",
    "wmma.store.d.sync.aligned.row.m8n8k32.s32 [y], {q0, _};": "not allowed",
    "wmma.mma.sync.aligned.row.row.m8n8k32.s32.s4.s4.s32 {q0,q1}, {q2}, {q3}, {q0,q1};": "takes b of .s4 as .col",
    "wmma.mma.sync.aligned.row.m8n8k32.s32.s4.s4.s32 {q0,q1}, {q2}, {q3}, {q0,q1};": "layouts of a and b",
    "wmma.mma.sync.aligned.row.col.m8n8k32.s32.s4.u4.s32 {q0,q1}, {q2}, {q3}, {q0,q1};": "does not multiply .s4 by .u4",
    "wmma.mma.sync.aligned.row.col.m8n8k32.s32.s4.s32 {q0,q1}, {q2}, {q3}, {q0,q1};": "the types of d and c",
    "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f16.f16.f32 {q0}, {q2}, {q3}, {q0};": "does not multiply",
    "wmma.mma.sync.aligned.row.col.m16n16k16.f32.s32 {q0}, {q2}, {q3}, {q0};": "does not add .s32 to .f32",
    "wmma.mma.sync.aligned.row.col.m16n16k16.f16.bf16.bf16.f32 {q0}, {q2}, {q3}, {q0};": "does not add",
    "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32.satfinite {q0}, {q2}, {q3}, {q0};": "takes no .satfinite",
    "wmma.mma.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32 {q0,q1}, {q2}, {q3}, {q0,q1};": "takes .xor.popc or",
    "wmma.mma.xor.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32.satfinite {q0,q1}, {q2}, {q3}, {q0,q1};": "unknown",
}


@pytest.mark.parametrize("instruction", REFUSED)
def test_what_is_refused(instruction: str) -> None:
    with pytest.raises(CompileError, match=REFUSED[instruction]):
        sim.parse(kernel(OPEN + instruction, PARAMS, NEW))


def test_texts_of_old() -> None:
    old = ".version 6.2\n.target sm_70\n.address_size 64\n"
    x, y = np.arange(1024, dtype=np.uint16), np.zeros(256, np.float32)
    on_sim(LOAD_A.replace(".aligned", ""), x, y, head=old)
    with pytest.raises(CompileError, match="and only then"):
        on_sim(LOAD_A, x, y, head=old)
    saturating = f"wmma.mma.sync.row.col.m16n16k16.f32.f32.satfinite {', '.join([names('q', 8)] * 4)};"
    with pytest.raises(Unsupported, match="satfinite"):
        on_sim(saturating, x, y, head=old)
