"""Streams and events: the order of work on one device, and memory given back in that order."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import weakref

import numpy as np
import pytest
from helpers import refused
from numpy.testing import assert_array_equal
from texts import SAXPY, SAXPY_SIGNATURE, source_for

import ptxrt
from ptxrt.backends import Forked


class Foreign:
    """Another library's stream."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.handle)


@pytest.fixture
def x(device: ptxrt.Device) -> ptxrt.DeviceArray:
    return ptxrt.to_device(np.arange(64, dtype=np.float32), device)


@pytest.fixture(scope="module")
def saxpy(device: ptxrt.Device) -> ptxrt.Kernel:
    return ptxrt.load(source_for(SAXPY, device), "saxpy", SAXPY_SIGNATURE, device)


@pytest.fixture
def freed(device: ptxrt.Device, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, set[int]]]:
    """What the backend is asked to free: address, stream, and the other streams it must wait for."""
    calls: list[tuple[int, int, set[int]]] = []
    free = device.backend.free

    def noted(ordinal: int, ptr: int, stream: int, used_on: tuple[int, ...]) -> None:
        calls.append((ptr, stream, set(used_on)))
        free(ordinal, ptr, stream, used_on)

    monkeypatch.setattr(device.backend, "free", noted, raising=False)
    return calls


# Order ------------------------------------------------------------------------------------------------------------


def test_the_default_stream_has_handle_0_and_is_always_the_same(device):
    assert device.default_stream is device.default_stream
    assert (device.default_stream.handle, device.default_stream.device) == (0, device)


def test_streams_are_told_apart(device):
    one, two = device.create_stream(), device.create_stream()
    assert len({one.handle, two.handle, 0}) == 3
    assert one.device is device
    assert str(device) in repr(one)


def test_work_on_one_stream_is_done_in_order(device, x):
    stream = device.create_stream()
    y = ptxrt.empty(64, np.float32, device, stream=stream)
    for byte in (1, 2, 3):
        y.fill_bytes(byte, stream)
    y.copy_from(x, stream)
    assert_array_equal(y.to_host(stream), x.to_host())


def test_a_stream_waits_for_another(device, x):
    first, second = device.create_stream(), device.create_stream()
    big = ptxrt.empty(1 << 24, np.uint8, device)
    for byte in range(8):
        big.fill_bytes(byte, first)
    second.wait(first)
    assert set(big.to_host(second)) == {7}


def test_a_stream_waits_for_an_event(device, x):
    first, second = device.create_stream(), device.create_stream()
    big = ptxrt.empty(1 << 24, np.uint8, device)
    for byte in range(8):
        big.fill_bytes(byte, first)
    second.wait(first.record())
    assert set(big.to_host(second)) == {7}


def test_the_default_stream_can_wait_and_be_waited_for(device, x):
    stream = device.create_stream()
    x.fill_bytes(0, stream)
    device.default_stream.wait(stream)
    assert not x.to_host().any()
    stream.wait(None)
    assert not x.to_host(stream).any()


def test_synchronize_waits_for_the_stream(device):
    stream = device.create_stream()
    big = ptxrt.empty(1 << 24, np.uint8, device)
    big.fill_bytes(7, stream)
    event = stream.record()
    stream.synchronize()
    assert event.done


# Events -----------------------------------------------------------------------------------------------------------


def test_record_makes_an_event_or_takes_one(device):
    stream = device.create_stream()
    event = ptxrt.Event(device)
    assert stream.record(event) is event
    assert stream.record().device is device


def test_an_event_is_done_once_the_work_before_it_is(device):
    stream = device.create_stream()
    event = stream.record()
    event.synchronize()
    assert event.done


def test_an_event_that_was_never_recorded_is_done(device):
    event = ptxrt.Event(device)
    event.synchronize()
    assert event.done
    assert not event.recorded


