"""Graphs: work that is recorded once and replayed in one call.

A capture is ours, not the driver's: it stands before the device's backend, as the shadow does, and records what its
thread gives to the stream. So nothing in the block can spoil it, and nothing is left behind in the stream. The driver
captures when the block has ended, on a stream of its own, and sees nothing but the recorded calls.

Every array of the block is held by the graph. It comes by on the way to a launch, since the stream there is one that
stands for the captured one, on which no memory is at home.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ptxrt.backends import Recorded
from ptxrt.errors import InvalidArgument, Unsupported, no_copy, shown
from ptxrt.runtime.stream import ENTERED, Stream, as_stream, captured_stream

if TYPE_CHECKING:
    from types import TracebackType

    from ptxrt.runtime._memory import Memory
    from ptxrt.runtime.modules import LoadedModule
    from ptxrt.runtime.protocols import StreamLike

__all__ = ["Capture", "Graph", "capture"]


def capture(stream: Stream) -> Capture:
    """Return a context in which work is recorded instead of done, and is a :class:`Graph` afterwards.

    ::

        with ptxrt.capture(stream) as graph:
            y = ptxrt.ops.group_norm(x, weight, bias, 32)
            kernel[grid, block](y, n)
        graph.replay()

    Recorded is what this thread gives to the stream by ptxrt: launches, ops, copies between arrays of the device, and
    fills; within the block it is the current stream. All checks are made there. Arrays are allocated there, too, once;
    each replay writes to the same ones.

    Parameters
    ----------
    stream
        Where the graph is replayed, if not said otherwise; not the default stream.

    Raises
    ------
    InvalidArgument
        For what is no Stream of ptxrt, or the default stream; for a block within a block. Within the block, for work on
        another stream of the device.
    Unsupported
        Within the block, for what no graph replays: copies from and to the host, textures' and surfaces' copies,
        events, waits, and other graphs. Nothing is recorded then, and the block may go on.
    """
    if not isinstance(stream, Stream):
        raise InvalidArgument(
            op="capture",
            argument="stream",
            expected="a ptxrt.Stream",
            given=shown(stream),
            fix="device.create_stream() makes one; Graph.replay takes any stream",
        )
    if stream.handle == 0:
        raise InvalidArgument(
            op="capture",
            argument="stream",
            expected="a stream of its own",
            given="the default stream",
            fix="device.create_stream() makes one; Graph.replay takes the default stream too",
        )
    return Capture(Graph(stream))


class Graph:
    """Recorded work that is replayed in one call; :func:`capture` makes it.

    It holds every array of its block, those that were allocated there and those that were freed since.

    Attributes
    ----------
    stream : Stream
        The stream that was captured.
    device : Device
    """

    def __init__(self, stream: Stream) -> None:
        self.stream, self.device = stream, stream.device
        self._recorded: Recorded | None = None
        self._handle: Any = None
        self._memories: set[Memory] = set()
        self._textures: set[Any] = set()
        self._modules: set[LoadedModule] = set()
        self._last = stream  # where it was replayed last
        # One replay at a time; an RLock, since a signal handler may replay too.
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        calls = "not captured" if self._recorded is None else f"{len(self._recorded.calls)} calls"
        return f"<Graph of {self.stream!r}: {calls}>"

    def __reduce__(self) -> tuple[Any, ...]:
        raise no_copy(self, "graph", "Capture another Graph")

    def __del__(self, at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "_recorded", None) is not None and not at_exit():
            self.device.backend.destroy_graph(self.device.ordinal, self._handle)
            _release(self._memories)

    def replay(self, stream: StreamLike | None = None) -> None:
        """Do the recorded work, in order; the device is not waited for.

        It reads what its arrays hold then. Of two replays the later one waits for the earlier, on the device, also on
        another stream.

        Parameters
        ----------
        stream
            A Stream, or anything with ``__cuda_stream__``; the one that was captured if left out.

        Raises
        ------
        InvalidArgument
            For a graph whose block has not ended, or ended with an error; for one with a texture or surface that was
            freed.
        Unsupported
            Within a capture of the same thread.
        """
        queue = self.stream if stream is None else as_stream(stream, self.device, "Graph.replay")
        backend, ordinal = self.device.backend, self.device.ordinal
        with self._lock:
            recorded = self._recorded or self._captured("Graph.replay")
            if ENTERED and captured_stream(self.device) is not None:
                raise _refusal("replay", "another graph", "Do that graph's work in the block")
            for texture in self._textures:
                texture.on(self.device, "Graph.replay", type(texture).__name__.lower(), queue)
            if queue.handle != self._last.handle:
                backend.wait_stream(ordinal, queue.handle, self._last.handle)
                for memory in self._memories:
                    memory.used_on(queue)
                self._last = queue
            backend.launch_graph(ordinal, self._handle, queue.handle, recorded)

    def update(self) -> Capture:
        """Return a context that records the same sequence again, with other arrays and numbers.

        At its end the graph replays the new one; where the block ends with an error, it stays as it was. All checks
        of the launches are made again. On CUDA the driver's graph is changed in place where it can be.

        Raises
        ------
        InvalidArgument
            For a graph that was not captured; at the end of the block, for another sequence: of the same calls in the
            same order, each launch of the same kernel.
        """
        self._captured("Graph.update")
        return Capture(self)

    def _captured(self, op: str) -> Recorded:
        if self._recorded is None:
            raise InvalidArgument(
                op=op,
                argument="graph",
                expected="one whose block has ended",
                given="one whose block has not, or ended with an error",
                fix="Replay it behind the block of ptxrt.capture",
            )
        return self._recorded

    def _become(
        self, recorded: Recorded, memories: set[Memory], textures: set[Any], modules: set[LoadedModule]
    ) -> None:
        """Replay this from now on, and hold what it needs."""
        backend, ordinal = self.device.backend, self.device.ordinal
        with self._lock:
            if self._recorded is not None and self._recorded.sequence != recorded.sequence:
                raise InvalidArgument(
                    op="Graph.update",
                    argument="block",
                    expected=f"the same sequence: {_words(self._recorded)}",
                    given=_words(recorded),
                    fix="Capture another graph",
                )
            if self._last is not self.stream:  # the next replay elsewhere waits for the captured stream
                backend.wait_stream(ordinal, self.stream.handle, self._last.handle)
                self._last = self.stream
            self._handle = backend.create_graph(ordinal, recorded, self._handle)
            self._recorded, self._textures, self._modules = recorded, textures, modules
            self._memories, memories = memories, self._memories
        _release(memories)


def _recording(method: str) -> Callable[..., None]:
    """Return a backend's method that records. Of all five the stream is the fifth argument."""

    def call(self: Capture, ordinal: int, *args: Any) -> None:
        before, stream, after = args[:3], args[3], args[4:]
        if not self._is_here():
            getattr(self._backend, method)(ordinal, *args)
            return
        if stream != self.stream.handle:
            raise InvalidArgument(
                op="capture",
                argument="stream",
                expected=f"work on {self.stream!r}",
                given=f"a {method} on another stream",
                fix="Leave the stream out, or do the work before the block or behind it",
            )
        if after and (module := self.stream.device.modules.owners.get(id(before[0]))):
            self._modules.add(module)
        self._calls.append((method, before, tuple(arguments.copy() for arguments in after)))

    return call


