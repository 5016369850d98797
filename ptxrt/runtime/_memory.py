"""Memory: a stretch of device memory, given back in the order of the streams that used it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ptxrt.errors import BackendUnavailable, InvalidArgument, OutOfDeviceMemory, shown
from ptxrt.runtime.device import Device
from ptxrt.runtime.stream import Queue, Stream

__all__ = ["Memory"]

_MANY = 16  # streams: then those that are done are let go


class Memory:
    """A stretch of device memory that arrays point into; it is given back when the last of them is gone.

    Attributes
    ----------
    ptr, nbytes : int
    stream : Stream
        The stream it was allocated on, where it is freed.
    home : Stream or None
        The same while the memory is alive, None once freed: a launch there needs no note by :meth:`used_on`.
    owner : object
        Who owns the memory, if not we: it is held, and nothing is freed.
    """

    __slots__ = ("_holds", "_unfreed", "_used_on", "device", "home", "nbytes", "owner", "ptr", "stream")

    def __init__(self, device: Device, ptr: int, nbytes: int, stream: Stream, owner: object = None) -> None:
        self._used_on: dict[Queue | int, Queue | Stream] = {}  # by handle only those of other libraries
        # One for the arrays and, above it, one for each graph. Whoever takes away the first one gives the memory back:
        # taking one away and seeing which it was is a single step.
        self._holds = [True]
        if stream.capture is not None:
            stream.capture.hold(self)
            stream = stream.capture.stream
        self.device, self.ptr, self.nbytes, self.stream, self.owner = device, ptr, nbytes, stream, owner
        self.home: Stream | None = stream
        self._unfreed = True

    @classmethod
    def allocate(cls, device: Device, nbytes: int, stream: Stream) -> Memory:
        """Allocate in the order of `stream`; no bytes are the null pointer."""
        if nbytes >= 1 << 63:  # more than a driver can be asked for
            raise OutOfDeviceMemory(
                f"allocate: {shown(nbytes)} bytes are more than any device has", op="allocate", argument="nbytes"
            )
        ptr = device.backend.allocate(device.ordinal, nbytes, stream.handle) if nbytes else 0
        return cls(device, ptr, nbytes, stream)

    @property
    def alive(self) -> bool:
        """False once freed."""
        return self.home is not None

    def used_on(self, stream: Stream) -> None:
        """Note that `stream` has work on this memory, which is not given back before that is done."""
        if stream.capture is not None:
            stream.capture.hold(self)
            stream = stream.capture.stream
        if stream.handle != self.stream.handle and stream.queue not in self._used_on:
            self._note(stream)

    def _note(self, stream: Stream) -> None:
        """Note a stream; at 16, 32, 64 ... of them, let go of those that are done for good.

        These are idle, and their Streams are gone. A Stream that is there may be on the way to a launch, which was
        noted and has not begun.
        """
        queue = stream.queue
        if queue is None:  # another library's, which may have the handle of one that is gone
            self._used_on[stream.handle] = stream
            return
        count = len(self._used_on)
        if count >= _MANY and not count & (count - 1):
            dropped = [one for one in tuple(self._used_on.values()) if isinstance(one, Queue) and one.dropped]
            idle = self.device.backend.idle(self.device.ordinal, [one.handle for one in dropped])
            for one in dropped:
                if one.handle in idle:
                    self._used_on.pop(one, None)
        self._used_on[queue] = queue

    @property
    def users(self) -> tuple[int, ...]:
        """The handles of the streams with work on this memory, its own first."""
        return (self.stream.handle, *[one.handle for one in tuple(self._used_on.values())])

    def hold(self) -> None:
        """Let the memory outlive :meth:`free`, until :meth:`release`: a graph has its address."""
        self._holds.append(False)

    def release(self) -> None:
        """Undo one :meth:`hold`."""
        if self._holds.pop():
            self._give_back()

    def free(self) -> None:
        """Give the memory back, in the order of the streams that used it; held memory when it is released."""
        try:
            del self._unfreed  # a single step: of two threads one comes here
        except AttributeError:
            return
        self.home = None
        if self._holds.pop():
            self._give_back()

    def _give_back(self) -> None:
        if self.owner is None and self.ptr:
            backend, ordinal = self.device.backend, self.device.ordinal
            if self.stream.alive and all(user.alive for user in tuple(self._used_on.values())):
                backend.free(ordinal, self.ptr, self.stream.handle, self.users[1:])
            else:  # nothing is left to order the free by but the whole device
                with suppress(BackendUnavailable):  # a forked child has none, and nothing to free
                    backend.synchronize(ordinal, None)
                backend.free(ordinal, self.ptr, 0, ())
        self.owner = None

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, by deepcopy or pickle, would free the same address once more.
        raise InvalidArgument(
            op="pickle", argument="array", expected="a host array", given="device memory", fix="Copy it with to_host()"
        )

    def __del__(self, at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        # At exit the driver may be gone before this object; the process gives everything back by itself. So may the
        # names of this module, and sys among them: hence the parameter, here and wherever something is destroyed.
        if not at_exit():
            self.free()
