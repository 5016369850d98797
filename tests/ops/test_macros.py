"""The pieces that kernels are made of, each by itself."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import Rng
from op_testing import Guarded, on_device

import ptxrt
from ptxrt import Device
from ptxrt.dtypes import BY_NAME, element_type
from ptxrt.ops.framework.texts import context, templates

SUMS = """
//% from "macros.jinja" import sum_over_block
// Grid: any; {{ 32 * warps }} threads. Each thread of each block: the block's sums of x and of x + 1, added twice.
.version 7.0
.target sm_70
.address_size 64

.visible .entry sums(.param .u64 x_ptr, .param .u64 y_ptr)
{
    .reg .b32 %i, %block;
    .reg .b64 %x, %y, %offset;
    .reg .f64 %a, %b, %one, %again;
    .shared .align 8 .f64 rows[{{ 2 * warps }}];
    ld.param.u64 %x, [x_ptr];
    ld.param.u64 %y, [y_ptr];
    mov.u32 %i, %tid.x;
    mov.u32 %block, %ctaid.x;
    mad.lo.u32 %i, %block, {{ 32 * warps }}, %i;
    mul.wide.u32 %offset, %i, 8;
    add.u64 %x, %x, %offset;
    mul.wide.u32 %offset, %i, 16;
    add.u64 %y, %y, %offset;
    ld.global.f64 %a, [%x];
    mov.f64 %one, 0d3FF0000000000000;
    add.rn.f64 %b, %a, %one;
    mov.f64 %again, %a;
    {{ sum_over_block(["%a", "%b"], "rows", warps) }}
    {{ sum_over_block(["%again"], "rows", warps) }}
    add.rn.f64 %a, %a, %again;
    st.global.v2.f64 [%y], {%a, %b};
}
"""


@pytest.mark.sanitize
@pytest.mark.parametrize("warps", [1, 3, 8, 32])
@pytest.mark.ptx
def test_sum_over_block(device: Device, rng: Rng, warps: int) -> None:
    text = templates().from_string(SUMS).render(warps=warps)
    kernel = ptxrt.load(ptxrt.KernelSource.ptx(text, name="sums"), "sums", "const f64* x, f64* y", device)
    threads, blocks = 32 * warps, 3
    x = rng.integers(-1000, 1000, (blocks, threads)).astype(np.float64)
    y = ptxrt.to_device(np.full((blocks, threads, 2), np.nan), device)
    kernel.launch(blocks, threads, ptxrt.to_device(x, device), y)
    want = np.stack([2 * x.sum(axis=1), x.sum(axis=1) + threads], axis=-1)
    np.testing.assert_array_equal(y.to_host(), np.broadcast_to(want[:, None], y.shape))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.ptx
def test_every_thread_has_the_same_bits(device: Device, seed: int) -> None:
    text = templates().from_string(SUMS).render(warps=4)
    kernel = ptxrt.load(ptxrt.KernelSource.ptx(text, name="sums"), "sums", "const f64* x, f64* y", device)
    x = np.random.default_rng(seed).standard_normal((1, 128)) * 10.0 ** np.arange(-64, 64)
    y = ptxrt.to_device(np.full((1, 128, 2), np.nan), device)
    kernel.launch(1, 128, ptxrt.to_device(x, device), y)
    assert len(np.unique(y.to_host()[0], axis=0)) == 1


def test_a_template_with_an_unknown_parameter_is_an_error() -> None:
    import jinja2

    with pytest.raises(jinja2.UndefinedError, match="warps"):
        templates().from_string(SUMS).render()


POWER = """
//% from "macros.jinja" import power
// Grid: any; 256 threads. y[i] = x[i]^e[i] and x[i]^(e[i] - 1).
.version 7.0
.target sm_70
.address_size 64

