"""The pieces that kernels are made of, each by itself."""

from __future__ import annotations

import numpy as np
import pytest

import ptxrt
from ptxrt.source import _templates

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
def test_sum_over_block(device, rng, warps):
    text = _templates().from_string(SUMS).render(warps=warps)
    kernel = ptxrt.load(ptxrt.KernelSource.ptx(text, name="sums"), "sums", "const f64* x, f64* y", device)
    threads, blocks = 32 * warps, 3
    x = rng.integers(-1000, 1000, (blocks, threads)).astype(np.float64)
    y = ptxrt.to_device(np.full((blocks, threads, 2), np.nan), device)
    kernel.launch(blocks, threads, ptxrt.to_device(x, device), y)
    want = np.stack([2 * x.sum(axis=1), x.sum(axis=1) + threads], axis=-1)
    np.testing.assert_array_equal(y.to_host(), np.broadcast_to(want[:, None], y.shape))


@pytest.mark.parametrize("seed", range(3))
def test_every_thread_has_the_same_bits(device, seed):
    text = _templates().from_string(SUMS).render(warps=4)
    kernel = ptxrt.load(ptxrt.KernelSource.ptx(text, name="sums"), "sums", "const f64* x, f64* y", device)
    x = np.random.default_rng(seed).standard_normal((1, 128)) * 10.0 ** np.arange(-64, 64)
    y = ptxrt.to_device(np.full((1, 128, 2), np.nan), device)
    kernel.launch(1, 128, ptxrt.to_device(x, device), y)
    assert len(np.unique(y.to_host()[0], axis=0)) == 1


def test_a_template_with_an_unknown_parameter_is_an_error():
    import jinja2

    with pytest.raises(jinja2.UndefinedError, match="warps"):
        _templates().from_string(SUMS).render()
