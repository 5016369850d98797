"""mma.sync: every form against NumPy, where its elements lie, what ptxas takes, and which lanes must take part."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from helpers import printed_by
from machine import kernel, run
from mma_forms import BITS, FORMS, Form, launched, packed, unpacked

import ptxrt
from ptxrt import KernelSource, sim
from ptxrt.compilers.nvjitlink import available, compile_ptx
from ptxrt.errors import CompileError, Deadlock, SimFault, Unsupported

WARPS = 3
SPANS = {"u8": (0, 256), "s8": (-128, 128), "u4": (0, 16), "s4": (-8, 8), "b1": (0, 2), "s32": (-9999, 9999)}
HEAD = ".version 8.7\n.target sm_90\n.address_size 64\n"
PLACES = (0b0100, 0b1000, 0b1001, 0b1100, 0b1101, 0b1110)
"""What the metadata of a chunk may be."""


def whole_numbers(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(*SPANS.get(kind, (-4, 5)), shape)


def metadata_of(form: Form, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the metadata of a warp's lanes, and the column of each element that is stored."""
    width = {32: 2, 4: 8}.get(BITS[form.kinds[1]], 4)
    lanes = np.full(32, 0xFFFFFFFF, np.uint64)  # what no row is read from is garbage
    columns = np.zeros((16, form.k // 2), int)
    chunks = form.k // width
    seen = set()
    for row in range(16):
        for chunk in range(chunks):
            value = int(rng.choice(PLACES if width != 2 else (0b0100, 0b1110)))
            low, high = value & 3, value >> 2
            if width == 2:
                columns[row, chunk] = 2 * chunk + high // 2
            elif width == 4:
                columns[row, 2 * chunk : 2 * chunk + 2] = 4 * chunk + low, 4 * chunk + high
            else:
                columns[row, 4 * chunk : 4 * chunk + 4] = [8 * chunk + 2 * x + y for x in (low, high) for y in (0, 1)]
            # Figures "metadata layout" of the PTX ISA: 16-bit elements and tf32 have rows g and g + 8 in one lane, four
            # chunks of each; smaller ones eight chunks of one row.
            if BITS[form.kinds[1]] >= 16:
                within, shift = chunk // 4, row // 8 * 16 + chunk % 4 * 4
            else:
                within, shift = row // 8 + 2 * (chunk // 8), chunk % 8 * 4
            first = form.selector * (2 if chunks * (2 if BITS[form.kinds[1]] >= 16 else 1) > 8 else 1)
            lane = row % 8 * 4 + first + within
            if BITS[form.kinds[1]] < 16:
                lane = row % 8 * 4 + form.selector * 2 + within
            seen.add((lane, shift))
            lanes[lane] = lanes[lane] & ~(np.uint64(15) << np.uint64(shift)) | np.uint64(value) << np.uint64(shift)
    assert len(seen) == 16 * chunks
    return lanes.astype(np.uint32), columns


@pytest.mark.ptx
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_form_multiplies_whole_numbers(form: Form, device: ptxrt.Device) -> None:
    if device.kind == "cuda" and int(device.arch.removeprefix("sm_").rstrip("a")) < form.target:
        pytest.skip(f"{form} needs sm_{form.target}")
    rng = np.random.default_rng(form.k)
    count = 4 if form.quarters else 1
    stored = form.k // 2 if form.sparse else form.k
    registers: list[list[np.ndarray]] = [[], [], [], []]
    expected = []
    for _ in range(WARPS):
        a = whole_numbers(rng, form.kinds[1], (count, form.m, stored))
        b = whole_numbers(rng, form.kinds[2], (count, form.k, 8))
        c = whole_numbers(rng, form.kinds[3], (count, form.m, 8))
        metadata, dense = np.zeros(32, np.uint32), a
        if form.sparse:
            metadata, columns = metadata_of(form, rng)
            dense = np.zeros((count, form.m, form.k), a.dtype)
            np.put_along_axis(dense[0], columns, a[0], 1)
        if "xor" in form.suffix:
            expected.append((dense[:, :, :, None] ^ b[:, None]).sum(2) + c)
        else:
            expected.append(dense @ b + c)
        for held, kind, place, one in zip(
            registers[:3], form.kinds[1:], (form.a, form.b, form.c), (a, b, c), strict=True
        ):
            held.append(packed(form, kind, place, one))
        registers[3].append(metadata)
    d = launched(form, device, *(np.array(held) for held in registers))
    np.testing.assert_array_equal([unpacked(form, one) for one in d], expected)


ARCHITECTURE = """
.version 6.5
.target sm_75
.address_size 64
.visible .entry k(.param .u64 out)
{
    .reg .b32 lane, a, b, zero;
    .reg .f32 d<4>;
    .reg .b64 p;
    .reg .pred first, second;
    mov.u32 lane, %tid.x; and.b32 lane, lane, 3;
    setp.eq.u32 first, lane, 0; setp.eq.u32 second, lane, 1;
    mov.b32 zero, 0;
    selp.b32 a, 0x08000c00, zero, second; selp.b32 a, 0xbc003c00, a, first;
    selp.b32 b, 0x0c000c00, zero, second; selp.b32 b, 0x3c003c00, b, first;
    mov.f32 d0, 0f00000000;
    mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {d0,d1,d2,d3}, {a,a}, {b}, {d0,d0,d0,d0};
    ld.param.u64 p, [out];
    mov.u32 lane, %tid.x; setp.eq.u32 first, lane, 0;
    @first st.global.f32 [p], d0;
    ret;
}
"""
"""1 - 1 + 2**-24 + 2**-25, of which an architecture has what it does not cut off."""
LAST = 2.0**-24


@pytest.mark.parametrize(("arch", "expected"), [("sm_75", LAST), ("sm_89", LAST), ("sm_90a", 1.5 * LAST)])
def test_a_launch_computes_as_the_architecture_that_it_names(arch: str, expected: float) -> None:
    out = np.zeros(1, np.float32)
    run(ARCHITECTURE, out, arch=arch)
    assert out[0] == expected


@pytest.mark.ptx
def test_a_device_computes_as_the_architecture_that_it_is(device: ptxrt.Device) -> None:
    out = ptxrt.zeros(1, "f32", device)
    ptxrt.load(KernelSource.ptx(ARCHITECTURE), "k", "f32* out", device).launch(1, 32, out)
    number = int("".join(filter(str.isdigit, device.arch)))
    assert out.to_host()[0] == (0 if number < 75 else LAST if number < 90 else 1.5 * LAST)


def test_the_environment_says_which_architecture_sim_is() -> None:
    script = f"""
    import ptxrt
    from ptxrt.check.run import check
    source = ptxrt.KernelSource.ptx({ARCHITECTURE!r})
    out = ptxrt.zeros(1, "f32", "sim")
    ptxrt.load(source, "k", "f32* out", "sim").launch(1, 32, out)
    report = check(source, "k", "f32* out", grid=1, block=32, arguments={{"out": "zeros:f32:1"}})
    print(out.to_host()[0] / 2.0**-24, report.arrays["out"][0] / 2.0**-24)
    """
    assert printed_by(script, PTXRT_SIM_ARCH="sm_80") == "1.0 1.0"


# -- what ptxas takes -------------------------------------------------------------------------------------------------

DENSE = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {f,f,f,f}, {r,r,r,r}, {r,r}, {f,f,f,f};"
INTS = "mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {r,r,r,r}, {r,r,r,r}, {r,r}, {r,r,r,r};"
BITS1 = "mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32.xor.popc {r,r,r,r}, {r,r}, {r}, {r,r,r,r};"
TF32 = "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {f,f,f,f}, {r,r}, {r}, {f,f,f,f};"
F64 = "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {d,d}, {d}, {d}, {d,d};"
FOURS = "mma.sync.aligned.m8n8k4.row.row.f32.f16.f16.f16 {f,f,f,f,f,f,f,f}, {r,r}, {r,r}, {r,r,r,r};"
SPARSE = "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {f,f,f,f}, {r,r}, {r,r}, {f,f,f,f}, r, 3;"
EIGHTHS = "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32 {f,f,f,f}, {r,r,r,r}, {r,r}, {f,f,f,f};"

TAKEN = [
    DENSE, INTS, BITS1, TF32, F64, FOURS, SPARSE, EIGHTHS,
    DENSE.replace("m16n8k16.row.col.f32.f16.f16.f32", "row.col.f32.f16.f16.f32.m16n8k16"),
    DENSE.replace("row.col.f32.f16.f16.f32", "f32.f16.f16.f32.row.col"),
    DENSE.replace("sync.aligned", "aligned.sync"),
    DENSE.replace("{f,f,f,f},", "{_,f,r,f},", 1),
    DENSE.replace("{r,r}", "{h2,r}"),
    DENSE.replace("{r,r}", "{1,r}"),
    DENSE.replace("{r,r}", "{f,r}"),
    DENSE.replace("{f,f,f,f};", "{f,0.0,f,f};"),
    INTS.replace("{r,r,r,r},", "{f,r,r,f},", 1),
    INTS.replace("{r,r,r,r};", "{f,r,r,r};"),
    DENSE.replace("{f,f,f,f};", "{f,0f00000000,r,f};"),
    "@p " + DENSE,
    INTS.replace("row", "satfinite.row"),
    INTS.replace("{r,r}", "{f,r}").replace("{r,r,r,r}", "{u,s,r,r}"),
    INTS.replace("{r,r,r,r};", "{0,u,r,r};"),
    BITS1.replace(".xor.popc", "").replace("row", "and.popc.row"),
    F64.replace("f64 {", "f64.rz {"),
    F64.replace("{d,d};", "{d,0.0};"),
    SPARSE.replace("r, 3", "f, 0"),
    SPARSE.replace("mma.sp", "mma.sp::ordered_metadata"),
    SPARSE.replace("m16n8k16", "m16n8k32").replace("{r,r}", "{r,r,r,r}").replace("r, 3", "r, 1"),
]  # fmt: skip
REFUSED = [
    DENSE.replace(".sync", ""),
    DENSE.replace(".aligned", ""),
    DENSE.replace(".m16n8k16", ""),
    DENSE.replace("k16", "k32"),
    DENSE.replace("row.col", "row"),
    DENSE.replace("row.col", "col.col"),
    DENSE.replace("row.col", "row.row"),
    DENSE.replace("f32.f16.f16.f32", "f16.f16.f32.f32"),
    DENSE.replace("f32.f16.f16.f32", "f32.f16.bf16.f32"),
    DENSE.replace("f32.f16.f16.f32", "f32.f16.f16"),
    DENSE.replace("f32.f16.f16.f32 {f,f,f,f}", "f16.f16.f16.f32 {r,r}"),
    DENSE.replace("f16.f32 {", "f16.f32.satfinite {"),
    DENSE.replace("f16.f32 {", "f16.f32.rn {"),
    DENSE.replace("f16.f32 {", "f16.f32.xor.popc {"),
    DENSE.replace("{f,f,f,f};", "{f,f,f};"),
    DENSE.replace("{f,f,f,f};", "{f,_,f,f};"),
    DENSE.replace("{f,f,f,f};", "{f,0,f,f};"),
    DENSE.replace("{f,f,f,f};", "{f,f,f,f}, r, 0;"),
    DENSE.replace("{r,r,r,r}", "{f,f,f,f}"),
    DENSE.replace("{r,r}", "{h2,1}"),
    INTS.replace("{r,r}", "{f,u}"),
    DENSE.replace("{r,r,r,r}", "{u,u,u,u}"),
    DENSE.replace("{r,r,r,r}", "{r,r,r,_}"),
    DENSE.replace("m16n8k16", "m16n8k4").replace("f16.f16", "tf32.tf32").replace("{r,r,r,r}, {r,r}", "{r,r}, r"),
    TF32.replace("{r,r}", "{f,f}"),
    INTS.replace("{r,r,r,r};", "{f,f,f,f};"),
    INTS.replace("s32.u8.u8.s32", "s32.u8.u4.s32"),
    INTS.replace("s32.u8.u8.s32", "f32.u8.u8.f32"),
    BITS1.replace(".xor.popc", ""),
    BITS1.replace(".xor.popc", ".xor"),
    BITS1.replace(".xor.popc", ".popc"),
    BITS1.replace("row", "satfinite.row"),
    F64.replace("row.col", "row.row"),
    F64.replace("{d}, {d}", "{d}, {f}"),
    FOURS.replace("f32.f16.f16.f16", "f16.f16.f16.f32"),
    SPARSE.replace("r, 3", "r, 4"),
    SPARSE.replace("r, 3", "r, r"),
    SPARSE.replace("r, 3", "5, 3"),
    SPARSE.replace("r, 3", "d, 3"),
    SPARSE.replace(", 3", ""),
    SPARSE.replace("k16", "k8"),
]  # fmt: skip


def body(code: str) -> str:
    registers = ".reg .b32 r; .reg .u32 u; .reg .s32 s; .reg .f32 f; .reg .f16x2 h2; .reg .b64 d; .reg .pred p;\n"
    return kernel(registers + code, head=HEAD)


@pytest.mark.parametrize("code", TAKEN)
def test_what_ptxas_takes_the_machine_takes(code: str) -> None:
    sim.parse(body(code))


@pytest.mark.parametrize("code", REFUSED)
def test_what_ptxas_refuses_the_machine_refuses(code: str) -> None:
    with pytest.raises(CompileError):
        sim.parse(body(code))


def test_ptxas_is_of_the_same_opinion() -> None:
    reason = available()
    if reason is not None:
        pytest.skip(reason)
    for code in TAKEN:
        compile_ptx(body(code), "sm_90")
    for code in REFUSED:
        with pytest.raises(CompileError):
            compile_ptx(body(code), "sm_90")


@pytest.mark.parametrize(
    "code",
    [
        DENSE.replace("m16n8k16", "m8n8k4").replace("f16", "bf16"),
        EIGHTHS.replace("f32.e4m3", "kind::f8f6f4.f32.e4m3"),
    ],
)
def test_what_the_machine_does_not_run_is_said(code: str) -> None:
    with pytest.raises(Unsupported, match="line 8"):
        sim.parse(body(code))


def test_a_selector_without_lanes_is_refused() -> None:
    # ptxas takes it; the manual calls it undefined.
    with pytest.raises(CompileError, match="selector from 0 to 1, not 2"):
        sim.parse(body(TAKEN[-1].replace("r, 1", "r, 2")))


# -- lanes ------------------------------------------------------------------------------------------------------------

ONES = """
.reg .b32 t, w, one; .reg .f32 s<4>; .reg .u64 p; .reg .pred q;
mov.u32 t, %tid.x; and.b32 w, t, 31; mov.b32 one, 0x3c003c00;
mov.f32 s0, 0f00000000; mov.f32 s1, s0; mov.f32 s2, s0; mov.f32 s3, s0;
"""
MULTIPLY = "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {s0,s1,s2,s3}, {one,one}, {one}, {s0,s1,s2,s3};"
STORE = "ld.param.u64 p, [out]; mad.wide.u32 p, t, 4, p; st.global.f32 [p], s0;"


def ones(code: str, threads: int = 64, **options: Any) -> np.ndarray:
    out = np.full(threads, -1, np.float32)
    run(kernel(ONES + code + STORE), out, block=(threads, 1, 1), **options)
    return out


def test_lanes_that_come_in_parts_are_waited_for() -> None:
    code = f"setp.lt.u32 q, w, 7; @q bra L; add.f32 s0, s0, s0; L: {MULTIPLY}"
    assert (ones(code) == 8).all()


def test_warps_that_do_not_come_are_not_waited_for() -> None:
    code = f"setp.ge.u32 q, t, 32; @q bra L; {MULTIPLY} L:"
    assert ones(code).tolist() == [8] * 32 + [0] * 32


def test_a_guard_that_holds_for_some_warps() -> None:
    assert ones(f"setp.ge.u32 q, t, 32; @q {MULTIPLY}").tolist() == [0] * 32 + [8] * 32


def test_a_lane_that_goes_elsewhere_is_waited_for_in_vain() -> None:
    code = f"setp.eq.u32 q, t, 5; @q bra L; {MULTIPLY} L: bar.warp.sync -1;"
    with pytest.raises(Deadlock, match="mma waits for lanes of its warp"):
        ones(code)


def test_a_warp_that_is_not_full_is_a_fault() -> None:
    with pytest.raises(SimFault, match="mma in a warp of which 12 lanes are not there") as found:
        ones(MULTIPLY, threads=52)
    assert found.value.thread == (32, 0, 0)


def test_a_lane_that_has_exited_is_a_fault() -> None:
    with pytest.raises(SimFault, match="mma in a warp of which 1 lane is not there, or exited"):
        ones(f"setp.eq.u32 q, t, 40; @q exit; {MULTIPLY}")


def test_metadata_that_mean_nothing_are_a_fault() -> None:
    code = (
        ".reg .b32 e; mov.b32 e, 0x44444444; setp.eq.u32 q, t, 44; @q mov.b32 e, 0x44144444;"
        "mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{s0,s1,s2,s3}, {one,one}, {one,one}, {s0,s1,s2,s3}, e, 0;"
    )
    text = kernel(ONES + code + STORE, head=HEAD)
    with pytest.raises(SimFault, match="metadata 0b0001 of chunk 1 of row 11") as found:
        run(text, np.zeros(64, np.float32), block=(64, 1, 1))
    assert found.value.thread == (44, 0, 0)
    run(text.replace("::ordered_metadata", ""), np.zeros(64, np.float32), block=(64, 1, 1))
    with pytest.raises(SimFault, match="metadata 0b0101 of chunk 1 of row 11"):
        run(text.replace("::ordered_metadata", "").replace("44144444", "44544444"), np.zeros(64, np.float32),
            block=(64, 1, 1))  # fmt: skip


# -- speed ------------------------------------------------------------------------------------------------------------

MATMUL = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry matmul(.param .u64 pa, .param .u64 pb, .param .u64 pc)
{
    .reg .b64 a, b, c, o;
    .reg .b32 warp, group, lane, row, column, k, r<6>;
    .reg .f32 d<4>;
    .reg .pred more;
    ld.param.u64 a, [pa]; ld.param.u64 b, [pb]; ld.param.u64 c, [pc];
    mov.u32 lane, %tid.x; shr.u32 warp, lane, 5; shr.u32 group, lane, 2; and.b32 group, group, 7; and.b32 lane, lane, 3;
    mov.u32 row, %ctaid.y; mad.lo.u32 row, row, 16, group;
    mov.u32 column, %ctaid.x; mad.lo.u32 column, column, 4, warp; shl.b32 column, column, 3;
    mul.wide.u32 o, lane, 4; add.u64 a, a, o; add.u64 b, b, o;
    mad.wide.u32 a, row, 512, a;
    add.u32 k, column, group; mad.wide.u32 b, k, 512, b;
    mov.f32 d0, 0f00000000; mov.f32 d1, d0; mov.f32 d2, d0; mov.f32 d3, d0;
    mov.u32 k, 0;
LOOP:
    ld.global.b32 r0, [a]; ld.global.b32 r1, [a+4096]; ld.global.b32 r2, [a+16]; ld.global.b32 r3, [a+4112];
    ld.global.b32 r4, [b]; ld.global.b32 r5, [b+16];
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {d0,d1,d2,d3}, {r0,r1,r2,r3}, {r4,r5}, {d0,d1,d2,d3};
    add.u64 a, a, 32; add.u64 b, b, 32; add.u32 k, k, 16;
    setp.lt.u32 more, k, 256;
    @more bra LOOP;
    mad.wide.u32 c, row, 1024, c; mad.wide.u32 c, column, 4, c; mad.wide.u32 c, lane, 8, c;
    st.global.v2.f32 [c], {d0, d1}; st.global.v2.f32 [c+8192], {d2, d3};
    ret;
}
"""


@pytest.mark.ptx
def test_a_matmul_of_256(device: ptxrt.Device) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (256, 256)).astype(np.float16) for _ in range(2))
    kernel = ptxrt.load(KernelSource.ptx(MATMUL), "matmul", "const f16* a, const f16* b, f32* c", device)
    c = ptxrt.empty((256, 256), "f32", device)
    given = [ptxrt.to_device(one, device) for one in (a, b)]
    started = time.process_time()
    kernel.launch((8, 16), 128, *given, c)
    np.testing.assert_array_equal(c.to_host(), a.astype(np.float32) @ b.astype(np.float32).T)
    # With the default checks; it takes a tenth of a second.
    assert time.process_time() - started < 2