def test_the_time_between_two_events_is_not_negative_and_grows(device):
    stream = device.create_stream()
    big = ptxrt.empty(1 << 24, np.uint8, device)
    start = stream.record()
    big.fill_bytes(1, stream)
    middle = stream.record()
    big.fill_bytes(2, stream)
    end = stream.record()
    assert 0 <= start.elapsed_ms(middle) <= start.elapsed_ms(end)
    assert start.elapsed_ms(end) > 0
    assert isinstance(start.elapsed_ms(end), float)


@pytest.mark.parametrize("missing", ["event", "end"])
def test_the_time_of_an_event_that_was_not_recorded_is_refused(device, missing):
    events = {"event": ptxrt.Event(device), "end": ptxrt.Event(device)}
    for name, event in events.items():
        if name != missing:
            device.default_stream.record(event)
    with refused(ptxrt.InvalidArgument, "Event.elapsed_ms", missing, "a recorded event", "Stream.record(event)"):
        events["event"].elapsed_ms(events["end"])


def test_the_time_to_an_event_of_another_device_is_refused(device, other_device):
    start, end = device.default_stream.record(), other_device.default_stream.record()
    with refused(ptxrt.DeviceMismatch, "Event.elapsed_ms", "end", str(device), str(other_device)):
        start.elapsed_ms(end)


def test_an_event_of_another_device_is_not_recorded(device, other_device):
    event = ptxrt.Event(other_device)
    with refused(ptxrt.DeviceMismatch, "Stream.record", "event", str(device), str(other_device)):
        device.default_stream.record(event)
    assert not event.recorded


def test_an_event_of_another_device_is_not_waited_for(device, other_device):
    with refused(ptxrt.DeviceMismatch, "Stream.wait", "event_or_stream", str(device), str(other_device)):
        device.default_stream.wait(other_device.default_stream.record())


@pytest.mark.parametrize(
    ("op", "argument", "use"),
    [
        ("Stream.record", "event", lambda device: device.default_stream.record(3)),
        ("Event.elapsed_ms", "end", lambda device: device.default_stream.record().elapsed_ms(3)),
    ],
    ids=["record", "elapsed"],
)
def test_what_is_no_event_is_refused(device, op, argument, use):
    with refused(ptxrt.InvalidArgument, op, argument, "a ptxrt.Event", "int"):
        use(device)


# Which stream is taken --------------------------------------------------------------------------------------------

TAKERS = {
    "DeviceArray.to_host": lambda a, stream, k: a.to_host(stream),
    "DeviceArray.fill_bytes": lambda a, stream, k: a.fill_bytes(0, stream),
    "DeviceArray.copy_from": lambda a, stream, k: a.copy_from(np.zeros(64, np.float32), stream),
    "empty": lambda a, stream, k: ptxrt.empty(4, np.float32, a.device, stream=stream),
    "saxpy": lambda a, stream, k: k.launch(1, 64, a, a, 64, 1.0, stream=stream),
    "group_norm": lambda a, stream, k: ptxrt.ops.group_norm(a.view(1, 4, 16), None, None, 2, stream=stream),
}


@pytest.mark.two_devices
@pytest.mark.parametrize("op", TAKERS)
def test_pain14_stream_of_another_device_is_refused(device, other_device, x, saxpy, op):
    before = x.to_host()
    with refused(ptxrt.DeviceMismatch, op, "stream", str(device), str(other_device), "Make it on the device"):
        TAKERS[op](x, other_device.create_stream(), saxpy)
    assert_array_equal(x.to_host(), before)


@pytest.mark.two_devices
def test_pain14_the_default_stream_of_another_device_is_refused(device, other_device, x):
    with refused(ptxrt.DeviceMismatch, "DeviceArray.to_host", "stream", str(device), str(other_device)):
        x.to_host(other_device.default_stream)


@pytest.mark.two_devices
def test_pain14_a_foreign_stream_of_another_device_is_refused(cuda):
    try:
        other = ptxrt.Device("cuda:1")
    except ptxrt.InvalidArgument:
        pytest.skip("one cuda device only")
    stream = other.create_stream()
    y = ptxrt.zeros(4, np.float32, cuda)
    with refused(ptxrt.DeviceMismatch, "DeviceArray.to_host", "stream", "cuda:0", "cuda:1"):
        y.to_host(Foreign(stream.handle))