.visible .entry powers(.param .u64 x_ptr, .param .u64 e_ptr, .param .u64 y_ptr, .param .u32 n)
{
    .reg .pred %done;
    .reg .b32 %i, %block, %count;
    .reg .b64 %x, %e, %y, %offset;
    .reg .f64 %base, %exponent, %less, %first, %second;
    ld.param.u64 %x, [x_ptr];
    ld.param.u64 %e, [e_ptr];
    ld.param.u64 %y, [y_ptr];
    ld.param.u32 %count, [n];
    mov.u32 %i, %tid.x;
    mov.u32 %block, %ctaid.x;
    mad.lo.u32 %i, %block, 256, %i;
    setp.ge.u32 %done, %i, %count;
    @%done ret;
    mul.wide.u32 %offset, %i, 8;
    add.u64 %x, %x, %offset;
    add.u64 %e, %e, %offset;
    mul.wide.u32 %offset, %i, 16;
    add.u64 %y, %y, %offset;
    ld.global.f64 %base, [%x];
    ld.global.f64 %exponent, [%e];
    sub.rn.f64 %less, %exponent, 0d3FF0000000000000;
    {{ power(["%first", "%second"], "%base", ["%exponent", "%less"]) }}
    st.global.v2.f64 [%y], {%first, %second};
    ret;
}
"""


def powers(device: Device, bases: Any, exponents: Any) -> Any:
    """Return bases and exponents, of two columns each, and what the macro makes of them."""
    x, e = (np.array(a, np.float64).ravel() for a in np.broadcast_arrays(bases, exponents))
    text = templates().from_string(POWER).render()
    signature = "const f64* x, const f64* e, f64* y, u32 n"
    kernel = ptxrt.load(ptxrt.KernelSource.ptx(text, name="powers"), "powers", signature, device)
    y = ptxrt.to_device(np.full((x.size, 2), 7.25), device)
    kernel.launch(-(-x.size // 256), 256, ptxrt.to_device(x, device), ptxrt.to_device(e, device), y, x.size)
    return x[:, None], np.stack([e, e - 1], axis=-1), y.to_host()


@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("low", "high", "most"),
    [
        (-149, 128, 2),  # every f32 but 0
        (-480, 1000, 0.75),  # sums of squares of f32
        (-0.001, 0.001, 1e5),  # beside 1, where the logarithm is small
        (-1, 1, 100),
    ],
)
@pytest.mark.ptx
def test_power(device: Device, rng: Rng, low: float, high: float, most: float) -> None:
    x, e, y = powers(device, np.exp2(rng.uniform(low, high, 5000)), rng.uniform(-most, most, 5000).astype(np.float32))
    want = np.power(x.astype(np.longdouble), e.astype(np.longdouble))
    usual = (want > 1e-100) & (want < 1e100)
    assert usual.mean() > 0.6
    assert np.abs(y[usual] / want[usual] - 1).max() < 1e-11


@pytest.mark.ptx
def test_power_of_what_is_special_is_that_of_c(device: Device) -> None:
    bases = [0, -0.0, 1, -1, 2, -2, 0.5, -0.5, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3e38, -3e38, 1e300]
    exponents = [0, 1, -1, 2, -2, 0.5, -0.5, 0.75, -0.75, 3, -3, -1.75, 1e30, -1e30, -2.5, 2**24 + 1, -(2.0**53), 3e38]
    x, e, y = powers(device, np.array(bases)[:, None], exponents)
    with np.errstate(all="ignore"):
        want = np.float_power(x, e)
    np.testing.assert_allclose(y, want, rtol=1e-11)
    usual = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(y[usual]), np.signbit(want[usual]))


# Pairs ----------------------------------------------------------------------------------------------------------------

PAIRS = """
//% import "pairs.jinja" as pairs
//% from "macros.jinja" import sum_over_block
//% set a, b, c = ["%a", "%a_low"], ["%b", "%b_low"], ["%c", "%c_low"]
// A block of 64 threads. Each: what the operation makes of its own a, b and c.
.version 7.0
.target sm_70
.address_size 64

