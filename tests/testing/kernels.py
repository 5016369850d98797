"""Two kernels with the same branches, in PTX and in CUDA C++, for tests of tests."""

from __future__ import annotations

PTX = """\
.version 7.0
.target sm_70
.address_size 64
.visible .entry scale(.param .u64 x_ptr, .param .u32 n, .param .f32 a) {
    .reg .pred %outside, %negative;  .reg .b32 %i, %n;  .reg .b64 %x;  .reg .f32 %a, %value;
    ld.param.u64 %x, [x_ptr];
    ld.param.u32 %n, [n];
    ld.param.f32 %a, [a];
    mov.u32 %i, %tid.x;
    setp.ge.u32 %outside, %i, %n;
    @%outside ret;
    mad.wide.u32 %x, %i, 4, %x;
    ld.global.f32 %value, [%x];
    mul.rn.f32 %value, %value, %a;
    setp.lt.f32 %negative, %value, 0f00000000;
    @%negative bra below;
    st.global.f32 [%x], %value;
    ret;
below:
    neg.f32 %value, %value;
    @%outside st.global.f32 [%x], %value;
    st.global.f32 [%x], %value;
    ret;
}
"""

CUDA = """\
#include "twice.h"
extern "C" __global__ void scale(float *x, unsigned n, float a) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    x[i] = twice(x[i], a);
    if (a == 0.0f) {
        x[i] = 7.0f;
        atomicAdd(x, 1.0f);
    }
}
"""

HEADER = """\
__device__ inline float twice(float value, float a) {
    float sum = value + value;
    return sum * a;
}
"""

TEST = """
    from pathlib import Path
    import numpy as np
    import pytest
    import ptxrt

    SIM = ptxrt.Device("sim:0")

    def launch(path, x, a=1.0, threads=32, text=None):
        make = ptxrt.KernelSource.ptx if path.endswith(".ptx") else ptxrt.KernelSource.cuda
        source = make(text or Path(path).read_text(), name=path)
        kernel = ptxrt.load(source, "scale", "f32* x[n], u32 n, f32 a", device=SIM)
        on_device = ptxrt.to_device(np.array(x, np.float32), SIM) if isinstance(x, list) else x
        kernel.launch(1, threads, on_device, on_device.size, a)
        return on_device.to_host()
"""
