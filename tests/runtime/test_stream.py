"""Streams and events: the order of work on one device, and memory given back in that order."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
from helpers import Patch, launches_by, refused
from numpy.testing import assert_array_equal
from texts import SAXPY, SAXPY_SIGNATURE, source_for

import ptxrt
from ptxrt import Device, DeviceArray, Kernel
from ptxrt.backends import Forked
from ptxrt.runtime import stream as stream_module

Freed: TypeAlias = list[tuple[int, int, set[int]]]


class Foreign:
    """Another library's stream."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.handle)


@pytest.fixture
def x(device: Device) -> DeviceArray:
    return ptxrt.to_device(np.arange(64, dtype=np.float32), device)


@pytest.fixture(scope="module")
def saxpy(device: Device) -> Kernel:
    return ptxrt.load(source_for(SAXPY, device), "saxpy", SAXPY_SIGNATURE, device)


@pytest.fixture
def freed(device: Device, monkeypatch: Patch) -> Freed:
    """What the backend is asked to free: address, stream, and the other streams it must wait for."""
    calls: Freed = []
    free = device.backend.free

    def noted(ordinal: int, ptr: int, stream: int, used_on: tuple[int, ...]) -> None:
        calls.append((ptr, stream, set(used_on)))
        free(ordinal, ptr, stream, used_on)

    monkeypatch.setattr(device.backend, "free", noted, raising=False)
    return calls


# Order ------------------------------------------------------------------------------------------------------------


def test_the_default_stream_has_handle_0_and_is_always_the_same(device: Device) -> None:
    assert device.default_stream is device.default_stream
    assert (device.default_stream.handle, device.default_stream.device) == (0, device)


def test_streams_are_different(device: Device) -> None:
    one, two = device.create_stream(), device.create_stream()
    assert len({one.handle, two.handle, 0}) == 3
    assert one.device is device
    assert str(device) in repr(one)


def test_work_on_one_stream_is_done_in_order(device: Device, x: DeviceArray) -> None:
    stream = device.create_stream()
    y = ptxrt.empty(64, np.float32, device, stream=stream)
    for byte in (1, 2, 3):
        y.fill_bytes(byte, stream)
    y.copy_from(x, stream)
    assert_array_equal(y.to_host(stream), x.to_host())


def test_a_stream_waits_for_another(device: Device, x: DeviceArray) -> None:
    first, second = device.create_stream(), device.create_stream()
    big = ptxrt.empty(1 << 24, np.uint8, device)
    for byte in range(8):
        big.fill_bytes(byte, first)
    second.wait(first)
    assert set(big.to_host(second)) == {7}


def test_a_stream_waits_for_an_event(device: Device, x: DeviceArray) -> None:
    first, second = device.create_stream(), device.create_stream()
    big = ptxrt.empty(1 << 24, np.uint8, device)
    for byte in range(8):
        big.fill_bytes(byte, first)
    second.wait(first.record())
    assert set(big.to_host(second)) == {7}


def test_the_default_stream_can_wait_and_be_waited_for(device: Device, x: DeviceArray) -> None:
    stream = device.create_stream()
    x.fill_bytes(0, stream)
    device.default_stream.wait(stream)
    assert not x.to_host().any()
    stream.wait(device.default_stream)
    assert not x.to_host(stream).any()


def test_synchronize_waits_for_the_stream(device: Device) -> None:
    stream = device.create_stream()
    big = ptxrt.empty(1 << 24, np.uint8, device)
    big.fill_bytes(7, stream)
    event = stream.record()
    stream.synchronize()
    assert event.done


# Events -----------------------------------------------------------------------------------------------------------


def test_record_makes_an_event_or_takes_one(device: Device) -> None:
    stream = device.create_stream()
    event = ptxrt.Event(device)
    assert stream.record(event) is event
    assert stream.record().device is device


def test_an_event_is_done_once_the_work_before_it_is(device: Device) -> None:
    stream = device.create_stream()
    event = stream.record()
    event.synchronize()
    assert event.done


def test_an_event_that_was_never_recorded_is_done(device: Device) -> None:
    event = ptxrt.Event(device)
    event.synchronize()
    assert event.done
    assert not event.recorded


def test_the_time_between_two_events_is_not_negative_and_grows(device: Device) -> None:
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
def test_the_time_of_an_event_that_was_not_recorded_is_refused(device: Device, missing: str) -> None:
    events = {"event": ptxrt.Event(device), "end": ptxrt.Event(device)}
    for name, event in events.items():
        if name != missing:
            device.default_stream.record(event)
    with refused(ptxrt.InvalidArgument, "Event.elapsed_ms", missing, "a recorded event", "Stream.record(event)"):
        events["event"].elapsed_ms(events["end"])