.visible .entry operate(.param .u64 x_ptr, .param .u64 y_ptr)
{
    .reg .b32 %i;
    .reg .b64 %x, %y, %offset;
{{ pairs.declare([a, b, c]) }}
    .shared .align 8 .f64 rows[4];
    ld.param.u64 %x, [x_ptr];
    ld.param.u64 %y, [y_ptr];
    mov.u32 %i, %tid.x;
    mul.wide.u32 %offset, %i, 48;
    add.u64 %x, %x, %offset;
    mul.wide.u32 %offset, %i, 16;
    add.u64 %y, %y, %offset;
{{ pairs.load_numbers([a, b, c], "%x") }}
//% if operation == "sum_over_block"
{{ sum_over_block([a], "rows", 2) }}
//% elif operation == "settle"
{{ pairs.settle(a) }}
//% else
//% set operands = {"fma": [a, b, c], "div": [a, b[:1]], "inverse_root": [a], "negate": [b], "move": [b]}
{{ pairs[operation](a, *operands.get(operation, [a, b])) }}
//% endif
{{ pairs.store_numbers("%y", [a]) }}
    ret;
}
"""


def operated(device: Device, x: Any, operation: Any) -> Any:
    """Return what an operation makes of 64 rows of three numbers, each a high and a low part."""
    text = templates().from_string(PAIRS).render(operation=operation)
    kernel = ptxrt.load(ptxrt.KernelSource.ptx(text, name=operation), "operate", "const f64* x, f64* y", device)
    y = Guarded((64, 2), np.float64, device)
    kernel.launch(1, 64, ptxrt.to_device(x, device), y.array)
    return y.host()


def exactly(numbers: Any) -> Any:
    """Return the sum of the parts along the last axis."""
    return np.vectorize(Fraction, otypes=[object])(numbers).sum(axis=-1)


@pytest.fixture
def pairs(rng: Rng) -> Any:
    high = np.abs(rng.standard_normal((64, 3))) * 2.0 ** rng.integers(-20, 20, (64, 3))
    return np.stack([high, np.spacing(high) * rng.uniform(-0.5, 0.5, high.shape)], axis=-1)


@pytest.mark.parametrize(
    ("operation", "want", "size"),
    [
        ("add", lambda a, b, c: a + b, None),
        ("sub", lambda a, b, c: a - b, lambda a, b, c: a + b),
        ("mul", lambda a, b, c: a * b, None),
        ("fma", lambda a, b, c: a * b + c, None),
        ("negate", lambda a, b, c: -b, lambda a, b, c: 0),
        ("move", lambda a, b, c: b, lambda a, b, c: 0),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.ptx
def test_pairs_have_a_hundred_bits(device: Device, pairs: Any, operation: str, want: Any, size: Any) -> None:
    numbers = exactly(pairs).T
    errors = exactly(operated(device, pairs, operation)) - want(*numbers)
    assert (abs(errors) <= (size or want)(*numbers) / 2**100).all()


@pytest.mark.ptx
def test_quotients_and_roots_of_pairs_too(device: Device, pairs: Any) -> None:
    a, by = exactly(pairs)[:, 0], exactly(pairs[:, 1, :1])
    assert (abs(exactly(operated(device, pairs, "div")) * by - a) <= a / 2**100).all()
    assert (abs(exactly(operated(device, pairs, "inverse_root")) ** 2 * a - 1) <= Fraction(1, 2**99)).all()


@pytest.mark.ptx
def test_a_settled_pair_is_its_rounded_sum_and_the_rest(device: Device, pairs: Any) -> None:
    pairs[:, 0, 1] = pairs[:, 1, 0]  # as large as the high part
    got = operated(device, pairs, "settle")
    np.testing.assert_array_equal(got[:, 0], pairs[:, 0].sum(axis=-1))
    assert (exactly(got) == exactly(pairs[:, 0])).all()


@pytest.mark.ptx
def test_a_block_adds_up_pairs(device: Device, rng: Rng) -> None:
    x = np.zeros((64, 3, 2))
    x[:, 0] = rng.integers(-(2**50), 2**50, (64, 2)) * [2.0**40, 2.0**-20]
    x[32:, 0, 0] = -x[:32, 0, 0]  # what is left is in the low parts
    got = operated(device, x, "sum_over_block")
    assert (exactly(got) == exactly(x[:, 0]).sum()).all()


@pytest.mark.parametrize("high", [np.inf, -np.inf, np.nan])
@pytest.mark.ptx
def test_what_is_not_finite_stays_in_the_high_part(device: Device, pairs: Any, high: Any) -> None:
    pairs[:, 0, 0] = high
    for operation in ("add", "sub", "mul", "fma", "div"):
        np.testing.assert_array_equal(operated(device, pairs, operation)[:, 0], np.full(64, high))


# Elements -------------------------------------------------------------------------------------------------------------

COPIES = """
//% from "elements.jinja" import load, store, to_f64, from_f64, vector with context
//% set values = "%v0 %v1 %v2 %v3 %v4 %v5 %v6 %v7".split()[:vector if wide else 1]
// Each thread: {{ values | length }} neighbours of x to the same place of y, by way of f64; 0 where nothing is loaded.
.version 7.0
.target {{ target }}
.address_size 64

