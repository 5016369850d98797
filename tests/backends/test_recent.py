"""Which launches an asynchronous fault can come from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from helpers import run_script

import ptxrt
from ptxrt.backends._recent import RecentLaunches

DIMS = (4, 1, 1, 256, 1, 1)


def launch(recent: RecentLaunches, entry: str, stream: int = 0, ordinal: int = 0) -> None:
    recent.note((ordinal, stream, SimpleNamespace(entry=entry), DIMS))


def named(recent: RecentLaunches) -> list[str]:
    _, found, launches = recent.reason().partition("waited for since: ")
    return [part.split(",")[0] for part in launches.split(". The process")[0].split("; ")] if found else []


def test_launches_are_named_with_grid_block_device_and_stream_the_latest_first() -> None:
    recent = RecentLaunches("cuda")
    launch(recent, "first")
    launch(recent, "second", stream=0xAB, ordinal=1)
    assert (
        "second, grid (4, 1, 1), block (256, 1, 1), on cuda:1, stream 0xab; first, grid (4, 1, 1), block (256, 1, 1), "
        "on cuda:0. The process must start anew"
    ) in recent.reason()


def test_without_launches_it_says_what_is_known() -> None:
    assert RecentLaunches("hip").reason().startswith(". A kernel launched earlier did this. The process")


def test_a_wait_takes_out_the_launches_before_it_on_its_stream() -> None:
    recent = RecentLaunches("cuda")
    launch(recent, "a", stream=1)
    launch(recent, "b", stream=2)
    launch(recent, "c", stream=1, ordinal=1)
    with recent.waiting(0, 1):
        launch(recent, "d", stream=1)  # by another thread, meanwhile
    assert named(recent) == ["d", "c", "b"]
    with recent.waiting(0, None):
        pass
    assert named(recent) == ["c"]


def test_a_wait_that_fails_takes_out_nothing() -> None:
    recent = RecentLaunches("cuda")
    launch(recent, "a")
    with pytest.raises(ZeroDivisionError), recent.waiting(0, None):
        raise ZeroDivisionError
    assert named(recent) == ["a"]


def test_few_are_shown_and_the_others_counted() -> None:
    recent = RecentLaunches("cuda")
    for i in range(1000):
        launch(recent, f"k{i}")
    assert named(recent)[0] == "k999"
    assert "; and 56 before them. The process" in recent.reason()


ILLEGAL = '''
import numpy as np, ptxrt
text = """.version 7.0
.target sm_70
.address_size 64
.visible .entry store(.param .u64 x, .param .u64 far) {
    .reg .b64 %x, %far;  .reg .b32 %v;
    ld.param.u64 %x, [x];  ld.param.u64 %far, [far];  mov.u32 %v, 7;
    add.u64 %x, %x, %far;  st.global.u32 [%x], %v;  ret;
}"""
device = ptxrt.Device("cuda:0")
kernel = ptxrt.load(ptxrt.KernelSource.ptx(text), "store", "u32* x, u64 far", device)
x = ptxrt.zeros(8, np.uint32, device)
kernel.launch(3, 32, x, 0)
device.synchronize()
kernel.launch((4, 2), 64, x, 0x700000000000)
try:
    x.to_host()
except ptxrt.DriverError as error:
    print(error)
'''


def test_an_illegal_address_names_the_kernels_that_nobody_has_waited_for(cuda: ptxrt.Device) -> None:
    del cuda
    words: Any = run_script(ILLEGAL).stdout
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in words
    assert "store, grid (4, 2, 1), block (64, 1, 1), on cuda:0. The process" in words
    assert "(3, 1, 1)" not in words
