"""The pieces that kernels are made of, each by itself."""

from __future__ import annotations

import numpy as np
import pytest

import ptxrt
from ptxrt.ops.framework.texts import templates

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
def test_sum_over_block(device, rng, warps):
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
def test_every_thread_has_the_same_bits(device, seed):
    text = templates().from_string(SUMS).render(warps=4)
    kernel = ptxrt.load(ptxrt.KernelSource.ptx(text, name="sums"), "sums", "const f64* x, f64* y", device)
    x = np.random.default_rng(seed).standard_normal((1, 128)) * 10.0 ** np.arange(-64, 64)
    y = ptxrt.to_device(np.full((1, 128, 2), np.nan), device)
    kernel.launch(1, 128, ptxrt.to_device(x, device), y)
    assert len(np.unique(y.to_host()[0], axis=0)) == 1


def test_a_template_with_an_unknown_parameter_is_an_error():
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


def powers(device, bases, exponents):
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
def test_power(device, rng, low, high, most):
    x, e, y = powers(device, np.exp2(rng.uniform(low, high, 5000)), rng.uniform(-most, most, 5000).astype(np.float32))
    want = np.power(x.astype(np.longdouble), e.astype(np.longdouble))
    kept = (want > 1e-100) & (want < 1e100)
    assert kept.mean() > 0.6
    assert np.abs(y[kept] / want[kept] - 1).max() < 1e-11


@pytest.mark.ptx
def test_power_of_what_is_special_is_that_of_c(device):
    bases = [0, -0.0, 1, -1, 2, -2, 0.5, -0.5, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3e38, -3e38, 1e300]
    exponents = [0, 1, -1, 2, -2, 0.5, -0.5, 0.75, -0.75, 3, -3, -1.75, 1e30, -1e30, -2.5, 2**24 + 1, -(2.0**53), 3e38]
    x, e, y = powers(device, np.array(bases)[:, None], exponents)
    with np.errstate(all="ignore"):
        want = np.float_power(x, e)
    np.testing.assert_allclose(y, want, rtol=1e-11)
    kept = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(y[kept]), np.signbit(want[kept]))
