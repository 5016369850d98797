"""The shared memory that a GPU's system keeps for itself, and what cooperative groups do there."""

from __future__ import annotations

import re

import numpy as np
import pytest
from machine import kernel, run

import ptxrt
from ptxrt.errors import MemoryFault

HEAD = ".version 8.6\n.target sm_90\n.address_size 64\n"
START = """.reg .u32 t, b, r<12>; .reg .u64 p, o; .reg .pred q; .shared .b8 s[20];
mov.u32 t, %tid.x; ld.param.u64 p, [out]; mul.wide.u32 o, t, 4; add.u64 o, p, o;
mov.u32 b, %reserved_smem_offset_begin;
"""
DYNAMIC = ".extern .shared .b8 d[];"
SIZES = ("reserved_smem_offset_begin", "reserved_smem_offset_end", "reserved_smem_offset_cap", "reserved_smem_offset_0",
         "reserved_smem_offset_1", "total_smem_size", "aggr_smem_size", "dynamic_smem_size")  # fmt: skip


@pytest.mark.parametrize("dynamic", [0, 100])
def test_where_it_is_and_what_it_leaves_to_the_kernel(dynamic: int) -> None:
    out = np.zeros(len(SIZES), np.uint32)
    store = "".join(f"mov.u32 r0, %{name}; st.global.u32 [p+{4 * n}], r0;" for n, name in enumerate(SIZES))
    text = kernel(START + "mov.u32 r1, d; st.shared.u8 [s], r1;" + store, head=HEAD, module=DYNAMIC)
    run(text, out, block=(1, 1, 1), shared_bytes=dynamic)
    begin, end, cap, first, second, total, whole, dynamic_size = out.tolist()
    assert begin >= 20 + dynamic
    assert begin % 16 == 0
    assert (end - begin, cap) == (288, 1024)
    assert first == second == begin
    assert (total, whole, dynamic_size) == (128, 1024 + 20 + dynamic, dynamic)


def test_it_is_zero_at_first_in_each_block_and_may_be_accessed_to_its_end() -> None:
    out = np.full(512, 7, np.uint32)
    body = "mad.lo.u32 b, t, 4, b; ld.shared.u32 r0, [b]; st.shared.u32 [b], t; ld.shared.u32 r1, [b];" \
        "mov.u32 r2, %ctaid.x; mul.wide.u32 p, r2, 1024; add.u64 o, o, p; add.u32 r0, r0, r1;" \
        "st.global.u32 [o], r0;"  # fmt: skip
    run(kernel(START + body, head=HEAD), out, grid=(2, 1, 1), block=(256, 1, 1), checks=["uninitialised"])
    assert out.tolist() == [*range(256)] * 2


@pytest.mark.parametrize(("code", "words"), [
    ("st.shared.u32 [b+1024], t;", "0 bytes past the end of the reserved shared memory of 1024 bytes"),
    ("ld.shared.u32 t, [s+4];", "4 bytes into s of 20 bytes"),
])  # fmt: skip
def test_faults_around_it(code: str, words: str) -> None:
    with pytest.raises(MemoryFault, match=re.escape(words)):
        run(kernel(START + code, head=HEAD), np.zeros(4, np.uint32), block=(1, 1, 1), checks=["uninitialised"])


def test_a_kernel_that_does_not_ask_has_none() -> None:
    code = START.replace("mov.u32 b, %reserved_smem_offset_begin;", "mov.u32 b, s;") + "st.shared.u32 [b+32], t;"
    with pytest.raises(MemoryFault, match="outside the 20 bytes of shared memory"):
        run(kernel(code, head=HEAD), np.zeros(4, np.uint32), block=(1, 1, 1))


TILES = r"""
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void tiles(int* y) {
    auto tile = cg::tiled_partition<64>(cg::this_thread_block());
    int last = tile.shfl(threadIdx.x, 63);
    tile.sync();
    y[blockIdx.x * blockDim.x + threadIdx.x] = last + 1000 * tile.any(threadIdx.x == 3);
}
"""


def test_tiles_of_several_warps(device: ptxrt.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC's code of cooperative groups has its barriers there; all checks are made."""
    if device.kind == "hip":
        pytest.skip("cooperative groups of CUDA")
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.setenv("PTXRT_SIM_CHECKS", "all")
    source = ptxrt.KernelSource.cuda(TILES)
    y = ptxrt.empty(256, np.int32, device)
    ptxrt.load(source, "tiles", "i32* y", device).launch(2, 128, y)
    assert y.numpy().tolist() == ([1063] * 64 + [127] * 64) * 2
