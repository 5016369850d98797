"""Drivers behind one protocol.

A backend speaks in ordinals and plain integers (addresses, stream and event handles); it knows neither Device nor
DeviceArray. ``cuda.py``, ``hip.py`` and ``sim.py`` read side by side: a difference between them is a fact about the
machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from ptxrt.collector import paused
from ptxrt.compilers import Binary, ParamInfo
from ptxrt.errors import BackendUnavailable, PtxrtError

if TYPE_CHECKING:
    from ptxrt.images import ImageFormat, Sampling

__all__ = [
    "Backend",
    "DeviceProperties",
    "DirectLaunch",
    "Forked",
    "Function",
    "Imported",
    "PointerParam",
    "Recorded",
    "Resources",
    "capturing",
    "get",
]

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class DeviceProperties:
    """What a device is and how much of it there is; sizes in bytes."""

    name: str
    arch: str
    warp_size: int
    multiprocessors: int
    total_memory: int
    max_threads_per_block: int
    max_block: Dim3
    max_grid: Dim3
    max_shared_static: int
    max_shared_dynamic: int
    driver: str
    max_grid_threads: int = 2**63 - 1
    """Threads along one axis of a grid, where the device limits them besides the blocks."""
    cooperative: bool = True
    """Whether it has cooperative launches, in which the blocks of a grid can wait for each other."""
    max_cluster: int = 8
    """Blocks of the largest cluster that it has room for, if its architecture has clusters."""


@dataclass(frozen=True)
class Resources:
    """What one entry needs of the device, a thread or a block; sizes in bytes.

    Attributes
    ----------
    registers
        32-bit registers a thread. On sim: those that the text declares, since nothing allocates real ones.
    shared_bytes
        Static shared memory a block.
    local_bytes
        Local memory a thread (stack and spills).
    constant_bytes
        Constant memory of the module.
    max_threads
        Threads a block that the entry can be launched with.
    spill_store_bytes, spill_load_bytes
        From the compiler's report; None where it gave none.
    """

    registers: int
    shared_bytes: int
    local_bytes: int
    constant_bytes: int
    max_threads: int
    spill_store_bytes: int | None = None
    spill_load_bytes: int | None = None


@dataclass(frozen=True)
class Imported:
    """Another library's array; strides in elements, None if contiguous. `owner` keeps its memory alive."""

    ptr: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: Any
    readonly: bool
    owner: object


@dataclass(frozen=True)
class PointerParam:
    """A pointer among the parameters of an entry, as the Signature declares it.

    Attributes
    ----------
    index
        Which parameter it is.
    name, element
        The array's name, and the type of its elements: ``"f32"``.
    const
        Whether the kernel must not write through it.
    """

    index: int
    name: str
    element: str
    const: bool


@dataclass(frozen=True)
class Function:
    """An entry of a loaded module: the backend's handle of it, and what the binary says of it."""

    name: str
    handle: Any
    params: tuple[ParamInfo, ...]
    resources: Resources


@dataclass(frozen=True)
class Recorded:
    """What a graph replays: work that was recorded, in its order.

    Attributes
    ----------
    calls
        Of each call of a Backend its method (launch, launch_cooperative, copy, fill or give), the arguments before the
        stream but for the ordinal, and those behind it.
    """

    calls: tuple[tuple[str, tuple[Any, ...], tuple[Any, ...]], ...]

    def issue(self, backend: Backend, ordinal: int, stream: int) -> None:
        """Give the work to a stream, call by call. An error says which call it was."""
        for number, (method, before, after) in enumerate(self.calls, 1):
            try:
                getattr(backend, method)(ordinal, *before, stream, *after)
            except PtxrtError as error:
                error.args = (f"{error}\n  in call {number} of the {len(self.calls)} of a graph",)
                raise

    @cached_property
    def launches(self) -> list[tuple[Any, Any]]:
        """What each launch is of, and its grid with block, for messages: nothing that keeps a module loaded."""
        return [(after[0].kernel, before[1]) for _, before, after in self.calls if after]

    @property
    def sequence(self) -> list[tuple[str, Any]]:
        """What a graph must have in common with another one to take its place: methods and kernels."""
        return [(method, before[0] if after else None) for method, before, after in self.calls]


@contextmanager
def capturing(lock: AbstractContextManager[Any]) -> Iterator[None]:
    """Let a driver capture a stream: without finalizers, and without the threads that wait for the whole device.

    While a stream is captured, a driver refuses every wait for the device, and may spoil the capture. `lock` is held by
    those who wait so, and the finalizers of the garbage collector are among them.
    """
    with lock, paused():
        yield


