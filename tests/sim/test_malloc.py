"""malloc and free of kernels: bytes of their own length, over launches, in a heap of 8 MiB."""

from __future__ import annotations

import time

import numpy as np
import pytest
from machine import kernel, run

import ptxrt
from ptxrt import sim
from ptxrt.errors import MemoryFault

MODULE = """.extern .func (.param .b64 r) malloc(.param .b64 n);
.extern .func free(.param .b64 a);
"""
START = """.reg .u32 t, v; .reg .u64 p, o, a, n; .reg .pred q;
mov.u32 t, %tid.x; ld.param.u64 p, [out]; mul.wide.u32 o, t, 8; add.u64 p, p, o;
"""


def call(code: str, out: np.ndarray, memory: sim.GlobalMemory, threads: int = 4) -> np.ndarray:
    run(kernel(START + code, module=MODULE), out, block=(threads, 1, 1), memory=memory, checks=["uninitialised"])
    return out


def test_memory_lives_over_launches_until_it_is_freed() -> None:
    memory, out = sim.GlobalMemory(), np.zeros(4, np.uint64)
    call(
        "add.u32 v, t, 1; mul.wide.u32 n, v, 4; call (a), malloc, (n); st.u32 [a], t; st.global.u64 [p], a;",
        out,
        memory,
    )
    assert memory.bytes_in_use == 4 + 8 + 12 + 16
    assert [memory.view(int(address), 4).view(np.uint32)[0] for address in out] == [0, 1, 2, 3]
    read = out.copy()
    call(
        "ld.global.u64 a, [p]; ld.global.u32 v, [a]; cvt.u64.u32 n, v; st.global.u64 [p], n; call free, (a);",
        read,
        memory,
    )
    assert read.tolist() == [0, 1, 2, 3]
    assert memory.bytes_in_use == 0


@pytest.mark.parametrize(("code", "words"), [
    ("call free, (a); ld.global.u32 v, [a];", "inside freed memory of malloc"),
    ("call free, (a);\ncall free, (a);", "free"),
    ("ld.u32 v, [a+4];", "across the end of an allocation"),
    ("ld.u32 v, [a];", "nobody has written"), ("add.u64 a, a, 4; call free, (a);", "4 bytes into memory of malloc"),
    ("call free, (p);", "free of an address"), ("mov.u64 a, 5; call free, (a);", "free of an address"),
])  # fmt: skip
def test_what_is_wrong_with_it_is_a_fault(code: str, words: str) -> None:
    with pytest.raises(MemoryFault, match=words):
        call("mov.u64 n, 7; call (a), malloc, (n);" + code, np.zeros(4, np.uint64), sim.GlobalMemory())


def test_what_does_not_fit_is_a_null_pointer_and_that_may_be_freed() -> None:
    """The heap is shared: of four threads the last finds too little, until one has freed."""
    memory, out = sim.GlobalMemory(), np.zeros(4, np.uint64)
    sizes = "mov.u64 n, 2097152; setp.eq.u32 q, t, 2; @q add.u64 n, n, 1;"
    call(sizes + "call (a), malloc, (n); st.global.u64 [p], a;", out, memory)
    assert [bool(address) for address in out] == [True, True, True, False]
    call("ld.global.u64 a, [p]; call free, (a);", out.copy(), memory)
    assert memory.bytes_in_use == 0
    call("mov.u64 n, 0; call (a), malloc, (n); st.global.u64 [p], a;", out, memory)
    assert out.tolist() == [0, 0, 0, 0]
    call("mov.u64 n, -1; call (a), malloc, (n); st.global.u64 [p], a;", out, memory)
    assert out.tolist() == [0, 0, 0, 0]


def test_a_device_without_memory_gives_a_null_pointer() -> None:
    memory, out = sim.GlobalMemory(limit_bytes=1000), np.zeros(4, np.uint64)
    call("mov.u64 n, 400; call (a), malloc, (n); st.global.u64 [p], a;", out, memory)
    assert [bool(address) for address in out] == [True, True, False, False]


SOURCE = r"""
struct Node { int value; Node* next; };
extern "C" __global__ void chain(unsigned* y) {
    Node* head = nullptr;
    for (int k = 0; k <= (int)threadIdx.x; k++) {
        Node* node = new Node;
        node->value = k;
        node->next = head;
        head = node;
    }
    unsigned sum = 0;
    while (head) {
        Node* node = head;
        sum = 3 * sum + node->value;
        head = node->next;
        delete node;
    }
    y[threadIdx.x] = sum;
}
"""


def test_new_and_delete(device: ptxrt.Device) -> None:
    if device.kind == "hip":
        pytest.skip("malloc of CUDA")
    pytest.importorskip("cuda.bindings.nvrtc")
    y = ptxrt.empty(40, np.uint32, device)
    ptxrt.load(ptxrt.KernelSource.cuda(SOURCE), "chain", "u32* y", device).launch(1, 40, y)
    want = [sum(value * 3**value for value in range(t + 1)) & 0xFFFFFFFF for t in range(40)]
    assert y.numpy().tolist() == want


def test_lanes_that_free_one_address_are_a_fault_of_the_second() -> None:
    memory, out = sim.GlobalMemory(), np.zeros(4, np.uint64)
    with pytest.raises(MemoryFault, match="inside freed memory of malloc") as caught:
        call(
            "mov.u64 n, 8; call (a), malloc, (n); setp.ge.u32 q, t, 2; @q ld.global.u64 a, [p];\n"
            "shfl.sync.idx.b32 v, t, 0, 31, 15; st.global.u64 [p], a; bar.sync 0;\n"
            "ld.param.u64 p, [out]; setp.lt.u32 q, t, 3; @q ld.global.u64 a, [p+8]; call free, (a);",
            out,
            memory,
        )
    assert caught.value.thread == (1, 0, 0)
    assert memory.bytes_in_use == 3 * 8


def test_memory_of_many_threads_takes_time_in_proportion() -> None:
    """Each of 32768 threads allocates, writes and frees; with a step for each it takes 20 s."""
    memory, threads = sim.GlobalMemory(), 32768
    code = """.reg .u32 v; .reg .u64 a, n; mov.u32 v, %tid.x; mov.u64 n, 4; call (a), malloc, (n); st.global.u32 [a], v;
    ld.global.u32 v, [a]; call free, (a);"""
    text = kernel(code, "", module=MODULE)
    start = time.process_time()
    run(text, grid=(threads // 1024, 1, 1), block=(1024, 1, 1), memory=memory)
    assert time.process_time() - start < 5
    assert memory.bytes_in_use == 0
