"""Every error that a caller of ptxrt can meet.

All of them are :class:`PtxrtError`. Each carries ``op``, ``argument``, ``expected`` and ``given`` where they apply
(else ``None``), and a message that names the op, the argument and the way out.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

from ptxrt.places import SourcePlace
from ptxrt.symbols import function_name

__all__ = [
    "AssertionFailed",
    "BackendUnavailable",
    "CompileError",
    "DTypeMismatch",
    "DataRace",
    "Deadlock",
    "DeviceMismatch",
    "DriverError",
    "InvalidArgument",
    "LaunchError",
    "LayoutError",
    "MemoryFault",
    "OutOfDeviceMemory",
    "PtxrtError",
    "RankLost",
    "RanksDisagree",
    "ReloadWarning",
    "ShadowMismatch",
    "ShapeMismatch",
    "SignatureMismatch",
    "SimFault",
    "Unsupported",
    "WrongResult",
    "no_copy",
    "numbered_excerpt",
    "shown",
]


class PtxrtError(Exception):
    """Base of all errors of ptxrt.

    Parameters
    ----------
    message
        The whole message, or None to compose it from the fields:
        ``op: argument: expected ..., given .... fix``.
    op, argument
        What was called, and which of its arguments is at fault.
    expected, given
        What would have been right, and what came.
    fix
        The way out, a sentence.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        op: str | None = None,
        argument: str | None = None,
        expected: object = None,
        given: object = None,
        fix: str | None = None,
    ) -> None:
        self.op = op
        self.argument = argument
        self.expected = expected
        self.given = given
        self.fix = fix
        if message is None:
            where = ": ".join(part for part in (op, argument) if part)
            try:
                message = f"expected {expected}, given {given}"
            except ValueError:  # a number of more digits than Python writes
                message = f"expected {expected}, given {shown(given)}"
            if where:
                message = f"{where}: {message}"
            if fix:
                message = f"{message}. {fix}"
        # What has no UTF-8 (a lone surrogate in an entry's name) could not be printed.
        super().__init__(message.encode("utf-8", "backslashreplace").decode())

    def __reduce__(self) -> tuple[object, ...]:
        # Exception's own pickling calls the class with args alone and would lose the keyword fields.
        return (_rebuild, (type(self), self.args, dict(self.__dict__)))


Error = TypeVar("Error", bound=PtxrtError)


def _rebuild(kind: type[Error], args: tuple[object, ...], fields: dict[str, object]) -> Error:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


def fresh(error: Error) -> Error:
    """Return a copy of a remembered error with no traceback, to be raised again."""
    return copy.copy(error)


class ShapeMismatch(PtxrtError):
    """A shape or a length disagrees with another operand or with the op's rule."""


class DTypeMismatch(PtxrtError):
    """An element type is not the one that the op or the kernel's parameter takes."""


class DeviceMismatch(PtxrtError):
    """An array, a stream or a kernel belongs to another device."""


class LayoutError(PtxrtError):
    """Strides, alignment or aliasing that the kernel cannot handle."""


class InvalidArgument(PtxrtError):
    """A value out of range or of the wrong kind, None where an array is wanted, a freed array."""


class Unsupported(PtxrtError):
    """A well-formed request that no kernel, plan or device here can serve."""


class CompileError(PtxrtError):
    """A kernel's text does not compile.

    Attributes
    ----------
    kernel : str or None
        Entry or source name.
    log : str
        The compiler's own words.
    options : tuple of str
        The options it was given.
    arch : str or None
        The architecture compiled for.
    line : int or None
        The first line at fault, counted from 1.
    compiler_lost : bool
        The compiler itself ended, or had to be stopped. The same text may compile the next time, so a module cache
        does not remember such an error.
    included
        The files that the outcome depends on, for a module cache; None where it depends on none.
    """

    compiler_lost = False
    included: Any = None

    def __init__(
        self,
        message: str,
        *,
        kernel: str | None = None,
        log: str = "",
        options: tuple[str, ...] = (),
        arch: str | None = None,
        line: int | None = None,
        source: str | None = None,
        fix: str | None = None,
        expected: object = None,
        given: object = None,
    ) -> None:
        self.kernel = kernel
        self.log = log
        self.options = options
        self.arch = arch
        self.line = line
        text = message
        if kernel:
            text = f"{kernel}: {text}"
        if arch:
            text += f" (for {arch}{', options ' + ' '.join(options) if options else ''})"
        if fix:
            text += f". {fix}"
        if source is not None and line is not None:
            text += "\n" + numbered_excerpt(source, line)
        if log and log.strip() not in message:
            text += "\n" + log.strip()
        super().__init__(text, op="compile", argument=kernel, expected=expected, given=given, fix=fix)