@pytest.mark.parametrize("op", TAKERS)
@pytest.mark.parametrize("stream", [0, 1, 2.5, "stream", True], ids=repr)
def test_what_is_no_stream_is_refused(x, saxpy, op, stream):
    with refused(
        ptxrt.InvalidArgument, op, "stream", "a ptxrt.Stream, or an object with __cuda_stream__", "(0, handle)"
    ):
        TAKERS[op](x, stream, saxpy)


def test_a_stream_waits_for_no_integer(device):
    with refused(ptxrt.InvalidArgument, "Stream.wait", "event_or_stream", "__cuda_stream__"):
        device.default_stream.wait(3)


def test_on_sim_a_cuda_stream_is_of_another_device(sim):
    with refused(ptxrt.DeviceMismatch, "DeviceArray.to_host", "stream", "a stream of sim:0", "a GPU's stream"):
        ptxrt.zeros(4, np.float32, sim).to_host(Foreign(0))


def test_on_sim_a_stream_is_no_cuda_stream(sim):
    with refused(ptxrt.Unsupported, "Stream.__cuda_stream__", "device", "a CUDA device", "sim:0"):
        sim.create_stream().__cuda_stream__()


def test_on_cuda_a_stream_is_shared_by_its_protocol(cuda):
    stream = cuda.create_stream()
    assert stream.__cuda_stream__() == (0, stream.handle)
    assert cuda.default_stream.__cuda_stream__() == (0, 0)


@pytest.mark.parametrize("default", [0, 1, 2], ids=["null", "legacy", "per-thread"])
def test_on_cuda_a_foreign_default_stream_is_of_the_arrays_device(cuda, default):
    y = ptxrt.zeros(4, np.float32, cuda)
    cuda.synchronize()
    y.fill_bytes(1, Foreign(default))
    assert set(y.to_host(Foreign(default)).tobytes()) == {1}


def test_on_cuda_a_foreign_stream_is_taken(cuda):
    stream = cuda.create_stream()
    y = ptxrt.empty(1 << 22, np.uint8, cuda, stream=Foreign(stream.handle))
    y.fill_bytes(3, Foreign(stream.handle))
    assert set(y.to_host(stream)) == {3}


@pytest.mark.parametrize("answer", [None, 5, (0,), (0, None), (0, 1, 2)], ids=repr)
def test_on_cuda_a_protocol_that_answers_nonsense_is_refused(cuda, answer):
    stream = Foreign(0)
    stream.__cuda_stream__ = lambda: answer
    with refused(ptxrt.InvalidArgument, "DeviceArray.to_host", "stream", "(version, handle)"):
        ptxrt.zeros(4, np.float32, cuda).to_host(stream)


@pytest.mark.parametrize("make", [ptxrt.Device.create_stream, ptxrt.Event], ids=["stream", "event"])
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])
def test_a_handle_is_neither_copied_nor_pickled(device, make, again):
    handle = make(device)
    with refused(ptxrt.InvalidArgument, "copy", type(handle).__name__.lower(), "the object itself", "Make another"):
        again(handle)


@pytest.mark.parametrize("kind", [ptxrt.Stream, ptxrt.Event])
def test_what_was_never_made_is_destroyed_without_a_word(monkeypatch, kind):
    said = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    with pytest.raises(TypeError, match="device"):
        kind()
    with refused(ptxrt.InvalidArgument, "Device", "name"):
        kind("nowhere")
    assert said == []


# Freeing ----------------------------------------------------------------------------------------------------------


def test_pain28_memory_is_freed_on_the_stream_it_was_allocated_on(device, freed):
    stream = device.create_stream()
    x = ptxrt.empty(16, np.float32, device, stream=stream)
    ptr = x.ptr
    del x
    assert (ptr, stream.handle, set()) in freed


