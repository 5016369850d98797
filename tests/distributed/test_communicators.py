"""Communicators: of threads, and those that are made of NCCL's, here with functions in the library's place."""

from __future__ import annotations

import threading
import time
from ctypes import c_int
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import Patch, need_hip_compilers, refused

import ptxrt
from ptxrt.distributed import Communicator, Group, NcclCommunicator, _group, _nccl, as_communicator
from ptxrt.runtime.stream import Event


class Library:
    """NCCL of one rank, as far as it is called: what it was asked for, and what it answers."""

    def __init__(self) -> None:
        self.reduced: list[Any] = []
        self.status = self.error = 0
        for name, number in (("Count", 4), ("UserRank", 2), ("CuDevice", 0)):
            setattr(self, f"ncclComm{name}", self.answer(number))

    @staticmethod
    def answer(number: int) -> Any:
        def call(handle: Any, to: Any) -> int:
            assert handle.value == 0x1234
            to._obj.value = number
            return 0

        return call

    def ncclCommGetAsyncError(self, handle: Any, to: Any) -> int:
        return int(self.answer(self.error)(handle, to))

    def ncclAllReduce(self, *given: Any) -> int:
        self.reduced.append(given)
        return self.status

    def ncclGetErrorString(self, status: int) -> bytes:
        return f"error {c_int(status).value}".encode()


@pytest.fixture
def library(monkeypatch: Patch) -> Library:
    found = Library()
    monkeypatch.setattr(_nccl, "_loaded", lambda: (found, "sim"))
    return found


def test_sums_of_a_group_are_those_of_all_ranks(device: Any) -> None:
    values = np.random.default_rng(0).integers(-(2**62), 2**62, (5, 300))

    def work(rank: Communicator) -> Any:
        array = ptxrt.to_device(values[rank.rank], device)
        rank.all_reduce(array, device.default_stream)
        return array.to_host()

    for found in Group(5, device).run(work):
        assert np.array_equal(found, values.sum(0))


def test_arrays_of_two_sizes_are_refused_on_all_ranks(device: Any) -> None:
    group = Group(2, device)

    def work(rank: Communicator) -> Any:
        with refused(ptxrt.RanksDisagree, "Group", "communicator", "3 of rank 0, 4 of rank 1"):
            rank.all_reduce(ptxrt.zeros(3 + rank.rank, "int64", device), device.default_stream)

    group.run(work)


@pytest.mark.parametrize("size", [0, 4097, 1.0, True])
def test_a_size_that_is_none_is_refused(size: Any) -> None:
    with refused(ptxrt.InvalidArgument, "Group", "size", "from 1 to 4096"):
        Group(size, "sim")


def test_a_rank_that_comes_too_late_is_told_so_and_changes_nothing() -> None:
    early, late, third = Group(3, "sim", 0.05).ranks
    device = early.device
    arrays = [ptxrt.ones(3, "int64", device) for _ in range(3)]
    for rank, array in ((early, arrays[0]), (late, arrays[1]), (third, arrays[2]), (early, arrays[0])):
        with refused(ptxrt.RankLost, "Group", "communicator", "within 0.05 s", "nothing of rank 1, 2", "another Group"):
            rank.all_reduce(array, device.default_stream)
    assert all((array.to_host() == 1).all() for array in arrays)


def test_what_goes_wrong_in_the_sum_is_told_to_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any) -> Any:
        raise ptxrt.OutOfDeviceMemory("no room", op="load", argument="kernel")

    monkeypatch.setattr(_group, "load", load)
    errors: list[Any] = []

    def work(rank: Communicator) -> None:
        try:
            rank.all_reduce(ptxrt.ones(3, "int64", "sim"), rank.device.default_stream)
        except ptxrt.PtxrtError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in Group(2, "sim", 20).ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(error).__name__ for error in errors) == ["OutOfDeviceMemory", "RankLost"]
    assert any("ended with OutOfDeviceMemory: no room" in str(error) for error in errors)


