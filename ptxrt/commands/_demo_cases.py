"""What ``ptxrt demo`` runs: every op at shapes of real networks, and a kernel written right here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxrt import ops
from ptxrt.ops import references
from ptxrt.ops.framework.plan import preferred_language
from ptxrt.runtime.array import empty, to_device
from ptxrt.runtime.device import Device
from ptxrt.runtime.kernel import load
from ptxrt.runtime.source import KernelSource

__all__ = ["SAXPY", "Case", "cases", "language"]

SAXPY = """
// y = a*x + y, rounded once. Grid: ceil(n / 256) blocks of 256 threads. ABI: (x_ptr, y_ptr, u32 n, f32 a).
.version 7.0
.target sm_70
.address_size 64

.visible .entry saxpy(.param .u64 x_ptr, .param .u64 y_ptr, .param .u32 n, .param .f32 a)
{
    .reg .pred %outside;
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
    setp.ge.u32 %outside, %i, %n;
    @%outside ret;

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

SAXPY_HIP = """
// y = a*x + y, rounded once. Grid: ceil(n / 256) blocks of 256 threads.
extern "C" __global__ void saxpy(const float* x_ptr, float* y_ptr, unsigned int n, float a) {
    const unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y_ptr[i] = fmaf(a, x_ptr[i], y_ptr[i]);
}
"""

Array = NDArray[Any]

# Relative errors of a whole result: the bars of the tests. saxpy is rounded once, half an ulp.
_NORMALISATION, _SAXPY, _EXACT = 2e-7, 6e-8, 0.0


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Attributes
    ----------
    op, network, shape
        What is run, and where such a shape comes from.
    call
        Runs it, and returns the device arrays that came of it; they are compared after its first run. It asks the
        module cache for its kernels again once plans are forgotten.
    reference
        What should have come of it, in float64.
    bar
        The largest ``||result - reference|| / ||reference||`` of a result that passes.
    """

    op: str
    network: str
    shape: tuple[int, ...]
    call: Callable[[], tuple[Any, ...]]
    reference: Callable[[], tuple[Any, ...]]
    bar: float


def language(device: Device) -> str:
    """Return the language of the kernels that the demo runs on `device`."""
    return preferred_language() or device.backend.languages[0]


def cases(device: Device) -> list[Callable[[], Case]]:
    """Return what builds each case; built one at a time, since the largest take some gigabytes of host memory.

    A machine in NumPy gets smaller images and batches than a GPU.
    """
    small = device.kind == "sim"
    rng = np.random.default_rng(2026)
    return [
        lambda make=make, shapes=shapes, network=network: make(device, rng, network, shapes[small])  # type: ignore[misc]
        for make, network, *shapes in _ROWS
    ]


def _normal(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Array:
    """Activations as layers have them: neither centred nor of deviation 1."""
    return (1.5 * rng.standard_normal(shape, np.float32) + 0.5).astype(dtype)


def _saxpy(device: Device, rng: np.random.Generator, network: str, shape: tuple[int, ...]) -> Case:
    (n,) = shape
    x, y = (rng.standard_normal(n, np.float32) for _ in range(2))
    write, text = (KernelSource.hip, SAXPY_HIP) if language(device) == "hip" else (KernelSource.ptx, SAXPY)
    source = write(text, name="saxpy of the demo")
    there, result = to_device(x, device), to_device(y, device)

    def call() -> tuple[Any, ...]:
        kernel = load(source, "saxpy", "const f32* x[n], f32* y[n], u32 n, f32 a", device)
        kernel.launch(-(-n // 256), 256, there, result, n, 2.5)
        return (result,)

    return Case("saxpy", network, shape, call, lambda: (2.5 * x.astype(np.float64) + y,), _SAXPY)


def _group_norm(device: Device, rng: np.random.Generator, network: str, shape: tuple[int, ...]) -> Case:
    x, w, b = _normal(rng, *shape), _normal(rng, shape[1]), _normal(rng, shape[1])
    (x_, w_, b_), out = _there(device, x, w, b), empty(shape, np.float32, device)
    return Case(
        "group_norm",
        network,
        shape,
        lambda: (ops.group_norm(x_, w_, b_, 32, 1e-6, out=out),),
        lambda: (references.group_norm(x, w, b, 32, 1e-6),),
        _NORMALISATION,
    )


def _group_norm_backward(device: Device, rng: np.random.Generator, network: str, shape: tuple[int, ...]) -> Case:
    go, x, w = _normal(rng, *shape), _normal(rng, *shape), _normal(rng, shape[1])
    (go_, x_, w_), out = _there(device, go, x, w), _outputs(device, shape, (shape[1],), (shape[1],))
    return Case(
        "group_norm_backward",
        network,
        shape,
        lambda: tuple(ops.group_norm_backward(go_, x_, w_, 32, out=out)),
        lambda: references.group_norm_backward(go, x, w, 32),
        _NORMALISATION,
    )


def _batch_norm(
    device: Device, rng: np.random.Generator, network: str, shape: tuple[int, ...], training: bool = True
) -> Case:
    x, w, b, mean = _normal(rng, *shape), *(_normal(rng, shape[1]) for _ in range(3))
    var = np.abs(mean) + np.float32(0.5)
    args = _there(device, x, w, b, mean, var)
    channels = [(shape[1],)] * 2
    out = _outputs(device, shape, *channels) if training else (*_outputs(device, shape), None, None)
    return Case(
        "batch_norm",
        network,
        shape,
        lambda: tuple(ops.batch_norm(*args, training=training, out=out)),
        lambda: references.batch_norm(x, w, b, mean, var, training=training),
        _NORMALISATION,
    )


def _batch_norm_eval(device: Device, rng: np.random.Generator, network: str, shape: tuple[int, ...]) -> Case:
    return _batch_norm(device, rng, network, shape, training=False)


def _batch_norm_backward(device: Device, rng: np.random.Generator, network: str, shape: tuple[int, ...]) -> Case:
    go, x, w = _normal(rng, *shape), _normal(rng, *shape), _normal(rng, shape[1])
    (go_, x_, w_), out = _there(device, go, x, w), _outputs(device, shape, (shape[1],), (shape[1],))
    return Case(
        "batch_norm_backward",
        network,
        shape,
        lambda: tuple(ops.batch_norm_backward(go_, x_, w_, None, None, training=True, out=out)),
        lambda: references.batch_norm_backward(go, x, w, None, None, training=True),
        _NORMALISATION,
    )


def _softmax2d(device: Device, rng: np.random.Generator, network: str, shape: tuple[int, ...]) -> Case:
    x = 3 * _normal(rng, *shape)
    (there,), out = _there(device, x), empty(shape, np.float32, device)
    return Case(
        "softmax2d",
        network,
        shape,
        lambda: (ops.softmax2d(there, out=out),),
        lambda: (references.softmax2d(x),),
        _NORMALISATION,
    )


def _softmax2d_backward(device: Device, rng: np.random.Generator, network: str, shape: tuple[int, ...]) -> Case:
    go, y = _normal(rng, *shape), references.softmax2d(_normal(rng, *shape)).astype(np.float32)
    args, out = _there(device, go, y), empty(shape, np.float32, device)
    return Case(
        "softmax2d_backward",
        network,
        shape,
        lambda: (ops.softmax2d_backward(*args, out=out),),
        lambda: (references.softmax2d_backward(go, y),),
        _NORMALISATION,
    )


def _local_response_norm(device: Device, rng: np.random.Generator, network: str, shape: tuple[int, ...]) -> Case:
    x = 20 * _normal(rng, *shape)
    (there,), out = _there(device, x), _outputs(device, shape, shape)
    return Case(
        "local_response_norm",
        network,
        shape,
        lambda: tuple(ops.local_response_norm(there, 5, 1e-4, 0.75, 2.0, out=out)),
        lambda: references.local_response_norm(x, 5, 1e-4, 0.75, 2.0),
        _NORMALISATION,
    )


def _local_response_norm_backward(
    device: Device, rng: np.random.Generator, network: str, shape: tuple[int, ...]
) -> Case:
    go, x = _normal(rng, *shape), 20 * _normal(rng, *shape)
    denom = references.local_response_norm(x, 5, 1e-4, 0.75, 2.0)[1].astype(np.float32)
    (go_, x_, denom_), out = _there(device, go, x, denom), empty(shape, np.float32, device)
    return Case(
        "local_response_norm_backward",
        network,
        shape,
        lambda: (ops.local_response_norm_backward(go_, x_, denom_, 5, out=out),),
        lambda: (references.local_response_norm_backward(go, x, denom, 5, 1e-4, 0.75),),
        _NORMALISATION,
    )


def _upsample_nearest2d(device: Device, rng: np.random.Generator, network: str, shape: tuple[int, ...]) -> Case:
    n, c, h, w = shape
    x = _normal(rng, *shape, dtype=np.float16)
    (there,), out = _there(device, x), empty((n, c, 2 * h, 2 * w), np.float16, device)
    return Case(
        "upsample_nearest2d f16 x2",
        network,
        shape,
        lambda: (ops.upsample_nearest2d(there, 2 * h, 2 * w, out=out),),
        lambda: (references.upsample_nearest2d(x, 2 * h, 2 * w),),
        _EXACT,
    )


def _upsample_nearest2d_backward(
    device: Device, rng: np.random.Generator, network: str, shape: tuple[int, ...]
) -> Case:
    n, c, h, w = shape
    go = _normal(rng, n, c, 2 * h, 2 * w)
    (there,), out = _there(device, go), empty(shape, np.float32, device)
    return Case(
        "upsample_nearest2d_backward x2",
        network,
        shape,
        lambda: (ops.upsample_nearest2d_backward(there, h, w, out=out),),
        lambda: (references.upsample_nearest2d_backward(go, h, w),),
        _NORMALISATION,
    )


def _layer_norm(device: Device, rng: np.random.Generator, network: str, shape: tuple[int, ...]) -> Case:
    x, w, b = _normal(rng, *shape), _normal(rng, shape[-1]), _normal(rng, shape[-1])
    args, out = _there(device, x, w, b), empty(shape, np.float32, device)
    return Case(
        "layer_norm",
        network,
        shape,
        lambda: (ops.layer_norm(args[0], shape[-1], *args[1:], out=out),),
        lambda: (references.layer_norm(x, shape[-1:], w, b),),
        _NORMALISATION,
    )


def _layer_norm_backward(device: Device, rng: np.random.Generator, network: str, shape: tuple[int, ...]) -> Case:
    go, x, w = _normal(rng, *shape), _normal(rng, *shape), _normal(rng, shape[-1])
    (go_, x_, w_), out = _there(device, go, x, w), _outputs(device, shape, shape[-1:], shape[-1:])
    return Case(
        "layer_norm_backward",
        network,
        shape,
        lambda: tuple(ops.layer_norm_backward(go_, x_, shape[-1], w_, out=out)),
        lambda: references.layer_norm_backward(go, x, shape[-1:], w),
        _NORMALISATION,
    )


def _rms_norm(device: Device, rng: np.random.Generator, network: str, shape: tuple[int, ...]) -> Case:
    x, w = _normal(rng, *shape), _normal(rng, shape[-1])
    (x_, w_), out = _there(device, x, w), empty(shape, np.float32, device)
    return Case(
        "rms_norm",
        network,
        shape,
        lambda: (ops.rms_norm(x_, shape[-1], w_, out=out),),
        lambda: (references.rms_norm(x, shape[-1:], w),),
        _NORMALISATION,
    )


def _rms_norm_backward(device: Device, rng: np.random.Generator, network: str, shape: tuple[int, ...]) -> Case:
    go, x, w = _normal(rng, *shape), _normal(rng, *shape), _normal(rng, shape[-1])
    (go_, x_, w_), out = _there(device, go, x, w), _outputs(device, shape, shape[-1:])
    return Case(
        "rms_norm_backward",
        network,
        shape,
        lambda: tuple(ops.rms_norm_backward(go_, x_, shape[-1], w_, out=out)),
        lambda: references.rms_norm_backward(go, x, shape[-1:], w),
        _NORMALISATION,
    )


def _points(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return images, and a grid of their own size over each: turned by a small angle, and scaled."""
    n, _, h, w = shape
    y, x = np.meshgrid(np.linspace(-1, 1, h), np.linspace(-1, 1, w), indexing="ij")
    turn = 0.3 * rng.standard_normal((n, 1, 1))
    grid = np.stack([np.cos(turn) * x - np.sin(turn) * y, np.sin(turn) * x + np.cos(turn) * y], axis=-1)
    return _normal(rng, *shape), np.float32(1.1 * grid)


def _grid_sample(device: Device, rng: np.random.Generator, network: str, shape: tuple[int, ...]) -> Case:
    x, grid = _points(rng, shape)
    args, out = _there(device, x, grid), empty(shape, np.float32, device)
    return Case(
        "grid_sample",
        network,
        shape,
        lambda: (ops.grid_sample(*args, out=out),),
        lambda: (references.grid_sample(x, grid),),
        _grid_bar(shape),
    )


def _grid_sample_backward(device: Device, rng: np.random.Generator, network: str, shape: tuple[int, ...]) -> Case:
    (x, grid), go = _points(rng, shape), _normal(rng, *shape)
    args, out = _there(device, go, x, grid), _outputs(device, shape, grid.shape)

    # grad_grid jumps where a point lies on a pixel, so that it is compared by the tests, which leave such points out.
    return Case(
        "grid_sample_backward",
        network,
        shape,
        lambda: (ops.grid_sample_backward(*args, out=out)[0],),
        lambda: (references.grid_sample_backward(go, x, grid)[0],),
        _grid_bar(shape),
    )


def _grid_bar(shape: tuple[int, ...]) -> float:
    """A coordinate is rounded at the size of the image, and its error goes into the weights."""
    return float(4 * np.finfo(np.float32).eps * max(shape[2:]))


def _there(device: Device, *arrays: Array) -> Any:
    return tuple(to_device(array, device) for array in arrays)


def _outputs(device: Device, *shapes: tuple[int, ...]) -> Any:
    return tuple(empty(shape, np.float32, device) for shape in shapes)


# Op, network, shape on a GPU, shape on sim.
_ROWS: list[tuple[Callable[..., Case], str, tuple[int, ...], tuple[int, ...]]] = [
    (_saxpy, "a kernel of one's own", (1 << 24,), (1 << 14,)),
    (_group_norm, "Stable Diffusion, VAE", (1, 512, 64, 64), (1, 512, 16, 16)),
    (_group_norm, "Stable Diffusion, VAE", (1, 512, 128, 128), (1, 512, 32, 32)),
    (_group_norm, "Stable Diffusion, VAE", (1, 256, 256, 256), (1, 256, 64, 64)),
    (_group_norm, "Stable Diffusion, VAE", (1, 128, 512, 512), (1, 128, 128, 128)),
    (_group_norm, "Stable Diffusion, UNet", (8, 320, 64, 64), (2, 320, 16, 16)),
    (_group_norm_backward, "Stable Diffusion, UNet", (8, 640, 32, 32), (2, 640, 8, 8)),
    (_upsample_nearest2d, "Stable Diffusion, VAE", (1, 512, 64, 64), (1, 128, 32, 32)),
    (_upsample_nearest2d_backward, "Stable Diffusion, VAE", (1, 512, 64, 64), (1, 32, 32, 32)),
    (_batch_norm, "ResNet-50, conv1, training", (32, 64, 112, 112), (2, 64, 28, 28)),
    (_batch_norm_eval, "ResNet-50, layer4, eval", (32, 2048, 7, 7), (2, 2048, 7, 7)),
    (_batch_norm_backward, "ResNet-50, layer1, training", (32, 256, 56, 56), (2, 256, 14, 14)),
    (_local_response_norm, "AlexNet, norm1", (128, 96, 55, 55), (1, 96, 27, 27)),
    (_local_response_norm_backward, "AlexNet, norm1", (128, 96, 55, 55), (1, 96, 27, 27)),
    (_softmax2d, "segmentation head, 21 classes", (8, 21, 512, 512), (1, 21, 64, 64)),
    (_softmax2d_backward, "segmentation head, 21 classes", (8, 21, 512, 512), (1, 21, 64, 64)),
    (_layer_norm, "BERT-large", (16, 512, 1024), (2, 16, 1024)),
    (_layer_norm_backward, "BERT-large", (16, 512, 1024), (2, 16, 1024)),
    (_rms_norm, "Llama, 7B", (2, 2048, 4096), (1, 16, 4096)),
    (_rms_norm_backward, "Llama, 7B", (2, 2048, 4096), (1, 16, 4096)),
    (_grid_sample, "spatial transformer", (64, 3, 32, 32), (4, 3, 32, 32)),
    (_grid_sample_backward, "spatial transformer", (64, 3, 32, 32), (4, 3, 32, 32)),
]
