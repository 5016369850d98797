"""``ptxrt demo``: group_norm at the shapes of Stable Diffusion's VAE, and a kernel written right here, both checked."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxrt import __version__
from ptxrt.array import DeviceArray, empty, to_device
from ptxrt.device import Device
from ptxrt.errors import PtxrtError
from ptxrt.kernel import load
from ptxrt.ops import GroupNormArgs, GroupNormDescriptor, GroupNormPlan
from ptxrt.source import KernelSource

__all__ = ["Case", "cases", "run"]

SAXPY = """
// y = a*x + y, rounded once. Grid: ceil(n / 256) blocks of 256 threads. ABI: (x_ptr, y_ptr, u32 n, f32 a).
.version 7.0
.target sm_70
.address_size 64

.visible .entry saxpy(.param .u64 x_ptr, .param .u64 y_ptr, .param .u32 n, .param .f32 a)
{
    .reg .pred %beyond;
    .reg .b32 %i, %block, %threads, %n;
    .reg .b64 %x, %y, %offset;
    .reg .f32 %a, %xi, %yi;

    ld.param.u64 %x, [x_ptr];
    ld.param.u64 %y, [y_ptr];
    ld.param.u32 %n, [n];
    ld.param.f32 %a, [a];
    mov.u32 %i, %tid.x;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mad.lo.u32 %i, %block, %threads, %i;
    setp.ge.u32 %beyond, %i, %n;
    @%beyond ret;

    cvta.to.global.u64 %x, %x;
    cvta.to.global.u64 %y, %y;
    mul.wide.u32 %offset, %i, 4;
    add.u64 %x, %x, %offset;
    add.u64 %y, %y, %offset;
    ld.global.f32 %xi, [%x];
    ld.global.f32 %yi, [%y];
    fma.rn.f32 %yi, %a, %xi, %yi;
    st.global.f32 [%y], %yi;
    ret;
}
"""

# group_norm in the decoder of Stable Diffusion's VAE, 32 groups throughout, for an image of 512 x 512 and, where a
# machine in NumPy has to do it, of 256 x 256.
_GPU_SHAPES = ((1, 512, 64, 64), (1, 512, 128, 128), (1, 256, 256, 256), (1, 128, 512, 512))
_SIM_SHAPES = ((1, 512, 32, 32), (1, 512, 64, 64), (1, 256, 128, 128), (1, 128, 256, 256))
_GROUPS, _EPS = 32, 1e-6

# Relative errors of the whole result. group_norm: a few roundings an element. saxpy: one, half an ulp.
_GROUP_NORM_BAR, _SAXPY_BAR = 2e-7, 6e-8

_LINE = "{:10}  {:18}  {:>10}  {:>9}  {:>9}  {:>7}  {:>10}  {}"

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Attributes
    ----------
    kernel, shape
        What is run.
    prepare
        Called twice, it returns a launcher that goes through the module cache again.
    result, reference
        What the launcher left behind after its first launch, and what it should be, in float64.
    bar
        The largest ``||result - reference|| / ||reference||`` that passes.
    """

    kernel: str
    shape: tuple[int, ...]
    prepare: Callable[[], Callable[[], object]]
    result: DeviceArray
    reference: Array
    bar: float


def run(device: Device, say: Callable[[str], None]) -> int:
    """Run the demo on `device`, tell of it line by line through `say`, and return the exit code."""
    on_gpu = device.kind != "sim"
    say(f"ptxrt {__version__} on {device}: {device.name}, {device.arch}, driver {device.properties.driver}")
    if not on_gpu:
        say(
            "No GPU is used: this is ptxrt's PTX machine, which runs the same PTX text in NumPy. Its shapes are\n"
            "those of an image of 256 x 256, not 512 x 512; its compile is its parser, which remembers what it has\n"
            "read; its times say nothing about a GPU's."
        )
    say(f"compiler for PTX: {device.backend.compiler('ptx')}")
    say("")
    unit = "us" if on_gpu else "ms"
    say(_LINE.format("kernel", "shape", "compile ms", "2nd call", "error", "bar", f"warm {unit}", ""))
    passed = []
    for build in cases(device):
        # Each row starts cold: the row before has dropped its kernels, so that nothing holds their module.
        device.modules.clear()
        passed.append(_row(device, build, say))
    say("")
    say(f"parity: {sum(passed)} of {len(passed)} agree with the float64 reference" + ("" if all(passed) else ": FAIL"))
    return 0 if all(passed) else 1


