"""The rows of the launch benchmark: each makes a function that launches a number of times and returns.

All of them launch one kernel of five arguments, three pointers, a u32 and an f32, that does nothing; the rows of ops
compute group_norm of a small array, those of graphs replay ten of these; "to the end" is with a wait for the device
behind the last replay of a burst. What can be built ahead of a launch is built ahead, for every row alike.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cached_property, partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

import ptxrt
from ptxrt.compilers import nvjitlink

__all__ = ["Burst", "Setting", "empty_kernel", "peers"]

Burst = Callable[[int], None]

ENTRY = "empty_kernel"
EMPTY = """
// Nothing. ABI: (x_ptr, y_ptr, z_ptr, u32 n, f32 a).
.version 7.0
.target sm_70
.address_size 64

.visible .entry empty_kernel(
    .param .u64 x_ptr,
    .param .u64 y_ptr,
    .param .u64 z_ptr,
    .param .u32 n,
    .param .f32 a
)
{
    ret;
}
"""
SIGNATURE = "const f32* x, const f32* y, f32* z, u32 n, f32 a"
THREADS, COUNT, NUMBER, FACTOR = 32, 256, 7, 2.5
SHAPE, GROUPS = (2, 32, 8, 8), 8

LOOP_IN_C = """
typedef int (*launcher)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                        void **);

int replays(int (*launch)(void *, void *), void *graph, void *stream, int count) {
    for (int i = 0; i < count; i++) {
        int status = launch(graph, stream);
        if (status) return status;
    }
    return 0;
}

int burst(launcher launch, void *function, unsigned threads, void **parameters, int count) {
    for (int i = 0; i < count; i++) {
        int status = launch(function, 1, 1, 1, threads, 1, 1, 0, 0, parameters, 0);
        if (status) return status;
    }
    return 0;
}
"""


class Setting:
    """What the rows share: the device, three arrays, and the kernel as a cubin."""

    def __init__(self, device: ptxrt.Device) -> None:
        self.device = device
        self.arrays = [ptxrt.zeros(COUNT, np.float32, device) for _ in range(3)]

    @cached_property
    def cubin(self) -> bytes:
        """The empty kernel, compiled once for all rows that take a cubin."""
        return nvjitlink.compile_ptx(EMPTY, self.device.arch, entry=ENTRY).code

    @cached_property
    def function(self) -> Any:
        """The driver's handle of the empty kernel."""
        from cuda.bindings import driver  # noqa: PLC0415 (only where there is a CUDA device)

        library = _good(driver.cuLibraryLoadData(self.cubin, [], [], 0, [], [], 0))
        return _good(driver.cuKernelGetFunction(_good(driver.cuLibraryGetKernel(library, ENTRY.encode()))))

    @cached_property
    def parameters(self) -> Any:
        """A ``void*[5]`` that points at the packed arguments."""
        values: list[Any] = [ctypes.c_uint64(array.ptr) for array in self.arrays]
        values += [ctypes.c_uint32(NUMBER), ctypes.c_float(FACTOR)]
        table = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        table.values = values  # type: ignore[attr-defined]  # they live as long as the table
        return table


def peers(device: ptxrt.Device) -> dict[str, Callable[[], Burst]]:
    """Return what makes each row's function, by the row's name; calling it raises where the row cannot run."""
    setting = Setting(device)
    rows: dict[str, Callable[[Setting], Burst]] = {
        "ptxrt Kernel.launch": _kernel_launch,
        "ptxrt ops.group_norm, out=": _group_norm,
        "ptxrt Graph.replay, ten ops": _graph,
        "ptxrt Graph.replay, ten ops, to the end": partial(_to_the_end, _graph),
    }
    if device.kind == "cuda":
        rows |= {
            "ptxrt Kernel.launch, no context current": _kernel_launch_without_context,
            "cuda.core launch": _cuda_core,
            "cuda.bindings cuLaunchKernel, packed": _cuda_bindings,
            "C cuLaunchKernel": _c,
            "C cuGraphLaunch, ten ops": _c_graph,
            "C cuGraphLaunch, ten ops, to the end": partial(_to_the_end, _c_graph),
            "CuPy RawKernel": _cupy,
            "Triton @jit": _triton,
            "torch F.group_norm": _torch_group_norm,
            "torch.add, out=": _torch_add,
        }
    return {name: partial(make, setting) for name, make in rows.items()}


