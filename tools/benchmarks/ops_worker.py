"""Times calls of the ptxrt that lies in the current folder, as :mod:`benchmarks.ops_base` asks on standard input.

Each line is asked and answered in JSON. ``{"case": {...}}`` makes a case ready, ``{"host": NAME}`` one of
:data:`HOST`; ``{"time": COUNT}`` answers microseconds. What raises answers ``{"error": "..."}``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import ptxrt
from benchmarks.launch_peers import peers
from benchmarks.ops_calls import call, inputs, on_device, timer
from benchmarks.ops_cases import Case
from ptxrt import ops

__all__ = ["HOST"]

_SHAPE, _STRIDES, _GRID = (8, 320, 64, 64), (320 * 4096, 4096, 64, 1), (8, 64, 64, 2)
# What a descriptor takes after the shape.
_PROBLEMS: dict[str, tuple[Any, ...]] = {
    "GroupNorm": (32,),
    "GroupNormBackward": (32,),
    "Softmax2d": (),
    "Softmax2dBackward": (),
    "BatchNorm": (True,),
    "BatchNormBackward": (True,),
    "LocalResponseNorm": (5,),
    "LocalResponseNormBackward": (5,),
    "UpsampleNearest2d": (_STRIDES, 128, 128),
    "GridSample": (_GRID,),
    "GridSampleBackward": (_GRID,),
}
HOST = ("Kernel.launch", "ops.group_norm, out=", *(f"{name}Plan.select" for name in _PROBLEMS))


def _on_device(device: ptxrt.Device, case: Case) -> Callable[[int], list[float]]:
    """Return what times a number of calls on the device."""
    return timer(device, call(case, {name: on_device(case, array, device) for name, array in inputs(case).items()}))


def _on_host(device: ptxrt.Device, name: str) -> Callable[[int], list[float]]:
    """Return what times a burst of calls on the host, and answers one number: that of a call."""
    burst = _selection(device, name) if name.endswith(".select") else peers(device)[f"ptxrt {name}"]()

    def timed(count: int) -> list[float]:
        device.synchronize()
        started = time.perf_counter_ns()
        burst(count)
        return [(time.perf_counter_ns() - started) / count / 1e3]

    return timed


def _selection(device: ptxrt.Device, name: str) -> Callable[[int], None]:
    op = name.removesuffix("Plan.select")
    problem = getattr(ops, f"{op}Descriptor")(_SHAPE, *_PROBLEMS[op])
    select = getattr(ops, f"{op}Plan").select

    def burst(count: int) -> None:
        for _ in range(count):
            select(device, problem)

    return burst


def _answers(device: ptxrt.Device) -> Callable[[dict[str, Any]], Any]:
    timed: list[Callable[[int], list[float]]] = []

    def answer(asked: dict[str, Any]) -> Any:
        if "time" in asked:
            return timed[0](asked["time"])
        timed.clear()  # first, so that the arrays of two cases never lie in memory together
        if "case" in asked:
            given = asked["case"]
            case = Case(**{**given, "shape": tuple(given["shape"]), "size": tuple(given["size"])})
            timed.append(_on_device(device, case))
        else:
            timed.append(_on_host(device, asked["host"]))
        return "ready"

    return answer


def main() -> None:
    """Answer until standard input ends."""
    device = ptxrt.Device(sys.argv[1])
    answer = _answers(device)
    print(json.dumps({"ptxrt": ptxrt.__file__, "name": device.name}), flush=True)
    for line in sys.stdin:
        try:
            told = answer(json.loads(line))
        except Exception as error:  # noqa: BLE001 (whatever a version of ptxrt raises is the row's)
            told = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
