"""A kernel called by the names of its parameters, and as kernel[grid, block]."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from helpers import refused
from texts import DYNAMIC_SHARED, HEAD, SAXPY, SAXPY_SIGNATURE, source_for

import ptxrt
from ptxrt import Device, DeviceArray, Kernel, KernelSource


@pytest.fixture(scope="module")
def saxpy(device: Device) -> Kernel:
    return ptxrt.load(source_for(SAXPY, device), "saxpy", SAXPY_SIGNATURE, device)


@pytest.fixture
def x(device: Device) -> DeviceArray:
    return ptxrt.to_device(np.arange(100, dtype=np.float32), device)


@pytest.fixture
def y(device: Device) -> DeviceArray:
    return ptxrt.zeros(100, np.float32, device)


def calls(kernel: Kernel) -> list[Any]:
    """Both ways to launch."""
    return [lambda *args, **named: kernel.launch(1, 128, *args, **named), kernel[1, 128]]


def test_arguments_are_given_by_position_and_by_name(saxpy: Kernel, x: DeviceArray, y: DeviceArray) -> None:
    for call in calls(saxpy):
        call(x, y, 100, 1.0)
        call(x, y, 100, a=1.0)
        call(x, y, a=1.0, n=100)
        call(a=1.0, n=100, y=y, x=x)
    np.testing.assert_array_equal(y.to_host(), 8 * np.arange(100, dtype=np.float32))


@pytest.mark.parametrize(
    ("given", "named", "argument", "words"),
    [
        ("xy", {"n": 1, "aa": 1.0}, "aa", "one of x, y, n, a, given 'aa'. Did you mean a?"),
        ("xy", {"n": 1, "a": 1.0, "b": 2}, "b", "one of x, y, n, a"),
        ("xy", {"y": 1, "n": 1, "a": 1.0}, "y", "one value, given argument 1 and y=. Give it by position or by name"),
        ("xy", {"y": 1, "a": 1.0}, "y", "one value"),
        ("x", {"a": 1.0}, "y", "a value for y, n (const f32* x, f32* y, u32 n, f32 a), given none"),
        ("xy", {"n": 1}, "a", "a value for a ("),
        ("xy", {}, "arguments", "4: const f32* x, f32* y, u32 n, f32 a, given 2"),
        ("xyxyx", {}, "arguments", "given 5"),
        ("xyxyx", {"a": 1.0}, "a", "given argument 3 and a="),
    ],
)
def test_a_wrong_name_and_a_wrong_number_are_refused(
    saxpy: Kernel, x: DeviceArray, y: DeviceArray, given: str, named: Any, argument: str, words: str
) -> None:
    for call in calls(saxpy):
        with refused(ptxrt.InvalidArgument, "saxpy", argument, words):
            call(*({"x": x, "y": y}[letter] for letter in given), **named)
    assert not y.to_host().any()


def test_a_value_is_checked_under_its_name(saxpy: Kernel, x: DeviceArray, y: DeviceArray) -> None:
    for call in calls(saxpy):
        with refused(ptxrt.InvalidArgument, "saxpy", "n", "u32", "-1"):
            call(x, y, n=-1, a=1.0)
        with refused(ptxrt.InvalidArgument, "saxpy", "x", "ptxrt.to_device"):
            call(x=None, y=y, n=1, a=1.0)


@pytest.mark.ptx
def test_a_parameter_may_have_the_name_of_an_argument_of_launch(sim: Device) -> None:
    names = ("self", "grid", "stream", "budget")
    text = f"{HEAD}.visible .entry k({', '.join(f'.param .u32 p{i}' for i in range(4))}) {{ ret; }}"
    kernel = ptxrt.load(KernelSource.ptx(text), "k", ", ".join(f"u32 {name}" for name in names), sim)
    kernel[1, 1](self=1, grid=2, stream=3, budget=4)
    kernel.launch(1, 1, 1, 2, 3, 4)


def test_a_kernel_without_parameters_takes_no_name(device: Device) -> None:
    kernel = ptxrt.load(source_for(HEAD + ".visible .entry nothing() { ret; }\n", device), "nothing", "", device)
    kernel[1, 1]()
    with refused(ptxrt.InvalidArgument, "nothing", "n", "no argument"):
        kernel[1, 1](n=1)


def test_grid_and_block_may_have_more_axes(saxpy: Kernel, x: DeviceArray, y: DeviceArray) -> None:
    saxpy[(4, 1), [32, 1, 1]](x, y, 100, 1.0)
    np.testing.assert_array_equal(y.to_host(), x.to_host())


def test_shared_memory_and_stream_follow(device: Device) -> None:
    kernel = ptxrt.load(source_for(DYNAMIC_SHARED, device), "far_end", "u32* out, u32 last", device)
    stream = device.create_stream()
    out = ptxrt.zeros(1, np.uint32, device, stream=stream)
    launcher = kernel[1, 1, 1024, stream]
    launcher(out, last=1020)
    assert out.to_host(stream)[0] == 77
    assert repr(launcher).startswith("<<Kernel far_end(u32* out, u32 last) on ")
    assert "with grid (1, 1, 1), block (1, 1, 1), 1024 bytes, " in repr(launcher)
    kernel[1, 1, 64](out, 60)


@pytest.mark.parametrize("config", [1, (1,), (), (1, 1, 0, None, 0), [1, 1]])
def test_a_kernel_takes_two_to_four_in_brackets(saxpy: Kernel, config: Any) -> None:
    with refused(ptxrt.InvalidArgument, "saxpy", "kernel[...]", "grid and block"):
        saxpy[config]


def test_what_is_in_brackets_is_checked_there(device: Device, saxpy: Kernel) -> None:
    for config, argument in (((0, 1), "grid"), ((1, 2000), "block"), ((1, 1, -1), "shared_bytes")):
        with refused(ptxrt.LaunchError, "saxpy", argument):
            saxpy[config]
    with refused(ptxrt.InvalidArgument, "saxpy", "stream"):
        saxpy[1, 1, 0, 7]


def test_a_stream_of_another_device_is_refused_in_brackets(saxpy: Kernel, other_device: Device) -> None:
    with refused(ptxrt.DeviceMismatch, "saxpy", "stream"):
        saxpy[1, 1, 0, other_device.create_stream()]


def test_another_launch_between_changes_nothing(saxpy: Kernel, x: DeviceArray, y: DeviceArray) -> None:
    launcher = saxpy[1, 128]
    for _ in range(2):
        launcher(x, y, 100, 1.0)
    saxpy.launch(1, 1, x, y, 0, 1.0)
    launcher(x, y, 100, 1.0)
    np.testing.assert_array_equal(y.to_host(), 3 * np.arange(100, dtype=np.float32))


def test_what_was_put_in_brackets_keeps_its_kernel_and_its_module_alive(device: Device) -> None:
    kernel = ptxrt.load(source_for(SAXPY, device), "saxpy", SAXPY_SIGNATURE, device)
    launcher, gone = kernel[1, 1], weakref.ref(kernel)
    del kernel
    assert gone() is not None
    gc.disable()
    try:
        del launcher
        assert gone() is None, "a cycle would keep the module loaded until the collector runs"
    finally:
        gc.enable()


# How many blocks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "block", "blocks"),
    [
        (1, 256, 1),
        (256, 256, 1),
        (257, 256, 2),
        (np.int64(1000), 128, 8),
        (2**40, 1, 2**40),
        ((640, 481), (16, 16), (40, 31)),
        ([5], [4], (2,)),
        (np.array([640, 481]), (16, 16), (40, 31)),
        ((7, 8, 9), (7, 4, 2), (1, 2, 5)),
    ],
)
def test_a_grid_covers_all_elements(n: Any, block: Any, blocks: Any) -> None:
    assert ptxrt.grid_for(n, block) == blocks


@pytest.mark.parametrize(
    ("n", "block", "argument", "words"),
    [
        (0, 256, "n", "Launch nothing"),
        ((4, 0), (1, 1), "n", "Launch nothing"),
        (-1, 256, "n", "each at least 1"),
        (1.5, 256, "n", "1.5"),
        (True, 256, "n", "True"),
        ((1, 2, 3, 4), (1, 1, 1, 1), "n", "one to three"),
        ((), (), "n", "one to three"),
        (10, 0, "block", "each at least 1"),
        (10, "4", "block", "'4'"),
        ((10, 10), 4, "block", "2 numbers, as n has"),
    ],
)
def test_a_grid_for_what_has_none_is_refused(n: Any, block: Any, argument: str, words: str) -> None:
    with refused(ptxrt.InvalidArgument, "grid_for", argument, words):
        ptxrt.grid_for(n, block)


def test_the_driver_says_how_many_blocks_a_multiprocessor_runs(device: Device, saxpy: Kernel) -> None:
    few, many = saxpy.max_blocks_per_multiprocessor(1024), saxpy.max_blocks_per_multiprocessor((16, 8))
    assert 1 <= few <= 2 < many
    shared = device.properties.max_shared_dynamic - saxpy.resources.shared_bytes
    assert saxpy.max_blocks_per_multiprocessor(128, shared) == 1


def test_a_block_that_cannot_be_launched_has_no_number(saxpy: Kernel) -> None:
    for block, shared, argument in ((2000, 0, "block"), (0, 0, "block"), (1, 1 << 30, "shared_bytes")):
        with refused(ptxrt.LaunchError, "saxpy", argument):
            saxpy.max_blocks_per_multiprocessor(block, shared)


def test_a_call_without_grid_and_block_says_what_to_write(saxpy: Kernel, x: DeviceArray, y: DeviceArray) -> None:
    with refused(ptxrt.InvalidArgument, "saxpy", "call", "kernel[grid, block](...)"):
        saxpy(x, y, 100, 1.0)  # type: ignore[operator]
