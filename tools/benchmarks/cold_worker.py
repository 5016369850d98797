"""A cold process: ``python -m benchmarks.cold_worker WAY FILE`` computes one group_norm, the problem of FILE (JSON).

It prints ``{"at": ..., "error": ...}``: the nanoseconds of CLOCK_MONOTONIC, which all processes share, at which the
result was on the host, and its largest difference from float64. Nothing is imported that the way does not need.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["WAYS"]

EPS = 1e-5
Inputs = tuple[Any, ...]  # x, weight, bias


def _formula(library: Any, inputs: Inputs, groups: int) -> Any:
    x, weight, bias = inputs
    rows = x.reshape(x.shape[0], groups, -1)
    mean, var = rows.mean(2, keepdims=True), rows.var(2, keepdims=True)
    y = ((rows - mean) / library.sqrt(var + EPS)).reshape(x.shape)
    sizes = (1, -1) + (1,) * (x.ndim - 2)
    return y * weight.reshape(sizes) + bias.reshape(sizes)


def _numpy(problem: dict[str, Any], inputs: Inputs) -> Any:
    return _formula(np, inputs, problem["groups"])


def _ptxrt(problem: dict[str, Any], inputs: Inputs) -> Any:
    import ptxrt  # noqa: PLC0415 (nor the others: a row has its own library alone)

    x, weight, bias = (ptxrt.to_device(array, problem["device"]) for array in inputs)
    return ptxrt.ops.group_norm(x, weight, bias, groups=problem["groups"], eps=EPS).to_host()


def _cuda_core(problem: dict[str, Any], inputs: Inputs) -> Any:
    from cuda.bindings import driver  # noqa: PLC0415
    from cuda.core import Device, LaunchConfig, ObjectCode, launch  # noqa: PLC0415

    device = Device(problem["ordinal"])
    device.set_current()
    stream = device.default_stream
    out = np.empty_like(inputs[0])
    hosts = dict(zip(("x", "weight", "bias", "out"), (*inputs, out), strict=True))
    buffers = {name: device.memory_resource.allocate(host.nbytes, stream=stream) for name, host in hosts.items()}
    buffers["workspace"] = device.memory_resource.allocate(max(problem["workspace"], 1), stream=stream)
    at = {name: int(buffer.handle) for name, buffer in buffers.items()}
    for name in ("x", "weight", "bias"):
        _check(driver.cuMemcpyHtoD(at[name], hosts[name].ctypes.data, hosts[name].nbytes))
    for step in problem["launches"]:
        kernel = ObjectCode.from_cubin(Path(step["cubin"]).read_bytes()).get_kernel(step["entry"])
        config = LaunchConfig(grid=tuple(step["grid"]), block=step["block"], shmem_size=step["shared_bytes"])
        arguments = [
            np.dtype(kind).type(value) if kind else at[value[0]] + value[1] for kind, value in step["arguments"]
        ]
        launch(stream, config, kernel, *arguments)
    _check(driver.cuMemcpyDtoH(out.ctypes.data, at["out"], out.nbytes))
    return out


def _check(answer: Any) -> None:
    if int(answer[0]):
        raise RuntimeError(str(answer[0]))


def _torch(problem: dict[str, Any], inputs: Inputs) -> Any:
    import torch  # noqa: PLC0415

    x, weight, bias = (torch.from_numpy(array).to(problem["device"]) for array in inputs)
    return torch.nn.functional.group_norm(x, problem["groups"], weight, bias, EPS).cpu().numpy()


def _cupy(problem: dict[str, Any], inputs: Inputs) -> Any:
    import cupy  # noqa: PLC0415

    with cupy.cuda.Device(problem["ordinal"]):
        return cupy.asnumpy(_formula(cupy, tuple(map(cupy.asarray, inputs)), problem["groups"]))


WAYS: dict[str, Callable[[dict[str, Any], Inputs], Any]] = {
    "numpy": _numpy,
    "ptxrt": _ptxrt,
    "cuda.core": _cuda_core,
    "torch": _torch,
    "cupy": _cupy,
}


def main() -> None:
    """Compute, print."""
    problem = json.loads(Path(sys.argv[2]).read_text())
    shape = problem["shape"]
    # No random numbers: numpy.random is a library of its own to import.
    x = (np.arange(np.prod(shape)) * 7919 % 257 / 64 - 2).astype(np.float32).reshape(shape)
    weight, bias = (np.linspace(low, 1, shape[1], dtype=np.float32) for low in (0.5, -1))
    y = WAYS[sys.argv[1]](problem, (x, weight, bias))
    at = time.monotonic_ns()
    exact = _formula(np, tuple(array.astype(np.float64) for array in (x, weight, bias)), problem["groups"])
    print(json.dumps({"at": at, "error": float(np.abs(y - exact).max())}))


if __name__ == "__main__":
    main()