def cases(device: Device) -> list[Callable[[], Case]]:
    """Return what builds each row; built one at a time, since the largest takes some gigabytes of host memory."""
    shapes = _SIM_SHAPES if device.kind == "sim" else _GPU_SHAPES
    count = 1 << (14 if device.kind == "sim" else 24)
    rows: list[Callable[[], Case]] = [lambda: _saxpy(device, count)]
    return rows + [lambda shape=shape: _group_norm(device, shape) for shape in shapes]


def _saxpy(device: Device, count: int) -> Case:
    rng = np.random.default_rng(1)
    x, y = (rng.standard_normal(count, np.float32) for _ in range(2))
    on_device, result = to_device(x, device), to_device(y, device)

    def prepare() -> Callable[[], object]:
        source = KernelSource.ptx(SAXPY, name="saxpy of the demo")
        kernel = load(source, "saxpy", "const f32* x[n], f32* y[n], u32 n, f32 a", device)
        return lambda: kernel.launch(-(-count // 256), 256, on_device, result, count, 2.5)

    return Case("saxpy", (count,), prepare, result, 2.5 * x.astype(np.float64) + y, _SAXPY_BAR)


def _group_norm(device: Device, shape: tuple[int, ...]) -> Case:
    rng = np.random.default_rng(2)
    x = rng.standard_normal(shape, np.float32) * np.float32(1.5) + np.float32(0.5)
    weight, bias = (rng.standard_normal(shape[1], np.float32) for _ in range(2))
    result = empty(shape, np.float32, device)
    operands = GroupNormArgs(to_device(x, device), to_device(weight, device), to_device(bias, device), result)

    def prepare() -> Callable[[], object]:
        # A plan of its own: ops.group_norm would keep one, and never ask the module cache again.
        plan = GroupNormPlan.select(device, GroupNormDescriptor(shape, _GROUPS, eps=_EPS))
        return lambda: plan.run(operands)

    return Case("group_norm", shape, prepare, result, _normalised(x, weight, bias), _GROUP_NORM_BAR)


def _normalised(x: Array, weight: Array, bias: Array) -> Array:
    """group_norm in float64, in two passes."""
    groups = x.astype(np.float64).reshape(x.shape[0], _GROUPS, -1)
    groups -= groups.mean(-1, keepdims=True)
    groups /= np.sqrt(np.square(groups).mean(-1, keepdims=True) + _EPS)
    per_channel = (1, -1) + (1,) * (x.ndim - 2)
    return np.asarray(groups.reshape(x.shape) * weight.reshape(per_channel) + bias.reshape(per_channel))


def _row(device: Device, build: Callable[[], Case], say: Callable[[str], None]) -> bool:
    """Run one row and say it; an error is a FAIL, and the rows behind it run still."""
    try:
        case = build()
        before = device.modules.stats()
        case.prepare()()
        first = device.modules.stats()
        error = _relative_error(case.result.to_host(), case.reference)
        warm = case.prepare()
        warm()
        second = device.modules.stats()
        time_of_warm = _microseconds(device, warm) if device.kind != "sim" else _seconds(warm) * 1e3
    except PtxrtError as failure:
        say(f"FAIL: {failure}")
        return False
    cached = second.compiles == first.compiles and second.hits > first.hits
    good = cached and error <= case.bar
    compiled = first.compiles > before.compiles
    say(
        _LINE.format(
            case.kernel,
            "x".join(map(str, case.shape)),
            f"{(first.compile_seconds - before.compile_seconds) * 1e3:.1f}" if compiled else "loaded",
            "hit" if cached else "MISS",
            f"{error:.1e}",
            f"{case.bar:.0e}",
            f"{time_of_warm:.1f}",
            "pass" if good else "FAIL",
        )
    )
    return good


def _relative_error(result: Array, reference: Array) -> float:
    error = np.linalg.norm((result - reference).ravel()) / np.linalg.norm(reference.ravel())
    return float(error) if math.isfinite(error) else math.inf


def _seconds(launch: Callable[[], object]) -> float:
    started = time.perf_counter()
    launch()
    return time.perf_counter() - started


def _microseconds(device: Device, launch: Callable[[], object]) -> float:
    """Return the median time of a launch on the device, between two events of its stream."""
    stream, pairs = device.default_stream, []
    for _ in range(20):
        # None is waited for before the last is queued, so that the device does not idle between the events.
        start = stream.record()
        launch()
        pairs.append((start, stream.record()))
    return statistics.median(start.elapsed_ms(end) * 1e3 for start, end in pairs)
