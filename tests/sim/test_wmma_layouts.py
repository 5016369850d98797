"""wmma.load and wmma.store: which lane holds what, on each architecture, and that matrices go there and back."""

from __future__ import annotations

import numpy as np
import pytest
from wmma_matrices import (
    BITS,
    FORMS,
    OLDER,
    VOLTA,
    WIDE,
    Form,
    count_of,
    distinct,
    expected,
    extent,
    fragments_of,
    head_for,
    launch,
    names,
    orders,
    packed,
    places,
    prefix,
    unpacked,
)

from ptxrt import Device
from ptxrt.backends import sim

Patch = pytest.MonkeyPatch


ALL = [(form, order) for form in FORMS for order in orders(form[0], form[2])]


@pytest.mark.ptx
@pytest.mark.parametrize(("form", "order"), ALL)
def test_which_lane_loads_what(device: Device, form: Form, order: str) -> None:
    np.testing.assert_array_equal(fragments_of(device, form, order), expected(form, *places(form, FORMS[form])))


@pytest.mark.parametrize("arch", ["sm_75", "sm_80"])
def test_which_lane_loads_what_on_other_architectures(arch: str, monkeypatch: Patch) -> None:
    monkeypatch.setitem(sim.BACKEND._archs, 0, arch)
    for form, order in ALL:
        if arch == "sm_75" and "sm_80" in head_for(*form[1:]):
            continue
        table = OLDER.get(form, FORMS[form]) if arch == "sm_75" else FORMS[form]
        got = fragments_of(Device("sim:0"), form, order)
        np.testing.assert_array_equal(got, expected(form, *places(form, table)), f"{form} {order}")


@pytest.mark.parametrize("case", VOLTA)
def test_which_lane_loads_what_on_volta(case: tuple[str, str, str, str], monkeypatch: Patch) -> None:
    monkeypatch.setitem(sim.BACKEND._archs, 0, "sm_70")
    *form, order = case
    role, shape, kind = form
    got = fragments_of(Device("sim:0"), (role, shape, kind), order)
    held = got.transpose(1, 0, 2).copy().view(np.uint16 if kind == "f16" else np.uint32).reshape(32, -1)
    for lane, words in VOLTA[case].items():
        wanted = [distinct((role, shape, kind))[tuple(map(int, word.split(",")))] for word in words.split()]
        assert held[lane, : len(wanted)].tolist() == wanted, lane


def test_copies_of_a_register_are_registers_of_their_own() -> None:
    body = "ld.param.u64 x, [p0]; ld.param.u64 y, [out]; .reg .pred p; setp.eq.u32 p, t, 3;" \
        f"wmma.load.b.sync.aligned.col.m32n8k16.global.f16 {names('q', 8)}, [x]; @p mov.b32 q4, 77;" \
        "mad.wide.u32 y, t, 8, y; st.global.v2.b32 [y], {q0, q4};"  # fmt: skip
    form = ("b", "m32n8k16", "f16")
    got = launch(Device("sim:0"), body, [packed(distinct(form), "f16", "col", 16)], 64, head_for("", "f16"))
    wanted = expected(form, *places(form, FORMS[form]))[[0, 4], :, 0].T.copy()
    wanted[3, 1] = 77
    np.testing.assert_array_equal(got.reshape(32, 2), wanted)


MOVED = [form for form in FORMS if form[0] == "c"]


@pytest.mark.ptx
@pytest.mark.parametrize("space", ["global", "shared", "generic"])
@pytest.mark.parametrize("form", [*MOVED, ("c", "m16n16k16", "f16"), ("c", "m8n32k16", "f16")])
def test_a_matrix_is_stored_as_it_was_loaded(device: Device, form: Form, space: str) -> None:
    """From rows to columns and back, with strides, by way of each state space."""
    role, shape, kind = form
    rows, columns = extent(role, shape)
    wide, long = columns + 8, rows + 16
    count = count_of(form)
    listed = names(prefix(kind), count)
    words = rows * wide * BITS[kind] // 32
    fill = "mad.lo.u32 s, t, 4, u;" + "".join(
        f"ld.global.b32 q0, [w+{128 * step}]; st.shared.b32 [s+{128 * step}], q0;" for step in range(-(-words // 32))
    ) + "bar.sync 0;"  # fmt: skip
    at, where, then = {
        "global": ("x", ".global", ""),
        # An address may lie below the window by what the offset adds.
        "shared": ("u+64", ".shared", f"{fill} sub.u32 u, u, 64;"),
        "generic": ("w", "", f"{fill} cvt.u64.u32 w, u; cvta.shared.u64 w, w;"),
    }[space]
    body = f"ld.param.u64 x, [p0]; ld.param.u64 y, [out]; mad.wide.u32 w, t, 4, x; mov.u32 u, tile; {then}" \
        f"mov.u32 s, {wide}; wmma.load.c.sync.aligned.row.{shape}{where}.{kind} {listed}, [{at}], s;" \
        f"wmma.store.d.sync.aligned.col.{shape}.global.{kind} [y], {listed}, {long};"  # fmt: skip
    memory = packed(distinct(form), kind, "row", wide)
    memory = np.concatenate([memory, np.zeros(32, np.uint32)])
    out = columns * long * BITS[kind] // 32
    got = launch(device, body, [memory], out, head_for(shape, kind))
    np.testing.assert_array_equal(unpacked(got, form, "col", long), distinct(form))
    body = "ld.param.u64 x, [p0]; ld.param.u64 y, [out];" \
        f"wmma.load.c.sync.aligned.col.{shape}.global.{kind} {listed}, [x], {long};" \
        f"wmma.store.d.sync.aligned.row.{shape}.{kind} [y], {listed};"  # fmt: skip
    again = launch(device, body, [got], rows * columns * BITS[kind] // 32, head_for(shape, kind))
    np.testing.assert_array_equal(unpacked(again, form, "row", columns), distinct(form))


@pytest.mark.parametrize("form", [("c", shape, kind) for shape in WIDE for kind in ("f16", "f32")])
def test_a_matrix_is_stored_as_it_was_loaded_on_volta(form: Form, monkeypatch: Patch) -> None:
    monkeypatch.setitem(sim.BACKEND._archs, 0, "sm_70")
    test_a_matrix_is_stored_as_it_was_loaded(Device("sim:0"), form, "global")
