"""Shadow mode: each launch on a GPU runs on the PTX machine first, on copies, and then both results are compared.

::

    with ptxrt.shadow() as shadow:
        kernel.launch(4, 256, x, y, 1024)     # raises what the machine finds, or a ShadowMismatch
    print(shadow.compared, shadow.skipped)

A device in the shadow has another backend, which stands before its own and passes on every call. Outside of the block
there is nothing of it, and nothing costs anything.
"""

from __future__ import annotations

import atexit
import io
import math
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ptxrt import sim
from ptxrt.backends.sim import run
from ptxrt.check.compare import first_difference, is_exact
from ptxrt.check.run import compiled_program
from ptxrt.errors import BackendUnavailable, CompileError, InvalidArgument, ShadowMismatch, SimFault, Unsupported, shown
from ptxrt.runtime.device import WHEN_OPENED, Device, opened_devices
from ptxrt.runtime.layout import contiguous, is_whole, span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from ptxrt.backends import Backend, Imported, Recorded
    from ptxrt.runtime.kernel import KernelIdentity
    from ptxrt.runtime.signature import Arguments, Parameter

__all__ = ["Shadow", "shadow", "shadow_process"]

Bytes = NDArray[np.uint8]
Dims = tuple[int, int, int, int, int, int]
_OF_IMAGES = re.compile(r"\b(?:tex|tld4|txq|suld|sust|sured|suq)\.")
_ALIGN = 512  # the PTX machine gives its memory addresses that are multiples of this


def shadow(
    devices: Iterable[Device | str] | Device | str | None = None,
    *,
    max_threads: int = 1 << 17,
    max_bytes: int = 64 << 20,
    checks: Iterable[str] = ("all",),
) -> Shadow:
    """Return a context in which every launch on a GPU runs on the PTX machine first, and is compared with it.

    Before the launch the kernel runs on the machine with every check on, on copies of the memory that its pointers
    point into; what it finds (MemoryFault, DataRace, Deadlock, SimFault) is raised, and nothing is launched. After
    the launch the device is waited for, and the memory compared: bit for bit, or within
    :data:`ptxrt.check.compare.TOLERANCES` where the text has ``.approx`` or atomics on floats.

    PTXRT_SHADOW=1 in the environment does the same for a whole process, and says at its end how many launches it was.

    Parameters
    ----------
    devices
        Those to watch, or one; every GPU if left out. It holds for all threads.
    max_threads, max_bytes
        Launches of more threads, or whose pointers point into more bytes of memory, are not compared, but counted in
        ``skipped``; so are those that the machine cannot run.

    checks
        Names out of :data:`ptxrt.sim.CHECKS`, or all.

    Raises
    ------
    InvalidArgument
        For limits that are no whole numbers, or devices or checks that there are not.
    """
    for argument, value in (("max_threads", max_threads), ("max_bytes", max_bytes)):
        if not is_whole(value) or value < 0:
            raise InvalidArgument(op="shadow", argument=argument, expected="0 or more", given=shown(value))
    if devices is not None and (isinstance(devices, str) or not isinstance(devices, Iterable)):
        devices = [devices]
    chosen = None if devices is None else [Device(device) for device in devices]
    return Shadow(chosen, max_threads, max_bytes, sim.chosen_checks(checks)[0])


def shadow_process() -> None:
    """Put all GPUs in the shadow until the process ends, and then say on standard error how many launches it was.

    Raises
    ------
    InvalidArgument
        If PTXRT_SHADOW is not 1.
    """
    given = os.environ["PTXRT_SHADOW"]
    if given != "1":
        raise InvalidArgument(
            op="shadow", argument="PTXRT_SHADOW", expected="0 or 1", given=shown(given), fix="Or leave it out"
        )
    whole = shadow().__enter__()
    atexit.register(lambda: print(f"ptxrt: {whole.summary()}", file=sys.stderr))


class Shadow:
    """What :func:`shadow` returns.

    Attributes
    ----------
    compared : int
        Launches that ran on the machine too, and agreed.
    skipped : collections.Counter
        How many did not, by the reason.
    """

    def __init__(
        self, devices: Sequence[Device] | None, max_threads: int, max_bytes: int, checks: Iterable[str]
    ) -> None:
        self.max_threads, self.max_bytes, self.checks = max_threads, max_bytes, checks
        self.compared = 0
        self.skipped: Counter[str] = Counter()
        self.lock = threading.RLock()
        self._devices = devices
        self._watched: list[tuple[Device, _Watcher]] = []

    def __repr__(self) -> str:
        return f"<{self.summary()}>"

    def summary(self) -> str:
        """Return how many launches there were, in words."""
        reasons = "".join(f"; {count} not: {reason}" for reason, count in self.skipped.items())
        return f"Shadow: {self.compared} launches compared with the PTX machine{reasons}"

    def __enter__(self) -> Shadow:
        for device in opened_devices() if self._devices is None else self._devices:
            self._watch(device)
        if self._devices is None:
            WHEN_OPENED.append(self._watch)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._devices is None:
            WHEN_OPENED.remove(self._watch)
        for device, watcher in reversed(self._watched):
            device.withdraw(watcher)
        self._watched.clear()

    def _watch(self, device: Device) -> None:
        if device.kind != "sim" or self._devices is not None:
            watcher = _Watcher(device, device.backend, self)
            self._watched.append((device, watcher))
            device.intercept(watcher)

    def skip(self, reason: str) -> None:
        """Count a launch that is not compared."""
        self.skipped[reason] += 1


