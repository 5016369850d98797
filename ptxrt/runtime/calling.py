"""How a kernel is called besides ``launch``: by the names of its parameters, and as ``kernel[grid, block](...)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ptxrt.compilers.ptx_text import suggestion
from ptxrt.errors import InvalidArgument, shown

if TYPE_CHECKING:
    from ptxrt.runtime.binding import Dims
    from ptxrt.runtime.kernel import Kernel
    from ptxrt.runtime.protocols import KernelArgument
    from ptxrt.runtime.signature import Signature
    from ptxrt.runtime.stream import Stream

__all__ = ["Launcher", "arranged"]


class Launcher:
    """A kernel with its grid, block, shared memory and stream; ``kernel[grid, block, shared_bytes, stream]`` makes it.

    Calling it launches. It may be kept, for as many launches as are wanted, and keeps the kernel's module loaded.
    """

    __slots__ = ("_dims", "_kernel", "_queue", "_shared")

    def __init__(self, kernel: Kernel, dims: Dims, shared_bytes: int, queue: Stream) -> None:
        self._kernel, self._dims, self._shared, self._queue = kernel, dims, shared_bytes, queue

    def __repr__(self) -> str:
        grid, block = self._dims[:3], self._dims[3:]
        return f"<{self._kernel!r} with grid {grid}, block {block}, {self._shared} bytes, {self._queue!r}>"

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
        submit(kernel, self._queue, self._dims, self._shared, None, *args)


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
