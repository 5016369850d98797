"""ldmatrix, stmatrix and movmatrix: what each lane gets of each matrix, and faults of the lanes that give addresses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from machine import kernel, run

import ptxrt
from ptxrt import Device, KernelSource, sim
from ptxrt.errors import CompileError, DataRace, Deadlock, MemoryFault, SimFault, Unsupported

HEAD = ".version 7.8\n.target sm_90\n.address_size 64\n"
START = """
.reg .b32 t, a, b, r, q<4>; .reg .b64 x, y, g; .reg .pred p; .shared .align 16 .b8 s[8192];
ld.param.u64 x, [in]; ld.param.u64 y, [out]; mov.u32 t, %tid.x; mad.wide.u32 y, t, 16, y;
"""
PARAMS = ".param .u64 in, .param .u64 out"
FILL = "mad.wide.u32 x, t, 16, x; ld.global.v4.b32 {q0, q1, q2, q3}, [x]; shl.b32 a, t, 4; mov.u32 b, s;" \
    "add.u32 b, b, a; st.shared.v4.b32 [b], {q0, q1, q2, q3}; bar.sync 0;\n"  # fmt: skip
"""Each thread puts 16 bytes of x, a row, into s."""

TAKE = "st.global.v4.b32 [y], {q0, q1, q2, q3};"
"""Each thread puts four registers into y."""

ROW_OF = "and.b32 r, t, 31; mad.lo.u32 r, r, 7, 3; and.b32 r, r, 31; and.b32 a, t, -32; or.b32 r, r, a;" \
    "mov.u32 a, s; mad.lo.u32 a, r, 16, a;\n"  # fmt: skip
"""Lane i of a warp gives the address of the row 7 i + 3 of its 32, so that rows are anywhere."""

WARPS = 2
ROWS = (np.arange(32) * 7 + 3) % 32


def registers(count: int) -> str:
    return "{" + ", ".join(f"q{place}" for place in range(count)) + "}"


def on(device: Device, body: str, x: np.ndarray, threads: int = 32 * WARPS) -> np.ndarray:
    """Run with as many bytes of y as of x, and return y as it is then, of the type of x."""
    if device.kind == "cuda" and int("".join(filter(str.isdigit, device.arch))) < 90:
        pytest.skip("the text is for sm_90")
    text = kernel(START + body, PARAMS, HEAD)
    given, out = ptxrt.to_device(x.view(np.uint32), device), ptxrt.zeros(x.nbytes // 4, np.uint32, device=device)
    ptxrt.load(KernelSource.ptx(text), "k", "const u32* in, u32* out", device).launch(1, threads, given, out)
    return np.asarray(out.to_host()).view(x.dtype)


def matrices(seed: int = 0) -> np.ndarray:
    """Return the rows that each warp's threads fill in: (warps, 32 rows, 8 elements)."""
    return np.random.default_rng(seed).integers(1, 1 << 16, (WARPS, 32, 8)).astype(np.uint16)


def spread(matrix: np.ndarray) -> np.ndarray:
    """Return what (..., 8, 8) elements are in the lanes: (..., 32 lanes, 2), as the manual's figure has it."""
    found = np.zeros((*matrix.shape[:-2], 32, 2), np.uint16)
    for lane in range(32):
        for half in range(2):
            found[..., lane, half] = matrix[..., lane // 4, lane % 4 * 2 + half]
    return found


@pytest.mark.ptx
@pytest.mark.parametrize("space", [".shared", ".shared::cta", ""])
@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(device: Device, count: int, trans: str, space: str) -> None:
    x = matrices()
    generic = "" if space else "cvt.u64.u32 g, a; cvta.shared.u64 g, g;\n"
    where = "a" if space else "g"
    load = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}{space}.b16 {registers(count)}, [{where}];\n"
    clear = "mov.b32 q0, 0; mov.b32 q1, 0; mov.b32 q2, 0; mov.b32 q3, 0;\n"
    y = on(device, FILL + ROW_OF + generic + clear + load + TAKE, x.ravel()).reshape(WARPS, 32, 4, 2)
    read = x[:, ROWS].reshape(WARPS, 4, 8, 8)
    wanted = spread(read.swapaxes(2, 3) if trans else read)
    for place in range(4):
        np.testing.assert_array_equal(y[:, :, place], wanted[:, place] if place < count else 0)