class _Pointer(NamedTuple):
    """A pointer among a launch's arguments: its parameter, where that is among their bytes, and its value."""

    parameter: Parameter
    offset: int
    address: int


@dataclass(frozen=True)
class _Piece:
    """Memory of the device that pointers of a launch point into, as it was before."""

    start: int
    before: Bytes
    pointers: Sequence[_Pointer]


class _Watcher:
    """A backend that runs each launch on the PTX machine, too; all else is the device's own."""

    def __init__(self, device: Device, backend: Backend, shadow: Shadow) -> None:
        self._device, self._backend, self._shadow = device, backend, shadow
        self._extents: dict[int, int] = {}  # address -> bytes, of what is allocated or imported since

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def allocate(self, ordinal: int, nbytes: int, stream: int) -> int:
        ptr = self._backend.allocate(ordinal, nbytes, stream)
        self._extents[ptr] = nbytes
        return ptr

    def free(self, ordinal: int, ptr: int, stream: int, used_on: Iterable[int]) -> None:
        self._extents.pop(ptr, None)
        self._backend.free(ordinal, ptr, stream, used_on)

    def import_array(self, ordinal: int, array: Any, stream: int) -> Imported:
        found = self._backend.import_array(ordinal, array, stream)
        steps = contiguous(found.shape) if found.strides is None else found.strides
        start, nbytes = found.ptr, span(found.shape, steps) * np.dtype(found.dtype).itemsize
        # What lay there may be gone by now: nobody says when another library frees its memory.
        gone = [at for at, size in self._extents.items() if at < start + nbytes and start < at + size]
        for at in gone:
            del self._extents[at]
        self._extents[start] = nbytes
        return found

    def launch(
        self, ordinal: int, function: Any, dims: Dims, shared_bytes: int, stream: int, arguments: Arguments
    ) -> None:
        launch = partial(self._backend.launch, ordinal, function, dims, shared_bytes, stream, arguments)
        self._compared(launch, dims, shared_bytes, arguments, cooperative=False)

    def launch_cooperative(
        self, ordinal: int, function: Any, dims: Dims, shared_bytes: int, stream: int, arguments: Arguments
    ) -> None:
        launch = partial(self._backend.launch_cooperative, ordinal, function, dims, shared_bytes, stream, arguments)
        self._compared(launch, dims, shared_bytes, arguments, cooperative=True)

    def launch_graph(self, ordinal: int, graph: Any, stream: int, recorded: Recorded) -> None:
        recorded.issue(cast("Backend", self), ordinal, stream)  # one by one, so that each launch is compared

    def _compared(
        self, launch: Callable[[], None], dims: Dims, shared_bytes: int, arguments: Arguments, *, cooperative: bool
    ) -> None:
        shadow = self._shadow
        with shadow.lock:
            run = self._prepared(dims, shared_bytes, arguments, cooperative)
            expected = [] if run is None else run.simulated()[0]
            launch()
            if run is not None:
                self._backend.synchronize(self._device.ordinal, None)
                for piece, after in zip(run.pieces, expected, strict=True):
                    run.compare(piece, after, self._read(piece.start, piece.before.size), str(self._device))
                shadow.compared += 1

    def _prepared(self, dims: Dims, shared_bytes: int, arguments: Arguments, cooperative: bool) -> _Run | None:
        """Return the launch with copies of its memory; None, and count it, where it is not to be compared."""
        shadow, kernel = self._shadow, arguments.kernel
        if math.prod(dims) > shadow.max_threads:
            shadow.skip(f"more than {shadow.max_threads} threads")
            return None
        program, symbol, reason = _program(kernel, self._device.arch if self._device.kind == "cuda" else None)
        if program is None:
            shadow.skip(reason)
            return None
        params = arguments.bytes()
        self._backend.synchronize(self._device.ordinal, None)
        pointers = [
            _Pointer(p, offset, address)
            for p, offset in zip(kernel.signature.parameters, kernel.signature.offsets, strict=True)
            if p.pointer and (address := int.from_bytes(params[offset : offset + 8], "little"))
        ]
        extents = [self._extent(pointer.address) for pointer in pointers]
        if None in extents:
            shadow.skip("a pointer into memory that the driver does not know")
            return None
        joined = _joined([extent for extent in extents if extent is not None])
        if sum(end - start for start, end in joined) > shadow.max_bytes:
            shadow.skip(f"more than {shadow.max_bytes} bytes of memory")
            return None
        pieces = [
            _Piece(start, self._read(start, end - start), [one for one in pointers if start <= one.address < end])
            for start, end in joined
        ]
        return _Run(kernel, program, symbol, dims, shared_bytes, cooperative, params, pieces, shadow.checks)

    def _extent(self, address: int) -> tuple[int, int] | None:
        """Return start and end of the memory of an array, or else of the driver's allocation; None for neither."""
        known = [(start, start + nbytes) for start, nbytes in self._extents.items() if 0 <= address - start < nbytes]
        return known[0] if known else self._backend.extent(self._device.ordinal, address)

    def _read(self, start: int, nbytes: int) -> Bytes:
        held = np.empty(nbytes, np.uint8)
        self._backend.copy_out(self._device.ordinal, held.data, start, 0)
        return held