class DirectLaunch(NamedTuple):
    """What :meth:`Backend.launch` does on a device whose context is current, for code that is generated around it.

    Attributes
    ----------
    current
        Returns a status and the current context.
    context
        The device's own.
    call
        Takes function, the six numbers of grid and block, shared bytes, stream or None, table and 0; returns (status,).
    call_following, following
        The same of a launch that follows the one before it (:class:`ptxrt.runtime.signature.Arguments`): takes what
        `following` returns for the tuple of the six numbers, shared bytes and stream, then function, table and 0.
    success
        The status of what went well.
    elsewhere
        The statuses of what was refused, and not begun, because another context is current, or none.
    note
        Takes (ordinal, stream, kernel, dims) of a launch that did.
    failed
        Raises for any other status.
    seen
        The thread in which the context was current when it was last asked for, alone in a list; 0 for none.
    """

    current: Callable[[], tuple[Any, Any]]
    context: Any
    call: Callable[..., tuple[Any]]
    call_following: Callable[..., tuple[Any]]
    following: Callable[[tuple[int, ...], int, int], Any]
    success: Any
    elsewhere: tuple[Any, ...]
    note: Callable[[tuple[Any, ...]], None]
    failed: Callable[[Any], NoReturn]
    seen: list[int]


class Backend(Protocol):
    """One vendor's driver. Every method that touches a device leaves the caller's current context as it was."""

    name: str
    languages: tuple[str, ...]
    """What :meth:`compile` takes: of "ptx", "cuda" and "hip"."""
    compiled_languages: tuple[str, ...]
    """Those for which it calls a compiler, whose outcome is worth storing on disk."""

    # Discovery: never raises, never the reason why an import is slow.
    def unavailable(self) -> str | None:
        """Return why there is no device of this kind, or None if there is one."""

    def device_count(self) -> int:
        """Return how many devices there are, 0 without driver."""

    def properties(self, ordinal: int) -> DeviceProperties: ...

    # Memory. `stream` orders the work; the default stream of a device has the handle 0.
    def allocate(self, ordinal: int, nbytes: int, stream: int) -> int: ...
    def free(self, ordinal: int, ptr: int, stream: int, used_on: Iterable[int]) -> None:
        """Give memory back once `stream` and all streams of `used_on` have passed this point."""

    def trim_memory(self, ordinal: int) -> None:
        """Give back to the driver what is reserved of freed memory."""

    def import_array(self, ordinal: int, array: Any, stream: int) -> Imported:
        """Look into another library's array; `stream` waits for its producer."""

    def export_array(self, ordinal: int, array: Any, dtype: Any) -> Any:
        """Return an object whose ``__dlpack__`` shares the DeviceArray `array` as `dtype`, and keeps it alive."""

    def extent(self, ordinal: int, ptr: int) -> tuple[int, int] | None:
        """Return start and end of the allocation that an address is in; None if it is in none."""

    def pointer_ordinal(self, ptr: int) -> int:
        """Return the device that an address of another library belongs to."""

    def copy_in(self, ordinal: int, ptr: int, host: memoryview, stream: int) -> None:
        """Copy host bytes to the device; the host bytes may be reused on return."""

    def copy_out(self, ordinal: int, host: memoryview, ptr: int, stream: int) -> None:
        """Copy device bytes to the host, after the work on `stream`, and wait for them."""

    def looking(self, ordinal: int, streams: tuple[int, ...]) -> AbstractContextManager[bool]:
        """Wait for the streams, and let copies within the block disturb no graph that is being captured.

        It gives False, and has not waited, where one of the streams is being captured.
        """

    def copy(self, ordinal: int, dst: int, src: int, nbytes: int, stream: int) -> None: ...
    def fill(self, ordinal: int, ptr: int, byte: int, nbytes: int, stream: int) -> None: ...
    def give(self, ordinal: int, work: Callable[[int, int, int], None], ptr: int, nbytes: int, stream: int) -> None:
        """Let another library give its work on `nbytes` at `ptr` to a stream: ``work(ptr, nbytes, stream)``."""

    # Images, which textures and surfaces are bound to; what is given back is waited for.
    def create_image(self, ordinal: int, form: ImageFormat, *, surface: bool) -> int:
        """Allocate an image, to which kernels may write where it is to be a surface's."""

    def destroy_image(self, ordinal: int, image: int) -> None: ...
    def copy_image(self, ordinal: int, image: int, form: ImageFormat, ptr: int, stream: int, *, into: bool) -> None:
        """Copy all texels from (`into`) or to contiguous memory of the device."""

    def create_texture(self, ordinal: int, image: int, form: ImageFormat, how: Sampling, *, is_memory: bool) -> int:
        """Return the handle by which kernels know a texture of an image; of an address, if `is_memory`."""

    def destroy_texture(self, ordinal: int, texture: int) -> None: ...
    def create_surface(self, ordinal: int, image: int, form: ImageFormat) -> int: ...
    def destroy_surface(self, ordinal: int, surface: int) -> None: ...

    # Streams and events.
    def create_stream(self, ordinal: int) -> int: ...
    def destroy_stream(self, ordinal: int, stream: int) -> None: ...
    def stream_ordinal(self, stream: int) -> int:
        """Return the device of a stream that another library made."""

    def idle(self, ordinal: int, streams: Sequence[int]) -> list[int]:
        """Return those of the streams that have done all that they were given."""

    def synchronize(self, ordinal: int, stream: int | None) -> None:
        """Wait for one stream, or for the whole device if `stream` is None."""

    def create_event(self, ordinal: int) -> int: ...
    def destroy_event(self, ordinal: int, event: int) -> None: ...
    def record(self, ordinal: int, event: int, stream: int) -> None: ...
    def wait(self, ordinal: int, stream: int, event: int) -> None: ...
    def wait_stream(self, ordinal: int, stream: int, awaited: int) -> None:
        """Let `stream` wait for all that `awaited` has been given so far."""

    def event_done(self, ordinal: int, event: int) -> bool: ...
    def event_synchronize(self, ordinal: int, event: int) -> None: ...
    def elapsed_ms(self, ordinal: int, start: int, end: int) -> float: ...

    # Modules.
    def compiler(self, language: str) -> str:
        """Return name and version of the compiler that takes `language`, one of `languages`."""

    def effective_options(self, language: str, options: tuple[str, ...], name: str | None) -> tuple[str, ...]:
        """Return all options that :meth:`compile` would use, and what else decides the outcome, for a cache key.

        `name` is the source's. What the headers hold that a compile reads is in its Binary and in its CompileError.
        """

    def compile(self, language: str, text: str, arch: str, **how: Any) -> Binary:
        """Turn text into what :meth:`load` takes; needs no device. Raises CompileError."""

    def load(self, ordinal: int, binary: Binary, name: str | None) -> Any:
        """Load a binary; `name` is its source's, for messages."""

    def unload(self, ordinal: int, module: Any) -> None:
        """Unload a module once nothing on the device can be running it."""

    def function(
        self, ordinal: int, module: Any, binary: Binary, entry: str, pointers: tuple[PointerParam, ...]
    ) -> Function:
        """Look an entry up, whose declared pointers a device that checks accesses wants to know."""

    def allow_shared(self, ordinal: int, function: Any, nbytes: int) -> None:
        """Opt the entry in to that much dynamic shared memory."""

    def max_blocks(self, ordinal: int, function: Any, threads: int, shared_bytes: int) -> int:
        """Return how many blocks of that many threads and dynamic shared bytes a multiprocessor runs at a time."""

    def variable(self, ordinal: int, module: Any, symbol: str) -> tuple[int, int]:
        """Return address and bytes of a module's variable in global or constant memory."""

    def launch(
        self,
        ordinal: int,
        function: Any,
        dims: tuple[int, int, int, int, int, int],
        shared_bytes: int,
        stream: int,
        arguments: Any,
    ) -> None:
        """Launch with an :class:`ptxrt.runtime.signature.Arguments`; `dims` is grid then block."""

    def direct_launch(self, ordinal: int) -> DirectLaunch | None:
        """Return what :meth:`launch` comes to on a device that has been used; None where that is no call or two."""

    def launch_cooperative(
        self,
        ordinal: int,
        function: Any,
        dims: tuple[int, int, int, int, int, int],
        shared_bytes: int,
        stream: int,
        arguments: Any,
    ) -> None:
        """Launch as :meth:`launch` does, with all blocks at a time: they may wait for each other."""

    # Graphs.
    def create_graph(self, ordinal: int, recorded: Recorded, before: Any = None) -> Any:
        """Return a graph that replays the recorded work, none of which runs now.

        It takes the place of `before`, where that is given: a graph of the same sequence.
        """

    def launch_graph(self, ordinal: int, graph: Any, stream: int, recorded: Recorded) -> None:
        """Replay a graph; `recorded` is what it was made of."""

    def destroy_graph(self, ordinal: int, graph: Any) -> None: ...


