"""Big launches in bounded memory: chunks are chosen by registers, local and shared memory."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

from machine import kernel

from ptxrt import sim
from ptxrt.sim._launch import _blocks_at_once
from ptxrt.sim._machine.shape import Shape

_SCRIPT = """
import re, struct, sys
import numpy as np
from ptxrt import sim
text = sys.argv[1]
memory = sim.GlobalMemory()
n = 1 << 24
x, out = memory.allocate(4 * n), memory.allocate(4 * n)
memory.view(x, 4 * n, writable=True).view(np.float32)[:] = np.arange(n, dtype=np.float32)
loaded = sim.load(sim.parse(text), memory)
report = sim.launch(loaded, "k", (n // 256, 1, 1), (256, 1, 1), struct.pack("<QQ", x, out))
got = memory.view(out, 4 * n).view(np.float32)
assert (got[::4097] == np.arange(n, dtype=np.float32)[::4097] * 2 + 1).all()
assert report.threads == n
print(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])  # ru_maxrss would be the parent's at first
"""


def test_sixteen_million_elements_stay_under_two_gigabytes() -> None:
    body = """.reg .u32 t, c, n; .reg .u64 p, q, o; .reg .f32 v; mov.u32 t, %tid.x; mov.u32 c, %ctaid.x;
    mov.u32 n, %ntid.x; mad.lo.u32 t, c, n, t; mul.wide.u32 o, t, 4; ld.param.u64 p, [x]; ld.param.u64 q, [y];
    add.u64 p, p, o; add.u64 q, q, o; ld.global.f32 v, [p]; fma.rn.f32 v, v, 0f40000000, 0f3f800000;
    st.global.f32 [q], v;"""
    text = kernel(body, ".param .u64 x, .param .u64 y")
    done = subprocess.run([sys.executable, "-c", _SCRIPT, text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * 1024 < 2 << 30


def test_chunks_are_small_where_a_block_needs_much() -> None:
    body = ".reg .u32 v; .local .u32 l[%d]; .shared .u32 s[%d]; ld.local.u32 v, [l]; st.shared.%s [s], v;"

    def blocks(local: int, shared: int, kind: str = "u32", threads: int = 256) -> tuple[int, int]:
        code = sim.parse(kernel(body % (local, shared, kind), "")).entries["k"].code
        shape = Shape((1 << 20, 1, 1), (threads, 1, 1), shared * 4, shared * 4)
        count = _blocks_at_once(code, shape)
        # What a chunk takes: local memory, shared memory with the model of races, registers.
        granules = shared * 4 // code.shared_word
        used = count * (threads * (code.local_stride + code.lane_bytes) + shared * 4 + granules * 32)
        return count, used

    assert blocks(4, 4)[0] == 128
    for local, shared, kind in ((4096, 4, "u32"), (4, 12000, "u32"), (4, 12000, "u8"), (100_000, 12000, "u8")):
        count, used = blocks(local, shared, kind)
        assert 1 <= count <= 128
        assert used < 1 << 28 or count == 1


def test_blocks_of_a_cluster_stay_together() -> None:
    code = sim.parse(kernel(".local .u32 l[4096]; st.local.u32 [l], 1;", "")).entries["k"].code
    shape = Shape((1 << 12, 1, 1), (256, 1, 1), 0, 0)
    for blocks in (1, 2, 3, 8, 16):
        assert _blocks_at_once(code, replace(shape, cluster=(blocks, 1, 1))) % blocks == 0
