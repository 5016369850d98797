"""Graphs: what is captured, what a replay does, whose memory it is, and what cannot be captured."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import AMD_GPU, Rng, printed_by, refused, with_stand_in
from numpy.testing import assert_array_equal
from standin import Captured, StandIn
from texts import CONSTANT, NOTHING, SAXPY, SAXPY_SIGNATURE, source_for

import ptxrt
from ptxrt import Device, DeviceArray, Kernel, Stream, ops

N = 24
SHAPE = (1, 4, 6)


@pytest.fixture(scope="module")
def saxpy(device: Device) -> Kernel:
    return ptxrt.load(source_for(SAXPY, device), "saxpy", SAXPY_SIGNATURE, device)


@pytest.fixture
def stream(device: Device) -> Stream:
    return device.create_stream()


def numbers(device: Device, start: int = 0, shape: tuple[int, ...] = (N,)) -> DeviceArray:
    count = int(np.prod(shape))
    array = ptxrt.to_device(np.arange(start, start + count, dtype=np.float32).reshape(shape), device)
    device.synchronize()
    return array


def holds(*arrays: DeviceArray) -> list[int]:
    """Return how many graphs hold the memory of each."""
    return [array.memory._holds.count(False) for array in arrays]


def arrays(device: Device) -> tuple[DeviceArray, DeviceArray]:
    return numbers(device), numbers(device, 100)


# What a replay does -----------------------------------------------------------------------------------------------


def test_a_replay_does_what_the_block_would_have_done(device: Device, saxpy: Kernel, stream: Stream) -> None:
    def work(x: DeviceArray, y: DeviceArray) -> list[DeviceArray]:
        saxpy.launch(1, 32, x, y, N, 2.0, stream=stream)
        saxpy[1, 32, 0, stream](x, y, n=N, a=0.5)  # the same buffer of parameters again
        saxpy[1, 32](x[4:], y, 8, 3.0)
        z = y.copy()
        z[2:4].fill(-1.5)
        z[:1].fill_bytes(0, stream)
        return [y, z, ops.group_norm(z.view(SHAPE), None, None, 2), ptxrt.full(3, 7, "f4", device)]

    with stream:
        want = [array.to_host() for array in work(*arrays(device))]
    x, y = arrays(device)
    with ptxrt.capture(stream) as graph:
        results = work(x, y)
    assert_array_equal(y.to_host(), np.arange(100, 100 + N))  # nothing has run
    graph.replay()
    for result, right in zip(results, want, strict=True):
        assert_array_equal(result.to_host(stream), right)


def test_each_replay_reads_what_is_there_then(device: Device, saxpy: Kernel, stream: Stream) -> None:
    x, y = arrays(device)
    with ptxrt.capture(stream) as graph:
        saxpy[1, 32](x, y, N, 1.0)
    for start in (5, 7):
        x.copy_from(np.full(N, start, np.float32), stream)
        graph.replay()
    assert_array_equal(y.to_host(stream), np.arange(100, 100 + N) + 12)


@pytest.mark.parametrize("allocated", [False, True])
def test_a_chain_of_ten_ops(device: Device, stream: Stream, allocated: bool) -> None:
    x, outs = numbers(device, shape=SHAPE), [ptxrt.empty(SHAPE, device=device) for _ in range(10)]

    def chain(y: DeviceArray) -> DeviceArray:
        for out in outs:
            y = ops.softmax2d(y, out=None if allocated else out)
        return y

    want = chain(x).to_host()
    with ptxrt.capture(stream) as graph:
        y = chain(x)  # those between are nobody's but the graph's
    for _ in range(2):
        y.fill(0, stream)
        graph.replay()
        assert_array_equal(y.to_host(stream), want)


def test_a_workspace_is_the_graphs(device: Device, stream: Stream) -> None:
    x, weight = numbers(device, shape=SHAPE), numbers(device, 1, (4,))
    want = ops.group_norm_backward(x, x, weight, 2)
    with ptxrt.capture(stream) as graph:
        got = ops.group_norm_backward(x, x, weight, 2)
    stolen = [ptxrt.empty(nbytes, np.uint8, device, stream=stream) for nbytes in (416, 416, 912) for _ in range(4)]
    for array in stolen:
        array.fill_bytes(0xFF, stream)
    graph.replay()
    for array in stolen:
        assert set(array.to_host(stream)) == {0xFF}  # written by no replay
    for one, other in zip(got, want, strict=True):
        assert one is not None
        assert other is not None
        assert_array_equal(one.to_host(stream), other.to_host())


def test_an_op_whose_kernel_is_not_loaded_yet(device: Device, stream: Stream, clean_modules: ptxrt.ModuleCache) -> None:
    x = numbers(device, shape=SHAPE)
    with ptxrt.capture(stream) as graph:
        y = ops.softmax2d(x)
        table = ptxrt.to_device(np.ones(3, "f4"), device, stream=device.default_stream)  # as plans do
    graph.replay()
    assert_array_equal(y.to_host(stream), ops.softmax2d(x).to_host())
    assert_array_equal(table.to_host(), np.ones(3))


def test_a_cooperative_launch(device: Device, stream: Stream) -> None:
    kernel = ptxrt.load(source_for(NOTHING, device), "nothing", "", device)
    with ptxrt.capture(stream) as graph:
        kernel.cooperative[2, 32]()
        kernel[1, 32]()
    graph.replay()
    stream.synchronize()


def test_two_graphs_of_one_stream(device: Device, saxpy: Kernel, stream: Stream) -> None:
    x, y = arrays(device)
    graphs = []
    for factor in (1.0, 10.0):
        with ptxrt.capture(stream) as graph:
            saxpy[1, 32](x, y, N, factor)
        graphs.append(graph)
    for graph in (*graphs, graphs[0]):
        graph.replay()
    assert_array_equal(y.to_host(stream), np.arange(100, 100 + N) + 12 * np.arange(N))


def test_a_replay_on_another_stream_waits_for_the_last_one(device: Device, saxpy: Kernel, stream: Stream) -> None:
    x, y = arrays(device)
    with ptxrt.capture(stream) as graph:
        z = y.copy()
        saxpy[1, 32](x, y, N, 1.0)
    other = device.create_stream()
    for queue in (None, other, device.default_stream, other):
        graph.replay(queue)
    assert_array_equal(y.to_host(other), np.arange(100, 100 + N) + 4 * np.arange(N))
    for array in (x, y, z):
        assert {stream.handle, other.handle, 0} <= set(array.memory.users)


def test_a_graph_is_replayed_from_other_threads(device: Device, saxpy: Kernel, stream: Stream) -> None:
    x, y = arrays(device)
    with ptxrt.capture(stream) as graph:
        saxpy[1, 32](x, y, N, 1.0)
    threads = [threading.Thread(target=graph.replay) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_array_equal(y.to_host(stream), np.arange(100, 100 + N) + 4 * np.arange(N))


def test_other_threads_are_not_captured(device: Device, saxpy: Kernel, stream: Stream) -> None:
    x, y = arrays(device)
    before = device.backend
    failed: list[BaseException] = []

    def launch() -> None:
        try:
            saxpy.launch(1, 32, x, y, N, 1.0, stream=stream)
            stream.synchronize()
            with ptxrt.capture(other) as inner:
                saxpy[1, 32](x, y, N, 10.0)
                entered.set()
                go_on.wait(30)  # ends behind the block that began before it
            graphs.append(inner)
        except BaseException as error:  # noqa: BLE001 (told below)
            failed.append(error)
            entered.set()

    other, entered, go_on = device.create_stream(), threading.Event(), threading.Event()
    graphs: list[ptxrt.Graph] = []
    thread = threading.Thread(target=launch)
    with ptxrt.capture(stream) as graph:
        thread.start()
        assert entered.wait(30)
        saxpy[1, 32](x, y, N, 100.0)
    go_on.set()
    thread.join()
    assert not failed
    assert device.backend is before
    assert_array_equal(y.to_host(stream), np.arange(100, 100 + N) + np.arange(N))
    graph.replay()
    other.wait(stream)
    graphs[0].replay()
    assert_array_equal(y.to_host(other), np.arange(100, 100 + N) + 111 * np.arange(N))


# Which stream -----------------------------------------------------------------------------------------------------


def test_launchers_of_before_and_after(device: Device, saxpy: Kernel, stream: Stream) -> None:
    """One with the stream in it is captured, its arrays held; one that was made in the block launches behind it."""
    x, y = arrays(device)
    z, w = (ptxrt.zeros(N, "f4", device, stream=stream) for _ in range(2))
    earlier = saxpy[1, 32, 0, stream]
    with ptxrt.capture(stream) as graph:
        later = saxpy[1, 32, 0, stream]
        earlier(x, w, N, 1.0)
        with stream, device.create_stream(), stream:
            saxpy[1, 32](x, z, N, 2.0)
    later(x, y, N, 1.0)
    assert_array_equal(y.to_host(stream), np.arange(100, 100 + N) + np.arange(N))
    graph.replay()
    assert_array_equal(z.to_host(stream), 2 * np.arange(N))
    assert_array_equal(w.to_host(stream), np.arange(N))
    assert holds(w, z, x, y) == [1, 1, 1, 0]


def test_the_default_stream_and_what_is_no_stream_are_refused(device: Device) -> None:
    with refused(ptxrt.InvalidArgument, "capture", "stream", "the default stream", "create_stream()"):
        ptxrt.capture(device.default_stream)
    for given in (None, 3, device):
        with refused(ptxrt.InvalidArgument, "capture", "stream", "a ptxrt.Stream", "create_stream()"):
            ptxrt.capture(given)  # type: ignore[arg-type]


@pytest.mark.two_devices
def test_a_replay_on_another_devices_stream_is_refused(device: Device, other_device: Device, stream: Stream) -> None:
    with ptxrt.capture(stream) as graph:
        pass
    with refused(ptxrt.DeviceMismatch, "Graph.replay", "stream", str(device), str(other_device)):
        graph.replay(other_device.create_stream())


def test_an_empty_graph_is_replayed(stream: Stream) -> None:
    with ptxrt.capture(stream) as graph:
        assert "not captured" in repr(graph)
    graph.replay()
    assert "0 calls" in repr(graph)
    stream.synchronize()


# Memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("freed", ["del", "free"])
def test_a_graph_holds_the_arrays_that_its_user_let_go(
    device: Device, saxpy: Kernel, stream: Stream, monkeypatch: pytest.MonkeyPatch, freed: str
) -> None:
    given_back: list[int] = []
    free = device.backend.free

    def noted(ordinal: int, ptr: int, *how: Any) -> None:
        given_back.append(ptr)
        free(ordinal, ptr, *how)

    monkeypatch.setattr(device.backend, "free", noted)
    x, y = arrays(device)
    with ptxrt.capture(stream) as graph:
        z = x.copy()
        saxpy[1, 32](z, y, N, 2.0)
        if freed == "free":
            z.free()
    addresses = {x.ptr, z.ptr}
    if freed == "free":
        x.free()
        with refused(ptxrt.InvalidArgument, "DeviceArray.to_host", "array", "free()"):
            x.to_host()
    del x, z
    gc.collect()
    others = [ptxrt.full(N, np.nan, "f4", device, stream=stream) for _ in range(8)]
    graph.replay()
    assert_array_equal(y.to_host(stream), np.arange(100, 100 + N) + 2 * np.arange(N))
    assert not addresses & set(given_back)
    del graph
    gc.collect()
    assert addresses <= set(given_back)
    assert len(given_back) == len(set(given_back))
    del others


def test_memory_is_given_back_once_where_a_graph_goes_while_it_is_freed(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = numbers(device).memory
    memory.hold()
    free, freed, left = device.backend.free, [], [memory]

    def counted(*args: Any) -> None:
        freed.append(args)
        free(*args)

    monkeypatch.setattr(device.backend, "free", counted)

    def trace(frame: Any, event: str, _: object) -> Any:
        """Release it in the midst of `free`, as another thread or the garbage collector may."""
        if frame.f_code is not type(memory).free.__code__:
            return None
        if event == "line" and not memory.alive and left:
            left.pop().release()
        return trace

    sys.settrace(trace)
    try:
        memory.free()
    finally:
        sys.settrace(None)
    assert (len(freed), left) == (1, [])


def test_a_graph_is_gone_with_its_last_reference(device: Device, saxpy: Kernel, stream: Stream) -> None:
    x, y = arrays(device)
    gc.disable()
    try:
        with ptxrt.capture(stream) as graph:
            saxpy[1, 32](x, y, N, 2.0)
        with graph.update():
            saxpy[1, 32](x, y, N, 1.0)
        graph.replay()
        assert holds(x, y) == [1, 1]
        del graph
        assert holds(x, y) == [0, 0]
    finally:
        gc.enable()
    assert_array_equal(y.to_host(stream), np.arange(100, 100 + N) + np.arange(N))


def test_a_block_that_fails_gives_back_what_it_held(device: Device, saxpy: Kernel, stream: Stream) -> None:
    x, y = arrays(device)
    before = device.backend
    with refused(ptxrt.ShapeMismatch, "DeviceArray.copy_from", "source"), ptxrt.capture(stream) as graph:
        z = x.copy()
        saxpy[1, 32](z, y, N, 2.0)
        z.copy_from(y[1:])
    assert device.backend is before
    assert holds(x, y, z) == [0, 0, 0]
    with refused(ptxrt.InvalidArgument, "Graph.replay", "graph", "ended with an error"):
        graph.replay()
    with refused(ptxrt.InvalidArgument, "Graph.update", "graph", "ended with an error"):
        graph.update()
    saxpy.launch(1, 32, x, y, N, 1.0, stream=stream)  # neither captured nor refused
    assert_array_equal(y.to_host(stream), np.arange(100, 100 + N) + np.arange(N))


def test_a_graph_holds_its_kernels(device: Device, stream: Stream, clean_modules: ptxrt.ModuleCache) -> None:
    kernel = ptxrt.load(source_for(CONSTANT, device, value=1414), "constant", "u32* out", device)
    out = ptxrt.zeros(1, "u4", device)
    device.synchronize()
    with ptxrt.capture(stream) as graph:
        kernel[1, 1](out)
    module = weakref.ref(kernel._module)
    del kernel
    clean_modules.clear()
    gc.collect()
    graph.replay()
    assert out.to_host(stream) == [1414]
    del graph
    gc.collect()
    assert module() is None


@pytest.mark.ptx
def test_a_graph_asks_for_its_textures(device: Device, stream: Stream) -> None:
    text = NOTHING.replace("nothing()", "nothing(.param .u64 t)")
    kernel = ptxrt.load(ptxrt.KernelSource.ptx(text), "nothing", "texture t", device)
    x = numbers(device)
    texture = ptxrt.Texture(x)
    alive = weakref.ref(texture)
    with ptxrt.capture(stream) as graph:
        kernel[1, 32](texture)
        with refused(ptxrt.Unsupported, "capture", "copy_image", "before the block"):
            ptxrt.Texture(x)
    graph.replay()
    del texture
    gc.collect()
    graph.replay()
    found = alive()
    assert found is not None
    stream.synchronize()
    found.free()
    with refused(ptxrt.InvalidArgument, "Graph.replay", "texture", "a live texture"):
        graph.replay()


def test_another_librarys_array_stays(sim: Device) -> None:
    kernel = ptxrt.load(source_for(SAXPY, sim), "saxpy", SAXPY_SIGNATURE, sim)
    stream, y = sim.create_stream(), ptxrt.zeros(4, device=sim)
    foreign = np.ones(4, np.float32)
    alive = weakref.ref(foreign)
    with ptxrt.capture(stream) as graph:
        x = ptxrt.from_dlpack(foreign, sim)
        kernel[1, 32](x, y, 4, 3.0)
    del foreign, x
    gc.collect()
    assert alive() is not None
    graph.replay()
    assert_array_equal(y.to_host(), np.full(4, 3))
    del graph
    gc.collect()
    assert alive() is None


# Update -----------------------------------------------------------------------------------------------------------


def test_an_update_changes_arrays_numbers_and_grids(device: Device, saxpy: Kernel, stream: Stream) -> None:
    x, y = arrays(device)
    with ptxrt.capture(stream) as graph:
        z = x.copy()
        saxpy[1, 32](z, y, N, 2.0)
    graph.replay(device.default_stream)  # and may still run when the graph is another one
    old, x2, y2 = z, numbers(device, 50), numbers(device, 500)
    with graph.update() as same:
        assert same is graph
        z = x2.copy()
        saxpy[2, 8](z, y2, 16, 4.0)
    assert holds(old, x, y, x2, y2, z) == [0, 0, 0, 1, 1, 1]
    want = np.arange(500, 500 + N) + np.where(np.arange(N) < 16, 4 * np.arange(50, 50 + N), 0)
    graph.replay(device.default_stream)
    assert 0 in z.memory.users
    assert_array_equal(y2.to_host(), want)
    assert_array_equal(y.to_host(), np.arange(100, 100 + N) + 2 * np.arange(N))


def test_launches_that_begin_while_others_end_see_what_those_wrote(device: Device, stream: Stream, rng: Rng) -> None:
    """Of layer_norm_backward's two the second one may; in a graph, too, which is changed in place."""
    shape = (2048, 1024) if device.kind == "cuda" else (3, 1024)
    given = [[ptxrt.to_device(rng.standard_normal(shape).astype("f4"), device) for _ in range(2)] for _ in range(2)]
    weight = ptxrt.full(shape[1:], 1, "f4", device)

    def gradients(one: int) -> Any:
        go, x = given[one]
        return ops.layer_norm_backward(go, x, shape[1:], weight)

    want = [[array.to_host() for array in gradients(one)] for one in (0, 1)]
    for _ in range(30 if device.kind == "cuda" else 1):
        for one in (0, 1):
            for array, right in zip(gradients(one), want[one], strict=True):
                assert_array_equal(array.to_host(), right)
    with ptxrt.capture(stream) as graph:
        chained = [*gradients(0), *gradients(1)]
    before = graph._handle
    for first, second in ((0, 1), (1, 0)):
        graph.replay()
        for array, right in zip(chained, [*want[first], *want[second]], strict=True):
            assert_array_equal(array.to_host(stream), right)
        with graph.update():
            chained = [*gradients(1), *gradients(0)]
        if device.kind == "cuda":
            assert int(graph._handle) == int(before)


