"""What the ops cost on a GPU: ptxrt beside torch, at shapes of real networks, the L2 cache cleared before each run.

Every row names the fewest bytes that the op must move: each input read once, each output written once. Its floor is the
time of those bytes at the speed of a device-to-device copy, measured in the same run. ptxrt and torch take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ptxrt
from benchmarks.report import ROOT, environment, markdown_table, save, slug
from ptxrt import ops

__all__ = ["HELP", "NAME", "Row", "add_arguments", "rows", "run", "table"]

NAME = "ops"
HELP = "time of each op on the device: ptxrt, torch eager, and torch.compile with --compile"

Call = Callable[[], object]
_CLEARED = 256 << 20  # bytes; several times any L2


@dataclass(frozen=True)
class Row:
    """An op at a shape.

    Attributes
    ----------
    op, case
        What is run.
    nbytes
        The fewest bytes that it must move.
    ours, eager
        A call each.
    compiled
        What torch.compile is given, and its arguments; None where torch cannot compile the call in question.
    """

    op: str
    case: str
    nbytes: int
    ours: Call
    eager: Call
    compiled: tuple[Callable[..., object], tuple[Any, ...]] | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--only", default="", help="run the rows whose op begins with this")
    parser.add_argument("--runs", type=int, default=30, help="timed runs of each row (30)")
    parser.add_argument("--language", choices=("ptx", "hip"), default="ptx", help="of ptxrt's kernels (ptx)")
    parser.add_argument("--compile", action="store_true", help="time torch.compile too, which takes minutes")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", help="folder for the .json and the .md")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a float32 row is slower than torch eager")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, store; return 1 if ``--check`` is given and a float32 row is slower than torch eager."""
    try:
        device = ptxrt.Device("cuda:0")
        import torch  # noqa: PLC0415 (not a dependency of ptxrt)
    except (ptxrt.PtxrtError, ImportError) as error:
        print(f"bench.py ops needs an NVIDIA GPU and torch: {error}", file=sys.stderr)
        return 2
    os.environ["PTXRT_LANGUAGE"] = arguments.language
    clear = torch.empty(_CLEARED, dtype=torch.uint8, device="cuda")
    speed = _copy_speed(torch, clear, arguments.runs)
    measured = []
    for make in rows(torch):
        row = make(arguments.only)
        if row is None:
            continue
        calls = {"ptxrt": row.ours, "eager": row.eager}
        if arguments.compile and row.compiled:
            function, args = torch.compile(row.compiled[0]), row.compiled[1]
            calls["compile"] = lambda function=function, args=args: function(*args)
        times = _times(torch, clear, calls, arguments.runs)
        measured.append({"op": row.op, "case": row.case, "floor": row.nbytes / speed * 1e6, **times})
        print(f"{row.op:28} {row.case:44} " + "  ".join(f"{name} {us:.1f}" for name, us in times.items()), flush=True)
        del row, calls
        torch.cuda.empty_cache()
    body = table(measured)
    print(f"\n{body}")
    record = {
        "benchmark": NAME,
        "environment": environment(device),
        "language": arguments.language,
        "runs": arguments.runs,
        "copy_bytes_per_second": speed,
        "rows": measured,
    }
    text = f"Median of {arguments.runs} runs in microseconds, the L2 cleared before each.\n"
    text += f"floor: the fewest bytes at the speed of a copy, {speed / 1e9:.0f} GB/s.\n\n{body}\n"
    name = f"{NAME}{'-hip' if arguments.language == 'hip' else ''}-{slug(device.name)}"
    title = f"Time of the ops in {arguments.language.upper()} on {device.name}"
    for path in save(arguments.out, name, title, record, text):
        print(f"stored {path}")
    slower = [row for row in measured if "f32" in row["case"] and row["ptxrt"] > row["eager"]]
    return 1 if arguments.check and slower else 0


def table(measured: list[dict[str, Any]]) -> str:
    """Return the rows as a table."""
    head = ["op", "case", "floor", "ptxrt", "of the floor's speed", "torch eager", "torch.compile", "eager / ptxrt"]
    cells = []
    for row in measured:
        numbers = [row["floor"], row["ptxrt"]]
        others = [row["eager"], row.get("compile")]
        cells.append(
            [
                row["op"],
                row["case"],
                *(f"{us:.1f}" for us in numbers),
                f"{row['floor'] / row['ptxrt']:.0%}",
                *("-" if us is None else f"{us:.1f}" for us in others),
                f"{row['eager'] / row['ptxrt']:.2f}",
            ]
        )
    return markdown_table(head, cells)


