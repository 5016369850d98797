"""The CUDA backend puts back the context that was current, whatever a call does; with a driver that is a stack."""

from __future__ import annotations

import struct
import sys
import threading
from collections.abc import Callable
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import refused

import ptxrt
from ptxrt.backends.cuda import CudaBackend
from ptxrt.runtime.binding import ArrayRule, LaunchStep, runner

THEIRS, OURS, DESTROYED = 0x11, 0x22, 0x33


class Status(Enum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709
    CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720
    CUDA_ERROR_INVALID_CLUSTER_SIZE = 912


class Driver:
    """What of cuda.bindings.driver a switch of contexts and a launch use; `refuses` says what a call answers."""

    CUresult = Status
    CUlaunchConfig = SimpleNamespace
    CUlaunchAttributeID = SimpleNamespace(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION=6)

    @staticmethod
    def CUlaunchAttribute() -> Any:
        return SimpleNamespace(value=SimpleNamespace())

    def __init__(self) -> None:
        self.stack = [THEIRS]
        self.refuses: dict[str, Status | BaseException] = {}
        self.launched_in: list[int] = []
        self.following: list[Any] = []  # the configuration of each launch that follows another one
        self.asked = 0
        self.retained = 0

    def answer(self, call: str, *results: Any) -> tuple[Any, ...]:
        refusal = self.refuses.get(call, Status.CUDA_SUCCESS)
        if isinstance(refusal, BaseException):
            raise refusal
        return (refusal, *(results if refusal is Status.CUDA_SUCCESS else [None] * len(results)))

    def cuGetErrorString(self, status: Status) -> tuple[Status, bytes]:
        return Status.CUDA_SUCCESS, status.name.encode()

    def cuCtxGetCurrent(self) -> tuple[Any, ...]:
        self.asked += 1
        return self.answer("cuCtxGetCurrent", self.stack[-1] if self.stack else 0)

    def cuCtxSetCurrent(self, context: int) -> tuple[Any, ...]:
        self.stack[-1:] = [int(context)]
        return self.answer("cuCtxSetCurrent")

    def cuDevicePrimaryCtxRetain(self, ordinal: int) -> tuple[Any, ...]:
        assert ordinal == 0
        self.retained += 1
        return self.answer("cuDevicePrimaryCtxRetain", OURS)

    def cuCtxPushCurrent(self, context: int) -> tuple[Any, ...]:
        answer = self.answer("cuCtxPushCurrent")
        if answer[0] is Status.CUDA_SUCCESS:
            self.stack.append(context)
        return answer

    def cuCtxPopCurrent(self) -> tuple[Any, ...]:
        return self.answer("cuCtxPopCurrent", self.stack.pop())

    def cuLaunchKernel(self, *_: Any) -> tuple[Any, ...]:
        if self.stack[-1:] == [DESTROYED]:
            return (Status.CUDA_ERROR_CONTEXT_IS_DESTROYED,)
        if self.stack[-1:] != [OURS]:  # the kernel's; so a driver answers, as was seen on a GPU
            return (Status.CUDA_ERROR_INVALID_HANDLE if self.stack else Status.CUDA_ERROR_INVALID_CONTEXT,)
        self.launched_in.append(self.stack[-1])
        return self.answer("cuLaunchKernel")

    def cuLaunchKernelEx(self, configuration: Any, *given: Any) -> tuple[Any, ...]:
        assert (given[0], given[2]) == (0xF, 0)
        self.following.append(configuration)
        return self.cuLaunchKernel()

    def cuGraphLaunch(self, *given: Any) -> tuple[Any, ...]:
        assert given == (0xE, 0xC)
        self.launched_in.append(self.stack[-1])
        return self.answer("cuGraphLaunch")

    def cuLaunchCooperativeKernel(self, *given: Any) -> tuple[Any, ...]:
        assert given == (0xF, 1, 1, 1, 32, 1, 1, 0, 0, 0xA)
        self.launched_in.append(self.stack[-1])
        return self.answer("cuLaunchCooperativeKernel")


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def backend(driver: Driver) -> CudaBackend:
    made = CudaBackend()
    made._use(driver)
    made._contexts = {0: OURS}
    return made


def launch(backend: CudaBackend, stream: int = 0, *, follows: bool = False) -> None:
    backend.launch(0, 0xF, (1, 2, 3, 32, 4, 5), 6, stream, SimpleNamespace(table=0xA, kernel=None, follows=follows))


@pytest.mark.parametrize("current", [THEIRS, OURS], ids=["theirs", "ours"])
def test_a_launch_is_made_in_the_devices_context(backend: CudaBackend, driver: Driver, current: Any) -> None:
    driver.stack = [current]
    launch(backend)
    assert (driver.launched_in, driver.stack) == ([OURS], [current])


@pytest.mark.parametrize("current", [THEIRS, OURS], ids=["theirs", "ours"])
def test_a_launch_that_follows_another_may_begin_early(backend: CudaBackend, driver: Driver, current: Any) -> None:
    driver.stack = [current]
    for stream in (7, 8, 7):
        launch(backend, stream, follows=True)
    launch(backend)
    assert (driver.launched_in, driver.stack) == ([OURS] * 4, [current])
    first, second, third = driver.following
    assert first is third, "a configuration was made twice"
    assert (first.hStream, second.hStream) == (7, 8)
    expected = {"gridDimX": 1, "gridDimY": 2, "gridDimZ": 3, "blockDimX": 32, "blockDimY": 4, "blockDimZ": 5}
    expected |= {"sharedMemBytes": 6, "numAttrs": 1}
    assert {name: value for name, value in vars(first).items() if name not in ("hStream", "attrs")} == expected
    assert [(one.id, vars(one.value)) for one in first.attrs] == [(6, {"programmaticStreamSerializationAllowed": 1})]


def generated(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch, signature: str, given: Any, before: Any = None,
    *, follows: bool = False,
) -> Callable[..., None]:  # fmt: skip
    """Return a generated launch of a device of this backend, with something `before` it if that is given.

    It takes the addresses of the operand and of the workspace, if these are used.
    """
    monkeypatch.setattr(ptxrt.backends, "get", {"cuda": backend}.get)
    device: Any = SimpleNamespace(kind="cuda", ordinal=0, backend=before or backend)
    kernel: Any = SimpleNamespace(_function=0xF)
    step = LaunchStep(kernel, (1, 1, 1, 32, 1, 1), 0, given, ptxrt.Signature.parse(signature), None, follows)
    rules, place = [ArrayRule(np.dtype(np.uint8))], {"conditional": False, "tables": (), "result": None}
    run = runner(device, rules, [], [step], [0], workspace=len(given) > 1, **place)  # type: ignore[arg-type]

    def launch(operand: int = 0, workspace: int = 0) -> None:
        array, stream, scratch = SimpleNamespace(ptr=operand), SimpleNamespace(handle=0), SimpleNamespace(ptr=workspace)
        owner = SimpleNamespace(resolve_array=lambda *_: array, new_workspace=lambda _: scratch)
        run(owner, stream, [array], None)  # type: ignore[arg-type]

    return launch


def direct(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch, before: Any = None) -> Callable[..., None]:
    return generated(backend, monkeypatch, "u32 n", ((None, 7),), before)


def test_a_generated_launch_that_follows_another_may_begin_early(
    backend: CudaBackend, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = generated(backend, monkeypatch, "u32 n", ((None, 7),), follows=True)
    driver.stack = [OURS]
    launch()
    launch()
    assert driver.launched_in == [OURS] * 2
    first, second = driver.following
    assert first is second
    assert (first.gridDimX, first.blockDimX, first.numAttrs) == (1, 32, 1)
    driver.stack = [THEIRS]  # where the backend's own launch serves
    launch()
    assert driver.launched_in == [OURS] * 3
    assert driver.following[-1] is first


def test_a_generated_launch_calls_the_driver_in_the_devices_context_alone(
    backend: CudaBackend, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, through = direct(backend, monkeypatch), []
    monkeypatch.setattr(backend, "launch", lambda *given: through.append(given))
    for driver.stack in ([THEIRS], []):
        launch()
    driver.refuses["cuCtxGetCurrent"] = Status.CUDA_ERROR_INVALID_CONTEXT
    driver.stack = [OURS]
    launch()
    assert (driver.launched_in, len(through)) == ([], 3)
    del driver.refuses["cuCtxGetCurrent"]
    launch()
    assert (driver.launched_in, len(through)) == ([OURS], 3)


@pytest.mark.parametrize("later", [[THEIRS], [], [DESTROYED]], ids=["theirs", "none", "destroyed"])
def test_a_thread_is_asked_for_its_context_again_when_the_driver_refuses(
    backend: CudaBackend, driver: Driver, monkeypatch: pytest.MonkeyPatch, later: list[int]
) -> None:
    launch = direct(backend, monkeypatch)
    driver.stack = [OURS]
    for _ in range(3):
        launch()
    assert (driver.launched_in, driver.asked) == ([OURS] * 3, 1)
    driver.stack = [*later]
    for _ in range(2):  # the driver refuses the first, which goes through the backend; the second asks
        launch()
    assert (driver.launched_in, driver.stack, driver.asked) == ([OURS] * 5, later, 1 + 1 + 2)
    driver.stack = [OURS]
    for _ in range(2):
        launch()
    assert (driver.launched_in, driver.asked) == ([OURS] * 7, 5)


def test_each_thread_is_asked_for_its_own_context(
    backend: CudaBackend, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = direct(backend, monkeypatch)
    driver.stack = [OURS]
    launch()
    worker = threading.Thread(target=launch)
    worker.start()
    worker.join()
    assert (driver.launched_in, driver.asked) == ([OURS] * 2, 2)


def test_a_launch_that_is_refused_everywhere_is_told(
    backend: CudaBackend, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = direct(backend, monkeypatch)
    driver.stack = [OURS]
    launch()
    driver.refuses["cuLaunchKernel"] = Status.CUDA_ERROR_INVALID_HANDLE  # of a stream that is no more, say
    with refused(ptxrt.DriverError, "cuLaunchKernel", None, "CUDA_ERROR_INVALID_HANDLE"):
        launch()


def test_a_generated_launch_is_noted_and_its_refusal_told(
    backend: CudaBackend, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[Any] = []
    backend._note = notes.append
    launch = direct(backend, monkeypatch)
    driver.stack = [OURS]
    launch()
    driver.refuses["cuLaunchKernel"] = Status.CUDA_ERROR_INVALID_VALUE
    with refused(ptxrt.LaunchError, "cuLaunchKernel", None, "CUDA_ERROR_INVALID_VALUE"):
        launch()
    assert notes == [(0, 0, None, (1, 1, 1, 32, 1, 1))]


def test_generated_launches_differ_in_addresses_alone(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    before = SimpleNamespace(launch=lambda *given: seen.append(given[-1].bytes()))
    given = ((None, 7), (1, 0), (None, 2.5), (0, 256), (None, 9))
    launch = generated(backend, monkeypatch, "u32 n, u8* scratch, f32 a, u8* x, u32 last", given, before)
    addresses = ((1 << 33, 1 << 40), (1 << 34, 1 << 41))
    for x, scratch in addresses:
        launch(x, scratch)
    assert seen == [struct.pack("<IxxxxQfxxxxQI", 7, scratch, 2.5, x + 256, 9) for x, scratch in addresses]


def test_what_stands_before_the_backend_gets_generated_launches(
    backend: CudaBackend, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    launch = direct(backend, monkeypatch, SimpleNamespace(launch=lambda *given: seen.append(given)))
    driver.stack = [OURS]
    launch()
    assert (driver.launched_in, len(seen)) == ([], 1)


@pytest.mark.parametrize("current", [THEIRS, OURS], ids=["theirs", "ours"])
def test_a_refused_launch_leaves_the_context_as_it_was(backend: CudaBackend, driver: Driver, current: Any) -> None:
    driver.stack = [current]
    driver.refuses["cuLaunchKernel"] = Status.CUDA_ERROR_INVALID_VALUE
    with refused(ptxrt.LaunchError, "cuLaunchKernel", None, "CUDA_ERROR_INVALID_VALUE"):
        launch(backend)
    assert driver.stack == [current]


@pytest.mark.parametrize("current", [THEIRS, OURS], ids=["theirs", "ours"])
def test_a_graph_is_launched_in_the_devices_context(backend: CudaBackend, driver: Driver, current: Any) -> None:
    driver.stack = [current]
    given: Any = (0, 0xE, 0xC, SimpleNamespace(launches=[]))
    backend.launch_graph(*given)
    assert (driver.launched_in, driver.stack) == ([OURS], [current])
    driver.refuses["cuGraphLaunch"] = Status.CUDA_ERROR_INVALID_VALUE
    with refused(ptxrt.DriverError, "cuGraphLaunch", None, "CUDA_ERROR_INVALID_VALUE"):
        backend.launch_graph(*given)
    assert driver.stack == [current]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OverflowError("an argument")], ids=repr)
def test_a_launch_that_raises_leaves_the_context_as_it_was(backend: CudaBackend, driver: Driver, error: Any) -> None:
    driver.refuses["cuLaunchKernel"] = error
    with pytest.raises(type(error)):
        launch(backend)
    assert driver.stack == [THEIRS]


@pytest.mark.parametrize("call", ["cuCtxGetCurrent", "cuCtxPushCurrent"])
def test_nothing_is_launched_where_the_context_cannot_be_had(backend: CudaBackend, driver: Driver, call: str) -> None:
    driver.refuses[call] = Status.CUDA_ERROR_INVALID_CONTEXT
    with refused(ptxrt.DriverError, call, None, "CUDA_ERROR_INVALID_CONTEXT"):
        launch(backend)
    assert (driver.launched_in, driver.stack) == ([], [THEIRS])


def test_a_context_that_cannot_be_put_back_is_reported(backend: CudaBackend, driver: Driver) -> None:
    driver.refuses["cuCtxPopCurrent"] = Status.CUDA_ERROR_INVALID_CONTEXT
    with refused(ptxrt.DriverError, "cuCtxPopCurrent", None, "CUDA_ERROR_INVALID_CONTEXT"):
        launch(backend)


def test_a_cooperative_launch_is_made_in_the_devices_context(backend: CudaBackend, driver: Driver) -> None:
    given: Any = (0, 0xF, (1, 1, 1, 32, 1, 1), 0, 0, SimpleNamespace(table=0xA, kernel=None))
    backend.launch_cooperative(*given)
    assert (driver.launched_in, driver.stack) == ([OURS], [THEIRS])
    driver.refuses["cuLaunchCooperativeKernel"] = Status.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
    with refused(ptxrt.LaunchError, "cuLaunchCooperativeKernel", None, "TOO_LARGE", "Launch with fewer threads"):
        backend.launch_cooperative(*given)
    assert driver.stack == [THEIRS]


# Clusters ---------------------------------------------------------------------------------------------------------


class Clusters(Driver):
    """A driver with a kernel of clusters of 2 x `blocks` blocks, of which `room` fit."""

    CUfunction_attribute = SimpleNamespace(**{
        f"CU_FUNC_ATTRIBUTE_{name}": name
        for name in ("NUM_REGS", "SHARED_SIZE_BYTES", "LOCAL_SIZE_BYTES", "CONST_SIZE_BYTES", "MAX_THREADS_PER_BLOCK",
                     "REQUIRED_CLUSTER_WIDTH", "REQUIRED_CLUSTER_HEIGHT", "REQUIRED_CLUSTER_DEPTH",
                     "NON_PORTABLE_CLUSTER_SIZE_ALLOWED")
    })  # fmt: skip
    CUlaunchConfig = SimpleNamespace

    def __init__(self, blocks: int, room: int) -> None:
        super().__init__()
        self.sizes, self.room = {"REQUIRED_CLUSTER_WIDTH": 2, "REQUIRED_CLUSTER_HEIGHT": blocks}, room
        self.allowed: list[Any] = []

    def cuLibraryGetKernel(self, *_: Any) -> tuple[Any, ...]:
        return self.answer("cuLibraryGetKernel", 0xB)

    def cuKernelGetFunction(self, *_: Any) -> tuple[Any, ...]:
        return self.answer("cuKernelGetFunction", 0xF)

    def cuKernelGetAttribute(self, which: str, *_: Any) -> tuple[Any, ...]:
        return self.answer("cuKernelGetAttribute", self.sizes.get(which, 0))

    def cuFuncSetAttribute(self, *given: Any) -> tuple[Any, ...]:
        self.allowed.append(given)
        return self.answer("cuFuncSetAttribute")

    def cuOccupancyMaxActiveClusters(self, function: int, config: Any) -> tuple[Any, ...]:
        assert (function, config.gridDimX, config.blockDimX) == (0xF, 16, 1)
        return self.answer("cuOccupancyMaxActiveClusters", self.room)


class NamesAsThemselves:
    """An enumeration of the driver, each value of which is its name."""

    def __getattr__(self, name: str) -> str:
        return name


def load_clusters(driver: Clusters) -> None:
    made: Any = CudaBackend()
    made._use(driver)
    made._contexts = {0: OURS}
    made.function(0, 0xC, SimpleNamespace(entries={"k": SimpleNamespace(params=())}, reports={}), "k", ())
    assert driver.stack == [THEIRS]


@pytest.mark.parametrize("blocks", [0, 4, 8])
def test_a_kernel_of_large_clusters_is_opted_in_to_them(blocks: int) -> None:
    driver = Clusters(blocks, room=1)
    load_clusters(driver)
    assert driver.allowed == ([(0xF, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)] if blocks == 8 else [])


@pytest.mark.parametrize("call", ["", "cuFuncSetAttribute", "cuOccupancyMaxActiveClusters"])
def test_a_device_that_has_no_room_for_large_clusters_refuses_their_kernel(call: str) -> None:
    driver = Clusters(8, room=0 if not call else 1)
    driver.refuses[call] = Status.CUDA_ERROR_INVALID_VALUE
    with refused(ptxrt.Unsupported, "k", None, "clusters of 16 blocks do not fit", "takes 8 blocks"):
        load_clusters(driver)


@pytest.mark.parametrize(
    ("major", "multiprocessors", "blocks"), [(9, 132, 16), (9, 114, 16), (9, 113, 8), (10, 148, 16), (12, 170, 8)]
)
def test_a_whole_gpu_of_the_largest_kind_has_room_for_large_clusters(
    backend: CudaBackend, major: int, multiprocessors: int, blocks: int
) -> None:
    known = {"COMPUTE_CAPABILITY_MAJOR": major, "MULTIPROCESSOR_COUNT": multiprocessors}
    driver: Any = Driver()
    driver.CUdevice_attribute = NamesAsThemselves()
    driver.cuDeviceGetAttribute = lambda name, _: (
        Status.CUDA_SUCCESS,
        known.get(name[len("CU_DEVICE_ATTRIBUTE_") :], 1),
    )
    driver.cuDeviceGetName = lambda *_: (Status.CUDA_SUCCESS, b"a GPU")
    driver.cuDeviceTotalMem = driver.cuDriverGetVersion = lambda *_: (Status.CUDA_SUCCESS, 1)
    backend._use(driver)
    assert backend.properties(0).max_cluster == blocks


# Everything but a launch ------------------------------------------------------------------------------------------


def test_a_call_is_made_in_the_devices_context(backend: CudaBackend, driver: Driver) -> None:
    with backend._current(0):
        assert driver.stack == [OURS]
    assert driver.stack == [THEIRS]


def test_a_call_that_raises_leaves_the_context_as_it_was(backend: CudaBackend, driver: Driver) -> None:
    with pytest.raises(KeyboardInterrupt), backend._current(0):
        raise KeyboardInterrupt
    assert driver.stack == [THEIRS]


def test_a_switch_that_fails_half_way_leaves_the_context_as_it_was(backend: CudaBackend, driver: Driver) -> None:
    backend._contexts = {}
    driver.refuses["cuDevicePrimaryCtxRetain"] = Status.CUDA_ERROR_INVALID_CONTEXT
    with refused(ptxrt.DriverError, "cuDevicePrimaryCtxRetain", None, "INVALID"), backend._current(0):
        pytest.fail("the body runs without the device's context")
    assert (driver.stack, backend._contexts) == ([THEIRS], {})


@pytest.mark.parametrize("call", ["cuCtxGetCurrent", "cuCtxSetCurrent"])
def test_a_switch_that_the_driver_refuses_is_reported(backend: CudaBackend, driver: Driver, call: str) -> None:
    driver.refuses[call] = Status.CUDA_ERROR_INVALID_CONTEXT
    with refused(ptxrt.DriverError, call, None, "CUDA_ERROR_INVALID_CONTEXT"), backend._current(0):
        pass


def test_the_context_is_retained_once_for_all_threads(backend: CudaBackend, driver: Driver) -> None:
    backend._contexts = {}

    def use() -> None:
        with backend._current(0):
            assert driver.stack[-1] == OURS

    for _ in range(2):
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
    assert (driver.retained, backend._contexts) == (1, {0: OURS})


# Memory and events --------------------------------------------------------------------------------------------------

CHOICES = SimpleNamespace(
    CUdevice_attribute=SimpleNamespace(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED="pools"),
    CUmemPool_attribute=SimpleNamespace(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD="threshold"),
    CUevent_flags=SimpleNamespace(CU_EVENT_DISABLE_TIMING=2),
    CUstreamCaptureMode=SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED="relaxed"),
    cuuint64_t=int,
)


class Answering(Driver):
    """Answers every call from `answers`, with nothing where there is none, and notes the calls but for contexts'."""

    def __init__(self, **answers: Any) -> None:
        super().__init__()
        self.stack, self.answers = [OURS], answers
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if hasattr(CHOICES, name):
            return getattr(CHOICES, name)

        def call(*given: Any) -> tuple[Any, ...]:
            self.calls.append((name, *given))
            return self.answer(name, *([self.answers[name]] if name in self.answers else []))

        return call


def answering(backend: CudaBackend, **answers: Any) -> Answering:
    driver = Answering(**answers)
    backend._use(driver)
    return driver


@pytest.mark.parametrize("threshold", [0, 4096])
def test_the_pool_keeps_what_is_freed_unless_a_limit_was_set(backend: CudaBackend, threshold: int) -> None:
    pool = {"cuDeviceGetAttribute": 1, "cuDeviceGetMemPool": 0xB, "cuMemPoolGetAttribute": threshold}
    driver = answering(backend, **pool, cuMemAllocFromPoolAsync=0x1000)
    assert [backend.allocate(0, 64, 7) for _ in range(2)] == [0x1000, 0x1000]
    backend.free(0, 0x1000, 7, ())
    backend.trim_memory(0)
    kept = [("cuMemPoolSetAttribute", 0xB, "threshold", (1 << 64) - 1)] if threshold == 0 else []
    assert driver.calls == [
        ("cuDeviceGetAttribute", "pools", 0),
        ("cuDeviceGetMemPool", 0),
        ("cuMemPoolGetAttribute", 0xB, "threshold"),
        *kept,
        *[("cuMemAllocFromPoolAsync", 64, 0xB, 7)] * 2,
        ("cuMemFreeAsync", 0x1000, 7),
        ("cuMemPoolTrimTo", 0xB, 0),
    ]


def test_without_a_pool_memory_is_freed_when_its_stream_is_done(backend: CudaBackend) -> None:
    driver = answering(backend, cuDeviceGetAttribute=0, cuMemAlloc=0x1000)
    assert backend.allocate(0, 64, 7) == 0x1000
    backend.free(0, 0x1000, 7, ())
    backend.trim_memory(0)
    names = [name for name, *_ in driver.calls]
    assert names == ["cuDeviceGetAttribute", "cuMemAlloc", "cuStreamSynchronize", "cuMemFree"]


def test_a_stream_waits_by_an_event_that_is_given_back_though_the_wait_fails(backend: CudaBackend) -> None:
    driver = answering(backend, cuEventCreate=0xE)
    backend.wait_stream(0, 5, 6)
    waited = [
        ("cuEventCreate", 2),
        ("cuEventRecord", 0xE, 6),
        ("cuStreamWaitEvent", 5, 0xE, 0),
        ("cuEventDestroy", 0xE),
    ]
    assert driver.calls == waited
    driver.calls.clear()
    driver.refuses["cuStreamWaitEvent"] = Status.CUDA_ERROR_INVALID_VALUE
    with refused(ptxrt.DriverError, "cuStreamWaitEvent", None, "INVALID_VALUE"):
        backend.wait_stream(0, 5, 6)
    assert driver.calls == waited


def test_streams_are_idle_that_say_so_and_no_capture_is_disturbed(backend: CudaBackend) -> None:
    class Streams(Answering):
        def cuStreamQuery(self, stream: int) -> tuple[Status]:
            assert self.stack == [OURS]
            self.calls.append(("cuStreamQuery", stream))
            return (list(Status)[stream],)

    driver = Streams(cuThreadExchangeStreamCaptureMode="before")
    driver.stack = [THEIRS]
    backend._use(driver)
    assert backend.idle(0, [1, 0, 2]) == [0], "neither a busy one, nor one with an error"
    exchange = "cuThreadExchangeStreamCaptureMode"
    asked = [("cuStreamQuery", stream) for stream in (1, 0, 2)]
    assert driver.calls == [(exchange, "relaxed"), *asked, (exchange, "before")]
    assert driver.stack == [THEIRS]


def test_a_grid_that_is_no_whole_clusters_is_told_so(backend: CudaBackend, driver: Driver) -> None:
    driver.refuses["cuLaunchKernel"] = Status.CUDA_ERROR_INVALID_CLUSTER_SIZE
    with refused(ptxrt.LaunchError, "cuLaunchKernel", None, "a grid of whole clusters") as caught:
        launch(backend)
    assert "threads" not in str(caught.value)


@pytest.mark.parametrize("status", list(Status)[:3], ids=lambda status: status.name)
def test_an_event_is_done_or_not_or_there_is_an_error(backend: CudaBackend, status: Status) -> None:
    answering(backend).refuses["cuEventQuery"] = status
    if status is Status.CUDA_ERROR_INVALID_VALUE:
        with refused(ptxrt.DriverError, "cuEventQuery", None, "INVALID_VALUE"):
            backend.event_done(0, 0xE)
    else:
        assert backend.event_done(0, 0xE) is (status is Status.CUDA_SUCCESS)


# Discovery ----------------------------------------------------------------------------------------------------------


class Starting:
    """cuda.bindings.driver, of which discovery uses this."""

    CUresult = Status
    cuCtxGetCurrent = cuLaunchKernel = cuLaunchKernelEx = cuGraphLaunch = None

    def __init__(self, status: Status) -> None:
        self.status = status

    def cuInit(self, flags: int) -> tuple[Status]:
        assert flags == 0
        return (self.status,)

    def cuDeviceGetCount(self) -> tuple[Status, int]:
        return Status.CUDA_SUCCESS, 2


def starting(monkeypatch: pytest.MonkeyPatch, status: Status) -> CudaBackend:
    """Return a backend that finds such a driver."""
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=Starting(status)))
    return CudaBackend()


def test_discovery_imports_nothing_of_cuda_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)  # an import of it would fail
    backend = starting(monkeypatch, Status.CUDA_SUCCESS)
    assert (backend.unavailable(), backend.device_count()) == (None, 2)


def test_what_the_driver_answers_to_its_initialisation_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = starting(monkeypatch, Status.CUDA_ERROR_INVALID_CONTEXT)
    assert backend.unavailable() == "NVIDIA's driver answers CUDA_ERROR_INVALID_CONTEXT to cuInit"


def test_arrays_of_others_without_cuda_core_are_refused(
    backend: CudaBackend, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with refused(ptxrt.BackendUnavailable, "cuda.core", None, "ptxrt[cuda13]"):
        backend.import_array(0, object(), 0)
    assert driver.stack == [THEIRS]
