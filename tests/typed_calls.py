"""Calls that a type checker takes, and wrong ones that it refuses. `make lint` tests them: mypy, strict, reads tests/.

Nothing runs this file. A wrong call stands under ``type: ignore`` with its error; were it none, mypy would report the
comment as unused.
"""

from __future__ import annotations

import numpy as np
from typing_extensions import assert_type

import ptxrt
from ptxrt import ops


class Interface:
    """Another library's array."""

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {}


class ForeignStream:
    """Another library's stream."""

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, 0)


def launches(kernel: ptxrt.Kernel, x: ptxrt.DeviceArray) -> None:
    kernel.launch(1, (32, 1), x, Interface(), np.zeros(3), None, 1, 2.5, np.float32(2), stream=ForeignStream())
    kernel.launch(1, 32, stream=x.device.default_stream)
    kernel.launch(1, 32, stream="0")  # type: ignore[arg-type]
    kernel.launch(1, 32, "x")  # type: ignore[arg-type]
    kernel.launch(1, 32, (1, 2), [1.5, 2], {"x": 1}, bytes(4), cooperative=True)
    kernel.cooperative[1, 32](x, n=5)
    kernel.cooperative[1, 32]("x")  # type: ignore[arg-type]
    assert_type(kernel.sibling("k", "f32* x"), ptxrt.Kernel)


def arrays_and_streams(x: ptxrt.DeviceArray) -> None:
    arrays: list[ptxrt.DeviceArrayLike] = [x, Interface(), np.zeros(3)]
    streams: list[ptxrt.StreamLike] = [ForeignStream(), x.device.default_stream]
    for array in arrays:
        assert_type(ptxrt.from_dlpack(array, stream=streams[0]), ptxrt.DeviceArray)
    ptxrt.to_device([1.0, 2.0], stream=streams[1]).to_host(ForeignStream())
    x.device.default_stream.wait(ForeignStream())
    x.device.default_stream.wait(ptxrt.Event("sim"))
    x.device.default_stream.wait(0)  # type: ignore[arg-type]
    ptxrt.zeros(3, stream=0)  # type: ignore[arg-type]
    ptxrt.from_dlpack([1.0])  # type: ignore[arg-type]


def functions_of_ops(x: ptxrt.DeviceArray) -> None:
    assert_type(ops.softmax2d(Interface(), out=x, stream=ForeignStream()), ptxrt.DeviceArray)
    assert_type(ops.group_norm(x, None, None, 2), ptxrt.DeviceArray)
    result = ops.batch_norm(x, None, None, None, None, training=True)
    assert_type(result, ops.BatchNormResult)
    assert_type(result.batch_mean, ptxrt.DeviceArray | None)
    assert_type(ops.local_response_norm(x, 5, out=(x, None)).denom, ptxrt.DeviceArray)
    ops.softmax2d([1.0])  # type: ignore[arg-type]
    ops.softmax2d(x, stream=0)  # type: ignore[arg-type]
    ops.softmax2d(x, x)  # type: ignore[call-arg]
    ops.group_norm(x, None, None, groups="2")  # type: ignore[arg-type]
    ops.group_norm_backward(x, x, None, 2, out=x)  # type: ignore[arg-type]
    ops.batch_norm(x, None, None, None, None)  # type: ignore[call-arg]


def plans_of_ops(x: ptxrt.DeviceArray) -> None:
    problem = ops.Softmax2dDescriptor(x.shape)
    plan = ops.Softmax2dPlan.select("sim", problem, ptxrt.PlanPreference(language="hip"))
    assert_type(plan, ops.Softmax2dPlan)
    assert_type(plan.descriptor, ops.Softmax2dDescriptor)
    assert_type(plan.run(ops.Softmax2dArgs(x), ForeignStream(), Interface()), ptxrt.DeviceArray)
    plan.run(ops.Softmax2dBackwardArgs(x, x))  # type: ignore[arg-type]
    plan.can_implement(ops.GroupNormArgs(x))  # type: ignore[arg-type]
    plan.run(ops.Softmax2dArgs())  # type: ignore[call-arg]
    plan.run(ops.Softmax2dArgs(x), workspace=0)  # type: ignore[arg-type]
    ops.Softmax2dPlan.select("sim", ops.Softmax2dBackwardDescriptor(x.shape))  # type: ignore[arg-type]
    ops.Softmax2dPlan.select(0, problem)  # type: ignore[arg-type]