def _times(torch: Any, clear: Any, calls: dict[str, Call], count: int) -> dict[str, float]:
    """Return the median microseconds of each call; they take turns."""
    for call in calls.values():
        for _ in range(3):
            call()
    pairs: dict[str, list[Any]] = {name: [] for name in calls}
    for _ in range(count):
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            clear.zero_()
            start.record()
            call()
            end.record()
            pairs[name].append((start, end))
    torch.cuda.synchronize()
    return {name: statistics.median(a.elapsed_time(b) * 1e3 for a, b in events) for name, events in pairs.items()}


def _copy_speed(torch: Any, clear: Any, count: int) -> float:
    """Return the bytes a second, read and written, of a copy of 1 GiB within the device."""
    source = torch.empty(1 << 28, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    us = _times(torch, clear, {"copy": lambda: target.copy_(source)}, count)["copy"]
    return 2 * source.nbytes / us * 1e6


# The rows -----------------------------------------------------------------------------------------------------------


def rows(torch: Any) -> Iterator[Callable[[str], Row | None]]:
    """Return what makes each row, or None of it where its op is not among those asked for."""
    f32, f64 = torch.float32, torch.float64

    def row(op: str, make: Callable[..., Row], *args: Any) -> Callable[[str], Row | None]:
        return lambda only: make(torch, *args) if op.startswith(only) else None

    for shape, groups in (
        ((1, 128, 512, 512), 32),
        ((8, 320, 64, 64), 32),
        ((64, 64, 56, 56), 32),
        ((1, 512, 128, 128), 32),
        ((2, 1280, 16, 16), 32),
        ((2, 32, 8, 8), 8),
    ):
        yield row("group_norm", _group_norm, shape, groups)
    for shape in ((1, 128, 512, 512), (8, 320, 64, 64), (64, 64, 56, 56)):
        yield row("group_norm_backward", _group_norm_backward, shape, 32)
    for shape in ((8, 21, 512, 512), (16, 256, 64, 64), (64, 1000, 7, 7)):
        yield row("softmax2d", _softmax2d, shape)
    for shape in ((8, 21, 512, 512), (16, 256, 64, 64), (64, 1000, 7, 7)):
        yield row("softmax2d_backward", _softmax2d_backward, shape)
    for shape in ((32, 64, 112, 112), (32, 256, 56, 56), (128, 512, 7, 7), (256, 2048, 7, 7)):
        yield row("batch_norm", _batch_norm, shape, True)
    for shape in ((32, 64, 112, 112), (256, 2048, 7, 7)):
        yield row("batch_norm", _batch_norm, shape, False)
    for shape in ((32, 64, 112, 112), (32, 256, 56, 56), (256, 2048, 7, 7)):
        yield row("batch_norm_backward", _batch_norm_backward, shape)
    yield row("local_response_norm", _local_response_norm, (128, 96, 55, 55))
    yield row("local_response_norm_backward", _local_response_norm_backward, (128, 96, 55, 55))
    for shape, factor in (((8, 256, 64, 64), 2), ((1, 128, 512, 512), 2), ((4, 64, 135, 240), 3)):
        for dtype in (f32, f64, torch.float16, torch.uint8):
            yield row("upsample_nearest2d", _upsample_nearest2d, shape, factor, dtype)
    for op, make in (("grid_sample", _grid_sample), ("grid_sample_backward", _grid_sample_backward)):
        for shape, size in (
            ((8, 64, 128, 128), (128, 128)),
            ((4, 3, 1024, 1024), (1024, 1024)),
            ((2, 256, 64, 64), (256, 256)),
        ):
            for dtype in (f32, f64):
                yield row(op, make, shape, size, dtype)


def _case(shape: tuple[int, ...], dtype: Any, more: str = "") -> str:
    short = {"float32": "f32", "float64": "f64", "float16": "f16", "uint8": "u8"}[str(dtype).removeprefix("torch.")]
    return f"{'x'.join(map(str, shape))} {short}{more}"


def _normal(torch: Any, *shape: int, dtype: Any = None) -> Any:
    return torch.randn(shape, device="cuda").to(dtype or torch.float32)


def _group_norm(torch: Any, shape: tuple[int, ...], groups: int) -> Row:
    x, w, b = _normal(torch, *shape), _normal(torch, shape[1]), _normal(torch, shape[1])
    a, y = [ptxrt.from_dlpack(t) for t in (x, w, b)], ptxrt.from_dlpack(torch.empty_like(x))
    return Row(
        "group_norm",
        _case(shape, x.dtype, f" G{groups}"),
        2 * x.nbytes,
        lambda: ops.group_norm(*a, groups, out=y),
        lambda: torch.nn.functional.group_norm(x, groups, w, b),
        (torch.nn.functional.group_norm, (x, groups, w, b)),
    )


def _group_norm_backward(torch: Any, shape: tuple[int, ...], groups: int) -> Row:
    x, go, w = _normal(torch, *shape), _normal(torch, *shape), _normal(torch, shape[1])
    n, c, hw = shape[0], shape[1], x[0, 0].numel()
    _, mean, rstd = torch.ops.aten.native_group_norm(x, w, w, n, c, hw, groups, 1e-5)
    arrays = [ptxrt.from_dlpack(t) for t in (go, x, w)]
    out = tuple(ptxrt.from_dlpack(torch.empty_like(t)) for t in (x, w, w))
    backward = torch.ops.aten.native_group_norm_backward
    return Row(
        "group_norm_backward",
        _case(shape, x.dtype, f" G{groups}"),
        3 * x.nbytes,
        lambda: ops.group_norm_backward(*arrays, groups, out=out),
        lambda: backward(go, x, mean, rstd, w, n, c, hw, groups, [True] * 3),
    )


def _softmax2d(torch: Any, shape: tuple[int, ...]) -> Row:
    x = _normal(torch, *shape)
    a, y = ptxrt.from_dlpack(x), ptxrt.from_dlpack(torch.empty_like(x))
    return Row(
        "softmax2d",
        _case(shape, x.dtype),
        2 * x.nbytes,
        lambda: ops.softmax2d(a, out=y),
        lambda: torch.softmax(x, 1),
        (torch.softmax, (x, 1)),
    )


def _softmax2d_backward(torch: Any, shape: tuple[int, ...]) -> Row:
    go, y = _normal(torch, *shape), torch.softmax(_normal(torch, *shape), 1)
    a, b, out = (ptxrt.from_dlpack(t) for t in (go, y, torch.empty_like(y)))
    return Row(
        "softmax2d_backward",
        _case(shape, y.dtype),
        3 * y.nbytes,
        lambda: ops.softmax2d_backward(a, b, out=out),
        lambda: torch.ops.aten._softmax_backward_data(go, y, 1, torch.float32),
    )


def _batch_norm(torch: Any, shape: tuple[int, ...], training: bool) -> Row:
    x = _normal(torch, *shape)
    w, b, mean = (_normal(torch, shape[1]) for _ in range(3))
    var = torch.ones_like(mean)
    arrays = [ptxrt.from_dlpack(t) for t in (x, w, b, mean, var)]
    y = ptxrt.from_dlpack(torch.empty_like(x))
    batch = tuple(ptxrt.from_dlpack(torch.empty_like(w)) if training else None for _ in range(2))
    return Row(
        "batch_norm",
        _case(shape, x.dtype, " train" if training else " eval"),
        2 * x.nbytes,
        lambda: ops.batch_norm(*arrays, training=training, out=(y, *batch)),
        lambda: torch.nn.functional.batch_norm(x, mean, var, w, b, training=training),
        (torch.nn.functional.batch_norm, (x, mean, var, w, b, training)),
    )


def _batch_norm_backward(torch: Any, shape: tuple[int, ...]) -> Row:
    x, go, w = _normal(torch, *shape), _normal(torch, *shape), _normal(torch, shape[1])
    axes = [0, *range(2, len(shape))]
    mean, var = x.mean(axes), x.var(axes, unbiased=False)
    inv = (var + 1e-5).rsqrt()
    a, b, c, m, v = (ptxrt.from_dlpack(t) for t in (go, x, w, mean, var))
    out = tuple(ptxrt.from_dlpack(torch.empty_like(t)) for t in (x, w, w))
    backward = torch.ops.aten.native_batch_norm_backward
    return Row(
        "batch_norm_backward",
        _case(shape, x.dtype, " train"),
        3 * x.nbytes,
        lambda: ops.batch_norm_backward(a, b, c, None, None, training=True, batch_mean=m, batch_var=v, out=out),
        lambda: backward(go, x, w, None, None, mean, inv, True, 1e-5, [True] * 3),
    )


def _local_response_norm(torch: Any, shape: tuple[int, ...]) -> Row:
    x = _normal(torch, *shape)
    a = ptxrt.from_dlpack(x)
    out = tuple(ptxrt.from_dlpack(torch.empty_like(x)) for _ in range(2))
    return Row(
        "local_response_norm",
        _case(shape, x.dtype, " size 5"),
        3 * x.nbytes,
        lambda: ops.local_response_norm(a, 5, out=out),
        lambda: torch.nn.functional.local_response_norm(x, 5),
        (torch.nn.functional.local_response_norm, (x, 5)),
    )


def _local_response_norm_backward(torch: Any, shape: tuple[int, ...]) -> Row:
    x, go = _normal(torch, *shape).requires_grad_(), _normal(torch, *shape)
    theirs = torch.nn.functional.local_response_norm(x, 5)
    a, b = ptxrt.from_dlpack(go), ptxrt.from_dlpack(x.detach())
    _, denom = ops.local_response_norm(b, 5)
    out = ptxrt.from_dlpack(torch.empty_like(go))
    return Row(
        "local_response_norm_backward",
        _case(shape, x.dtype, " size 5"),
        4 * go.nbytes,
        lambda: ops.local_response_norm_backward(a, b, denom, 5, out=out),
        lambda: torch.autograd.grad(theirs, x, go, retain_graph=True),
    )


def _upsample_nearest2d(torch: Any, shape: tuple[int, ...], factor: int, dtype: Any) -> Row:
    x = (100 * torch.rand(shape, device="cuda")).to(dtype)
    n, c, h, w = shape
    a = ptxrt.from_dlpack(x)
    y = ptxrt.from_dlpack(torch.empty((n, c, factor * h, factor * w), dtype=dtype, device="cuda"))
    return Row(
        "upsample_nearest2d",
        _case(shape, dtype, f" x{factor}"),
        x.nbytes * (1 + factor**2),
        lambda: ops.upsample_nearest2d(a, factor * h, factor * w, out=y),
        lambda: torch.nn.functional.interpolate(x, scale_factor=factor, mode="nearest"),
        None if dtype == torch.float64 else (torch.nn.functional.interpolate, (x, None, factor, "nearest")),
    )


def _sampled(torch: Any, shape: tuple[int, ...], size: tuple[int, int], dtype: Any) -> tuple[Any, Any]:
    """Return an image, and an affine grid over it scaled by 0.9 with noise of 0.02."""
    n, c, *_ = shape
    scale = 0.9 * torch.eye(2, 3, device="cuda", dtype=dtype).expand(n, 2, 3)
    grid = torch.nn.functional.affine_grid(scale, [n, c, *size], align_corners=False)
    return _normal(torch, *shape, dtype=dtype), grid + 0.02 * _normal(torch, *grid.shape, dtype=dtype)


def _grid_sample(torch: Any, shape: tuple[int, ...], size: tuple[int, int], dtype: Any) -> Row:
    x, grid = _sampled(torch, shape, size, dtype)
    y = torch.empty((*shape[:2], *size), dtype=dtype, device="cuda")
    a, b, out = (ptxrt.from_dlpack(t) for t in (x, grid, y))
    sample = torch.nn.functional.grid_sample
    return Row(
        "grid_sample",
        _case(shape, dtype, f" to {size[0]}x{size[1]}"),
        x.nbytes + grid.nbytes + y.nbytes,
        lambda: ops.grid_sample(a, b, out=out),
        lambda: sample(x, grid, align_corners=False),
        (sample, (x, grid, "bilinear", "zeros", False)),
    )


def _grid_sample_backward(torch: Any, shape: tuple[int, ...], size: tuple[int, int], dtype: Any) -> Row:
    x, grid = _sampled(torch, shape, size, dtype)
    go = _normal(torch, *shape[:2], *size, dtype=dtype)
    a, b, c = (ptxrt.from_dlpack(t) for t in (go, x, grid))
    out = tuple(ptxrt.from_dlpack(torch.empty_like(t)) for t in (x, grid))
    backward = torch.ops.aten.grid_sampler_2d_backward
    return Row(
        "grid_sample_backward",
        _case(shape, dtype, f" to {size[0]}x{size[1]}"),
        2 * x.nbytes + 2 * grid.nbytes + go.nbytes,
        lambda: ops.grid_sample_backward(a, b, c, out=out),
        lambda: backward(go, x, grid, 0, 0, False, [True, True]),
    )