.visible .entry copies(.param .u64 x_ptr, .param .u64 y_ptr)
{
    .reg .pred %aligned, %there;
    .reg .b32 %i;
    .reg .b64 %x, %y, %offset;
    .reg .{{ R.name }} %v<8>;
    .reg .f64 %d;
    ld.param.u64 %x, [x_ptr];
    ld.param.u64 %y, [y_ptr];
    or.b64 %offset, %x, %y;
    and.b64 %offset, %offset, 15;
    setp.eq.u64 %aligned, %offset, 0;
    mov.u32 %i, %tid.x;
    mul.wide.u32 %offset, %i, {{ T.size * values | length }};
    add.u64 %x, %x, %offset;
    add.u64 %y, %y, %offset;
    setp.lt.u32 %there, %i, 20;
    mov.{{ R.name }} %v0, {{ number(0, R) }};
{{ load(values, "%x", aligned, load_where) }}
//% for value in values
{{ to_f64("%d", value) }}
{{ from_f64(value, "%d") }}
//% endfor
{{ store("%y", values, aligned, store_where) }}
}
"""
PAIRED = """
//% from "elements.jinja" import store with context
// Each thread rounds a number of type {{ R.name }} to {{ T.name }}.
.version 7.0
.target {{ target }}
.address_size 64

.visible .entry rounds(.param .u64 x_ptr, .param .u64 y_ptr)
{
    .reg .b32 %i;
    .reg .b64 %x, %y, %offset;
    .reg .{{ R.name }} %v;
    ld.param.u64 %x, [x_ptr];
    ld.param.u64 %y, [y_ptr];
    mov.u32 %i, %tid.x;
    mul.wide.u32 %offset, %i, {{ R.size }};
    add.u64 %x, %x, %offset;
    ld.global.{{ R.name }} %v, [%x];
    mul.wide.u32 %offset, %i, {{ T.size }};
    add.u64 %y, %y, %offset;
{{ store("%y", ["%v"]) }}
}
"""
each_float = pytest.mark.parametrize("name", ["f32", "f64", "f16", "bf16"])


def copied(
    device: Device,
    x: Any,
    count: Any,
    offset: int = 0,
    aligned: str = "%aligned",
    load_where: str = "",
    store_where: str = "",
) -> Any:
    """Return y where each of 32 threads copies `count` elements, `offset` elements from a multiple of 16 in both."""
    name = element_type(x.dtype).name
    how = {"wide": count > 1, "aligned": aligned, "load_where": load_where, "store_where": store_where}
    text = templates().from_string(COPIES).render(context(name), **how)
    kernel = ptxrt.load(ptxrt.KernelSource.ptx(text, name="copies"), "copies", f"const {name}* x, {name}* y", device)
    y = Guarded((32 * count,), x.dtype, device, offset)
    kernel.launch(1, 32, on_device(x, device, offset), y.array)
    return y.host()


@each_float
@pytest.mark.parametrize(
    ("wide", "offset", "aligned"),
    [(True, 0, "%aligned"), (True, 1, "%aligned"), (True, 0, True), (True, 0, False), (True, 1, False),
     (False, 0, "%aligned"), (False, 1, "%aligned")],
)  # fmt: skip
@pytest.mark.ptx
def test_elements_to_registers_and_back(
    device: Device, rng: Rng, name: str, wide: bool, offset: int, aligned: Any
) -> None:
    kind = BY_NAME[name].numpy
    count = 16 // kind.itemsize if wide else 1
    x = rng.integers(0, 256, 32 * count * kind.itemsize).astype(np.uint8).view(kind)  # any bits
    x[:4] = [np.inf, -0.0, ml_dtypes.finfo(kind).smallest_subnormal, -np.inf]
    got = copied(device, x, count, offset, aligned)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(x))
    finite = ~np.isnan(x)
    assert got[finite].tobytes() == x[finite].tobytes()


@each_float
@pytest.mark.ptx
def test_a_single_element_is_loaded_and_stored_where_a_predicate_holds(device: Device, rng: Rng, name: str) -> None:
    x = rng.standard_normal(20).astype(BY_NAME[name].numpy)  # behind which nothing is to be read
    loaded = copied(device, x, 1, load_where="@%there")
    assert (loaded[:20] == x).all()
    assert (loaded[20:] == 0).all()
    stored = copied(device, np.resize(x, 32), 1, store_where="@%there")
    assert (stored[:20] == x).all()
    assert (stored[20:].view(np.uint8) == 0xFF).all()


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.ptx
def test_a_result_is_rounded_to_the_nearest_and_ties_to_even(device: Device, rng: Rng, name: str) -> None:
    kind = BY_NAME[name].numpy
    text = templates().from_string(PAIRED).render(context(name))
    kernel = ptxrt.load(ptxrt.KernelSource.ptx(text, name="rounds"), "rounds", f"const f32* x, {name}* y", device)
    all_halves = np.arange(1 << 16, dtype=np.uint16).view(kind).astype(np.float32)
    halves = all_halves[np.isfinite(all_halves)][::701]
    between = (halves + np.roll(halves, 1)) / 2  # ties, some of them
    x = np.concatenate([halves, between, np.nextafter(between, np.float32(0)), rng.standard_normal(100).astype("f")])
    x = np.concatenate(
        [x, np.array([np.inf, -np.inf, np.nan, 65519.996, 65520, 3.4e38, 2.0**-25, 2.0**-24], np.float32)]
    )[:1024]
    y = Guarded(x.shape, kind, device)
    kernel.launch(1, x.size, on_device(x, device), y.array)
    with np.errstate(over="ignore"):
        want = x.astype(kind)
    np.testing.assert_array_equal(y.host().astype(np.float32), want.astype(np.float32))


INVERSES = """
//% from "pairs.jinja" import inverse_root_at_once, reciprocal
// Grid: any; 64 threads. Each thread: 1 / x of the element x of a, then 1 / sqrt(x) of that of b.
.version 7.0
.target sm_70
.address_size 64