def test_the_time_to_an_event_of_another_device_is_refused(device: Device, other_device: Device) -> None:
    start, end = device.default_stream.record(), other_device.default_stream.record()
    with refused(ptxrt.DeviceMismatch, "Event.elapsed_ms", "end", str(device), str(other_device)):
        start.elapsed_ms(end)


def test_an_event_of_another_device_is_not_recorded(device: Device, other_device: Device) -> None:
    event = ptxrt.Event(other_device)
    with refused(ptxrt.DeviceMismatch, "Stream.record", "event", str(device), str(other_device)):
        device.default_stream.record(event)
    assert not event.recorded


def test_an_event_of_another_device_is_not_waited_for(device: Device, other_device: Device) -> None:
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
def test_what_is_no_event_is_refused(device: Device, op: str, argument: str, use: Any) -> None:
    with refused(ptxrt.InvalidArgument, op, argument, "a ptxrt.Event", "int"):
        use(device)


# Which stream is used --------------------------------------------------------------------------------------------

TAKERS: dict[str, Callable[[Any, Any, Any], object]] = {
    "DeviceArray.to_host": lambda a, stream, k: a.to_host(stream),
    "DeviceArray.fill_bytes": lambda a, stream, k: a.fill_bytes(0, stream),
    "DeviceArray.copy_from": lambda a, stream, k: a.copy_from(np.zeros(64, np.float32), stream),
    "empty": lambda a, stream, k: ptxrt.empty(4, np.float32, a.device, stream=stream),
    "saxpy": lambda a, stream, k: k.launch(1, 64, a, a, 64, 1.0, stream=stream),
    "group_norm": lambda a, stream, k: ptxrt.ops.group_norm(a.view(1, 4, 16), None, None, 2, stream=stream),
}


@pytest.mark.two_devices
@pytest.mark.parametrize("op", TAKERS)
def test_pain14_stream_of_another_device_is_refused(
    device: Device, other_device: Device, x: DeviceArray, saxpy: Kernel, op: str
) -> None:
    before = x.to_host()
    with refused(ptxrt.DeviceMismatch, op, "stream", str(device), str(other_device), "Make it on the device"):
        TAKERS[op](x, other_device.create_stream(), saxpy)
    assert_array_equal(x.to_host(), before)


@pytest.mark.two_devices
def test_pain14_the_default_stream_of_another_device_is_refused(
    device: Device, other_device: Device, x: DeviceArray
) -> None:
    with refused(ptxrt.DeviceMismatch, "DeviceArray.to_host", "stream", str(device), str(other_device)):
        x.to_host(other_device.default_stream)


@pytest.mark.two_devices
def test_pain14_a_foreign_stream_of_another_device_is_refused(cuda: Device) -> None:
    try:
        other = Device("cuda:1")
    except ptxrt.InvalidArgument:
        pytest.skip("one cuda device only")
    stream = other.create_stream()
    y = ptxrt.zeros(4, np.float32, cuda)
    with refused(ptxrt.DeviceMismatch, "DeviceArray.to_host", "stream", "cuda:0", "cuda:1"):
        y.to_host(Foreign(stream.handle))


@pytest.mark.parametrize("op", TAKERS)
@pytest.mark.parametrize("stream", [0, 1, 2.5, "stream", True], ids=repr)
def test_what_is_no_stream_is_refused(x: DeviceArray, saxpy: Kernel, op: str, stream: Any) -> None:
    with refused(
        ptxrt.InvalidArgument, op, "stream", "a ptxrt.Stream, or an object with __cuda_stream__", "(0, handle)"
    ):
        TAKERS[op](x, stream, saxpy)


def test_a_stream_waits_for_none_of_the_streams_where_none_is_said(device: Device) -> None:
    with (
        device.create_stream(),
        refused(ptxrt.InvalidArgument, "Stream.wait", "event_or_stream", "a ptxrt.Event or Stream", "default_stream"),
    ):
        device.default_stream.wait(None)  # type: ignore[arg-type]


def test_a_stream_waits_for_no_integer(device: Device) -> None:
    with refused(ptxrt.InvalidArgument, "Stream.wait", "event_or_stream", "__cuda_stream__"):
        device.default_stream.wait(3)  # type: ignore[arg-type]


