"""How a kernel is called besides ``launch``: by the names of its parameters, and as ``kernel[grid, block](...)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxrt.errors import InvalidArgument, shown
from ptxrt.runtime.layout import whole_numbers
from ptxrt.runtime.stream import ENTERED, as_stream, current_stream

if TYPE_CHECKING:
    from ptxrt.runtime.binding import Dims
    from ptxrt.runtime.kernel import Kernel
    from ptxrt.runtime.protocols import KernelArgument
    from ptxrt.runtime.signature import Signature
    from ptxrt.runtime.stream import Stream

__all__ = ["Cooperative", "Launcher", "arranged", "grid_for"]


def grid_for(n: int | Sequence[int], block: int | Sequence[int]) -> int | tuple[int, ...]:
    """Return how many blocks cover n elements: n / block, rounded up; along each axis where both have several.

    The threads of the last block that are past the end are the kernel's to stop.

    Parameters
    ----------
    n
        Number of elements, 1 or more; or up to three, along x, y, z.
    block
        Threads in a block, along as many axes.

    Raises
    ------
    InvalidArgument
        For what is no such number, and for no elements: a grid has a block at least, so nothing is to be launched.
    """
    sizes = []
    for argument, given in (("n", n), ("block", block)):
        numbers = whole_numbers(given) or ()
        if not 1 <= len(numbers) <= 3 or min(numbers) < 1:
            empty = len(numbers) > 0 and 0 in numbers and argument == "n"
            raise InvalidArgument(
                op="grid_for",
                argument=argument,
                expected="one to three whole numbers, each at least 1",
                given=shown(given),
                fix="Launch nothing where there are no elements" if empty else None,
            )
        sizes.append(numbers)
    lengths, threads = sizes
    if len(lengths) != len(threads):
        raise InvalidArgument(
            op="grid_for", argument="block", expected=f"{len(lengths)} numbers, as n has", given=shown(block)
        )
    blocks = tuple(-(-length // width) for length, width in zip(lengths, threads, strict=True))
    return blocks[0] if isinstance(n, (int, np.integer)) else blocks


class Launcher:
    """A kernel with its grid, block, shared memory and stream; ``kernel[grid, block, shared_bytes, stream]`` makes it.

    Calling it launches. It may be kept, for as many launches as are wanted, and keeps the kernel's module loaded.
    """

    __slots__ = ("_dims", "_kernel", "_queue", "_shared")

    def __init__(self, kernel: Kernel, dims: Dims, shared_bytes: int, queue: Stream | None) -> None:
        self._kernel, self._dims, self._shared, self._queue = kernel, dims, shared_bytes, queue

    def __repr__(self) -> str:
        grid, block = self._dims[:3], self._dims[3:]
        stream = f", {self._queue!r}" if self._queue else ""
        return f"<{self._kernel!r} with grid {grid}, block {block}, {self._shared} bytes{stream}>"

    def __call__(self, /, *args: KernelArgument, **named: KernelArgument) -> None:
        """Check every argument, and launch; the device is not waited for.

        Parameters
        ----------
        *args
            The first arguments, in the order of the signature; see :meth:`Kernel.launch`.
        **named
            The others, by the signature's names.

        Raises
        ------
        InvalidArgument, DTypeMismatch, DeviceMismatch, ShapeMismatch, LayoutError
            For an argument that is not what the signature declares.
        """
        kernel = self._kernel
        if named or len(args) != kernel._arity:
            args = arranged(kernel.entry, kernel.signature, args, named)
        submit = kernel._submit or kernel._made_submit()
        queue = self._queue or current_stream(kernel.device)
        if ENTERED:  # it may be captured meanwhile
            queue = as_stream(queue, kernel.device, kernel.entry)
        submit(kernel, queue, self._dims, self._shared, None, args)


class Cooperative:
    """What ``kernel.cooperative`` is: in brackets it takes what the kernel does, for cooperative launches."""

    __slots__ = ("_kernel",)

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def __getitem__(self, config: Any) -> CooperativeLauncher:
        """Return ``kernel.cooperative[grid, block, shared_bytes, stream]``, which launches when it is called.

        Raises
        ------
        LaunchError, DeviceMismatch, InvalidArgument, Unsupported
            As a cooperative :meth:`Kernel.launch` does.
        """
        launcher = self._kernel[config]
        self._kernel.check_cooperative(launcher._dims, launcher._shared)
        return CooperativeLauncher(self._kernel, launcher._dims, launcher._shared, launcher._queue)


class CooperativeLauncher(Launcher):
    """A Launcher whose launches are cooperative."""

    __slots__ = ()

    def __call__(self, /, *args: KernelArgument, **named: KernelArgument) -> None:
        """Check every argument, and launch; see :meth:`Launcher.__call__`."""
        kernel, dims = self._kernel, self._dims
        values = arranged(kernel.entry, kernel.signature, args, named) if named else args
        kernel.launch(dims[:3], dims[3:], *values, shared_bytes=self._shared, stream=self._queue, cooperative=True)


def arranged(entry: str, signature: Signature, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the arguments in the order of the signature, those by position first.

    Raises
    ------
    InvalidArgument
        For a name that no parameter has, a parameter that is given twice or not at all, too many arguments.
    """
    names = signature.names
    rest = names[len(args) :]
    if len(args) + len(named) == len(names):
        try:
            return (*args, *[named[name] for name in rest])
        except KeyError:
            pass
    for name in named:
        if name not in names:
            from ptxrt.compilers.ptx_text import suggestion  # noqa: PLC0415 (for the message alone)

            raise InvalidArgument(
                op=entry,
                argument=name,
                expected=f"one of {', '.join(names)}" if names else "no argument",
                given=shown(name),
                fix=suggestion(name, names),
            )
        if name in names[: len(args)]:
            raise InvalidArgument(
                op=entry,
                argument=name,
                expected="one value",
                given=f"argument {names.index(name)} and {name}=",
                fix="Give it by position or by name",
            )
    missing = [name for name in rest if name not in named]
    if missing and named:
        raise InvalidArgument(
            op=entry, argument=missing[0], expected=f"a value for {', '.join(missing)} ({signature})", given="none"
        )
    raise InvalidArgument(
        op=entry,
        argument="arguments",
        expected=f"{len(names)}: {signature}",
        given=f"{len(args)}",
        fix="Pass one argument for each parameter",
    )