USERS = {
    "copy to": lambda x, y, s, k: x.copy_from(y, s),
    "copy from": lambda x, y, s, k: y.copy_from(x, s),
    "fill": lambda x, y, s, k: x.fill_bytes(1, s),
    "kernel reads": lambda x, y, s, k: k.launch(1, 64, x, y, 64, 1.0, stream=s),
    "kernel writes": lambda x, y, s, k: k.launch(1, 64, y, x, 64, 1.0, stream=s),
    "kernel on a view": lambda x, y, s, k: k.launch(1, 64, x[2:], y, 8, 1.0, stream=s),
    "op reads": lambda x, y, s, k: ptxrt.ops.group_norm(x.view(1, 4, 16), None, None, 2, stream=s),
    "op writes": lambda x, y, s, k: ptxrt.ops.group_norm(
        y.view(1, 4, 16), None, None, 2, out=x.view(1, 4, 16), stream=s
    ),
}


@pytest.mark.parametrize("use", USERS)
def test_pain28_freeing_waits_for_every_stream_that_used_the_memory(device, saxpy, freed, use):
    x, y = (ptxrt.zeros(64, np.float32, device) for _ in range(2))
    one, two = device.create_stream(), device.create_stream()
    ptr = x.ptr
    USERS[use](x, y, one, saxpy)
    USERS[use](x, y, two, saxpy)
    x.free()
    assert (ptr, 0, {one.handle, two.handle}) in freed


@pytest.mark.parametrize("use", USERS)
def test_pain28_the_default_stream_is_waited_for_too(device, saxpy, freed, use):
    stream = device.create_stream()
    x, y = (ptxrt.zeros(64, np.float32, device, stream=stream) for _ in range(2))
    stream.synchronize()
    ptr = x.ptr
    USERS[use](x, y, None, saxpy)
    x.free()
    assert (ptr, stream.handle, {0}) in freed


def test_pain28_a_stream_in_use_lives_as_long_as_the_memory(device, freed):
    x = ptxrt.zeros(64, np.float32, device)
    stream = device.create_stream()
    alive = weakref.ref(stream)
    x.fill_bytes(1, stream)
    ptr, handle = x.ptr, stream.handle
    del stream
    gc.collect()
    assert alive() is not None
    x.free()
    assert (ptr, 0, {handle}) in freed


def test_pain28_a_buffer_dropped_in_flight_is_not_reused_before_its_reader_is_done(device):
    size = 1 << 26 if device.kind == "cuda" else 1 << 16
    stream = device.create_stream()
    out = ptxrt.zeros(size, np.uint8, device)
    device.synchronize()
    for byte in range(1, 9):
        source = ptxrt.empty(size, np.uint8, device)
        source.fill_bytes(byte)
        stream.wait(device.default_stream)
        out.copy_from(source, stream)
        del source  # the copy on `stream` has hardly begun
        stolen = ptxrt.empty(size, np.uint8, device)
        stolen.fill_bytes(0xFF)
        seen = out.to_host(stream)
        assert (seen[0], seen[-1], seen.min(), seen.max()) == (byte,) * 4
        del stolen


def test_an_array_outlives_its_streams_in_a_garbage_cycle(device, monkeypatch):
    """Python then calls the destructors in any order: here the streams' first."""
    calls = []
    for name in ("free", "synchronize"):
        call = getattr(device.backend, name)
        monkeypatch.setattr(
            device.backend, name, lambda *args, n=name, c=call: (calls.append((n, *args)), c(*args))[1], raising=False
        )
    for on_its_own in (True, False):
        stream = device.create_stream()
        array = ptxrt.zeros(4, np.float32, device, stream=stream if on_its_own else None)
        array.memory.used_on(stream)
        stream.synchronize()
        calls.clear()
        ptr = array.ptr
        stream.__del__()
        array.free()
        assert calls == [("synchronize", device.ordinal, None), ("free", device.ordinal, ptr, 0, ())]


def test_a_forked_child_frees_such_an_array_without_a_word(device, monkeypatch):
    stream = device.create_stream()
    array = ptxrt.zeros(4, np.float32, device, stream=stream)
    stream.synchronize()
    ptr = array.ptr
    stream.__del__()
    with monkeypatch.context() as child:
        child.setattr(device, "backend", Forked(device.kind))
        array.free()
    device.backend.free(device.ordinal, ptr, 0, ())
