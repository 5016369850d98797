"""Trials of plans: the operands of a problem on a device, and whether what a plan makes of them is right."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ptxrt.dtypes import ElementType
from ptxrt.errors import WrongResult
from ptxrt.ops import references
from ptxrt.ops.framework import Operand, Plan, parameter_type
from ptxrt.runtime.array import DeviceArray, empty, to_device
from ptxrt.runtime.device import Device
from ptxrt.runtime.layout import span

__all__ = ["Trial"]

Array = NDArray[Any]

_EPSILON = {"f32": 2.0**-23, "f64": 2.0**-52, "f16": 2.0**-10, "bf16": 2.0**-7}
_ROUNDINGS = {"f32": 16, "f64": 32, "f16": 1, "bf16": 1}  # epsilons: f16 and bf16 are rounded once, from f32
_PART = 1 << 17  # elements that are compared at a time, while a cache holds them
_BLOCK = 1 << 20  # random values, which larger arrays repeat: no time depends on them
_POSITIVE = ("denom", "y", "running_var", "batch_var")


class _Buffer:
    """An operand's memory on a device, and its values on the host: both as they lie in memory.

    The values of an output are what no op writes: a result must not be right because an earlier one was.
    """

    def __init__(self, device: Device, operand: Operand, values: Array) -> None:
        self.operand, self.values = operand, values
        self.flat = to_device(values, device)
        self.array = DeviceArray.from_pointer(
            self.flat.ptr, operand.shape, operand.type.numpy, device, operand.strides, owner=self.flat
        )

    def shaped(self, flat: Array) -> Array:
        """Return the operand whose memory holds `flat`."""
        steps = [step * flat.itemsize for step in self.operand.strides]
        return as_strided(flat, self.operand.shape, steps, writeable=False)


class Trial:
    """A problem's operands on a device, and what should become of them.

    Parameters
    ----------
    plan
        Any plan of the problem on the device.
    """

    def __init__(self, plan: Plan[Any, Any, Any]) -> None:
        self.device, self.problem = plan.device, plan.descriptor
        rng = np.random.default_rng(7)
        self._buffers = {
            operand.name: None if operand.absent else _Buffer(self.device, operand, _values(rng, operand, self.problem))
            for operand in plan.operands
        }
        self._written = {name: held for name, held in self._buffers.items() if held and held.operand.written}
        self._expected = self._reference([operand.name for operand in plan.operands if operand.output])
        self._right: dict[str, Array] = {}  # the memory of operands behind a run that was found right
        self._workspace: DeviceArray | None = None

    def _reference(self, outputs: list[str]) -> dict[str, Array]:
        """Return the outputs of the op's reference, whose arguments have the names of operands and fields."""
        function = getattr(references, self.problem.op)
        given = {}
        for name in inspect.signature(function).parameters:
            held = self._buffers.get(name)
            present = held and held.shaped(held.values)
            given[name] = present if name in self._buffers else getattr(self.problem, name)
        with np.errstate(all="ignore"):
            found = function(**given)
        results = found if isinstance(found, tuple) else (found,)
        return {name: value for name, value in zip(outputs, results, strict=True) if value is not None}

    def run_of(self, plan: Plan[Any, Any, Any]) -> Callable[[], object]:
        """Return what runs a plan of the problem once on the operands, and allocates nothing."""
        need = plan.workspace_size
        if need and (self._workspace is None or self._workspace.nbytes < need):
            self._workspace = empty(need, np.uint8, self.device)
        arguments = tuple(held and held.array for held in self._buffers.values())
        stream, workspace = self.device.default_stream, self._workspace
        return lambda: plan.run(arguments, stream, workspace)

    def check(self, plan: Plan[Any, Any, Any]) -> None:
        """Run a plan of the problem, and compare each output with the reference.

        What is updated in place is compared with what the plan made of it that was checked first.

        Raises
        ------
        WrongResult
            Naming the plan, the operand, and the element that is the furthest off.
        """
        for held in self._written.values():
            held.flat.copy_from(held.values)
        self.run_of(plan)()
        for name, held in self._written.items():
            found = held.flat.to_host()
            if name in self._right and np.array_equal(_bits(found), _bits(self._right[name])):
                continue
            expected = self._expected[name] if held.operand.output else held.shaped(self._right.get(name, found))
            self._compare(plan, name, held.shaped(found), expected)
            self._right[name] = found

    def _compare(self, plan: Plan[Any, Any, Any], name: str, found: Array, expected: Array) -> None:
        wide = np.longdouble if found.dtype == np.float64 else np.float64
        flat, right = found.ravel(), np.broadcast_to(expected, found.shape).ravel()
        root = np.sqrt(np.mean(np.square(right, dtype=wide)))
        worst, at = wide(0), 0
        for start in range(0, flat.size, _PART):
            a, b = (values[start : start + _PART].astype(wide) for values in (flat, right))
            with np.errstate(all="ignore"):
                off = np.where(a == b, 0, np.abs(a - b) / np.maximum(np.abs(b), root))
            off[np.isnan(off)] = np.inf
            if off[i := int(np.argmax(off))] > worst:
                worst, at = off[i], start + i
        bar = _bar(self.problem, self._buffers[name].operand.type)  # type: ignore[union-attr]
        if worst > bar:
            where = f"{name}[{', '.join(map(str, np.unravel_index(at, found.shape)))}]"
            raise WrongResult(
                op=self.problem.op,
                argument=f"{plan.variant} with {plan.config}",
                expected=f"{where} = {right[at]}, up to {bar:.1e} of that or of the root mean square",
                given=f"{flat[at]} on {plan.device}, of {self.problem}",
                fix="This is an error of the kernel, of its schedule or of the device: please report it",
            )


