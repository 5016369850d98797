"""A kernel in PTX with its test: ``pytest test_clamp.py``. It runs on the best device there is, in CI on sim."""

import numpy as np
import pytest

import ptxrt

# y[i] = min(max(x[i], low), high). Grid: any blocks that cover n.
CLAMP = ptxrt.KernelSource.ptx("""
.version 7.0
.target sm_70
.address_size 64

.visible .entry clamp(.param .u64 x, .param .u64 y, .param .u32 n, .param .f32 low, .param .f32 high)
{
    .reg .pred %outside;
    .reg .b32 %i, %block, %threads, %n;
    .reg .b64 %x, %y, %offset;
    .reg .f32 %value, %low, %high;

    ld.param.u64 %x, [x];
    ld.param.u64 %y, [y];
    ld.param.u32 %n, [n];
    ld.param.f32 %low, [low];
    ld.param.f32 %high, [high];

    mov.u32 %i, %tid.x;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mad.lo.u32 %i, %block, %threads, %i;
    setp.ge.u32 %outside, %i, %n;
    @%outside ret;

    mul.wide.u32 %offset, %i, 4;
    add.u64 %x, %x, %offset;
    add.u64 %y, %y, %offset;
    ld.global.f32 %value, [%x];
    max.f32 %value, %value, %low;
    min.f32 %value, %value, %high;
    st.global.f32 [%y], %value;
    ret;
}""")


def clamp(x: ptxrt.DeviceArray, low: float, high: float) -> ptxrt.DeviceArray:
    """Return x with each element not below `low` and not above `high`."""
    y = ptxrt.empty(x.shape, np.float32, device=x.device)
    kernel = ptxrt.load(CLAMP, "clamp", "const f32* x[n], f32* y[n], u32 n, f32 low, f32 high", x.device)
    kernel[ptxrt.grid_for(x.size, 64), 64](x, y, x.size, low, high)
    return y


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000])  # sizes beside the block's
def test_clamp(n: int) -> None:
    x = np.random.default_rng(n).normal(size=n).astype(np.float32)
    y = clamp(ptxrt.to_device(x), -0.5, 1.0)
    np.testing.assert_array_equal(y.numpy(), np.clip(x, np.float32(-0.5), np.float32(1.0)))