def test_on_sim_a_cuda_stream_is_of_another_device(sim: Device) -> None:
    with refused(ptxrt.DeviceMismatch, "DeviceArray.to_host", "stream", "a stream of sim:0", "a GPU's stream"):
        ptxrt.zeros(4, np.float32, sim).to_host(Foreign(0))


def test_on_sim_a_stream_is_no_cuda_stream(sim: Device) -> None:
    with refused(ptxrt.Unsupported, "Stream.__cuda_stream__", "device", "a CUDA device", "sim:0"):
        sim.create_stream().__cuda_stream__()


def test_on_cuda_a_stream_is_shared_by_its_protocol(cuda: Device) -> None:
    stream = cuda.create_stream()
    assert stream.__cuda_stream__() == (0, stream.handle)
    assert cuda.default_stream.__cuda_stream__() == (0, 0)


@pytest.mark.parametrize("default", [0, 1, 2], ids=["null", "legacy", "per-thread"])
def test_on_cuda_a_foreign_default_stream_is_of_the_arrays_device(cuda: Device, default: int) -> None:
    y = ptxrt.zeros(4, np.float32, cuda)
    cuda.synchronize()
    y.fill_bytes(1, Foreign(default))
    assert set(y.to_host(Foreign(default)).tobytes()) == {1}


def test_on_cuda_a_foreign_stream_is_accepted(cuda: Device) -> None:
    stream = cuda.create_stream()
    y = ptxrt.empty(1 << 22, np.uint8, cuda, stream=Foreign(stream.handle))
    y.fill_bytes(3, Foreign(stream.handle))
    assert set(y.to_host(stream)) == {3}


def test_one_of_our_streams_by_its_handle_outlives_what_was_allocated_there(device: Device) -> None:
    if device.kind == "sim":
        pytest.skip("sim takes no handles")
    stream = device.create_stream()
    y = ptxrt.zeros(4, np.float32, device, stream=Foreign(stream.handle))
    assert y.memory.stream is stream
    handle = stream.handle
    del stream, y
    gc.collect()
    assert (device.kind, handle) not in stream_module._made


@pytest.mark.parametrize("answer", [None, 5, (0,), (0, None), (0, 1, 2)], ids=repr)
def test_on_cuda_a_protocol_that_answers_nonsense_is_refused(cuda: Device, answer: Any) -> None:
    stream: Any = Foreign(0)
    stream.__cuda_stream__ = lambda: answer
    with refused(ptxrt.InvalidArgument, "DeviceArray.to_host", "stream", "(version, handle)"):
        ptxrt.zeros(4, np.float32, cuda).to_host(stream)


@pytest.mark.parametrize("make", [Device.create_stream, ptxrt.Event], ids=["stream", "event"])
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])
def test_a_handle_is_neither_copied_nor_pickled(device: Device, make: Any, again: Any) -> None:
    handle = make(device)
    with refused(ptxrt.InvalidArgument, "copy", type(handle).__name__.lower(), "the object itself", "Make another"):
        again(handle)


@pytest.mark.parametrize("kind", [ptxrt.Stream, ptxrt.Event])
def test_what_was_never_made_is_destroyed_without_a_word(monkeypatch: Patch, kind: Any) -> None:
    said: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    with pytest.raises(TypeError, match="device"):
        kind()
    with refused(ptxrt.InvalidArgument, "Device", "name"):
        kind("nowhere")
    assert said == []


# Freeing ----------------------------------------------------------------------------------------------------------


def test_pain28_memory_is_freed_on_the_stream_it_was_allocated_on(device: Device, freed: Freed) -> None:
    stream = device.create_stream()
    x = ptxrt.empty(16, np.float32, device, stream=stream)
    ptr = x.ptr
    del x
    assert (ptr, stream.handle, set()) in freed