@pytest.mark.ptx
@pytest.mark.parametrize("space", [".shared", ""])
@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix(device: Device, count: int, trans: str, space: str) -> None:
    x = matrices(1)
    generic = "" if space else "cvt.u64.u32 g, a; cvta.shared.u64 g, g;\n"
    where = "a" if space else "g"
    fill = FILL.replace("mad.wide.u32 x", "shl.b32 a, t, 4; mov.u32 b, s; add.u32 b, b, a; mov.b32 q0, 0;"
                        "st.shared.v4.b32 [b], {q0, q0, q0, q0}; mad.wide.u32 x").replace(
        "st.shared.v4.b32 [b], {q0, q1, q2, q3};", "")  # fmt: skip
    store = f"stmatrix.sync.aligned.m8n8.x{count}{trans}{space}.b16 [{where}], {registers(count)}; bar.sync 0;\n"
    y = on(device, fill + ROW_OF + generic + store + "ld.shared.v4.b32 {q0, q1, q2, q3}, [b];" + TAKE, x.ravel())
    held = x.reshape(WARPS, 32, 4, 2).swapaxes(1, 2)  # by warp, matrix, lane
    matrix = np.zeros((WARPS, 4, 8, 8), np.uint16)
    for lane in range(32):
        for half in range(2):
            matrix[:, :, lane // 4, lane % 4 * 2 + half] = held[:, :, lane, half]
    if trans:
        matrix = matrix.swapaxes(2, 3)
    wanted = np.zeros((WARPS, 32, 8), np.uint16)
    wanted[:, ROWS[: 8 * count]] = matrix.reshape(WARPS, 32, 8)[:, : 8 * count]
    np.testing.assert_array_equal(y.reshape(WARPS, 32, 8), wanted)


@pytest.mark.ptx
def test_movmatrix(device: Device) -> None:
    x = matrices(2)
    body = "mad.wide.u32 x, t, 16, x; ld.global.v4.b32 {q0, q1, q2, q3}, [x];" + "".join(
        f"movmatrix.sync.aligned.m8n8.trans.b16 q{place}, q{place};" for place in range(4)
    )
    y = on(device, body + TAKE, x.ravel()).reshape(WARPS, 32, 4, 2)
    held = x.reshape(WARPS, 32, 4, 2).swapaxes(1, 2)
    np.testing.assert_array_equal(y.swapaxes(1, 2), spread(held.reshape(WARPS, 4, 8, 8).swapaxes(2, 3)))


@pytest.mark.ptx
def test_only_some_warps(device: Device) -> None:
    x = matrices(3)
    load = FILL + ROW_OF + "setp.ge.u32 p, t, 32; @p ldmatrix.sync.aligned.m8n8.x2.shared.b16 {q2, q1}, [a];\n" + TAKE
    y = on(device, load, x.ravel()).reshape(WARPS, 32, 4, 2)
    np.testing.assert_array_equal(y[0], x[0].reshape(32, 4, 2))
    wanted = spread(x[1, ROWS].reshape(4, 8, 8))
    np.testing.assert_array_equal(y[1, :, 2], wanted[0])
    np.testing.assert_array_equal(y[1, :, 1], wanted[1])
    np.testing.assert_array_equal(y[1, :, 3], x[1].reshape(32, 4, 2)[:, 3])


@pytest.mark.ptx
def test_one_address_for_all(device: Device) -> None:
    x = matrices(4)
    load = FILL + "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {_, q1}, [s+32];\n" + TAKE
    y = on(device, load, x.ravel()).reshape(WARPS, 32, 4, 2)
    np.testing.assert_array_equal(y[..., 1, :], np.broadcast_to(np.tile(x[0, 2].reshape(4, 2), (8, 1)), (WARPS, 32, 2)))
    np.testing.assert_array_equal(y[..., 0, :], x.reshape(WARPS, 32, 4, 2)[..., 0, :])


def on_sim(body: str, threads: int = 32, head: str = HEAD, **options: Any) -> sim.LaunchReport:
    """Run on the machine alone, with the checks that `options` name."""
    x, y = np.ones(threads * 4, np.uint32), np.zeros(threads * 4, np.uint32)
    text = kernel(START + body, PARAMS, head)
    return run(text, x, y, block=(threads, 1, 1), **options)


LOAD = "ldmatrix.sync.aligned.m8n8.x{}.shared.b16 {}, [a];\n"
STORE = "stmatrix.sync.aligned.m8n8.x{}.shared.b16 [a], {};\n"


def move(form: str, count: int) -> str:
    return form.format(count, registers(count))


@pytest.mark.parametrize("form", [LOAD, STORE])
@pytest.mark.parametrize(("lane", "value", "problem"), [
    (17, 24, "not a multiple of 16"), (9, 8192, "outside the 8192 bytes"), (30, 8184, "not a multiple|outside"),
])  # fmt: skip
def test_an_address_that_is_wrong_is_a_fault_of_its_lane(form: str, lane: int, value: int, problem: str) -> None:
    wrong = f"setp.eq.u32 p, t, {lane}; @p mov.u32 a, {value};\n"
    with pytest.raises(MemoryFault, match=problem) as caught:
        on_sim(FILL + ROW_OF + wrong + move(form, 4))
    assert (caught.value.thread, caught.value.address, caught.value.size) == ((lane, 0, 0), value, 16)


@pytest.mark.parametrize("form", [LOAD, STORE])
@pytest.mark.parametrize("count", [1, 2])
def test_the_lanes_above_give_no_address(form: str, count: int) -> None:
    wrong = f"setp.ge.u32 p, t, {8 * count}; @p mov.u32 a, 3;\n"
    on_sim(FILL + ROW_OF + wrong + move(form, count))
    wrong = f"setp.ge.u32 p, t, {8 * count - 1}; @p mov.u32 a, 3;\n"
    with pytest.raises(MemoryFault, match="not a multiple of 16") as caught:
        on_sim(FILL + ROW_OF + wrong + move(form, count))
    assert caught.value.thread == (8 * count - 1, 0, 0)


@pytest.mark.parametrize(("start", "nearest"), [
    ("mov.u64 g, y;", "8 bytes into out"), ("mov.u64 g, 0;", "before"),
    ("mov.u64 g, l; cvta.local.u64 g, g;", "in local or parameter memory"),
])  # fmt: skip
@pytest.mark.parametrize("move", ["ldmatrix.sync.aligned.m8n8.x1.b16 {q0}, [g+8];",
                                  "stmatrix.sync.aligned.m8n8.x1.b16 [g+8], {q0};"])  # fmt: skip
def test_a_generic_address_of_other_memory_is_a_fault(start: str, nearest: str, move: str) -> None:
    with pytest.raises(MemoryFault, match="generic address that is not one of shared memory") as caught:
        on_sim(FILL + ".local .align 16 .b8 l[64];" + start + move)
    fault = caught.value
    assert fault.address is not None
    assert (fault.address & 15, nearest in str(fault.nearest)) == (8, True)
    # Lanes that give no row may have any.
    start += "mov.u32 a, 0; setp.ge.u32 p, t, 8; @!p cvt.u64.u32 g, a; @!p cvta.shared.u64 g, g;\n"
    on_sim(FILL + ".local .align 16 .b8 l[64];" + start + move.replace("+8", ""))  # fmt: skip


def test_rows_that_nobody_has_written() -> None:
    body = FILL.replace("st.shared", "setp.ne.u32 p, t, 5; @p st.shared") + ROW_OF + move(LOAD, 4)
    on_sim(body)
    with pytest.raises(MemoryFault, match="nobody has written") as caught:
        on_sim(body, checks=["uninitialised"])
    assert caught.value.thread == (int(np.flatnonzero(ROWS == 5)[0]), 0, 0)
    on_sim(FILL.replace("st.shared.v4.b32 [b], {q0, q1, q2, q3};", "") + ROW_OF + move(STORE, 4)
           + "bar.sync 0; ld.shared.u32 r, [b];", checks=["uninitialised"])  # fmt: skip


def test_a_load_without_a_barrier_races_with_the_store() -> None:
    body = FILL.replace("bar.sync 0;", "// STORE") + ROW_OF + "xor.b32 a, a, 512; // the rows of the other warp\n"
    text = kernel(START + body + move(LOAD, 2) + TAKE, PARAMS, HEAD)
    lines = text.splitlines()
    store, load = (next(n for n, line in enumerate(lines, 1) if word in line) for word in ("// STORE", "ldmatrix"))
    x = np.ones(256, np.uint32)
    with pytest.raises(DataRace) as caught:
        run(text, x, x.copy(), block=(64, 1, 1), races=True)
    fault = caught.value
    assert (fault.line, fault.other_line, fault.thread) == (load, store, (0, 0, 0))
    assert fault.other_thread == (32 + int(ROWS[0]), 0, 0)
    ordered = text.replace("// STORE", "bar.sync 0;")
    run(ordered, x, x.copy(), block=(64, 1, 1), races=True)


def test_a_stored_row_races_with_its_reader() -> None:
    body = ROW_OF + "mov.b32 q0, 1;\n" + move(STORE, 1) + "// BARRIER\nmov.u32 a, s; xor.b32 r, t, 32;" \
        "mad.lo.u32 a, r, 16, a; ld.shared.u32 r, [a];"  # fmt: skip
    with pytest.raises(DataRace):
        on_sim(body, 64, races=True)
    on_sim(body.replace("// BARRIER", "bar.sync 0;"), 64, races=True)


def test_a_stored_row_is_another_lanes_behind_a_barrier_of_the_warp() -> None:
    body = ROW_OF + "mov.b32 q0, 1;\n" + move(STORE, 1) + "// BARRIER\nmov.u32 a, s; mad.lo.u32 a, t, 16, a;" \
        "ld.shared.u32 r, [a];"  # fmt: skip
    with pytest.raises(DataRace):
        on_sim(body, races=True)
    on_sim(body.replace("// BARRIER", "bar.warp.sync -1;"), races=True)


def test_lanes_that_are_late_are_waited_for() -> None:
    x = matrices(5)
    # Lane 3 goes a way of its own, through the same instruction.
    late = "setp.eq.u32 p, t, 3; @p bra LATE; bra MEET; LATE: add.u32 a, a, 0; MEET:\n"
    y = on(Device("sim:0"), FILL + ROW_OF + late + move(LOAD, 1) + TAKE, x.ravel(), 32).reshape(WARPS, 32, 4, 2)
    np.testing.assert_array_equal(y[0, :, 0], spread(x[0, ROWS[:8]].reshape(8, 8)))


@pytest.mark.parametrize("instruction", [
    move(LOAD, 1), move(STORE, 1), "movmatrix.sync.aligned.m8n8.trans.b16 q0, q1;",
])  # fmt: skip
def test_a_lane_that_is_missing(instruction: str) -> None:
    with pytest.raises(Deadlock, match="lanes of its warp"):
        on_sim(FILL + ROW_OF + "setp.eq.u32 p, t, 5; @p bra END;\n" + instruction + "END: bar.sync 0;")
    for threads, gone in ((32, "setp.eq.u32 p, t, 5; @p exit;\n"), (40, "")):
        with pytest.raises(SimFault, match="not there, or exited before") as caught:
            on_sim(FILL + ROW_OF + gone + instruction, threads)
        assert caught.value.thread == ((0 if gone else 32), 0, 0)


def test_conflicts_are_counted_by_matrix() -> None:
    for stride, waves in ((16, 4), (128, 32), (144, 4)):
        body = f"mov.u32 a, s; mad.lo.u32 a, t, {stride}, a;\n" + move(LOAD, 4)
        profile = sim.Profile()
        on_sim(body, profile=profile, races=False)
        counts = [line for line in profile.lines.values() if line.shared_requests]
        assert [(line.shared_requests, line.wavefronts, line.least_wavefronts) for line in counts] == [(1, waves, 4)]


REFUSED = {
    "ldmatrix.aligned.m8n8.x1.shared.b16 {q0}, [a];": "takes .sync",
    "ldmatrix.sync.m8n8.x1.shared.b16 {q0}, [a];": "takes .aligned",
    "ldmatrix.sync.aligned.x1.shared.b16 {q0}, [a];": "takes .m8n8",
    "ldmatrix.sync.aligned.m8n8.shared.b16 {q0}, [a];": "takes .x1, .x2 or .x4",
    "ldmatrix.sync.aligned.m8n8.x1.shared {q0}, [a];": "takes .b16",
    "ldmatrix.sync.aligned.m8n8.x1.shared.b8 {q0}, [a];": "takes .b16",
    "ldmatrix.sync.aligned.m8n8.x1.global.b16 {q0}, [y];": "unknown modifier .global",
    "ldmatrix.sync.aligned.m8n8.x1.shared.b16 q0, [a];": "a vector of 1",
    "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {q0}, [a];": "a vector of 2",
    "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {x}, [a];": "x is .b64",
    "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {q0, q1}, [a];": "needs a target of its own",
    "stmatrix.sync.aligned.m8n8.x1.shared.b16 [a], q0;": "a vector of 1",
    "stmatrix.sync.aligned.m8n8.x2.shared.b16 [a], {q0, _};": "not allowed",
    "movmatrix.sync.aligned.m8n8.b16 q0, q1;": "takes .trans",
    "movmatrix.sync.aligned.m8n8.trans.b32 q0, q1;": "takes .b16",
}


@pytest.mark.parametrize("instruction", REFUSED)
def test_what_is_refused(instruction: str) -> None:
    with pytest.raises(CompileError, match=REFUSED[instruction]):
        sim.parse(kernel(START + instruction, PARAMS, HEAD.replace("7.8", "8.6")))


def test_newer_shapes_are_unsupported_where_there_are_any() -> None:
    head = HEAD.replace("7.8", "8.6").replace("sm_90", "sm_100a")
    with pytest.raises(Unsupported, match=r"ldmatrix\.m16n16"):
        on_sim("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {q0, q1}, [a];", head=head)
