"""The CUDA backend puts back the context that was current, whatever a call does; with a driver that is a stack."""

from __future__ import annotations

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
        driver.refuses["cuCtxGetCurrent"] = Status.CUDA_ERROR_INVALID_CONTEXT

    backend._core.Device = lambda ordinal: SimpleNamespace(set_current=set_current)
    with refused(ptxrt.DriverError, "cuCtxGetCurrent", None, "CUDA_ERROR_INVALID_CONTEXT"), backend._current(0):
        pytest.fail("the body runs without the device's context")
    assert driver.stack == [THEIRS]


@pytest.mark.parametrize("call", ["cuCtxGetCurrent", "cuCtxSetCurrent"])
def test_a_switch_that_the_driver_refuses_is_reported(backend: CudaBackend, driver: Driver, call: str) -> None:
    driver.refuses[call] = Status.CUDA_ERROR_INVALID_CONTEXT
    with refused(ptxrt.DriverError, call, None, "CUDA_ERROR_INVALID_CONTEXT"), backend._current(0):
        pass
