"""What the tests of all ops share: outputs that show what was written, errors and their bar, drawn cases."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from helpers import AMD_GPU, EVERYTHING
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tolerances import EPSILON, relative_error, worst_element_error

import ptxrt
from ptxrt.dtypes import BY_NAME
from ptxrt.ops.framework import Plan, Variant
from ptxrt.runtime.layout import channels_last, contiguous

GUARD = 256
"""Bytes before and behind a guarded array; a multiple of every vector's alignment."""

Array: TypeAlias = NDArray[Any]
Strides: TypeAlias = tuple[int, ...] | None
DRAWN_CASES = {"sim": 25 if EVERYTHING else 8, "cuda": 200, "hip": 200 if AMD_GPU else 10 if EVERYTHING else 3}


class Guarded:
    """An array on a device with every byte 0xFF (NaN in each float type), inside a larger one that shows writes
    outside.

    Parameters
    ----------
    offset
        Elements by which its address misses a multiple of 256.
    strides
        Of a contiguous array if left out, or of a channels-last one.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, device: ptxrt.Device, offset: int = 0, strides: Strides = None
    ) -> None:
        self.dtype = np.dtype(dtype)
        guard = GUARD // self.dtype.itemsize
        size = int(np.prod(shape))
        self.whole = ptxrt.empty(size + 2 * guard + offset, self.dtype, device)
        self.whole.fill_bytes(0xFF)
        self.first, self.end = guard + offset, guard + offset + size
        self.array = laid_out(self.whole[self.first : self.end], shape, strides)

    def host(self) -> np.ndarray[Any, Any]:
        """Return what was written, once nothing beside it was."""
        whole = self.whole.to_host()
        outside = np.concatenate([whole[: self.first], whole[self.end :]]).view(np.uint8)
        assert (outside == 0xFF).all(), "written outside of the output"
        return np.asarray(laid_out(whole[self.first : self.end], self.array.shape, self.array.strides))


def is_channels_last(shape: tuple[int, ...], strides: Strides) -> bool:
    """Whether these are the strides of a channels-last array of this shape that is not contiguous too."""
    return len(shape) > 2 and strides not in (None, contiguous(shape)) and strides == channels_last(shape)


def laid_out(flat: Any, shape: tuple[int, ...], strides: Strides = None) -> Any:
    """Return memory, of a device or of the host, as a contiguous array or as a channels-last one."""
    if not is_channels_last(shape, strides):
        return flat.reshape(shape)
    return flat.reshape((shape[0], *shape[2:], shape[1])).transpose(0, len(shape) - 1, *range(1, len(shape) - 1))


def on_device(values: Any, device: ptxrt.Device, offset: int = 0, strides: Strides = None) -> Any:
    """Copy a host array to a device, `offset` elements behind a multiple of 256 bytes; None stays None.

    It becomes contiguous, or channels-last where these are its strides.
    """
    if values is None:
        return None
    in_order = np.moveaxis(values, 1, -1) if is_channels_last(values.shape, strides) else values
    flat = np.concatenate([np.zeros(offset, values.dtype), in_order.ravel()])
    return laid_out(ptxrt.to_device(flat, device)[offset:], values.shape, strides)


def key_of(variant: Variant[Any, Any]) -> str:
    """Return what tests call a variant: its name, behind its language where that is not PTX."""
    return variant.name if variant.language == "ptx" else f"{variant.language}/{variant.name}"


def variants(plan: type[Plan[Any, Any, Any]], device: ptxrt.Device | None = None) -> list[str]:
    """Return a plan's variants; given a device, those in a language that it takes."""
    return [key_of(each) for each in plan.variants if device is None or each.language in device.backend.languages]


def wish(key: str | None = None, **more: Any) -> ptxrt.PlanPreference:
    """Return the preference for a variant, ``"split"`` or ``"hip/baseline"``; None for any.

    A device's table of tuned choices is left out: a test means what the heuristics select, on every device.
    """
    more.setdefault("tuned", False)
    if key is None:
        return ptxrt.PlanPreference(**more)
    language, _, name = key.rpartition("/")
    return ptxrt.PlanPreference(language=language or "ptx", variant=name, **more)


def rounded_twice(name: str) -> tuple[Any, Any, Any]:
    """Return grad_out and y of f16 or bf16, ``[N, 2, 1]``, and the gradient as of f32, rounded to the type.

    Of a million random columns these are the ones where the product rounded to the type at once gives another value.
    """
    kind = BY_NAME[name].numpy
    g, y = np.random.default_rng(7).standard_normal((2, 1 << 20, 2, 1)).astype(kind).astype(np.float64)
    dot = (g * y).sum(axis=1, keepdims=True)  # f64 holds all the bits
    high = dot.astype(np.float32)
    exact = y * ((g - high).astype(np.float32) - (dot - high).astype(np.float32)).astype(np.float64)
    single = exact.astype(np.float32)
    towards_zero = np.where(np.abs(single) > np.abs(exact), np.nextafter(single, np.float32(0)), single)
    odd = (towards_zero.view(np.uint32) | (towards_zero != exact)).view(np.float32)  # is rounded as `exact` would be
    differ = (single.astype(kind) != odd.astype(kind)).any(axis=(1, 2))
    assert differ.any()
    return g[differ].astype(kind), y[differ].astype(kind), single[differ].astype(kind)