.visible .entry inverses(.param .u64 a_ptr, .param .u64 b_ptr, .param .u64 y_ptr)
{
    .reg .b32 %i, %block;
    .reg .b64 %a, %b, %y, %offset;
    .reg .f64 %count, %square, %inverse, %found;
    ld.param.u64 %a, [a_ptr];
    ld.param.u64 %b, [b_ptr];
    ld.param.u64 %y, [y_ptr];
    mov.u32 %i, %tid.x;
    mov.u32 %block, %ctaid.x;
    mad.lo.u32 %i, %block, 64, %i;
    mul.wide.u32 %offset, %i, 8;
    add.u64 %a, %a, %offset;
    add.u64 %b, %b, %offset;
    mul.wide.u32 %offset, %i, 16;
    add.u64 %y, %y, %offset;
    ld.global.f64 %count, [%a];
    ld.global.f64 %square, [%b];
    {{ reciprocal("%inverse", "%count") }}
    {{ inverse_root_at_once("%found", "%square") }}
    st.global.v2.f64 [%y], {%inverse, %found};
}
"""


def _inverses(device: Device, counts: Any, squares: Any) -> Any:
    text = templates().from_string(INVERSES).render()
    kernel = ptxrt.load(
        ptxrt.KernelSource.ptx(text, name="inverses"), "inverses", "const f64* a, const f64* b, f64* y", device
    )
    y = ptxrt.empty((counts.size, 2), np.float64, device)
    kernel[counts.size // 64, 64](on_device(counts, device), on_device(squares, device), y)
    return y.to_host().T


@pytest.mark.ptx
def test_inverses_without_a_division_are_within_two_ulps(device: Device, rng: Rng) -> None:
    counts = np.concatenate([np.arange(1, 2049), rng.integers(1, 1 << 63, 2048)]).astype(np.float64)
    squares = np.concatenate([10.0 ** rng.uniform(-100, 80, 2048), rng.uniform(1, 4, 2048)])
    inverse, root = _inverses(device, counts, squares)
    assert np.max(np.abs(inverse * counts.astype(np.longdouble) - 1)) < 2**-51
    assert np.max(np.abs(root * np.sqrt(squares.astype(np.longdouble)) - 1)) < 2**-51


@pytest.mark.ptx
def test_inverse_roots_of_what_is_special(device: Device) -> None:
    special = np.resize([0.0, np.inf, np.nan, -1.0, -np.inf, 1.0, 4.0, 0.25], 64)
    root = _inverses(device, np.ones(64), special)[1]
    np.testing.assert_array_equal(root[:8], [np.inf, 0.0, np.nan, np.nan, np.nan, 1.0, 0.5, 2.0])