class ReloadWarning(UserWarning):
    """A kernel that follows its file cannot be what the file says now; it is launched as it was before."""


class SignatureMismatch(PtxrtError):
    """The declared Signature disagrees with the parameter table of the compiled kernel."""


class WrongResult(PtxrtError):
    """A kernel of ptxrt computed something else than its op's reference; ``ptxrt tune`` raises it."""


class RankLost(PtxrtError):
    """Of ranks that work together one has ended, or has not come in time."""


class RanksDisagree(PtxrtError):
    """Ranks that work together are about to compute different things; raised on each of them."""


class LaunchError(PtxrtError):
    """Grid, block or shared memory outside the device's limits, or a launch that the driver refused."""


class OutOfDeviceMemory(PtxrtError):
    """The device has not enough memory for the allocation."""


class DriverError(PtxrtError):
    """A call of the vendor's driver failed; the message has its name and the error's name and text."""


class BackendUnavailable(PtxrtError):
    """The driver, library or package that a device needs is not there, or no longer usable."""


class SimFault(PtxrtError):
    """A fault that the PTX machine found while a kernel ran.

    Attributes
    ----------
    entry : str
        The kernel, by its name in the PTX text.
    line : int
        Line of the PTX text, counted from 1.
    text : str
        That line.
    source_place : SourcePlace or None
        Where the PTX was made of another text, as of C++: file, line and text of what was written.
    thread, block : tuple of int
        Thread and block index, (x, y, z).
    address, size : int or None
        The access, in bytes, where there is one.
    nearest : str or None
        The nearest allocation or variable, in words.
    other_line, other_place, other_thread
        The second party of a race.
    """

    def __init__(
        self,
        problem: str,
        *,
        entry: str,
        line: int,
        text: str,
        thread: tuple[int, int, int],
        block: tuple[int, int, int],
        address: int | None = None,
        size: int | None = None,
        nearest: str | None = None,
        other_line: int | None = None,
        other_thread: tuple[int, int, int] | None = None,
        source_place: SourcePlace | None = None,
        other_place: SourcePlace | None = None,
        expected: object = None,
        given: object = None,
        fix: str | None = None,
    ) -> None:
        self.entry = entry
        self.line = line
        self.text = text
        self.thread = thread
        self.block = block
        self.address = address
        self.size = size
        self.nearest = nearest
        self.other_line = other_line
        self.other_thread = other_thread
        self.source_place = source_place
        self.other_place = other_place
        message = f"{function_name(entry)}, {source_place or f'line {line}'}: {problem}"
        if source_place is not None:
            message += f"{_written(source_place)}\n  PTX line {line}: {' '.join(text.split())}"
        else:
            message += f"\n  {line:5d} | {text.strip()}"
        message += f"\n  thread {thread}, block {block}"
        if address is not None:
            message += f", address {address:#x}"
        if size is not None:
            message += f", {size} bytes"
        if nearest:
            message += f"\n  nearest: {nearest}"
        if other_line is not None:
            where = f"line {other_line}" if other_place is None else f"{other_place} (PTX line {other_line})"
            message += f"\n  against {where}, thread {other_thread}"
            message += "" if other_place is None else _written(other_place)
        if fix:
            message += f"\n  {fix}"
        super().__init__(message, op=function_name(entry), expected=expected, given=given, fix=fix)


class MemoryFault(SimFault):
    """An access that memory does not allow.

    It is outside every allocation or variable, across the end of one, misaligned, or after the free; or a forbidden
    write; or of another floating-point type than the signature declares for the array; or, where that is checked, a
    read of bytes that nobody has written.
    """