def _padded(start: int, nbytes: int) -> Bytes:
    """Return memory which the PTX machine gives the address `start`, as far as alignment goes."""
    pad = start % _ALIGN
    return np.empty(pad + nbytes, np.uint8)[pad:]


def _joined(extents: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the extents, as start and end, in order, those that overlap as one."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(extents):
        if joined and start < joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


@lru_cache(maxsize=256)
def _program(kernel: KernelIdentity, arch: str | None) -> tuple[sim.Program | None, str, str]:
    """Return the program and its entry's name; without a program the reason why the machine has none."""
    try:
        options = () if kernel.source.language == "ptx" else kernel.options
        compiled = compiled_program(kernel.source, kernel.entry, arch, options)
    except (CompileError, Unsupported, BackendUnavailable) as error:
        return None, "", f"the PTX machine does not take {kernel.entry}: {str(error).splitlines()[0]}"
    if _OF_IMAGES.search(compiled.program.source.text):
        return None, "", f"{kernel.entry} reads or writes textures or surfaces, of which there are no copies"
    return compiled.program, compiled.symbol, ""


@dataclass(frozen=True)
class _Run:
    """A launch as the PTX machine is to run it."""

    kernel: KernelIdentity
    program: sim.Program
    symbol: str
    dims: Dims
    shared_bytes: int
    cooperative: bool
    params: bytes
    pieces: Sequence[_Piece]
    checks: Iterable[str]

    def simulated(self, watched: int | None = None) -> tuple[list[Bytes], sim.LastWrite | None]:
        """Return the pieces as the kernel leaves them, and the last write to the byte `watched` of the device."""
        memory = sim.GlobalMemory()
        params = bytearray(self.params)
        copies, watch = [], None
        for piece in self.pieces:
            copy = _padded(piece.start, piece.before.size)
            copy[:] = piece.before
            copies.append(copy)
            moved = memory.adopt(copy, " and ".join(one.parameter.name for one in piece.pointers)) - piece.start
            for one in piece.pointers:
                params[one.offset : one.offset + 8] = (one.address + moved).to_bytes(8, "little")
            if watched is not None and 0 <= watched - piece.start < piece.before.size:
                watch = sim.LastWrite(watched + moved)
        found = self.program.entries[self.symbol]
        printed = io.StringIO()  # the GPU prints it again, but after a fault, whose cause it may tell
        try:
            run(
                sim.load(self.program, memory),
                self.symbol,
                self.dims[:3],
                self.dims[3:],
                bytes(params),
                arrays=[
                    sim.ArrayParam(found.params[i].offset, p.name, p.type.name, p.const)
                    for i, p in enumerate(self.kernel.signature.parameters)
                    if p.pointer
                ],
                shared_bytes=self.shared_bytes,
                cooperative=self.cooperative,
                checks=self.checks if watched is None else (),
                watch=watch,
                output=printed,
            )
        except SimFault:
            print(printed.getvalue(), end="")
            raise
        return copies, watch

    def compare(self, piece: _Piece, expected: Bytes, given: Bytes, device: str) -> None:
        """Raise ShadowMismatch for the first element in which the device's memory is not the machine's."""
        pointer = min(piece.pointers, key=lambda one: one.parameter.const)
        name, kind = pointer.parameter.name, pointer.parameter.type
        before, rest = divmod(pointer.address - piece.start, kind.size)
        end = rest + (given.size - rest) // kind.size * kind.size
        wanted, found = (part[rest:end].view(kind.numpy) for part in (expected, given))
        difference = first_difference(wanted, found, exact=is_exact(self.program.source.text))
        if difference is None:
            return
        _, watch = self.simulated(piece.start + rest + difference.index * kind.size)
        line = None if watch is None else watch.line
        text = None if line is None else self.program.source.line_text(line).strip()
        place = None if line is None else self.program.place(line)
        index = difference.index - before
        wrote = f"PTX line {line} wrote it last there: {text}" if line else "no thread wrote it there"
        if place is not None:
            wrote = f"{place} wrote it last there: {place.text or text}"
        raise ShadowMismatch(
            op=self.kernel.entry,
            argument=f"{name}[{index}]",
            expected=f"{difference.expected!s} as on the PTX machine ({wrote})",
            given=f"{difference.given!s} on {device}; {difference.count} of {wanted.size} elements differ",
            fix="ptxrt verify compares the levels of the assembler's optimiser; or the kernel relies on an order of "
            "threads that PTX leaves open",
            index=index,
            count=difference.count,
            line=line,
            text=text,
            source_place=place,
            thread=None if watch is None else watch.thread,
            block=None if watch is None else watch.block,
        )
