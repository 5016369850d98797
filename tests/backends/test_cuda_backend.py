"""The CUDA backend puts back the context that was current, whatever a call does; with a driver that is a stack."""

from __future__ import annotations

import sys
import threading
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import refused

import ptxrt
from ptxrt.backends.cuda import CudaBackend

THEIRS, OURS = 0x11, 0x22


class Status(Enum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720


class Driver:
    """What of cuda.bindings.driver a switch of contexts and a launch use; `refuses` says what a call answers."""

    CUresult = Status

    def __init__(self) -> None:
        self.stack = [THEIRS]
        self.refuses: dict[str, Status | BaseException] = {}
        self.launched_in: list[int] = []
        self.retained = 0

    def answer(self, call: str, *results: Any) -> tuple[Any, ...]:
        refusal = self.refuses.get(call, Status.CUDA_SUCCESS)
        if isinstance(refusal, BaseException):
            raise refusal
        return (refusal, *results)

    def cuGetErrorString(self, status: Status) -> tuple[Status, bytes]:
        return Status.CUDA_SUCCESS, status.name.encode()

    def cuCtxGetCurrent(self) -> tuple[Any, ...]:
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
        self.launched_in.append(self.stack[-1])
        return self.answer("cuLaunchKernel")

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
    made._core = SimpleNamespace(
        Device=lambda ordinal: SimpleNamespace(set_current=lambda: driver.cuCtxSetCurrent(OURS))
    )
    return made


def launch(backend: CudaBackend) -> None:
    backend.launch(0, 0xF, (1, 1, 1, 32, 1, 1), 0, 0, SimpleNamespace(table=0xA, kernel=None))


@pytest.mark.parametrize("current", [THEIRS, OURS], ids=["theirs", "ours"])
def test_a_launch_is_made_in_the_devices_context(backend: CudaBackend, driver: Driver, current: Any) -> None:
    driver.stack = [current]
    launch(backend)
    assert (driver.launched_in, driver.stack) == ([OURS], [current])


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
    def set_current() -> None:
        driver.cuCtxSetCurrent(OURS)
        raise ptxrt.DriverError("no more", op="set_current")

    backend._core.Device = lambda ordinal: SimpleNamespace(set_current=set_current)
    with pytest.raises(ptxrt.DriverError, match="no more"), backend._current(0):
        pytest.fail("the body runs without the device's context")
    assert driver.stack == [THEIRS]


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


class Starting:
    """cuda.bindings.driver, of which discovery uses this; it notes who initialised."""

    CUresult = Status
    cuCtxGetCurrent = cuLaunchKernel = cuGraphLaunch = None

    def __init__(self, status: Status) -> None:
        self.status = status
        self.initialised: list[threading.Thread] = []

    def cuDriverGetVersion(self) -> tuple[Status, int]:
        return Status.CUDA_SUCCESS, 13000

    def cuInit(self, flags: int) -> tuple[Status]:
        self.initialised.append(threading.current_thread())
        return (self.status,)

    def cuDeviceGetCount(self) -> tuple[Status, int]:
        return Status.CUDA_SUCCESS, 2


def starting(monkeypatch: pytest.MonkeyPatch, core: Any, status: Status = Status.CUDA_SUCCESS) -> Starting:
    """Have such a driver, and `core` as cuda.core; None where it is not installed."""
    driver = Starting(status)
    for name, module in (
        ("cuda", SimpleNamespace(core=core)),
        ("cuda.bindings", SimpleNamespace(driver=driver)),
        ("cuda.core", core),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    return driver


def test_the_driver_is_initialised_in_a_thread_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = starting(monkeypatch, SimpleNamespace())
    backend = CudaBackend()
    assert (backend.unavailable(), backend.device_count()) == (None, 2)
    first, second = driver.initialised
    assert first is not threading.current_thread() is second
    assert not first.is_alive()


def test_what_the_driver_answers_to_its_initialisation_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    starting(monkeypatch, SimpleNamespace(), Status.CUDA_ERROR_INVALID_CONTEXT)
    assert CudaBackend().unavailable() == "NVIDIA's driver answers CUDA_ERROR_INVALID_CONTEXT to cuInit"


def test_a_missing_cuda_core_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    starting(monkeypatch, None)
    assert "ptxrt[cuda13]" in str(CudaBackend().unavailable())
