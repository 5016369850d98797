"""Kernels of clusters: sizes to which a GPU's kernel must be opted in, alone and in a graph."""

from __future__ import annotations

import numpy as np
import pytest

import ptxrt
from ptxrt import Device, KernelSource

EXCHANGE = """.version 8.0
.target sm_90
.address_size 64
.visible .entry exchange(.param .u64 out) .explicitcluster .reqnctapercluster SIZE, 1, 1
{ .reg .u32 t, r, n, a; .reg .u64 p, o; .shared .u32 ranks[1];
mov.u32 t, %ctaid.x; mov.u32 r, %cluster_ctarank; mov.u32 n, %cluster_nctarank; mov.u32 a, ranks;
st.shared.u32 [a], r;
barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
sub.u32 n, n, 1; sub.u32 r, n, r; mapa.shared::cluster.u32 a, a, r; ld.shared::cluster.u32 r, [a];
barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
ld.param.u64 p, [out]; mul.wide.u32 o, t, 4; add.u64 p, p, o; st.global.u32 [p], r; ret; }
"""


@pytest.fixture(params=["sim:0", pytest.param("cuda:0", marks=pytest.mark.cuda)])
def cuda_or_sim(request: pytest.FixtureRequest) -> Device:
    if request.param != "sim:0":
        request.getfixturevalue("cuda")
    return Device(str(request.param))


@pytest.mark.parametrize("size", [2, 8, 9, 16])
def test_blocks_of_a_cluster_read_from_the_opposite_rank(cuda_or_sim: Device, size: int) -> None:
    source = KernelSource.ptx(EXCHANGE.replace("SIZE", str(size)))
    kernel, stream = ptxrt.load(source, "exchange", "u32* out", cuda_or_sim), cuda_or_sim.create_stream()
    out = ptxrt.zeros(3 * size, np.uint32, cuda_or_sim, stream=stream)
    want = 3 * list(range(size))[::-1]
    kernel.launch(3 * size, 32, out, stream=stream)
    assert out.to_host(stream).tolist() == want
    with ptxrt.capture(stream) as graph:
        kernel.launch(3 * size, 32, out, stream=stream)
    out.fill(0, stream)
    graph.replay()
    assert out.to_host(stream).tolist() == want