@pytest.mark.parametrize(
    ("size", "timeout"), [(np.int64(2), np.float32(20)), (np.uint8(2), np.int64(20)), (2, float("inf")), (2, 10**400)]
)
def test_numbers_of_numpy_and_no_time_limit(size: Any, timeout: Any) -> None:
    group = Group(size, "sim", timeout)
    array = [ptxrt.ones(3, "int64", "sim") for _ in group.ranks]

    def work(rank: Communicator) -> Any:
        time.sleep(0.02 * rank.rank)  # so that the first one waits
        rank.all_reduce(array[rank.rank], group.device.default_stream)
        return array[rank.rank].to_host()[0]

    assert group.run(work) == [2, 2]
    assert (type(group.ranks[0].size), type(group.ranks[0].timeout)) == (int, float)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), None, True])
def test_a_time_limit_that_is_none_is_refused(timeout: Any) -> None:
    with refused(ptxrt.InvalidArgument, "Communicator", "timeout", "seconds above 0"):
        Group(2, "sim", timeout)


class Alone(Communicator):
    """One of a user's own, of one rank."""

    def all_reduce(self, array: Any, stream: Any) -> None: ...


def test_a_communicator_of_ones_own_takes_a_device_by_its_name() -> None:
    own = Alone(np.int64(0), np.int64(1), "sim:0", 5)
    assert (own.rank, own.size, own.device) == (0, 1, ptxrt.Device("sim:0"))
    x = ptxrt.to_device(np.arange(8, dtype=np.float32).reshape(4, 2), "sim:0")
    result = ptxrt.ops.batch_norm(x, None, None, None, None, training=True, communicator=own)
    assert result.batch_mean is not None
    assert result.batch_mean.to_host().tolist() == [3, 4]


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0), ("0", 1), (0.0, 1), (False, 1), (0, None)])
def test_a_rank_that_is_none_is_refused(rank: Any, size: Any) -> None:
    with refused(ptxrt.InvalidArgument, "Communicator", "rank", "below the number of ranks", f"rank {rank!r} of"):
        Alone(rank, size, "sim:0", 5)


def test_an_all_reduce_is_one_call_on_the_stream(library: Library) -> None:
    communicator = NcclCommunicator(0x1234)
    assert (communicator.rank, communicator.size, str(communicator.device)) == (2, 4, "sim:0")
    array, stream = ptxrt.zeros(7, "int64", "sim:0"), ptxrt.Stream("sim:0")
    communicator.all_reduce(array, stream)
    ((send, receive, count, kind, operation, handle, where),) = library.reduced
    assert (send, receive, count, kind, operation, handle.value, where) == (
        *(array.ptr, array.ptr, 7, 4, 0, 0x1234),
        stream.handle,
    )


def test_a_captured_all_reduce_is_made_by_each_replay(library: Library) -> None:
    communicator, stream = NcclCommunicator(0x1234), ptxrt.Stream("sim:0")
    with ptxrt.capture(stream) as graph:
        communicator.all_reduce(ptxrt.zeros(7, "int64", "sim:0"), stream)
        assert library.reduced == []
    for _ in range(3):
        graph.replay()
    assert len(library.reduced) == 3


def test_the_first_call_of_a_problem_is_none_for_a_capture(library: Library) -> None:
    communicator, stream = NcclCommunicator(0x1234), ptxrt.Stream("sim:0")
    x = ptxrt.ones((2, 3, 4), "f4", "sim:0")
    with ptxrt.capture(stream), refused(ptxrt.Unsupported, "batch_norm", "communicator", "before the capture"):
        ptxrt.ops.batch_norm(x, None, None, None, None, training=True, communicator=communicator)
    assert library.reduced == []


def test_what_nccl_says_is_in_the_error(library: Library, monkeypatch: Patch) -> None:
    communicator, stream = NcclCommunicator(0x1234, timeout=0.05), ptxrt.Stream("sim:0")
    library.status = 5
    with refused(ptxrt.DriverError, "ncclAllReduce", None, "error 5"):
        communicator.all_reduce(ptxrt.zeros(7, "int64", "sim:0"), stream)
    communicator.synchronize(stream)
    monkeypatch.setattr(Event, "done", False)
    with refused(ptxrt.RankLost, "synchronize", "communicator", "all 4 ranks", "on rank 2 no answer"):
        communicator.synchronize(stream)
    library.error = 6
    with refused(ptxrt.RankLost, "synchronize", "communicator", "NCCL has an error: error 6"):
        communicator.synchronize(stream)


