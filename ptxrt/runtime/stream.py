"""Streams and events: the order of work on one device."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

from ptxrt.errors import DeviceMismatch, InvalidArgument, Unsupported, no_copy, shown
from ptxrt.runtime.protocols import StreamLike

if TYPE_CHECKING:
    from ptxrt.runtime.device import Device

__all__ = [
    "ENTERED",
    "Capturing",
    "Event",
    "Queue",
    "Stream",
    "as_stream",
    "captured_stream",
    "checked_stream",
    "current_stream",
]

ENTERED: list[Stream] = []
"""The streams of all threads that a with-block is in. While there is none, nothing has to be asked of the thread."""
_thread = threading.local()
_made: WeakValueDictionary[tuple[str, int], Stream] = WeakValueDictionary()  # by kind of device and handle


class Capturing(Protocol):
    """What gives a stream's work to a graph: see :mod:`ptxrt.runtime.graphs`."""

    stream: Stream
    textures: set[Any]

    def hold(self, memory: Any) -> None:
        """Keep memory that the graph uses, as long as the graph is there."""


class Queue:
    """What the driver has of a Stream that is not another library's.

    Memory keeps this, and not the Stream: so it can tell a stream that may be given more work from one that never will.

    Attributes
    ----------
    device : Device
    handle : int
    alive : bool
        False once its destructor has run, which in a garbage cycle may come before that of an array used on it.
    """

    __slots__ = ("alive", "device", "handle")

    def __init__(self, device: Device, handle: int | None = None) -> None:
        self.alive = False
        self.device = device
        self.handle = device.backend.create_stream(device.ordinal) if handle is None else handle
        self.alive = True

    def __del__(self, at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        # The default stream is the driver's own; at exit the driver may be gone before this object.
        if self.alive and self.handle and not at_exit():
            self.alive = False
            self.device.backend.destroy_stream(self.device.ordinal, self.handle)

    @property
    def dropped(self) -> bool:
        """Whether its Stream is gone, so that no more work can be given to it."""
        return self.handle != 0 and (self.device.kind, self.handle) not in _made


class Stream:
    """A queue of work on one device.

    Within ``with stream:``, the work that this thread gives to the device, and that names no stream, goes there:
    launches, ops, allocations, copies. The blocks nest; their end neither waits for the stream nor gives it back.

    Parameters
    ----------
    device
        Where it lives. The new stream does not synchronise with the default stream
        (:attr:`ptxrt.Device.default_stream`, the driver's legacy one, which other libraries use by default too).

    Attributes
    ----------
    device : Device
    handle : int
        The driver's handle; 0 is the default stream.
    queue : Queue or None
        Internal: what the driver has of it; None of another library's, and of one that stands for another one.
    capture : Capturing or None
        Internal: of a stream that stands for another one, whose work is being captured, by what.
    """

    __slots__ = ("__weakref__", "_owner", "capture", "device", "handle", "queue")

    def __init__(self, device: Device | str) -> None:
        self.capture: Capturing | None = None
        self.device = _opened(device)
        self.queue: Queue | None = Queue(self.device)
        self.handle = self.queue.handle
        self._owner: object = None
        _made[self.device.kind, self.handle] = self

    @classmethod
    def _wrap(
        cls,
        device: Device,
        handle: int,
        owner: object = None,
        capture: Capturing | None = None,
        queue: Queue | None = None,
    ) -> Stream:
        stream = cls.__new__(cls)
        stream.device, stream.handle, stream._owner = device, handle, owner
        stream.queue, stream.capture = queue, capture
        return stream

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy would destroy the same handle once more, here and below.
        raise no_copy(self, "stream", "Make another Stream")

    @property
    def alive(self) -> bool:
        """False once its destructor has run, which in a garbage cycle may come before that of an array used on it."""
        return self.queue is None or self.queue.alive

    def __repr__(self) -> str:
        name = "the default stream" if self.handle == 0 else f"stream {self.handle:#x}"
        return f"<Stream: {name} of {self.device}>"

    def __enter__(self) -> Stream:
        ENTERED.append(self)
        _entered().append(self)
        return self

    def __exit__(self, *_: object) -> None:
        streams = _entered()
        del streams[len(streams) - 1 - streams[::-1].index(self)]
        ENTERED.remove(self)

    def __cuda_stream__(self) -> tuple[int, int]:
        """The protocol by which other libraries take this stream: (version, handle)."""
        if self.device.kind != "cuda":
            raise Unsupported(
                op="Stream.__cuda_stream__", argument="device", expected="a CUDA device", given=str(self.device)
            )
        return (0, self.handle)

    def synchronize(self) -> None:
        """Wait on the host for all work given to the stream so far."""
        self.device.backend.synchronize(self.device.ordinal, self.handle)

    def record(self, event: Event | None = None) -> Event:
        """Record an event (a new one if none is given) behind the work given so far, and return it."""
        event = Event(self.device) if event is None else event
        _need_event(event, "Stream.record", "event", self.device)
        self.device.backend.record(self.device.ordinal, event.handle, self.handle)
        event.recorded = True
        return event

    def wait(self, event_or_stream: Event | StreamLike) -> None:
        """Let later work on this stream wait, on the device, for an event or for another stream's work so far."""
        backend, ordinal = self.device.backend, self.device.ordinal
        if isinstance(event_or_stream, Event):
            _need_event(event_or_stream, "Stream.wait", "event_or_stream", self.device)
            backend.wait(ordinal, self.handle, event_or_stream.handle)
        elif event_or_stream is None:  # where work is given, it is the current stream; here it says nothing
            raise InvalidArgument(
                op="Stream.wait",
                argument="event_or_stream",
                expected="a ptxrt.Event or Stream, or an object with __cuda_stream__",
                given="None",
                fix="device.default_stream is the default stream",
            )
        else:
            awaited = as_stream(event_or_stream, self.device, "Stream.wait", "event_or_stream")
            backend.wait_stream(ordinal, self.handle, awaited.handle)


class Event:
    """A point in a stream's work, with a time.

    Parameters
    ----------
    device
        Where it lives; it is recorded by :meth:`Stream.record`.

    Attributes
    ----------
    device : Device
    handle : int
        The driver's handle.
    recorded : bool
    """

    __slots__ = ("_owned", "device", "handle", "recorded")

    def __init__(self, device: Device | str) -> None:
        self.recorded = False
        self.device = _opened(device)
        self.handle = self.device.backend.create_event(self.device.ordinal)
        self._owned = True

    def __reduce__(self) -> tuple[Any, ...]:
        raise no_copy(self, "event", "Make another Event")

    def __del__(self, at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        # An __init__ that failed has set nothing; at exit the driver may be gone before this object.
        if getattr(self, "_owned", False) and not at_exit():
            self._owned = False
            self.device.backend.destroy_event(self.device.ordinal, self.handle)

    def __repr__(self) -> str:
        return f"<Event of {self.device}, {'recorded' if self.recorded else 'not recorded yet'}>"

    @property
    def done(self) -> bool:
        """Whether the work before the event is done; True for one that was never recorded."""
        return self.device.backend.event_done(self.device.ordinal, self.handle)

    def synchronize(self) -> None:
        """Wait on the host for the work before the event."""
        self.device.backend.event_synchronize(self.device.ordinal, self.handle)

    def elapsed_ms(self, end: Event) -> float:
        """Return the milliseconds from this event to `end`, both recorded; waits for `end`."""
        for argument, event in (("event", self), ("end", end)):
            _need_event(event, "Event.elapsed_ms", argument, self.device)
            if not event.recorded:
                raise InvalidArgument(
                    op="Event.elapsed_ms",
                    argument=argument,
                    expected="a recorded event",
                    given="one that was not recorded",
                    fix="Stream.record(event) comes first",
                )
        end.synchronize()
        return self.device.backend.elapsed_ms(self.device.ordinal, self.handle, end.handle)


def as_stream(stream: StreamLike | None, device: Device, op: str, argument: str = "stream") -> Stream:
    """Return `stream` as a Stream of `device`, for work to be given to it.

    None is the current stream; anything with ``__cuda_stream__`` (torch, CuPy, cuda.core) is used as it is. For a
    stream that this thread is capturing it is the one that stands for it.

    Raises
    ------
    DeviceMismatch
        If it is a stream of another device.
    InvalidArgument
        If it is no stream. An integer is none: wrap the handle in an object with ``__cuda_stream__``.
    """
    if stream is None:
        return current_stream(device)
    if stream.__class__ is not Stream or stream.device is not device:
        stream = checked_stream(stream, device, op, argument)
    return _captured(stream) if ENTERED else stream


def checked_stream(stream: StreamLike, device: Device, op: str, argument: str = "stream") -> Stream:
    """Return `stream` as a Stream of `device`, to be used later; see :func:`as_stream`."""
    if not isinstance(stream, Stream):
        stream = _foreign(stream, device, op, argument)
    _same_device(op, argument, device, stream.device)
    return stream


def current_stream(device: Device) -> Stream:
    """Return the stream of the innermost with-block of this thread on `device`; the default stream outside of all."""
    if ENTERED:
        for stream in reversed(_entered()):
            if stream.device is device:
                return _captured(stream)
    return device.default_stream


def captured_stream(device: Device) -> Stream | None:
    """Return what stands for the stream of the device that this thread is capturing; None where it captures none."""
    return next((one for one in _entered() if one.capture is not None and one.device is device), None)


def _captured(stream: Stream) -> Stream:
    standing = captured_stream(stream.device)
    return stream if standing is None or standing.handle != stream.handle else standing


def _entered() -> list[Stream]:
    streams: list[Stream] = _thread.__dict__.setdefault("streams", [])
    return streams


def _foreign(stream: StreamLike, device: Device, op: str, argument: str) -> Stream:
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is None:
        raise InvalidArgument(
            op=op,
            argument=argument,
            expected="a ptxrt.Stream, or an object with __cuda_stream__",
            given=f"{shown(stream)} ({type(stream).__name__})",
            fix="Wrap a bare handle in an object whose __cuda_stream__() returns (0, handle)",
        )
    if device.kind == "sim":
        raise DeviceMismatch(op=op, argument=argument, expected=f"a stream of {device}", given="a GPU's stream")
    try:
        _, handle = map(int, protocol() if callable(protocol) else protocol)
    except (TypeError, ValueError):
        raise InvalidArgument(
            op=op, argument=argument, expected="(version, handle) of __cuda_stream__", given=shown(stream)
        ) from None
    # The default streams belong to whichever device is meant; any other handle knows its own.
    ordinal = device.ordinal if handle in (0, 1, 2) else device.backend.stream_ordinal(handle)
    if ordinal != device.ordinal:
        raise DeviceMismatch(
            op=op,
            argument=argument,
            expected=f"a stream of {device}",
            given=f"a stream of {device.kind}:{ordinal}",
            fix="Make the stream on the device of the arrays",
        )
    # One of ours by its handle: what is allocated there must keep it, since it is freed there.
    return _made.get((device.kind, handle)) or Stream._wrap(device, handle, owner=stream)


def _need_event(event: Any, op: str, argument: str, device: Device) -> None:
    if not isinstance(event, Event):
        raise InvalidArgument(op=op, argument=argument, expected="a ptxrt.Event", given=type(event).__name__)
    _same_device(op, argument, device, event.device)


def _opened(device: Device | str) -> Device:
    from ptxrt.runtime.device import Device  # noqa: PLC0415 (a Device has a default stream, so it imports this file)

    return Device(device)


def _same_device(op: str, argument: str, device: Device, given: Device) -> None:
    if given is not device:
        raise DeviceMismatch(
            op=op,
            argument=argument,
            expected=f"one of {device}",
            given=f"one of {given}",
            fix="Make it on the device that it is used with",
        )