def group_norm_rounded_twice(name: str) -> tuple[Any, Any, Any, Any]:
    """Return x, ``[1, 2, 2]``, weight and bias of f16 or bf16, and y for 2 groups and an eps of 0.

    f32 rounds y to the middle of two numbers of the type: the even one is the result. From f64 it would be another.
    """
    x = np.array([[[1, -1], [1, -1]]], BY_NAME[name].numpy)  # of mean 0 and variance 1
    half = EPSILON[name] / 2
    weight, bias = np.array([2.0**-40, 2.0**-40], np.float32), np.array([1 + half, 1 + 3 * half], np.float32)
    return x, weight, bias, np.array([[[1, 1], [1 + 4 * half, 1 + 4 * half]]], x.dtype)


def assert_rounded_once(got: Any, exact: Any) -> None:
    """Of 16 bits the result in f32 is; the reference of f64 has 11 bits more, and does not know every tie."""
    if got.dtype == np.float64:
        assert (np.abs(got - exact) <= 0.5 * np.spacing(np.abs(got)) + 8 * np.spacing(np.abs(exact).max())).all()
    else:
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(got, exact.astype(np.float32).astype(got.dtype))


# Errors ---------------------------------------------------------------------------------------------------------------

_WORST: dict[tuple[str, ...], dict[str, Any]] = {}
_KEY = ("op", "dtype", "device", "language")
_last_language: list[str] = []  # not the plan, which would hold its modules loaded


def _remember_the_last_language() -> None:
    run = Plan._run  # what a function calls too

    def run_and_remember(self: Plan[Any, Any, Any], *args: Any, **how: Any) -> Any:
        _last_language[:] = [self.variant.language]
        return run(self, *args, **how)

    Plan._run = run_and_remember  # type: ignore[method-assign]


_remember_the_last_language()


def check_error(
    op: str, device: ptxrt.Device, got: Any, want: Any, bar: float, case: object = "", language: str | None = None
) -> None:
    """Hold ``||got - want|| / ||want||`` to `bar`; record the worst of each op, dtype, kind of device, and language.

    Parameters
    ----------
    op
        With the name of the result, where an op has several: ``"batch_norm grad_weight"``.
    case
        For the message, and for the record of the worst.
    language
        Of the kernel; that of the last plan's run by default.
    """
    error, element = relative_error(got, want), worst_element_error(got, want)
    of_bar = error / bar if bar else error > 0
    seen = {"cases": 1, "error": float(error), "of_bar": float(of_bar), "element": float(element)}
    names = (op, str(got.dtype), device.kind, language or _last_language[0])
    add_worst_errors([dict(zip(_KEY, names, strict=True)) | seen | {"case": str(case)}])
    assert error <= bar, f"{op} {case}: error {error:.2e} above {bar:.2e}, worst element {element:.2e}"


def worst_errors() -> list[dict[str, Any]]:
    """Return what :func:`check_error` has seen in this session: a row an op, dtype, kind of device, and language."""
    return [dict(zip(_KEY, key, strict=True)) | row for key, row in sorted(_WORST.items())]


def add_worst_errors(rows: list[dict[str, Any]]) -> None:
    """Take in rows of :func:`worst_errors`, of another process too."""
    for row in rows:
        new = {name: value for name, value in row.items() if name not in _KEY}
        old = _WORST.setdefault(tuple(row[name] for name in _KEY), new)
        if old is not new:
            old["cases"] += new["cases"]
            if (new["error"], new["case"]) > (old["error"], old["case"]):  # whichever process came first
                old.update(error=new["error"], case=new["case"])
            for name in ("of_bar", "element"):
                old[name] = max(old[name], new[name])


def write_worst_errors(path: Path) -> None:
    """Write :func:`worst_errors` as JSON."""
    path.write_text(json.dumps(worst_errors(), indent=1) + "\n")


# Drawn cases ----------------------------------------------------------------------------------------------------------


def for_drawn(device: ptxrt.Device, body: Callable[..., None], /, **strategies: st.SearchStrategy[Any]) -> None:
    """Run ``body(**drawn)`` for 15 cases on sim, 200 on a GPU, 3 on AMD's stand-in; show the smallest that fails."""
    settings(max_examples=DRAWN_CASES[device.kind])(given(**strategies)(body))()