def get(name: str) -> Backend:
    """Return the backend called `name`. Importing it calls no driver."""
    if name == "cuda":
        from ptxrt.backends import cuda  # noqa: PLC0415 (a machine without the CUDA packages never gets here)

        return cuda.BACKEND
    if name == "hip":
        from ptxrt.backends import hip  # noqa: PLC0415

        return hip.BACKEND
    from ptxrt.backends import sim  # noqa: PLC0415

    return sim.BACKEND


class Forked:
    """What a device has for a backend in a child process that was forked after its parent had opened the device.

    The driver's state did not come along (CUDA calls it undefined), so every use is an error; giving handles back,
    which destructors do, is nothing.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def free(self, *_: Any) -> None: ...
    def destroy_stream(self, *_: Any) -> None: ...
    def destroy_event(self, *_: Any) -> None: ...
    def destroy_texture(self, *_: Any) -> None: ...
    def destroy_surface(self, *_: Any) -> None: ...
    def destroy_image(self, *_: Any) -> None: ...
    def unload(self, *_: Any) -> None: ...
    def destroy_graph(self, *_: Any) -> None: ...

    def __getattr__(self, call: str) -> Any:
        raise BackendUnavailable(
            f"{self.name}: this process was forked after ptxrt had opened the device, and a driver does not survive "
            f"a fork. Start workers with multiprocessing's 'spawn' method, or open the device in the child alone",
            op=call,
        )