def test_a_process_without_nccl_or_with_two_is_refused(tmp_path: Path, monkeypatch: Patch) -> None:
    maps = tmp_path / "maps"
    monkeypatch.setattr(_nccl, "_MAPS", maps)
    for text in (None, "7f00-7f01 r-xp 0 00:00 1 /a/libnccl-net.so\n"):
        if text:
            maps.write_text(text)
        with refused(ptxrt.BackendUnavailable, "NcclCommunicator", "handle", "none in it"):
            NcclCommunicator(0x1234)
    maps.write_text("7f00-7f01 r-xp 0 00:00 1 /a/libnccl.so.2\n7f02-7f03 r-xp 0 00:00 1 /b/libnccl.so.2.27\n")
    with refused(ptxrt.Unsupported, "NcclCommunicator", "handle", "/a/libnccl.so.2, /b/libnccl.so.2.27"):
        NcclCommunicator(0x1234)


@pytest.mark.parametrize(("name", "kind"), [("libnccl.so.2", "cuda"), ("librccl.so.1.0", "hip")])
def test_the_library_in_the_process_is_the_one_that_is_called(
    name: str, kind: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    maps = tmp_path / "maps"
    opened: Any = SimpleNamespace()
    maps.write_text(f"7f00-7f01 r-xp 0 00:00 1 /a/{name}\n7f01-7f02 rw-p 0 00:00 1 /a/{name}\n")
    monkeypatch.setattr(_nccl, "_MAPS", maps)
    monkeypatch.setattr(_nccl, "_library", {f"/a/{name}": opened}.__getitem__)
    assert _nccl._loaded() == (opened, kind)


def test_a_handle_of_rccl_is_of_a_hip_device(library: Library, monkeypatch: Patch) -> None:
    need_hip_compilers()
    monkeypatch.setattr(_nccl, "_loaded", lambda: (library, "hip"))
    communicator = NcclCommunicator(0x1234)
    assert communicator.device is ptxrt.Device("hip:0")
    array = ptxrt.zeros(7, "int64", communicator.device)
    communicator.all_reduce(array, communicator.device.default_stream)
    assert library.reduced[0][:5] == (array.ptr, array.ptr, 7, 4, 0)  # ncclInt64, ncclSum


@pytest.mark.parametrize("handle", [0, -1, None, "0x1234", True])
def test_a_handle_that_is_none_is_refused(handle: Any) -> None:
    with refused(ptxrt.InvalidArgument, "NcclCommunicator", "handle", "torch.distributed.barrier()"):
        NcclCommunicator(handle)


def test_nccl4pys_communicator_is_taken_once(library: Library) -> None:
    theirs = type("Communicator", (), {"__module__": "nccl.core.communicator", "ptr": 0x1234})()
    found = as_communicator(theirs)
    assert isinstance(found, NcclCommunicator)
    assert as_communicator(theirs) is found
    assert as_communicator(found) is found


def test_a_group_that_does_not_tell_its_handle_is_refused(monkeypatch: Patch) -> None:
    cuda = SimpleNamespace(current_device=lambda: 0)
    monkeypatch.setitem(__import__("sys").modules, "torch", SimpleNamespace(device=lambda *_: None, cuda=cuda))
    theirs = type("ProcessGroup", (), {"__module__": "torch._C", "_get_backend": lambda *_: object()})()
    with refused(ptxrt.InvalidArgument, "batch_norm", "communicator", "tells the handle", "_comm_ptr"):
        as_communicator(theirs, "batch_norm")


@pytest.mark.parametrize("given", [1, "nccl", object(), type("UniqueId", (), {"__module__": "nccl.core.utils"})()])
def test_what_is_no_communicator_is_refused(given: Any) -> None:
    x = ptxrt.ones((2, 3, 4), "f4", "sim:0")
    with refused(ptxrt.InvalidArgument, "batch_norm", "communicator", "nccl.core", type(given).__name__):
        ptxrt.ops.batch_norm(x, None, None, None, None, training=True, communicator=given)