def _bits(values: Array) -> Array:
    return values.view(np.uint8)


def _bar(problem: Any, kind: ElementType) -> float:
    """Return how far an element may be off: a few roundings, and in grid_sample what a coordinate's rounding costs."""
    if kind.name not in _EPSILON or problem.op == "upsample_nearest2d":
        return 0.0
    bar = _ROUNDINGS[kind.name] * _EPSILON[kind.name]
    if problem.op.startswith("grid_sample"):
        bar += 16 * _EPSILON[parameter_type(kind).name] * max(problem.shape[2:])
    return bar


def _values(rng: np.random.Generator, operand: Operand, problem: Any) -> Array:
    """Return an operand's memory: random numbers, neither centred nor of deviation 1; a smooth grid."""
    count = span(operand.shape, operand.strides)
    kind = operand.type.numpy
    if operand.output:
        return np.full(count * kind.itemsize, 0xA5, np.uint8).view(kind)
    if operand.type.kind != "float":
        return np.zeros(count, kind) if operand.written else np.resize(rng.integers(0, 2, _BLOCK).astype(kind), count)
    noise = rng.standard_normal(min(count, _BLOCK))
    if operand.name == "grid":
        return _grid(noise, operand, problem)
    values = 0.5 + (np.abs(noise) if operand.name in _POSITIVE else 1.5 * noise)
    return np.resize(values.astype(kind), count)


def _grid(noise: Array, operand: Operand, problem: Any) -> Array:
    """Return points as networks have them, near to those beside them; none where a rounding makes results jump.

    They jump where a coordinate in pixels is a multiple of a half: another pixel is the nearest, a slope another one.
    Such a coordinate is moved by a quarter of a pixel. One of 16 bits may have no number there, and stays: a multiple
    of a half, it is computed without a rounding.
    """
    axes = [np.linspace(-0.9, 0.9, length) for length in operand.shape[1:-1]]
    points = np.stack(np.meshgrid(*axes, indexing="ij")[::-1], axis=-1)
    points = points + 0.02 * np.resize(noise, operand.shape)
    sizes = np.array(problem.shape[:1:-1], np.float64)
    spans = sizes - 1 if problem.align_corners else sizes
    # Twice a coordinate, but for a whole number
    doubled = (points.astype(operand.type.numpy).astype(np.float64) + 1) * spans
    jumps = np.abs(doubled - np.rint(doubled)) <= 32 * _EPSILON[parameter_type(operand.type).name] * sizes
    points += np.where(jumps, 0.5 / np.maximum(spans, 1), 0)
    return points.astype(operand.type.numpy).ravel()
