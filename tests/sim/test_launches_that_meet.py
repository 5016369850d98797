"""Launches on the machine that meet: of several threads, of signal handlers, of finalizers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
from helpers import Patch, printed_by, refused

import ptxrt
from ptxrt import sim

COUNT = """.version 7.0
.target sm_70
.address_size 64
.visible .entry count(.param .u64 x, .param .u32 n) {
    .reg .pred %again;  .reg .b32 %i, %n;  .reg .b64 %x;
    ld.param.u64 %x, [x];  ld.param.u32 %n, [n];
    mov.u32 %i, 0;
NEXT:
    add.u32 %i, %i, 1;
    setp.lt.u32 %again, %i, %n;
    @%again bra NEXT;
    st.global.u32 [%x], %i;
    ret;
}"""
SECONDS = 0.05
Actions: TypeAlias = list[Callable[[], object]]


def counter(device: str = "sim:0") -> Callable[[int], int]:
    """Return what counts to a number on the device, one launch a call."""
    kernel = ptxrt.load(ptxrt.KernelSource.ptx(COUNT), "count", "u32* x, u32 n", device)

    def count(number: int) -> int:
        x = ptxrt.empty(1, "u32", device)
        kernel.launch(1, 1, x, number)
        return int(x.to_host()[0])

    return count


@pytest.fixture
def interrupted(monkeypatch: Patch) -> Iterator[Actions]:
    """What is put in this list is done in the middle of the next launch, as a handler or finalizer is."""
    waiting: Actions = []
    launch = sim.launch

    def launch_with_interruption(*args: Any, **how: Any) -> object:
        while waiting:
            waiting.pop()()
        return launch(*args, **how)

    monkeypatch.setattr(sim, "launch", launch_with_interruption)
    yield waiting
    assert not waiting


@pytest.mark.parametrize("device", ["sim:0", "sim:1"])
def test_a_launch_in_the_middle_of_one_of_the_same_thread_is_refused(interrupted: Actions, device: str) -> None:
    count, inner = counter(), counter(device)
    results: list[object] = []

    def handler() -> None:
        with refused(ptxrt.LaunchError, "count", "launch", "signal handler or a finalizer", "launch later"):
            inner(3)
        results.append("refused")

    def work() -> None:
        results.append(count(5))
        results.extend((count(6), inner(7)))

    interrupted.append(handler)
    thread = threading.Thread(target=work, daemon=True)  # which may hang
    thread.start()
    thread.join(20)
    assert results == ["refused", 5, 6, 7]


def test_a_launch_in_a_signal_handler_is_refused_and_the_interrupted_one_goes_on() -> None:
    script = f"""
        import signal, ptxrt
        kernel = ptxrt.load(ptxrt.KernelSource.ptx({COUNT!r}), "count", "u32* x, u32 n", "sim:0")
        x, seen = ptxrt.empty(1, "u32", "sim:0"), set()

        def handler(*_):
            try:
                kernel.launch(1, 1, ptxrt.empty(1, "u32", "sim:0"), 3)
            except ptxrt.LaunchError as error:
                seen.add(type(error).__name__)

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        kernel.launch(1, 1, x, 100_000)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(x.to_host()[0], *seen)
    """
    assert printed_by(script) == "100000 LaunchError"


def test_a_launch_that_raises_leaves_its_thread_free_to_launch(interrupted: Actions) -> None:
    count = counter()

    def fail() -> None:
        raise KeyboardInterrupt

    interrupted.append(fail)
    with pytest.raises(KeyboardInterrupt):
        count(5)
    assert count(6) == 6


def test_a_launch_waits_for_that_of_another_thread(interrupted: Actions) -> None:
    count, began, may_end, results = counter(), threading.Event(), threading.Event(), []

    def wait() -> None:
        began.set()
        may_end.wait(10)

    interrupted.append(wait)
    first = threading.Thread(target=lambda: results.append(count(5)))
    first.start()
    began.wait(10)
    second = threading.Thread(target=lambda: results.append(count(6)))
    second.start()
    second.join(SECONDS)
    assert second.is_alive()
    may_end.set()
    first.join(10)
    second.join(10)
    assert results == [5, 6]
