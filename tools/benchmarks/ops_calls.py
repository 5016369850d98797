"""A case of the benchmarks as a call of ptxrt, with arrays made beforehand. Of ptxrt only its public names are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import ptxrt
from benchmarks.ops_cases import Case
from ptxrt import ops

__all__ = ["PARAMETERS", "Call", "call", "inputs", "on_device", "queued", "shapes", "timer", "words"]

Call = Callable[[], Any]

PARAMETERS = ("weight", "bias", "running_mean", "running_var", "batch_mean", "batch_var", "denom")
"""Inputs that are float32 where elements have 16 bits."""
_POSITIVE = ("running_var", "batch_var", "denom")

_INPUTS = {
    "group_norm": "x weight bias",
    "group_norm_backward": "grad_out x weight",
    "softmax2d": "x",
    "softmax2d_backward": "grad_out y",
    "batch_norm": "x weight bias running_mean running_var",
    "batch_norm_backward": "grad_out x weight batch_mean batch_var",
    "local_response_norm": "x",
    "local_response_norm_backward": "grad_out x denom",
    "upsample_nearest2d": "x",
    "upsample_nearest2d_backward": "grad_out",
    "grid_sample": "x grid",
    "grid_sample_backward": "grad_out x grid",
    "layer_norm": "x weight bias",
    "layer_norm_backward": "grad_out x weight",
    "rms_norm": "x weight",
    "rms_norm_backward": "grad_out x weight",
}
_NUMPY: dict[str, Any] = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "u8": np.uint8,
}
# Bytes: several times any L2. An H200 clears them in some 200 us, which is longer than a call takes most hosts.
_CLEARED = 1 << 30
_MOST_CLEARINGS = 32  # before one call


def call(case: Case, a: Mapping[str, Any]) -> Call:
    """Return a call of the op; `a` has its inputs on the device. It is called once here, which makes the outputs."""
    function, given = getattr(ops, case.op), {name: a[name] for name in shapes(case)} | words(case)
    out = function(**given)
    return lambda: function(**given, out=out)


def words(case: Case) -> dict[str, Any]:
    """Return what the op takes beside its inputs."""
    if case.family == "group_norm":
        return {"groups": case.groups}
    if case.family == "batch_norm":
        without = case.op == "batch_norm_backward" and case.training
        return {"training": case.training} | (dict.fromkeys(("running_mean", "running_var")) if without else {})
    if case.family == "local_response_norm":
        return {"size": 5}
    if case.op == "upsample_nearest2d":
        return dict(zip(("out_h", "out_w"), case.result_shape[2:], strict=True))
    if case.op == "upsample_nearest2d_backward":
        return dict(zip(("in_h", "in_w"), case.shape[2:], strict=True))
    if case.family == "grid_sample":
        return {"mode": case.mode, "padding_mode": case.padding_mode}
    return {} if case.family == "softmax2d" else {"normalized_shape": case.shape[-1:]}


def shapes(case: Case) -> dict[str, tuple[int, ...]]:
    """Return the shape of each input by its name."""
    names = _INPUTS[case.op].split()
    if case.op == "batch_norm_backward" and not case.training:
        names[-2:] = ["running_mean", "running_var"]
    known = {
        **dict.fromkeys(("x", "y", "denom"), case.shape),
        "grad_out": case.result_shape,
        "grid": (case.shape[0], *case.size, len(case.size)),
    }
    return {name: known.get(name, (case.shape[1],)) for name in names}


def inputs(case: Case) -> dict[str, NDArray[Any]]:
    """Return the inputs of a case, by name, as torch's rows have them: random, the grid smooth with some noise."""
    rng = np.random.default_rng(7)
    # Repeated, since what is timed does not depend on the values.
    block = rng.standard_normal(1 << 20)

    def values(name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        dtype = np.float32 if name in PARAMETERS and case.dtype in ("f16", "bf16") else _NUMPY[case.dtype]
        made = np.resize(block[: np.prod(shape)].astype(dtype), shape)
        if name == "grid":
            axes = [np.linspace(-0.9, 0.9, length) for length in case.size]
            smooth = np.stack(np.meshgrid(*axes, indexing="ij")[::-1], axis=-1).astype(dtype)
            return np.asarray(smooth + dtype(0.02) * made)
        return dtype(1) + np.abs(made) if name in _POSITIVE else made

    return {name: values(name, shape) for name, shape in shapes(case).items()}


def on_device(case: Case, array: NDArray[Any], device: ptxrt.Device) -> ptxrt.DeviceArray:
    """Return an input on a device, in the layout of the case."""
    if not case.channels_last or array.shape != case.shape:
        return ptxrt.to_device(array, device)
    last = array.ndim - 1
    return ptxrt.to_device(np.ascontiguousarray(np.moveaxis(array, 1, -1)), device).transpose(0, last, *range(1, last))


def timer(device: ptxrt.Device, run: Call) -> Callable[[int], list[float]]:
    """Return what times a number of runs on the device, in microseconds, one by one, the L2 cleared before each."""
    clear, release, record = _cleared(device), _releasing(device), device.default_stream.record

    def once(clearings: int) -> tuple[ptxrt.Event, ptxrt.Event]:
        start, end = ptxrt.Event(device), ptxrt.Event(device)
        release()
        for _ in range(clearings):
            clear.fill_bytes(0)
        record(start)
        run()
        record(end)
        return start, end

    def timed(count: int) -> list[float]:
        # The events of other devices are done as soon as they are recorded.
        pairs = [queued(once) if device.kind == "cuda" else once(1) for _ in range(count)]
        return [start.elapsed_ms(end) * 1e3 for start, end in pairs]

    return timed


def queued(once: Callable[[int], tuple[ptxrt.Event, ptxrt.Event]]) -> tuple[ptxrt.Event, ptxrt.Event]:
    """Return the events of a run that was queued as a whole before the device came to it.

    Else the time between them has the host's in it: so the L2 is cleared more often before another run.

    Raises
    ------
    RuntimeError
        If the host is slower than so many clearings.
    """
    clearings = 1
    while clearings <= _MOST_CLEARINGS:
        start, end = once(clearings)
        if not start.done:
            return start, end
        clearings *= 2
    raise RuntimeError(f"a call takes the host longer than {_MOST_CLEARINGS} clearings of the L2 take the device")


@cache
def _releasing(device: ptxrt.Device) -> Callable[[], None]:
    """Return what releases lines of the L2 that loads have marked to be evicted last, as many of Triton's do.

    Otherwise they stay, whatever is written: such a kernel would find in the L2 what it read the time before.
    """
    if device.kind != "cuda":
        return lambda: None
    from cuda.bindings import driver  # noqa: PLC0415 (only where there is a CUDA device)

    def done(outcome: tuple[Any, ...]) -> Any:
        if outcome[0]:
            raise RuntimeError(f"the L2 cannot be cleared: {outcome[0]!r}")
        return outcome[-1]

    done(driver.cuCtxSetCurrent(done(driver.cuDevicePrimaryCtxRetain(done(driver.cuDeviceGet(device.ordinal))))))
    return lambda: done(driver.cuCtxResetPersistingL2Cache())


@cache
def _cleared(device: ptxrt.Device) -> ptxrt.DeviceArray:
    return ptxrt.empty(_CLEARED if device.kind == "cuda" else 1, np.uint8, device)