def _refusal(method: str, what: str, fix: str) -> Unsupported:
    expected = "launches, ops, copies between arrays of the device, and fills"
    return Unsupported(op="capture", argument=method, expected=expected, given=what, fix=fix)


def _refusing(method: str, place: int, what: str, fix: str) -> Callable[..., Any]:
    """Return a backend's method that refuses the captured stream, which is the argument at `place`."""

    def call(self: Capture, *args: Any, **how: Any) -> Any:
        if self._is_here() and args[place] == self.stream.handle:
            raise _refusal(method, what, fix)
        return getattr(self._backend, method)(*args, **how)

    return call


class Capture:
    """What :func:`capture` and :meth:`Graph.update` return; in its block it stands before the device's backend."""

    foremost = True  # or a shadow in the block would compare what has not run
    _backend: Any = None  # the device puts it there

    def __init__(self, graph: Graph) -> None:
        self.graph, self.stream = graph, graph.stream
        self.textures: set[Any] = set()
        self._memories: set[Memory] = set()
        self._modules: set[LoadedModule] = set()
        self._calls: list[tuple[str, tuple[Any, ...], tuple[Any, ...]]] = []
        self._thread = 0

    def __enter__(self) -> Graph:
        device = self.stream.device
        if self._thread or captured_stream(device) is not None:
            raise InvalidArgument(
                op="capture",
                argument="block",
                expected="one capture at a time of a thread on a device, each with a block of its own",
                given=f"another one, of {self.stream!r}",
                fix="End the first block before the second",
            )
        self._thread = threading.get_ident()
        self._standing = Stream._wrap(device, self.stream.handle, self.stream, capture=self)
        device.intercept(self)
        self._standing.__enter__()
        return self.graph

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._standing.__exit__()
        del self._standing  # which knows this object
        self.stream.device.withdraw(self)
        memories, self._memories = self._memories, set()
        try:
            if kind is None:
                self.graph._become(Recorded(tuple(self._calls)), memories, self.textures, self._modules)
                memories = set()
        finally:
            _release(memories)

    def hold(self, memory: Memory) -> None:
        """Keep memory that the graph uses, as long as the graph is there."""
        if memory not in self._memories:
            self._memories.add(memory)
            memory.hold()

    # As a backend ---------------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def _is_here(self) -> bool:
        """Whether a call is the capturing thread's."""
        return threading.get_ident() == self._thread

    launch = _recording("launch")
    launch_cooperative = _recording("launch_cooperative")
    copy = _recording("copy")
    fill = _recording("fill")
    give = _recording("give")

    copy_in = _refusing(
        "copy_in", 3, "a copy from the host", "Copy before the block; between replays, to an array that it reads"
    )
    copy_out = _refusing("copy_out", 3, "a copy to the host", "Copy behind a replay, which computes it")
    copy_image = _refusing("copy_image", 4, "a copy of texels", "Make textures and surfaces before the block")
    synchronize = _refusing("synchronize", 1, "a wait of the host", "Wait behind a replay")
    record = _refusing("record", 2, "an event", "Record events before a replay and behind it")
    wait = _refusing("wait", 1, "a wait for an event", "Wait for it before a replay")
    wait_stream = _refusing("wait_stream", 1, "a wait for another stream", "Wait for it before a replay")

    def looking(self, ordinal: int, streams: tuple[int, ...]) -> AbstractContextManager[bool]:
        if self._is_here() and self.stream.handle in streams:
            return nullcontext(False)
        looking: AbstractContextManager[bool] = self._backend.looking(ordinal, streams)
        return looking


def _release(memories: set[Memory]) -> None:
    for memory in memories:
        memory.release()


def _words(recorded: Recorded) -> str:
    names = [after[0].kernel.entry if after else method for method, _, after in recorded.calls]
    return shown(", ".join(names)) if names else "nothing"
