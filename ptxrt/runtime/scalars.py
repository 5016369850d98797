"""One number for a parameter: what packs as its type, and the error for what does not."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from ptxrt.errors import DTypeMismatch, InvalidArgument, PtxrtError, shown

if TYPE_CHECKING:
    from ptxrt.runtime.signature import Parameter

__all__ = ["check_scalar", "scalar_error"]


def check_scalar(value: Any, p: Parameter, op: str) -> Any:
    """Return `value` as ``struct`` packs it; the error for what is no number, or no truth value for a bool.

    ``struct`` checks the range of integers and floats by itself. It takes anything for a bool, has no bfloat16, and
    believes whatever says that it can be a number: a masked element, an array of text, a complex number.
    """
    if isinstance(value, (np.generic, np.ndarray)) and (
        # V is bfloat16's kind, and that of raw bytes.
        value.ndim or value.dtype.kind not in "biufV" or issubclass(value.dtype.type, np.void) or np.ma.is_masked(value)
    ):
        raise scalar_error(p, value, op)
    if p.type.name == "bool":
        if isinstance(value, (bool, np.bool_)) or (isinstance(value, (int, np.integer)) and value in (0, 1)):
            return bool(value)
        raise scalar_error(p, value, op)
    try:
        if p.type.kind == "int":
            return operator.index(bool(value) if isinstance(value, np.bool_) else value)
        number = math.ldexp(value, 0)  # float() would read texts and buffers, too
        if math.isinf(number) and number != value:
            raise OverflowError
        return number if p.type.name != "bf16" else _bfloat16(number)
    except (TypeError, ValueError, OverflowError):
        raise scalar_error(p, value, op) from None


def _bfloat16(number: float) -> int:
    """Return the bits of the nearest bfloat16; OverflowError for a finite number that it cannot hold."""
    if not math.isfinite(number):
        return int(ml_dtypes.bfloat16(number).view(np.uint16))
    # To its 8 bits in one step: by way of float32 it would be rounded twice.
    step = max(math.frexp(number)[1] - 8, -133)
    rounded = ml_dtypes.bfloat16(math.copysign(math.ldexp(round(math.ldexp(number, -step)), step), number))
    if not math.isfinite(float(rounded)):
        raise OverflowError
    return int(rounded.view(np.uint16))


def scalar_error(p: Parameter, value: Any, op: str) -> PtxrtError:
    wanted = f"{'an integer' if p.type.kind == 'int' else 'a number'} that fits {p.type.name}"
    if p.type.kind == "int":
        wanted += ", {} to {}".format(*p.type.limits)
    number = isinstance(value, (int, float, np.number))
    kind = InvalidArgument if number or not hasattr(value, "dtype") else DTypeMismatch
    fix = "Convert the value, or declare a wider type in the signature and in the kernel"
    return kind(op=op, argument=p.name, expected=wanted, given=f"{shown(value)} ({type(value).__name__})", fix=fix)