@pytest.mark.parametrize("other", ["another kernel", "one call more", "an error"])
def test_an_update_that_fails_leaves_the_graph_as_it_was(
    device: Device, saxpy: Kernel, stream: Stream, other: str
) -> None:
    nothing = ptxrt.load(source_for(NOTHING, device), "nothing", "", device)
    x, y = arrays(device)
    with ptxrt.capture(stream) as graph:
        saxpy[1, 32](x, y, N, 2.0)
    if other == "an error":
        with refused(ptxrt.DTypeMismatch, "saxpy", "x"), graph.update():
            saxpy[1, 32](y.view(2, -1).copy(), ptxrt.zeros(N, "f4", device), N, 3.0)
            saxpy[1, 32](ptxrt.zeros(N, "f8", device), y, N, 3.0)
    else:
        sequence = "the same sequence: 'saxpy'"
        with refused(ptxrt.InvalidArgument, "Graph.update", "block", sequence, "nothing'"), graph.update():
            if other == "one call more":
                saxpy[1, 32](x, y, N, 3.0)
            nothing[1, 32]()
    assert holds(x, y) == [1, 1]
    graph.replay()
    assert_array_equal(y.to_host(stream), np.arange(100, 100 + N) + 2 * np.arange(N))


def test_an_update_whose_wait_the_driver_refuses_leaves_the_graph_as_it_was(
    device: Device, saxpy: Kernel, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ptxrt.DriverError("no waits today", op="wait_stream", argument="stream")

    x, y = arrays(device)
    with ptxrt.capture(stream) as graph:
        saxpy[1, 32](x, y, N, 2.0)
    graph.replay(device.default_stream)
    others = arrays(device)
    with monkeypatch.context() as patch:
        patch.setattr(device.backend, "wait_stream", refuse)
        with pytest.raises(ptxrt.DriverError, match="no waits today"), graph.update():
            saxpy[1, 32](*others, N, 3.0)
    assert holds(x, y, *others) == [1, 1, 0, 0]
    graph.replay(device.default_stream)
    assert_array_equal(y.to_host(), np.arange(100, 100 + N) + 4 * np.arange(N))


def test_on_cuda_an_update_changes_the_drivers_graph_in_place(cuda: Device) -> None:
    kernel = ptxrt.load(source_for(SAXPY, cuda), "saxpy", SAXPY_SIGNATURE, cuda)
    (x, y), stream = arrays(cuda), cuda.create_stream()
    with ptxrt.capture(stream) as graph:
        kernel[1, 32](x, y, N, 2.0)
        z = y.copy()
    before = int(graph._handle)
    with graph.update():
        kernel[1, 32](x, z, N, 1.0)
        y.copy_from(z)
    assert int(graph._handle) == before
    z.copy_from(x, stream)
    graph.replay()
    assert_array_equal(y.to_host(stream), 2 * np.arange(N))


def test_on_cuda_a_graph_is_replayed_on_another_librarys_stream(cuda: Device) -> None:
    stream, x = cuda.create_stream(), numbers(cuda)
    with ptxrt.capture(stream) as graph:
        x.fill(3)

    class Foreign:
        def __init__(self, stream: ptxrt.Stream) -> None:
            self.stream = stream  # which lives as long as who stands for it

        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, self.stream.handle

    for queue in (cuda.create_stream(), cuda.default_stream):
        x.fill(1, queue)
        graph.replay(Foreign(queue))
        assert set(x.to_host(queue)) == {3}


def test_graphs_are_made_while_other_threads_wait_for_the_device(device: Device, saxpy: Kernel) -> None:
    x, y = arrays(device)
    failed: list[BaseException] = []
    done = threading.Event()

    def wait() -> None:
        try:
            while not done.is_set():
                device.synchronize()
                ptxrt.zeros(4, "f4", device).to_host()
        except ptxrt.PtxrtError as error:
            failed.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        for _ in range(20):
            with ptxrt.capture(device.create_stream()) as graph:
                saxpy[1, 32](x, y, N, 1.0)
    finally:
        done.set()
        thread.join()
    assert not failed
    graph.replay()
    assert_array_equal(y.to_host(graph.stream), np.arange(100, 100 + N) + np.arange(N))


# What cannot be captured ------------------------------------------------------------------------------------------

CAPTURED = "launches, ops, copies between arrays of the device, and fills"
REFUSED: dict[str, tuple[str, str, Callable[[Any, Any, Any], object]]] = {
    "to_host": ("copy_out", "behind a replay", lambda x, stream, _: x.to_host()),
    "to_host of the stream": ("copy_out", "behind a replay", lambda x, stream, _: x.to_host(stream)),
    "copy from the host": ("copy_in", "before the block", lambda x, stream, _: x.copy_from(np.zeros(N, "f4"))),
    "assignment": ("copy_in", "before the block", lambda x, stream, _: x.__setitem__(0, np.zeros((), "f4"))),
    "to_device": ("copy_in", "before the block", lambda x, stream, _: ptxrt.to_device(np.zeros(3, "f4"), x.device)),
    "synchronize": ("synchronize", "behind a replay", lambda x, stream, _: stream.synchronize()),
    "record": ("record", "before a replay", lambda x, stream, _: stream.record()),
    "wait for an event": ("wait", "before a replay", lambda x, stream, other: stream.wait(other.record())),
    "wait for a stream": ("wait_stream", "before a replay", lambda x, stream, other: stream.wait(other)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_captured_is_refused_and_the_block_goes_on(
    device: Device, saxpy: Kernel, stream: Stream, what: str
) -> None:
    method, fix, use = REFUSED[what]
    x, y = arrays(device)
    with ptxrt.capture(stream) as graph:
        with refused(ptxrt.Unsupported, "capture", method, CAPTURED, fix):
            use(x, stream, device.create_stream())
        saxpy[1, 32](x, y, N, 1.0)
    assert "1 calls" in repr(graph)
    graph.replay()
    assert_array_equal(y.to_host(stream), np.arange(100, 100 + N) + np.arange(N))
    assert_array_equal(x.to_host(), np.arange(N))


ELSEWHERE: dict[str, Callable[[Any, Any, Any], object]] = {
    "launch": lambda x, other, kernel: kernel.launch(1, 32, x, x, N, 1.0, stream=other),
    "launcher": lambda x, other, kernel: kernel[1, 32, 0, other](x, x, N, 1.0),
    "op": lambda x, other, kernel: ops.softmax2d(x.view(SHAPE), stream=other),
    "copy": lambda x, other, kernel: x.copy(other),
    "fill": lambda x, other, kernel: x.fill(1, other),
}


@pytest.mark.parametrize("default", [False, True], ids=["another", "default"])
@pytest.mark.parametrize("what", ELSEWHERE)
def test_work_on_another_stream_is_refused(
    device: Device, saxpy: Kernel, stream: Stream, what: str, default: bool
) -> None:
    x = numbers(device)
    other = device.default_stream if default else device.create_stream()
    words = "another stream", "Leave the stream out"
    with ptxrt.capture(stream) as graph, refused(ptxrt.InvalidArgument, "capture", "stream", *words):
        ELSEWHERE[what](x, other, saxpy)
    assert "0 calls" in repr(graph)
    other.synchronize()
    assert_array_equal(x.to_host(), np.arange(N))


def test_captures_and_replays_within_a_capture_are_refused(device: Device, saxpy: Kernel, stream: Stream) -> None:
    x, y = arrays(device)
    other = device.create_stream()
    with ptxrt.capture(stream) as first:
        saxpy[1, 32](x, y, N, 1.0)
    block = ptxrt.capture(stream)
    with block as graph:
        for inner in (ptxrt.capture(stream), ptxrt.capture(other), first.update(), block):
            with other, refused(ptxrt.InvalidArgument, "capture", "block", "one capture at a time"), inner:
                pass
        with refused(ptxrt.Unsupported, "capture", "replay", "another graph", "in the block"):
            first.replay(other)
        with refused(ptxrt.InvalidArgument, "Graph.replay", "graph", "whose block has not"):
            graph.replay()
    with refused(ptxrt.InvalidArgument, "capture", "block", "a block of its own"), block:
        pass
    graph.replay()
    assert_array_equal(y.to_host(stream), np.arange(100, 100 + N))


def test_an_array_is_printed_in_a_block_without_its_values(device: Device, stream: Stream) -> None:
    with ptxrt.capture(stream):
        x = ptxrt.zeros(3, device=device)
        assert "<its stream is being captured>" in repr(x)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_graph_is_neither_copied_nor_pickled(stream: Stream, again: Any) -> None:
    with ptxrt.capture(stream) as graph:
        pass
    with refused(ptxrt.InvalidArgument, "copy", "graph", "the object itself"):
        again(graph)


# Faults, the shadow, forks, handles -------------------------------------------------------------------------------


def test_a_fault_tells_which_call_it_was(sim: Device) -> None:
    kernel = ptxrt.load(source_for(SAXPY, sim), "saxpy", SAXPY_SIGNATURE.replace("[n]", ""), sim)
    x, y, stream = ptxrt.zeros(4, device=sim), ptxrt.zeros(4, device=sim), sim.create_stream()
    with ptxrt.capture(stream) as graph:
        kernel[1, 32](x, y, 4, 1.0)
        y.fill_bytes(1)
        kernel[1, 32](x, y, 5, 1.0)
    for _ in range(2):
        with pytest.raises(ptxrt.MemoryFault, match="past the end") as caught:
            graph.replay()
        assert str(caught.value).endswith("bytes\n  in call 3 of the 3 of a graph")
    assert set(y.to_host().tobytes()) == {1}


def test_on_sim_a_launch_keeps_its_budget(sim: Device) -> None:
    kernel = ptxrt.load(source_for(SAXPY, sim), "saxpy", SAXPY_SIGNATURE, sim)
    x, y = arrays(sim)
    with ptxrt.capture(sim.create_stream()) as graph:
        kernel.launch(1, 32, x, y, N, 1.0, budget=3)
    with pytest.raises(ptxrt.Deadlock, match="budget"):
        graph.replay()


def test_in_the_shadow_each_launch_of_a_replay_is_compared(device: Device, saxpy: Kernel, stream: Stream) -> None:
    x, y = arrays(device)
    before = device.backend

    def captured() -> ptxrt.Graph:
        with ptxrt.capture(stream) as graph:
            saxpy[1, 32](x, y, N, 1.0)
            y[:2].fill(0)
            saxpy[1, 32](x, y, N, 2.0)
        return graph

    with ptxrt.shadow([device]) as shadow:
        inside = captured()
        assert shadow.compared == 0
        inside.replay()
        assert shadow.compared == 2
    outside = captured()
    with ptxrt.shadow([device]) as shadow:
        outside.replay()
        assert shadow.compared == 2
    with ptxrt.capture(stream) as around, ptxrt.shadow([device]) as shadow:
        saxpy[1, 32](x, y, N, 1.0)
        assert shadow.compared == 0
    assert device.backend is before
    for graph in (inside, around):
        graph.replay()
    want = np.arange(100, 100 + N) + 10 * np.arange(N)
    want[:2] = [0, 3]
    assert_array_equal(y.to_host(stream), want)


FORK = """
import os, sys
import numpy as np
import ptxrt

device = ptxrt.Device("{device}")
x, stream = ptxrt.zeros(4, "f4", device), device.create_stream()
with ptxrt.capture(stream) as graph:
    x.fill_bytes(0x40)
child = os.fork()
if child == 0:
    try:
        graph.replay()
    except ptxrt.BackendUnavailable as error:
        print("refused" if "forked" in str(error) else error)
    del graph, x, stream
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
graph.replay()
print(x.to_host(stream))
"""


def test_a_forked_child_has_no_graphs_and_its_parent_has(device: Device) -> None:
    script = FORK.format(device=device)
    said = printed_by(script, PYTHONWARNINGS="ignore::DeprecationWarning", **with_stand_in(device))
    assert said == "refused\n[3.0039215 3.0039215 3.0039215 3.0039215]"


def test_graphs_are_given_back_once_nothing_runs_of_them(stand_in: StandIn) -> None:
    device = Device("hip:0")
    kernel = ptxrt.load(source_for(SAXPY, device), "saxpy", SAXPY_SIGNATURE, device)
    x, y = arrays(device)
    stream = device.create_stream()
    with ptxrt.capture(stream) as graph:
        kernel[1, 32](x, y, N, 1.0)
    assert stand_in.handles(Captured) == 1
    graph.replay()
    with graph.update():
        kernel[1, 32](x, y, N, 2.0)
    graph.replay()
    assert stand_in.handles(Captured) == 1
    del graph
    gc.collect()
    assert stand_in.handles(Captured) == 0
    assert_array_equal(y.to_host(stream), np.arange(100, 100 + N) + 3 * np.arange(N))


@pytest.mark.skipif(AMD_GPU, reason="the stand-in answers on demand")
@pytest.mark.parametrize("name", ["hipStreamBeginCapture", "hipModuleLaunchKernel", "hipGraphInstantiateWithFlags"])
def test_a_driver_that_refuses_leaves_nothing_behind(stand_in: StandIn, name: str) -> None:
    device = Device("hip:0")
    kernel = ptxrt.load(source_for(SAXPY, device), "saxpy", SAXPY_SIGNATURE, device)
    x, y = arrays(device)
    stream = device.create_stream()
    before = device.backend
    stand_in.fail_next(name, 999)
    with pytest.raises(ptxrt.DriverError, match=f"{name}: hipErrorUnknown") as caught, ptxrt.capture(stream) as graph:
        kernel[1, 32](x, y, N, 1.0)
    assert ("in call 1 of the 1 of a graph" in str(caught.value)) == (name == "hipModuleLaunchKernel")
    assert device.backend is before
    assert stand_in.handles(Captured) == 0
    assert holds(x, y) == [0, 0]
    with ptxrt.capture(stream) as graph:
        kernel[1, 32](x, y, N, 1.0)
    graph.replay()
    assert_array_equal(y.to_host(stream), np.arange(100, 100 + N) + np.arange(N))
