"""The ops, and the NumPy references, against PyTorch on the CPU: over torch's own operator samples where it has them.

torch computes in float64 from the same values, of float32 or of 16 bits, and by its own autograd. ``make test-torch``
installs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from helpers import Rng, skip_stand_in
from op_testing import check_error, on_device
from tolerances import bar, grid_sample_bar, rounded_bar

from ptxrt import Device, ops
from ptxrt.dtypes import BY_NAME, BY_NUMPY
from ptxrt.ops import references

torch = pytest.importorskip("torch")
F = torch.nn.functional


def wide(array: Any) -> Any:
    """A tensor of float64 that asks for its gradient."""
    return None if array is None else torch.from_numpy(np.array(array, np.float64)).requires_grad_()


def gradients(y: Any, grad_out: Any, inputs: Any) -> list[Any]:
    """Gradients by the inputs, None for one that is None."""
    found = iter(
        torch.autograd.grad(y, [t for t in inputs if t is not None], torch.from_numpy(grad_out.astype(np.float64)))
    )
    return [None if t is None else next(found).numpy() for t in inputs]


def same(op: str, device: Device, got: Any, want: Any, case: object, times: int = 1) -> None:
    """Hold results of an op to so many times their bars; a None must be None."""
    for name, g, w in zip(("", " 2", " 3"), got, want, strict=False):
        if w is None:
            assert g is None
        else:
            limit = times * bar(op.removesuffix("_backward"), BY_NUMPY[g.dtype].name, w)
            check_error(f"{op}{name}, torch", device, g.to_host(), w, limit, case)


def reference_agrees(got: Any, want: Any) -> None:
    for g, w in zip(got, want, strict=True):
        if w is not None:
            # Inputs are of size 1: what cancels leaves float64's rounding of that.
            np.testing.assert_allclose(g, w, rtol=1e-11, atol=1e-14)


@cache
def operators() -> dict[str, Any]:
    pytest.importorskip("expecttest")
    from torch.testing._internal.common_methods_invocations import op_db

    return {info.name: info for info in reversed(op_db) if info.variant_test_name in ("", "nearest")}


def samples(name: str, dtype: str = "f32", **more: Any) -> Iterator[Any]:
    """Give torch's samples of an operator, as NumPy arrays: (x, args, kwargs), of which x is rounded to `dtype`."""
    torch.manual_seed(2026)
    for sample in operators()[name].sample_inputs("cpu", torch.float32, **more):
        plain = [t.detach().numpy() if isinstance(t, torch.Tensor) else t for t in (sample.input, *sample.args)]
        words = {k: v.detach().numpy() if isinstance(v, torch.Tensor) else v for k, v in sample.kwargs.items()}
        yield plain[0].astype(BY_NAME[dtype].numpy), plain[1:], words


def like(rng: Rng, x: Any) -> Any:
    return rng.standard_normal(x.shape).astype(x.dtype)


def all_cancels(dtype: str, values: int) -> bool:
    """Return whether a norm's gradient is what f32 has lost: of two values but eps would be left of it.

    Results of f32 are made in f64, which keeps that; those of 16 bits in f32.
    """
    return values <= 2 and dtype != "f32"


def each_type(op: str) -> pytest.MarkDecorator:
    """Parametrize over the element types of an op that torch's samples, which are of float32, can be rounded to."""
    types = {spec.dtype for spec in ops.kernels() if spec.op == op} & {"f32", "f16", "bf16"}
    return pytest.mark.parametrize("dtype", sorted(types))


# The samples ----------------------------------------------------------------------------------------------------------


