"""A module's variables in global and constant memory, as arrays."""

from __future__ import annotations

import math

from numpy.typing import DTypeLike

from ptxrt.compilers.variables import find_variable
from ptxrt.dtypes import BY_NAME, VECTORS, ElementType, alike, element_type, struct_type
from ptxrt.errors import DTypeMismatch, InvalidArgument
from ptxrt.runtime._memory import Memory
from ptxrt.runtime.array import DeviceArray
from ptxrt.runtime.device import Device
from ptxrt.runtime.layout import contiguous
from ptxrt.runtime.modules import LoadedModule

__all__ = ["variable_array"]


def variable_array(device: Device, module: LoadedModule, name: str, dtype: DTypeLike | None, op: str) -> DeviceArray:
    """Return a variable of a loaded module as an array, which keeps the module loaded.

    Raises
    ------
    InvalidArgument
        For an unknown name; for no `dtype` where the binary has none either.
    DTypeMismatch
        For a `dtype` that is not the declared one, or of which the variable does not hold a whole number.
    """
    found = find_variable(module.binary, name, op)
    ptr, nbytes = device.backend.variable(device.ordinal, module.handle, found.symbol)
    declared = BY_NAME.get(found.type)
    kind = declared if dtype is None else _element(dtype, op)
    if kind is None:
        raise InvalidArgument(
            op=op,
            argument="dtype",
            expected=f"the element type of {name}, {nbytes} bytes, which the binary does not tell",
            given="None",
            fix=f'Pass it: kernel.variable("{name}", np.float32), or for a struct its dtype',
        )
    if declared is not None and not alike(kind, declared):
        raise DTypeMismatch(op=op, argument="dtype", expected=f"{declared}, as {name} is declared", given=str(kind))
    if nbytes % kind.size:
        raise DTypeMismatch(
            op=op,
            argument="dtype",
            expected=f"an element type that divides the {nbytes} bytes of {name}",
            given=f"{kind}",
        )
    shape = found.shape if declared is not None else None
    if shape is None or math.prod(shape) * kind.size != nbytes:
        shape = () if nbytes == kind.size else (nbytes // kind.size,)
    memory = Memory(device, ptr, nbytes, device.default_stream, owner=module)
    return DeviceArray(memory, ptr, kind.numpy, shape, contiguous(shape))


def _element(dtype: DTypeLike, op: str) -> ElementType:
    if isinstance(dtype, str) and dtype in VECTORS:
        return VECTORS[dtype]
    # A list of fields is a structured dtype too, to NumPy.
    if isinstance(dtype, list) or getattr(dtype, "names", None):
        return struct_type("dtype", dtype, op=op)
    return element_type(dtype, op=op)