USERS: dict[str, Callable[[Any, Any, Any, Any], object]] = {
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
def test_pain28_freeing_waits_for_every_stream_that_used_the_memory(
    device: Device, saxpy: Kernel, freed: Freed, use: str
) -> None:
    x, y = (ptxrt.zeros(64, np.float32, device) for _ in range(2))
    one, two = device.create_stream(), device.create_stream()
    ptr = x.ptr
    USERS[use](x, y, one, saxpy)
    USERS[use](x, y, two, saxpy)
    x.free()
    assert (ptr, 0, {one.handle, two.handle}) in freed


@pytest.mark.parametrize("use", USERS)
def test_pain28_the_default_stream_is_waited_for_too(device: Device, saxpy: Kernel, freed: Freed, use: str) -> None:
    stream = device.create_stream()
    x, y = (ptxrt.zeros(64, np.float32, device, stream=stream) for _ in range(2))
    stream.synchronize()
    ptr = x.ptr
    USERS[use](x, y, None, saxpy)
    x.free()
    assert (ptr, stream.handle, {0}) in freed


@pytest.fixture
def ended(device: Device, monkeypatch: Patch) -> list[int]:
    """The streams that the backend is asked to destroy."""
    calls: list[int] = []
    destroy = device.backend.destroy_stream

    def noted(ordinal: int, stream: int) -> None:
        calls.append(stream)
        destroy(ordinal, stream)

    monkeypatch.setattr(device.backend, "destroy_stream", noted, raising=False)
    return calls


def test_pain28_a_stream_in_use_lives_as_long_as_the_memory(device: Device, freed: Freed, ended: list[int]) -> None:
    x = ptxrt.zeros(64, np.float32, device)
    stream = device.create_stream()
    x.fill_bytes(1, stream)
    ptr, handle = x.ptr, stream.handle
    del stream
    gc.collect()
    assert handle not in ended
    x.free()
    assert (ptr, 0, {handle}) in freed
    del x
    assert handle in ended


def test_streams_that_are_done_do_not_pile_up_on_an_array(device: Device, freed: Freed, ended: list[int]) -> None:
    x = ptxrt.zeros(64, np.float32, device)
    device.synchronize()
    ptr, kept, made = x.ptr, device.create_stream(), []
    for _ in range(300):
        x.fill_bytes(1, kept)
        stream = device.create_stream()
        made.append(stream.handle)
        x.fill_bytes(1, stream)
        stream.synchronize()
    assert len(x.memory.users) <= 18
    assert {kept.handle, stream.handle} <= set(x.memory.users)
    assert len(ended) >= 300 - 18
    x.free()
    assert any(at == ptr and {kept.handle, stream.handle} <= used and len(used) <= 17 for at, _, used in freed)


def test_a_stream_stays_noted_while_it_is_busy_or_may_be_given_work(device: Device, monkeypatch: Patch) -> None:
    """A launch is noted before it begins, and in between another thread may note its own."""
    x = ptxrt.zeros(64, np.float32, device)
    device.synchronize()
    busy: list[int] = []
    asked: list[int] = []

    def idle(ordinal: int, streams: Any) -> list[int]:
        asked.extend(streams)
        return [stream for stream in streams if stream not in busy]

    monkeypatch.setattr(device.backend, "idle", idle, raising=False)
    mine = [device.create_stream() for _ in range(3)]
    for stream in mine:
        x.fill_bytes(1, stream)
    for number in range(100):
        stream = device.create_stream()
        x.fill_bytes(1, stream)
        stream.synchronize()
        if number % 10 == 0:
            busy.append(stream.handle)
    del stream
    held = {stream.handle for stream in mine}
    queues = [stream.queue for stream in mine]  # as long as these are there no other stream gets their handles
    assert held | set(busy) <= set(x.memory.users)
    assert not held & set(asked)
    assert asked
    mine.clear()
    busy.clear()
    for _ in range(64):
        x.fill_bytes(1, device.create_stream())
    assert not held & set(x.memory.users)
    assert all(queues)


def test_a_stream_is_noted_beside_another_librarys_that_had_its_handle(device: Device, ended: list[int]) -> None:
    x = ptxrt.zeros(64, np.float32, device)
    stream = device.create_stream()
    handle = stream.handle
    for queue in (ptxrt.Stream._wrap(device, handle, owner=Foreign(handle)), stream):
        x.memory.used_on(queue)
    del queue, stream
    gc.collect()
    assert handle not in ended
    x.free()


def test_pain28_a_buffer_dropped_in_flight_is_not_reused_before_its_reader_is_done(device: Device) -> None:
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


@pytest.mark.parametrize("line", range(6))
@pytest.mark.parametrize("held", [False, True])
def test_of_two_threads_that_free_an_array_one_does(device: Device, freed: Freed, held: bool, line: int) -> None:
    """The other one comes in front of each line of the first one's free()."""
    x = ptxrt.zeros(4, np.float32, device)
    memory, ptr, lines = x.memory, x.ptr, 0
    if held:
        memory.hold()
    other = threading.Thread(target=memory.free)

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        if event == "line":
            if lines == line:
                other.start()
                other.join()
            lines += 1
        return trace if frame.f_code is type(memory).free.__code__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        memory.free()
    finally:
        sys.settrace(before)
    assert not memory.alive
    if held:
        assert ptr not in [at for at, *_ in freed]
        memory.release()
    assert [at for at, *_ in freed].count(ptr) == 1


def test_an_array_outlives_its_streams_in_a_garbage_cycle(device: Device, monkeypatch: Patch) -> None:
    """Python then calls the destructors in any order: here the streams' first."""
    calls: Any = []
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
        stream.queue.__del__()  # type: ignore[union-attr]
        array.free()
        assert calls == [("synchronize", device.ordinal, None), ("free", device.ordinal, ptr, 0, ())]


def test_a_forked_child_frees_such_an_array_without_a_word(device: Device, monkeypatch: Patch) -> None:
    stream = device.create_stream()
    array = ptxrt.zeros(4, np.float32, device, stream=stream)
    stream.synchronize()
    ptr = array.ptr
    stream.queue.__del__()  # type: ignore[union-attr]
    with monkeypatch.context() as child:
        child.setattr(device, "backend", Forked(device.kind))
        array.free()
    device.backend.free(device.ordinal, ptr, 0, ())


# The current stream -----------------------------------------------------------------------------------------------


@pytest.fixture
def launched(device: Device, monkeypatch: Patch) -> list[int]:
    """The streams that the backend is asked to launch on."""
    calls: list[int] = []
    launch = device.backend.launch

    def noted(ordinal: int, function: Any, dims: Any, shared: int, stream: int, arguments: Any) -> None:
        calls.append(stream)
        launch(ordinal, function, dims, shared, stream, arguments)

    launches_by(monkeypatch, device, noted)
    return calls


def test_within_a_block_work_that_names_no_stream_goes_to_the_blocks(
    device: Device, saxpy: Kernel, launched: list[int], x: DeviceArray
) -> None:
    y = ptxrt.zeros(64, np.float32, device)
    device.synchronize()
    named = ptxrt.Stream(device)
    with ptxrt.Stream(device) as stream:
        saxpy.launch(1, 64, x, y, 64, 2.0)
        saxpy.launch(1, 64, x, y, 64, 2.0, stream=named)
        z = ptxrt.zeros(64, np.float32, device)
        z[...] = y
        w = ptxrt.ops.group_norm(ptxrt.ones((1, 2, 2), device=device), None, None, 1)
        assert [array.memory.stream for array in (z, w)] == [stream] * 2
        assert set(y.memory.users) == {0, stream.handle, named.handle}
        z.to_host()
    saxpy.launch(1, 64, x, y, 64, 2.0)
    assert [launched[0], launched[1], launched[-1]] == [stream.handle, named.handle, 0]
    assert launched[2:-1] == [stream.handle] * len(launched[2:-1])
    assert ptxrt.zeros(1, device=device).memory.stream is device.default_stream


def test_blocks_nest_and_each_device_has_its_own(device: Device, other_device: Device) -> None:
    def current() -> ptxrt.Stream:
        return ptxrt.empty(1, device=device).memory.stream

    a, b, other = ptxrt.Stream(device), ptxrt.Stream(device), ptxrt.Stream(other_device)
    with a:
        with b, other, a:
            assert current() is a
            with b:
                assert current() is b
            assert current() is a
            with device.default_stream:
                assert current() is device.default_stream
        with other:
            assert current() is a
        with b:
            with a:
                pass
            assert current() is b
    assert current() is device.default_stream


def test_a_block_is_its_threads_own_and_ends_with_an_exception(device: Device) -> None:
    found: list[Any] = []
    stream = ptxrt.Stream(device)
    with stream:
        thread = threading.Thread(target=lambda: found.append(ptxrt.empty(1, device=device).memory.stream))
        thread.start()
        thread.join()
    with pytest.raises(KeyError), stream:
        raise KeyError
    assert found == [device.default_stream]
    assert ptxrt.empty(1, device=device).memory.stream is device.default_stream


def test_streams_and_events_say_what_they_are(device: Device) -> None:
    stream, event = ptxrt.Stream(device), ptxrt.Event(device)
    assert repr(device.default_stream) == f"<Stream: the default stream of {device}>"
    assert repr(stream) == f"<Stream: stream {stream.handle:#x} of {device}>"
    assert repr(event) == f"<Event of {device}, not recorded yet>"
    stream.record(event)
    assert repr(event) == f"<Event of {device}, recorded>"