@each_type("softmax2d")
def test_softmax2d(device: Device, rng: Rng, dtype: str) -> None:
    done = 0
    cases = [(x, args[0] % max(x.ndim, 1)) for x, args, _ in samples("softmax")]
    cases += [
        (20 * rng.standard_normal(shape).astype(np.float32), 1) for shape in ((2, 5, 12), (1, 8, 4), (3, 67, 5, 7))
    ]
    spoilt = rng.standard_normal((2, 5, 6)).astype(np.float32)
    spoilt[0, :, 0], spoilt[0, 1, 1], spoilt[0, 2, 2], spoilt[1, 3, 3] = -np.inf, np.nan, np.inf, -np.inf
    for x, axis in ((array.astype(BY_NAME[dtype].numpy), axis) for array, axis in [*cases, (spoilt, 1)]):
        if x.ndim < 2 or axis != 1:
            continue
        t, go = wide(x), like(rng, x)
        y = torch.softmax(t, 1)
        ours = ops.softmax2d(on_device(x, device))
        same("softmax2d", device, (ours,), (y.detach().numpy(),), x.shape)
        reference_agrees([references.softmax2d(x)], [y.detach().numpy()])
        if np.isfinite(x).all():
            gx = ops.softmax2d_backward(on_device(go, device), ours)
            # From our own output, which is what the op is given.
            same("softmax2d_backward", device, (gx,), (references.softmax2d_backward(go, ours.to_host()),), x.shape)
            reference_agrees([references.softmax2d_backward(go, y.detach().numpy())], gradients(y, go, [t]))
        done += 1
    assert done >= 6


