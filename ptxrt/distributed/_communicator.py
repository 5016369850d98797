"""Communicator: what an op needs of the ranks that work on one batch with it."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from ptxrt.errors import InvalidArgument, RankLost, RanksDisagree, Unsupported, shown
from ptxrt.runtime.array import DeviceArray, to_device
from ptxrt.runtime.device import Device
from ptxrt.runtime.layout import is_whole
from ptxrt.runtime.stream import Event, Stream, captured_stream

__all__ = ["Communicator"]

_WORDS = 64  # of 8 bytes, in which a rank says what it is about to compute
_FIRST_PAUSE, _LONGEST_PAUSE = 1e-5, 1e-2


class Communicator(ABC):
    """One rank's end of what connects all ranks; a subclass has :meth:`all_reduce`.

    Parameters
    ----------
    rank, size, device, timeout
        As the attributes; of the device its name is enough.

    Attributes
    ----------
    rank : int
        From 0 to ``size - 1``.
    size : int
        How many ranks there are.
    device : Device
        Where this rank's arrays are.
    timeout : float
        Seconds after which a rank that waits for another one gives up.

    Raises
    ------
    InvalidArgument
        For a rank that is none of `size`, and a timeout that is no number above 0.
    """

    def __init__(self, rank: int, size: int, device: Device | str, timeout: float) -> None:
        if not is_whole(rank) or not is_whole(size) or not 0 <= rank < size:
            raise InvalidArgument(
                op="Communicator",
                argument="rank",
                expected="a whole number from 0, below the number of ranks",
                given=f"rank {shown(rank)} of {shown(size)}",
            )
        number = is_whole(timeout) or isinstance(timeout, (float, np.floating))
        if not number or not timeout > 0:
            expected = "a number of seconds above 0"
            raise InvalidArgument(op="Communicator", argument="timeout", expected=expected, given=shown(timeout))
        self.rank, self.size, self.device = int(rank), int(size), Device(device)
        self.timeout = float(min(timeout, threading.TIMEOUT_MAX))  # more is no number of seconds for Python's locks
        self._agreed: set[tuple[object, ...]] = set()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: rank {self.rank} of {self.size} on {self.device}>"

    @abstractmethod
    def all_reduce(self, array: DeviceArray, stream: Stream) -> None:
        """Let `array`, int64 and contiguous, become on each rank the sum of what it is on all; the stream does it."""

    def synchronize(self, stream: Stream) -> None:
        """Wait on the host for the stream's work so far, which may wait for other ranks.

        Raises
        ------
        RankLost
            If it is not done after `timeout` seconds: a rank has ended, or never came.
        """
        self.wait(stream.record(), "synchronize")

    def wait(self, event: Event, op: str) -> None:
        """Wait on the host for an event behind work that may wait for other ranks; RankLost after `timeout` seconds."""
        end, pause = time.monotonic() + self.timeout, _FIRST_PAUSE
        while not event.done:
            reason = self.lost()
            if reason is None and time.monotonic() > end:
                reason = "no answer of some rank, which has ended or not come to this call"
            if reason is not None:
                raise RankLost(
                    op=op,
                    argument="communicator",
                    expected=f"all {self.size} ranks within {self.timeout:g} s",
                    given=f"on rank {self.rank} {reason}",
                    fix="End this process: what it waits for on the device may never come",
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def lost(self) -> str | None:
        """Return in words how it is known that a rank is lost, or None."""
        return None

    def agree(self, op: str, facts: Mapping[str, object], stream: Stream) -> None:
        """Make sure that all ranks are about to compute the same; the host waits, once for the same facts.

        Each rank writes what it is about to compute into a row of its own of a table of zeros, whose sum over all ranks
        then has all rows.

        Raises
        ------
        RanksDisagree
            On every rank, with what each of them has.
        RankLost
            If not all ranks have come after `timeout` seconds.
        Unsupported
            Within a capture, where the host cannot wait: run it once before.
        """
        if self.size == 1:
            return
        key = (op, *facts.values())
        if key in self._agreed:
            return
        if captured_stream(self.device) is not None:
            raise Unsupported(
                op=op,
                argument="communicator",
                expected="a problem that the ranks have agreed on, for which the host must wait",
                given="its first call, in a capture",
                fix="Call it once before the capture",
            )
        said = {"op": op} | {name: str(value) for name, value in facts.items()}
        table = np.zeros((self.size, 8 * _WORDS), np.uint8)
        text = "\n".join(f"{name}={value}" for name, value in said.items()).encode()
        table[self.rank, : len(text)] = np.frombuffer(text, np.uint8)
        words = to_device(table.view(np.int64), self.device, stream=stream)
        self.all_reduce(words, stream)
        self.wait(stream.record(), op)
        rows = words.to_host(stream).view(np.uint8)
        theirs = [dict(line.split("=", 1) for line in bytes(row).rstrip(b"\0").decode().split("\n")) for row in rows]
        for name in said:
            values = [one.get(name, "nothing") for one in theirs]
            if len(set(values)) > 1:
                raise RanksDisagree(
                    op=op,
                    argument="communicator",
                    expected=f"the same {name} on all ranks",
                    given="; ".join(f"{value} on {_ranks(values, value)}" for value in dict.fromkeys(values)),
                )
        with self._lock:
            self._agreed.add(key)


def _ranks(values: Sequence[str], value: str) -> str:
    """Return in words which ranks have a value; a few of many."""
    ranks = [str(rank) for rank, theirs in enumerate(values) if theirs == value]
    listed = ", ".join(ranks if len(ranks) <= 8 else [*ranks[:7], f"... ({len(ranks)})"])
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}"