class DataRace(SimFault):
    """Two threads touch the same bytes, at least one of them writing, with nothing that orders them.

    Of the two, ``line``, ``text``, ``thread`` and ``block`` tell the later in the machine's order, ``other_line`` and
    ``other_thread`` the earlier.
    """


class Deadlock(SimFault):
    """Threads wait for others that will never come, at a barrier or at a ``.sync`` of a warp; or an endless loop.

    A loop counts as endless once it has outlived the launch's budget of instructions.
    """


class AssertionFailed(SimFault, LaunchError):
    """An ``assert`` of a kernel in C++ does not hold: a launch that failed, as on a GPU, with the fields of a fault.

    Attributes
    ----------
    condition : str
        What was asserted, as the text has it.
    file : str
        The source, as the compiler calls it.
    file_line : int
        The line in it, counted from 1.
    function : str
        The function with its parameters.
    threads : int
        How many threads it failed for at once; ``thread`` and ``block`` are those of the first.
    """

    def __init__(
        self, condition: str, *, file: str, file_line: int, function: str, threads: int = 1, **where: Any
    ) -> None:
        self.condition = condition
        self.file = file
        self.file_line = file_line
        self.function = function
        self.threads = threads
        all_of = f", for {threads} threads at once" if threads > 1 else ""
        super().__init__(f"assertion `{condition}` failed: {file}:{file_line}, in {function}{all_of}", **where)


class ShadowMismatch(PtxrtError):
    """A GPU computed something else than the PTX machine, of the same text and operands.

    Attributes
    ----------
    index : int
        The first element that differs, counted from the address that was passed.
    count : int
        How many elements differ.
    line : int or None
        Line of the PTX text that wrote it last on the machine; None where it was not written there.
    text : str or None
        That line.
    source_place : SourcePlace or None
        Where the PTX was made of another text, as of C++: file, line and text of what was written.
    thread, block : tuple of int or None
        Who wrote it.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        index: int | None = None,
        count: int | None = None,
        line: int | None = None,
        text: str | None = None,
        source_place: SourcePlace | None = None,
        thread: tuple[int, int, int] | None = None,
        block: tuple[int, int, int] | None = None,
        **fields: Any,
    ) -> None:
        self.index, self.count = index, count
        self.line, self.text, self.source_place = line, text, source_place
        self.thread, self.block = thread, block
        super().__init__(message, **fields)


def no_copy(given: object, argument: str, fix: str) -> InvalidArgument:
    """Return the error for a copy, or a pickle, of what is to be there once."""
    return InvalidArgument(op="copy", argument=argument, expected="the object itself", given=shown(given), fix=fix)


def shown(value: object) -> str:
    """Return a value as an error's message has it: its ``repr``, shortened, and words for what has none."""
    if isinstance(value, int) and value.bit_length() > 1000:  # Python writes no number of more than 4300 digits
        return f"an integer of {value.bit_length()} bits"
    try:
        # A device array's repr copies values, for which it waits.
        describe = getattr(type(value), "described", repr)
        text = str(describe(value))
    except Exception as error:  # noqa: BLE001 (whatever the class of somebody else raises)
        return f"an object of type {type(value).__name__}, whose repr fails with {type(error).__name__}"
    return text if len(text) <= 200 else f"{text[:150]} ... {text[-40:]}"


def _written(place: SourcePlace) -> str:
    """Return what an error says of a place, beside its file and line: the text, and the way of inlined calls."""
    text = "" if place.text is None else f"\n  {place.line:5d} | {place.text}"
    return text + (f"\n  {place.chain}" if place.inlined else "")


def numbered_excerpt(source: str | Mapping[int, str], line: int, around: int = 2) -> str:
    """Return the lines of `source` (a text, or lines by number) around `line` (from 1), numbered, it itself marked."""
    if isinstance(source, str):
        # Not splitlines, which also breaks where no compiler does, at form feeds for one.
        source = dict(enumerate(source.replace("\r\n", "\n").removesuffix("\n").split("\n"), 1))
    shown = range(line - around, line + around + 1)
    return "\n".join(f"{'>' if n == line else ' '} {n:5d} | {source[n]}" for n in shown if n in source)