@each_type("group_norm")
def test_group_norm(device: Device, rng: Rng, dtype: str) -> None:
    done = 0
    for x, (groups,), words in samples("nn.functional.group_norm", dtype):
        w, b, eps = words.get("weight"), words.get("bias"), words.get("eps", 1e-5)
        eps = float(np.float32(eps))
        if eps < 0:  # which ptxrt refuses
            continue
        tx, tw, tb = wide(x), wide(w), wide(b)
        y, go = F.group_norm(tx, groups, tw, tb, eps), like(rng, x)
        ours = [on_device(a, device) for a in (x, w, b)]
        got = ops.group_norm(ours[0], ours[1], ours[2], groups, eps)
        same("group_norm", device, (got,), (y.detach().numpy(),), x.shape)
        reference_agrees([references.group_norm(x, w, b, groups, eps)], [y.detach().numpy()])
        if x.size and not all_cancels(dtype, x[0].size // groups):
            grads = ops.group_norm_backward(on_device(go, device), ours[0], ours[1], groups, eps)
            want = gradients(y, go, [tx, tw, tb])
            same("group_norm_backward", device, grads, want[:2] if b is None else want, x.shape)
            reference_agrees(
                references.group_norm_backward(go, x, w, groups, eps)[: 3 - (b is None)], want[: 3 - (b is None)]
            )
        done += 1
    assert done >= 15


def rows(rng: Rng, name: str, dtype: str, *weights: str) -> Iterator[Any]:
    """Give torch's samples of a norm of rows, and two of more values."""
    yield from samples(f"nn.functional.{name}", dtype)
    for shape, row in (((3, 40), (40,)), ((2, 5, 6, 7), (6, 7))):
        x = rng.standard_normal(shape).astype(BY_NAME[dtype].numpy)
        yield x, [row, *(rng.standard_normal(row).astype(np.float32) for _ in weights)], {}


@each_type("layer_norm")
def test_layer_norm(device: Device, rng: Rng, dtype: str) -> None:
    done = 0
    for x, (row, *weights), words in rows(rng, "layer_norm", dtype, "weight", "bias"):
        (w, b), eps = [*weights, None, None][:2], float(np.float32(words.get("eps", 1e-5)))
        if eps < 0:  # which ptxrt refuses
            continue
        tx, tw, tb = wide(x), wide(w), wide(b)
        y, go, ours = F.layer_norm(tx, row, tw, tb, eps), like(rng, x), [on_device(a, device) for a in (x, w, b)]
        got = ops.layer_norm(ours[0], row, ours[1], ours[2], eps)
        same("layer_norm", device, (got,), (y.detach().numpy(),), x.shape)
        reference_agrees([references.layer_norm(x, row, w, b, eps)], [y.detach().numpy()])
        if x.size and np.prod(row) > 1:  # the gradient of one value is what rounding leaves of torch's
            grads = ops.layer_norm_backward(on_device(go, device), ours[0], row, ours[1], eps)
            want = gradients(y, go, [tx, tw, tb])
            same("layer_norm_backward", device, grads, want[:2] if b is None else want, x.shape)
            reference = references.layer_norm_backward(go, x, row, w, eps)
            reference_agrees(reference[: 3 - (b is None)], want[: 3 - (b is None)])
        done += 1
    assert done >= 7


@each_type("rms_norm")
def test_rms_norm(device: Device, rng: Rng, dtype: str) -> None:
    done = 0
    for x, (row, *weights), words in rows(rng, "rms_norm", dtype, "weight"):
        w, eps = [*weights, None][0], words.get("eps", 1e-6)  # torch's own default is the type's
        if eps < 0:
            continue
        tx, tw, eps = wide(x), wide(w), float(np.float32(eps))
        y, go, ours = F.rms_norm(tx, row, tw, eps), like(rng, x), [on_device(a, device) for a in (x, w)]
        same("rms_norm", device, (ops.rms_norm(ours[0], row, ours[1], eps),), (y.detach().numpy(),), x.shape)
        reference_agrees([references.rms_norm(x, row, w, eps)], [y.detach().numpy()])
        if x.size and np.prod(row) > 1:
            grads = ops.rms_norm_backward(on_device(go, device), ours[0], row, ours[1], eps)
            want = gradients(y, go, [tx, tw])
            same("rms_norm_backward", device, grads, want, x.shape)
            reference_agrees(references.rms_norm_backward(go, x, row, w, eps), want)
        done += 1
    assert done >= 7


@each_type("batch_norm")
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(device: Device, rng: Rng, training: bool, dtype: str) -> None:
    done = 0
    for x, args, words in samples("nn.functional.batch_norm", dtype):
        running = [*args, None, None][:2]
        w, b = ([*args, None, None, None, None][2:4]) if len(args) > 2 else (words.get("weight"), words.get("bias"))
        momentum, eps = (words.get(name, default) for name, default in (("momentum", 0.1), ("eps", 1e-5)))
        momentum, eps = (float(np.float32(v)) for v in (momentum, eps))
        many = x.ndim >= 2 and x.size // max(x.shape[1], 1) > 1
        if not many or (not training and running[0] is None) or not 0 <= momentum <= 1:
            continue
        before = [None if r is None else np.abs(r) for r in running]
        after: Any = [wide(r).detach() if r is not None else None for r in before]
        tx, tw, tb = wide(x), wide(w), wide(b)
        y, go = F.batch_norm(tx, *after, tw, tb, training, momentum, eps), like(rng, x)
        ours, held = [on_device(a, device) for a in (x, w, b)], [on_device(r, device) for r in before]
        got, mean, var = ops.batch_norm(*ours, *held, training=training, momentum=momentum, eps=eps)
        same("batch_norm", device, (got,), (y.detach().numpy(),), x.shape)
        assert ((mean is None), (var is None)) == (not training, not training)
        for k, a, r in zip(held, after, before, strict=True):
            if k is not None:
                check_error(
                    "batch_norm running, torch", device, k.to_host(), a.numpy() if training else r, 1e-6, x.shape
                )
        reference_agrees(references.batch_norm(x, w, b, *before, training=training, eps=eps)[:1], [y.detach().numpy()])
        if not (training and all_cancels(dtype, x.size // x.shape[1])):
            stats = [on_device(r, device) for r in before]
            grads = ops.batch_norm_backward(on_device(go, device), *ours[:2], *stats, training=training, eps=eps)
            want = gradients(y, go, [tx, tw, tb])
            same("batch_norm_backward", device, grads, want[:2] if b is None else want, x.shape)
        done += 1
    assert done >= 4


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_batch_norm_saves_and_averages(device: Device, rng: Rng, dtype: str) -> None:
    """The inverse deviation, and running statistics that are the mean over all batches."""
    eps = float(np.float32(1e-5))
    module = torch.nn.BatchNorm1d(3, eps, momentum=None, dtype=torch.float64)
    held = [on_device(np.full(3, start, np.float32), device) for start in (0, 1)]
    batches = on_device(np.zeros((), np.int64), device)
    for number in (1, 2, 3):
        x = (rng.standard_normal((4, 3, 5)) * number + 1).astype(BY_NAME[dtype].numpy)
        _, *want = torch.native_batch_norm(wide(x), None, None, None, None, True, 0.0, eps)
        module(wide(x))
        _, *got = ops.batch_norm(
            on_device(x, device), None, None, *held, training=True, momentum=None, eps=eps, batches=batches,
            save="inverse_deviation",
        )  # fmt: skip
        for g, w in zip([*got, *held], [*want, module.running_mean, module.running_var], strict=True):
            np.testing.assert_allclose(g.to_host(), w.detach().numpy(), rtol=1e-6, atol=1e-6)
    assert batches.to_host() == module.num_batches_tracked.item() == 3


@each_type("local_response_norm")
def test_local_response_norm(device: Device, rng: Rng, dtype: str) -> None:
    done = 0
    shapes = [
        ((2, 7, 5), (2,), {}),
        ((1, 5, 3, 4), (9,), {"alpha": 0.5, "beta": 0.75, "k": 2.0}),
        ((2, 4, 3), (1,), {}),
    ]
    kind = BY_NAME[dtype].numpy
    cases = [(rng.standard_normal(shape).astype(kind), args, words) for shape, args, words in shapes]
    for x, (size,), given in [*samples("nn.functional.local_response_norm", dtype), *cases]:
        # As the kernel gets them, the defaults too.
        words: Any = {
            name: float(np.float32(v)) for name, v in {"alpha": 1e-4, "beta": 0.75, "k": 1.0, **given}.items()
        }
        tx, go = wide(x), like(rng, x)
        y = F.local_response_norm(tx, size, **words)
        there = on_device(x, device)
        ours, denom = ops.local_response_norm(there, size, **words)
        same("local_response_norm", device, (ours,), (y.detach().numpy(),), (x.shape, size))
        reference_agrees(references.local_response_norm(x, size, **words)[:1], [y.detach().numpy()])
        if x.size:
            words.pop("k", None)
            gx = ops.local_response_norm_backward(on_device(go, device), there, denom, size, **words)
            # denom comes rounded from the forward, so the bar is that of two roundings.
            same("local_response_norm_backward", device, (gx,), gradients(y, go, [tx]), (x.shape, size), 2)
        done += 1
    assert done >= 10


def test_upsample_nearest2d(device: Device) -> None:
    done = 0
    for x, args, words in samples("nn.functional.interpolate"):
        size = words.get("size") or (args[0] if args else None)
        if x.ndim != 4 or size is None or words.get("mode", "nearest") != "nearest":
            continue
        out_h, out_w = (size, size) if isinstance(size, int) else size
        y = F.interpolate(torch.from_numpy(x), size=(out_h, out_w), mode="nearest").numpy()
        np.testing.assert_array_equal(ops.upsample_nearest2d(on_device(x, device), out_h, out_w).to_host(), y)
        done += 1
    assert done >= 2


@pytest.mark.parametrize(
    ("shape", "size"),
    [((2, 3, 4, 5), (8, 10)), ((1, 2, 7, 11), (3, 5)), ((2, 1, 9, 33), (20, 70)), ((1, 3, 6, 6), (1, 1))],
    ids=str,
)
@pytest.mark.parametrize("name", ["f32", "f64", "f16", "bf16"])
def test_upsample_nearest2d_backward(device: Device, rng: Rng, name: str, shape: Any, size: Any) -> None:
    t = wide(like(rng, np.empty(shape)))
    y = F.interpolate(t, size=size, mode="nearest")
    np.testing.assert_array_equal(references.upsample_nearest2d(t.detach().numpy(), *size), y.detach().numpy())
    go = like(rng, np.empty((*shape[:2], *size))).astype(BY_NAME[name].numpy)
    got = ops.upsample_nearest2d_backward(on_device(go, device), *shape[2:]).to_host()
    (want,) = gradients(y, go, [t])
    limit = 4 * bar("upsample_nearest2d_backward", name, want)
    check_error("upsample_nearest2d_backward, torch", device, got, want, limit, (shape, size))
    reference_agrees([references.upsample_nearest2d_backward(go, *shape[2:])], [want])


def test_upsample_nearest2d_differs_from_torch_where_its_float32_scale_does(device: Device) -> None:
    """30 -> 44 at 22: the double product gives 14, an exact division 15; torch's float32 scale gives 15."""
    x = np.arange(30, dtype=np.float32).reshape(1, 1, 1, 30)
    y = F.interpolate(torch.from_numpy(x), size=(1, 44), mode="nearest").numpy()
    ours = ops.upsample_nearest2d(on_device(x, device), 1, 44).to_host()
    np.testing.assert_array_equal(ours, references.upsample_nearest2d(x, 1, 44))
    assert [place for place in range(44) if ours[0, 0, 0, place] != y[0, 0, 0, place]] == [22]


GRID_SHAPES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((2, 3, 5, 7), (4, 6)),
    ((1, 1, 1, 1), (3, 5)),
    ((3, 5, 17, 9), (11, 13)),
    ((2, 3, 4, 5, 6), (2, 3, 7)),
)


def grid_cases(rng: Rng, mode: str, padding_mode: str, align_corners: bool) -> Iterator[tuple[Any, Any]]:
    """Give x and grid of torch's own samples of these modes, and of shapes of ours."""
    wanted = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    usual = {"mode": "bilinear", "padding_mode": "zeros", "align_corners": False}
    for x, (grid,), words in samples("nn.functional.grid_sample"):
        if usual | words == wanted:
            yield x, grid
    for shape, size in GRID_SHAPES:
        if mode != "bicubic" or len(shape) == 4:
            yield rng.standard_normal(shape), rng.uniform(-1.7, 1.7, (shape[0], *size, len(size)))


@pytest.mark.parametrize("name", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample(device: Device, rng: Rng, name: str, mode: str, padding_mode: str, align_corners: bool) -> None:
    """As torch computes in float64 from the same values, gradients too, but for points on which the result jumps."""
    skip_stand_in(device)
    how: Any = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    kind, done = BY_NAME[name].numpy, 0
    for x, grid in grid_cases(rng, **how):
        x, grid, sizes = x.astype(kind), grid.astype(kind), x.shape[2:]  # noqa: PLW2901
        go = rng.standard_normal((*x.shape[:2], *grid.shape[1:-1])).astype(kind)
        limit = float(grid_sample_bar(name, max(sizes), 2 * max(sizes)))
        spans = np.array(sizes[::-1]) - align_corners
        s = (grid.astype(np.float64) + 1) / 2 * spans - (0 if align_corners else 0.5)
        near = s + (0.5 if mode == "nearest" else 0)
        smooth = ((np.abs(near - np.rint(near)) > 2 * limit) | (spans == 0)).all(axis=-1)
        elsewhere = kind.type(9) if padding_mode == "zeros" else grid[smooth][0]
        grid[~smooth] = elsewhere  # so that all is compared
        tx, tg = wide(x), wide(grid)
        y = F.grid_sample(tx, tg, **how)
        want = [y.detach().numpy(), *gradients(y, go, [tx, tg])]
        there = on_device(x, device), on_device(grid, device)
        got = [ops.grid_sample(*there, **how), *ops.grid_sample_backward(on_device(go, device), *there, **how)]
        for result, g, w in zip(("", "_backward", "_backward 2"), got, want, strict=True):
            # What cancels leaves torch's rounding in float64.
            w = np.where(np.abs(w) < 1e-13, 0, w)  # noqa: PLW2901
            case = (how, x.shape, grid.shape)
            out = g.to_host()
            if name == "f64":  # torch is no more precise than we are
                np.testing.assert_allclose(out, w, rtol=1e-10, atol=1e-10)
            else:
                check_error(f"grid_sample{result}, torch", device, out, w, rounded_bar(limit, name, w), case)
        exact = references.grid_sample(x, grid, **how), *references.grid_sample_backward(go, x, grid, **how)
        for e, w in zip(exact, want, strict=True):
            np.testing.assert_allclose(e.astype(np.float64), w, rtol=1e-10, atol=1e-10)
        done += 1
    assert done >= 4