def empty_kernel(device: ptxrt.Device) -> Callable[[], None]:
    """Return a call that launches the kernel once."""
    return partial(peers(device)["ptxrt Kernel.launch"](), 1)


def _kernel_launch(setting: Setting) -> Burst:
    _make_current(setting)
    kernel = ptxrt.load(ptxrt.KernelSource.ptx(EMPTY, name=ENTRY), ENTRY, SIGNATURE, setting.device)
    x, y, z = setting.arrays

    def burst(count: int) -> None:
        for _ in repeat(None, count):
            kernel.launch(1, THREADS, x, y, z, NUMBER, FACTOR)

    return burst


def _kernel_launch_without_context(setting: Setting) -> Burst:
    """A thread in which nobody has made a context current: each launch makes it so, and puts back what was."""
    from cuda.bindings import driver  # noqa: PLC0415

    launch = _kernel_launch(setting)

    def burst(count: int) -> None:
        before = _good(driver.cuCtxGetCurrent())
        driver.cuCtxSetCurrent(0)
        try:
            launch(count)
        finally:
            driver.cuCtxSetCurrent(before)

    return burst


def _group_norm(setting: Setting) -> Burst:
    _make_current(setting)
    device, group_norm = setting.device, ptxrt.ops.group_norm
    x, out = ptxrt.zeros(SHAPE, np.float32, device), ptxrt.empty(SHAPE, np.float32, device)
    weight, bias = (ptxrt.zeros(SHAPE[1], np.float32, device) for _ in range(2))

    def burst(count: int) -> None:
        for _ in repeat(None, count):
            group_norm(x, weight, bias, GROUPS, out=out)

    return burst


def _graph(setting: Setting) -> Burst:
    ten = _group_norm(setting)
    with ptxrt.capture(setting.device.create_stream()) as graph:
        ten(10)
    replay = graph.replay

    def burst(count: int) -> None:
        for _ in repeat(None, count):
            replay()

    return burst


def _to_the_end(make: Callable[[Setting], Burst], setting: Setting) -> Burst:
    """The same with a wait at the end of a burst: once a replay is queued sooner than it has run, the device's time."""
    start, wait = make(setting), setting.device.synchronize

    def burst(count: int) -> None:
        start(count)
        wait()

    return burst


