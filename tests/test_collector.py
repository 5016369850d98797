"""The pause of Python's garbage collector."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest
from helpers import printed_by

from ptxrt.collector import paused


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_a_pause_ends_also_by_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), paused():
        1 / gc.isenabled()
    assert gc.isenabled()


def test_who_had_it_disabled_has_it_so_afterwards() -> None:
    gc.disable()
    with paused():
        pass
    assert not gc.isenabled()


def test_of_two_threads_the_last_one_ends_the_pause() -> None:
    entered, leave = threading.Event(), threading.Event()

    def first() -> None:
        with paused():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait()
    with paused():
        leave.set()
        thread.join()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_forked_child_collects() -> None:
    with paused():
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not gc.isenabled()


def test_our_imports_begin_no_collections() -> None:
    began = printed_by("""
        import gc
        import ptxrt
        began = []
        gc.callbacks.append(lambda phase, info: began.append(phase))
        gc.set_threshold(10)
        ptxrt.Kernel, ptxrt.ops.group_norm
        gc.disable()
        print(len(began))
    """)
    assert int(began) < 1000  # that of this file, and those between the imports; else there are 9000
