"""The check that every launch makes of its arrays, written out as straight-line Python.

A launch takes some four microseconds in the driver, so a loop over the operands with its lookups would cost half as
much again. For each kernel and each plan one function is generated (as :mod:`dataclasses` does for ``__init__``) that
tests the common case of each array in one expression and hands everything else to a slow, explaining path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptxrt.array import DeviceArray
from ptxrt.device import Device

__all__ = ["ArrayRule", "binder"]


@dataclass(frozen=True)
class ArrayRule:
    """What an array must be.

    Attributes
    ----------
    dtype
        Its element type.
    written
        It must not be read-only.
    nullable
        None may be passed, and becomes the address 0.
    align
        Its address must be a multiple of this; natural alignment it has anyway.
    shape, strides
        Where they are fixed; None where any will do.
    """

    dtype: np.dtype[Any]
    written: bool = False
    nullable: bool = False
    align: int = 1
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None


def binder(device: Device, rules: Sequence[ArrayRule | None]) -> Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Return ``bind(owner, stream, *args) -> (values, args)``: addresses in the place of arrays, and the arrays taken.

    ``owner.other(stream, index, arg)`` is asked about each argument that is not plainly right: it returns the array
    that the argument stands for (another library's; None where that may be), or raises. The owner is an argument,
    so that it and the function make no cycle, which would keep its module loaded until the collector comes by.

    Parameters
    ----------
    device
        Where the arrays must be.
    rules
        One an argument; None for a scalar, which passes as it is.
    """
    names = [f"a{i}" for i in range(len(rules))]
    scope: dict[str, Any] = {"DeviceArray": DeviceArray, "device": device}
    lines, values = [f"def bind({', '.join(['owner', 'stream', *names])}):"], list(names)
    for i, rule in enumerate(rules):
        if rule is None:
            continue
        scope |= {f"dtype{i}": rule.dtype, f"shape{i}": rule.shape, f"strides{i}": rule.strides}
        tests = [f"a{i}.__class__ is DeviceArray and a{i}.device is device and a{i}.dtype is dtype{i}"]
        tests += [f"a{i}.shape == shape{i}"] if rule.shape is not None else []
        tests += [f"a{i}.strides == strides{i}"] if rule.strides is not None else []
        tests += [f"not a{i}.readonly"] if rule.written else []
        tests += [f"not a{i}.ptr % {rule.align}"] if rule.align > rule.dtype.itemsize else []
        test = " and ".join([*tests, f"a{i}.memory.home is stream"])  # alive, and not to be noted as used elsewhere
        test = f"a{i} is None or ({test})" if rule.nullable else test
        lines += [f"    if not ({test}):", f"        a{i} = owner.other(stream, {i}, a{i})"]
        values[i] = f"0 if a{i} is None else a{i}.ptr" if rule.nullable else f"a{i}.ptr"
    lines.append(
        f"    return ({''.join(f'{value}, ' for value in values)}), ({''.join(f'{name}, ' for name in names)})"
    )
    exec("\n".join(lines), scope)  # the text is made of indices and numbers only
    bind: Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]] = scope["bind"]
    return bind