def _c_graph(setting: Setting) -> Burst:
    """The same graph, by the driver's own capture of the same ops, and launched in C."""
    from cuda.bindings import driver  # noqa: PLC0415

    ten, stream = _group_norm(setting), setting.device.create_stream()
    ten(1)  # loads the kernel, which a capture would not allow
    setting.device.synchronize()
    _good(driver.cuStreamBeginCapture(stream.handle, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    with stream:
        ten(10)
    captured = _good(driver.cuStreamEndCapture(stream.handle))
    graph = _good(driver.cuGraphInstantiate(captured, 0))
    _good(driver.cuGraphDestroy(captured))
    loop = _loops_in_c().replays
    loop.restype = ctypes.c_int
    loop.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
    launcher = ctypes.cast(ctypes.CDLL("libcuda.so.1").cuGraphLaunch, ctypes.c_void_p)
    handle = ctypes.c_void_p(int(graph))

    def burst(count: int, _keep: Any = (ten, stream)) -> None:  # its arrays and the stream
        status = loop(launcher, handle, stream.handle, count)
        if status:
            raise RuntimeError(f"cuGraphLaunch answers {status}")

    return burst


def _cuda_core(setting: Setting) -> Burst:
    from cuda.core import LaunchConfig, ObjectCode, launch  # noqa: PLC0415

    device = _make_current(setting)
    kernel = ObjectCode.from_cubin(setting.cubin).get_kernel(ENTRY)
    config = LaunchConfig(grid=1, block=THREADS)
    stream = device.default_stream
    # launch checks nothing: the caller must bring each argument in its width. An int goes out as a pointer.
    x, y, z = (array.ptr for array in setting.arrays)
    n, a = np.uint32(NUMBER), np.float32(FACTOR)

    def burst(count: int) -> None:
        for _ in repeat(None, count):
            launch(stream, config, kernel, x, y, z, n, a)

    return burst


def _cuda_bindings(setting: Setting) -> Burst:
    from cuda.bindings import driver  # noqa: PLC0415

    _make_current(setting)
    function, parameters = setting.function, setting.parameters
    address = ctypes.addressof(parameters)

    def burst(count: int, _keep: Any = parameters) -> None:
        for _ in repeat(None, count):
            driver.cuLaunchKernel(function, 1, 1, 1, THREADS, 1, 1, 0, 0, address, 0)

    return burst


def _loops_in_c() -> ctypes.CDLL:
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)
    if compiler is None:
        raise RuntimeError("no C compiler here: neither $CC nor cc, gcc, clang")
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "burst.c"), Path(folder, "burst.so")
        source.write_text(LOOP_IN_C)
        done = subprocess.run(
            [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{compiler} fails: {done.stderr.strip()}")
        return ctypes.CDLL(str(library))  # stays mapped when the file is gone


def _c(setting: Setting) -> Burst:
    _make_current(setting)
    loop = _loops_in_c().burst
    loop.restype = ctypes.c_int
    loop.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p, ctypes.c_int]
    launcher = ctypes.cast(ctypes.CDLL("libcuda.so.1").cuLaunchKernel, ctypes.c_void_p)
    function, parameters = ctypes.c_void_p(int(setting.function)), setting.parameters

    def burst(count: int) -> None:
        status = loop(launcher, function, THREADS, parameters, count)
        if status:
            raise RuntimeError(f"cuLaunchKernel answers {status}")

    return burst


def _cupy(setting: Setting) -> Burst:
    import cupy  # noqa: PLC0415 (a peer that need not be there)

    file = tempfile.NamedTemporaryFile(suffix=".cubin")  # noqa: SIM115 (CuPy may read it again, so it stays with burst)
    file.write(setting.cubin)
    file.flush()
    with cupy.cuda.Device(setting.device.ordinal):
        kernel = cupy.RawModule(path=file.name).get_function(ENTRY)
        x, y, z = (cupy.zeros(COUNT, cupy.float32) for _ in range(3))
    n, a = np.uint32(NUMBER), np.float32(FACTOR)

    def burst(count: int, _keep: Any = file) -> None:
        for _ in repeat(None, count):
            kernel((1,), (THREADS,), (x, y, z, n, a))

    return burst


def _triton(setting: Setting) -> Burst:
    from benchmarks.empty_triton import empty_kernel  # noqa: PLC0415

    x, y, z = _torch_zeros(setting, COUNT, 3)

    def burst(count: int) -> None:
        for _ in repeat(None, count):
            empty_kernel[(1,)](x, y, z, NUMBER, FACTOR, num_warps=1)

    return burst


def _torch_group_norm(setting: Setting) -> Burst:
    from torch.nn.functional import group_norm  # noqa: PLC0415

    (x,) = _torch_zeros(setting, SHAPE, 1)
    weight, bias = _torch_zeros(setting, SHAPE[1], 2)

    def burst(count: int) -> None:
        for _ in repeat(None, count):
            group_norm(x, GROUPS, weight, bias)

    return burst


def _torch_add(setting: Setting) -> Burst:
    import torch  # noqa: PLC0415

    x, y, z = _torch_zeros(setting, COUNT, 3)
    add = torch.add

    def burst(count: int) -> None:
        for _ in repeat(None, count):
            add(x, y, out=z)

    return burst


def _torch_zeros(setting: Setting, shape: Any, count: int) -> list[Any]:
    import torch  # noqa: PLC0415

    return [torch.zeros(shape, dtype=torch.float32, device=str(setting.device)) for _ in range(count)]


def _make_current(setting: Setting) -> Any:
    """Make the primary context current, as every one of the peers does and leaves it."""
    if setting.device.kind != "cuda":
        return None
    from cuda.core import Device  # noqa: PLC0415

    device = Device(setting.device.ordinal)
    device.set_current()
    return device


def _good(answer: tuple[Any, ...]) -> Any:
    """Return the value of a driver call, or raise for its status."""
    status, *values = answer
    if int(status):
        raise RuntimeError(f"the driver answers {status.name}")
    return values[0] if values else None
