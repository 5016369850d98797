"""Group: ranks that are threads of one process, on one device."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ptxrt.distributed._communicator import Communicator
from ptxrt.errors import InvalidArgument, RankLost, RanksDisagree, Unsupported, shown
from ptxrt.runtime.array import DeviceArray, to_device
from ptxrt.runtime.device import Device, as_device
from ptxrt.runtime.kernel import load
from ptxrt.runtime.layout import is_whole
from ptxrt.runtime.signature import Signature
from ptxrt.runtime.source import KernelSource
from ptxrt.runtime.stream import Event, Stream, captured_stream

__all__ = ["Group"]

Result = TypeVar("Result")

_MOST_RANKS = 1 << 12
_THREADS = 128
_SIGNATURE = Signature.parse("const u64* arrays_ptr, u32 ranks, u32 count")
_IN_PTX = """\
// add_arrays: each of `ranks` arrays of `count` 64-bit integers, whose addresses are in arrays_ptr, becomes the sum of
// all. A thread an integer.
.version 7.0
.target sm_70
.address_size 64
.visible .entry add_arrays(.param .u64 arrays_ptr, .param .u32 ranks, .param .u32 count)
{
    .reg .pred %done;
    .reg .b32 %i, %block, %threads, %rank, %ranks, %count;
    .reg .b64 %arrays, %next, %at, %value, %sum;
    ld.param.u64 %arrays, [arrays_ptr];
    ld.param.u32 %ranks, [ranks];
    ld.param.u32 %count, [count];
    cvta.to.global.u64 %arrays, %arrays;
    mov.u32 %i, %tid.x;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mad.lo.u32 %i, %block, %threads, %i;
    setp.ge.u32 %done, %i, %count;
    @%done ret;
    mov.u64 %sum, 0;
    mov.u64 %next, %arrays;
    mov.u32 %rank, 0;
add:
    ld.global.u64 %at, [%next];
    cvta.to.global.u64 %at, %at;
    mad.wide.u32 %at, %i, 8, %at;
    ld.global.u64 %value, [%at];
    add.u64 %sum, %sum, %value;
    add.u64 %next, %next, 8;
    add.u32 %rank, %rank, 1;
    setp.lt.u32 %done, %rank, %ranks;
    @%done bra add;
    mov.u32 %rank, 0;
    mov.u64 %next, %arrays;
write:
    ld.global.u64 %at, [%next];
    cvta.to.global.u64 %at, %at;
    mad.wide.u32 %at, %i, 8, %at;
    st.global.u64 [%at], %sum;
    add.u64 %next, %next, 8;
    add.u32 %rank, %rank, 1;
    setp.lt.u32 %done, %rank, %ranks;
    @%done bra write;
    ret;
}
"""
_IN_HIP = """\
extern "C" __global__ void add_arrays(const unsigned long long* arrays_ptr, unsigned ranks, unsigned count) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    unsigned long long sum = 0;
    for (unsigned rank = 0; rank < ranks; ++rank) sum += reinterpret_cast<unsigned long long*>(arrays_ptr[rank])[i];
    for (unsigned rank = 0; rank < ranks; ++rank) reinterpret_cast<unsigned long long*>(arrays_ptr[rank])[i] = sum;
}
"""


class Group:
    """Ranks that are threads of this process and share a device: for tests, and for one GPU or none.

    Parameters
    ----------
    size
        How many ranks.
    device
        Of all their arrays; the default device if left out.
    timeout
        Seconds after which a rank that waits for another one gives up.

    Attributes
    ----------
    ranks : tuple of Communicator
        One a rank, for threads that the caller starts; :meth:`run` starts them.
    device : Device

    Raises
    ------
    InvalidArgument
        For a size that is no whole number from 1 to 4096, and a timeout that is no number above 0.
    """

    def __init__(self, size: int, device: Device | str | None = None, timeout: float = 60.0) -> None:
        if not is_whole(size) or not 1 <= size <= _MOST_RANKS:
            expected = f"a whole number from 1 to {_MOST_RANKS}"
            raise InvalidArgument(op="Group", argument="size", expected=expected, given=shown(size))
        self.device = as_device(device)
        self._changed = threading.Condition()
        self._came: dict[int, tuple[DeviceArray, Event]] = {}
        self._turn = 0
        self._done: Event | None = None
        self._refusal: RanksDisagree | None = None
        self._lost: dict[int, str] = {}
        self._missed = ""  # in words, who did not come in time: a rank has given up, and nobody goes on without it
        self.ranks = tuple(_Rank(self, rank, int(size), timeout) for rank in range(size))
        self._timeout = self.ranks[0].timeout

    def __repr__(self) -> str:
        return f"<Group: {len(self.ranks)} ranks on {self.device}>"

    def run(self, work: Callable[[Communicator], Result]) -> list[Result]:
        """Call ``work(communicator)`` in a thread a rank; return what each returns, by rank.

        Where a rank's call ends with an error, ranks that wait for it end with RankLost, and its error is raised here.
        The group does not go on then: make another.
        """
        results: list[Any] = [None] * len(self.ranks)
        errors: list[tuple[int, BaseException]] = []

        def one(communicator: _Rank) -> None:
            try:
                results[communicator.rank] = work(communicator)
            except BaseException as error:  # noqa: BLE001 (a thread's: raised by whoever started it)
                errors.append((communicator.rank, error))
                self.lose(communicator.rank, f"{type(error).__name__}: {error}")

        threads = [threading.Thread(target=one, args=(rank,), name=f"rank {rank.rank}") for rank in self.ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:  # the first one is the cause of the others
            raise errors[0][1]
        return results

    def lose(self, rank: int, reason: str) -> None:
        """Let the others know that a rank has ended: those that wait for it end with RankLost."""
        with self._changed:
            self._lost.setdefault(rank, reason)
            self._changed.notify_all()

    def meet(self, rank: int, array: DeviceArray, stream: Stream) -> None:
        """Wait for all ranks' arrays, and have them added up on the stream of the rank that comes last."""
        event = stream.record()
        with self._changed:
            if self._missed or self._lost:
                raise self._lost_error()
            turn = self._turn
            self._came[rank] = array, event
            if len(self._came) == len(self.ranks):
                try:
                    self._add_up(stream)
                except BaseException as error:
                    self.lose(rank, f"{type(error).__name__}: {error}")
                    raise
                self._turn += 1
                self._came = {}
                self._changed.notify_all()
            elif not self._changed.wait_for(lambda: self._turn != turn or self._lost or self._missed, self._timeout):
                missing = sorted({each.rank for each in self.ranks} - self._came.keys())
                self._missed = f"nothing of rank {', '.join(map(str, missing))}"
                self._came = {}
                self._changed.notify_all()
            if self._turn == turn:
                raise self._lost_error()
            done, refusal = self._done, self._refusal
        if refusal is not None:
            raise refusal
        if done is not None:
            stream.wait(done)

    def _lost_error(self) -> RankLost:
        ended = "; ".join(f"rank {one} ended with {why}" for one, why in self._lost.items())
        return RankLost(
            op="Group",
            argument="communicator",
            expected=f"all {len(self.ranks)} ranks within {self._timeout:g} s",
            given=self._missed or ended,
            fix="Make another Group",
        )

    def _add_up(self, stream: Stream) -> None:
        sizes = {rank: array.size for rank, (array, _) in sorted(self._came.items())}
        self._refusal = self._done = None
        if len(set(sizes.values())) > 1:
            self._refusal = RanksDisagree(
                op="Group",
                argument="communicator",
                expected="arrays of one size from all ranks",
                given=", ".join(f"{size} of rank {rank}" for rank, size in sizes.items()),
            )
            return
        arrays = [array for array, _ in self._came.values()]
        for array, event in self._came.values():
            stream.wait(event)
            array.memory.used_on(stream)
        source = KernelSource.ptx(_IN_PTX) if "ptx" in self.device.backend.languages else KernelSource.hip(_IN_HIP)
        kernel = load(source, "add_arrays", _SIGNATURE, self.device)
        table = to_device(np.array([array.ptr for array in arrays], np.uint64), self.device, stream=stream)
        blocks = -(-arrays[0].size // _THREADS)
        if blocks:
            kernel.launch(blocks, _THREADS, table, len(arrays), arrays[0].size, stream=stream)
        self._done = stream.record()


class _Rank(Communicator):
    """A rank of a Group."""

    def __init__(self, group: Group, rank: int, size: int, timeout: float) -> None:
        super().__init__(rank, size, group.device, timeout)
        self._group = group

    def all_reduce(self, array: DeviceArray, stream: Stream) -> None:
        """As :meth:`Communicator.all_reduce`; the thread waits for those of the other ranks, and not for the device."""
        if self.size == 1:
            return
        if captured_stream(self.device) is not None:
            raise Unsupported(
                op="Group",
                argument="communicator",
                expected="work outside of a capture, since ranks that are threads wait for each other",
                given="an all-reduce in a capture",
                fix="Capture with NCCL's communicator, or with a Group of one rank",
            )
        self._group.meet(self.rank, array, stream)
