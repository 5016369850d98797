"""batch_norm over ranks: the same bits for every cut of the batch, or rounded; its bars; one error on every rank."""

from __future__ import annotations

import functools
import itertools
import threading
from typing import Any

import numpy as np
import pytest
from exact_sums import integers, numbers, wholes
from helpers import AMD_GPU, EVERYTHING, refused
from numpy.typing import NDArray
from op_testing import on_device
from tolerances import LARGE_MEAN_BARS, bar, relative_error

import ptxrt
from ptxrt import ops
from ptxrt.distributed import Communicator, Group
from ptxrt.dtypes import BY_NAME
from ptxrt.ops import references
from ptxrt.ops._batch_norm_exact import (
    RowsConfig,
    SumsBackwardDescriptor,
    SumsBackwardPlan,
    SumsConfig,
    SumsDescriptor,
    SumsPlan,
)
from ptxrt.ops._batch_norm_rounded import ImagesConfig, SliceConfig
from ptxrt.ops.framework import Zero
from ptxrt.runtime.layout import channels_last

Array = NDArray[Any]
TYPES = ("f32", "f16", "bf16")
EVEN, UNEVEN = "even", "uneven"


def cut(count: int, ranks: int, how: str = EVEN) -> list[slice]:
    """Return each rank's images; uneven shards grow, and the first ones of many ranks are empty."""
    ends = [count * (r + 1) ** (1 if how == EVEN else 2) // ranks ** (1 if how == EVEN else 2) for r in range(ranks)]
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def step(
    communicator: Communicator, arrays: tuple[Array, Array], last: bool, running: Any, w: Any, b: Any, **how: Any
) -> dict[str, Any]:
    """Run one training step of one rank; return all results, on the device."""
    strides = channels_last(arrays[0].shape) if last else None
    x, go = (on_device(each, communicator.device, 0, strides) for each in arrays)
    y, mean, var = ops.batch_norm(x, w, b, *running, training=True, communicator=communicator, **how)
    how.pop("momentum", None)
    gradients = ops.batch_norm_backward(
        go, x, w, None, None, training=True, batch_mean=mean, batch_var=var, communicator=communicator, **how
    )
    names = ("y", "batch_mean", "batch_var", "grad_input", "grad_weight", "grad_bias", "running_mean", "running_var")
    return dict(zip(names, (y, mean, var, *gradients, *running), strict=True))


def over_ranks(
    device: Any, batches: list[tuple[Array, Array]], cuts: list[slice], last: bool = False, **how: Any
) -> list[dict[str, Any]]:
    """Return the results of each step over a whole batch, once those of no shard's shape are the same on all ranks."""
    channels = batches[0][0].shape[1]

    def work(communicator: Communicator) -> list[dict[str, Array]]:
        running = (ptxrt.zeros(channels, "f4", device), ptxrt.ones(channels, "f4", device))
        w, b = (ptxrt.to_device(np.linspace(k, 2, channels, dtype="f4"), device) for k in (0.5, -1))
        own = cuts[communicator.rank]
        steps = []
        for x, go in batches:
            made = step(communicator, (x[own], go[own]), last, running, w, b, **how)
            steps.append({name: array.to_host() for name, array in made.items()})
        return steps

    results = []
    for ranks in zip(*Group(len(cuts), device).run(work), strict=True):
        whole = {name: np.concatenate([rank[name] for rank in ranks]) for name in ("y", "grad_input")}
        for name in ranks[0].keys() - whole.keys():
            assert {rank[name].tobytes() for rank in ranks} == {ranks[0][name].tobytes()}, name
        results.append(ranks[0] | whole)
    return results


def same_bits(one: list[dict[str, Array]], other: list[dict[str, Array]]) -> None:
    for number, (a, b) in enumerate(zip(one, other, strict=True)):
        for name, values in a.items():
            assert values.tobytes() == b[name].tobytes(), f"{name} of step {number}"


def drawn(shape: tuple[int, ...], name: str = "f32", seed: int = 0, offset: float = 0.5) -> tuple[Array, Array]:
    rng, kind = np.random.default_rng(seed), BY_NAME[name].numpy
    return rng.normal(offset, 1, shape).astype(kind), rng.normal(0.1, 1, shape).astype(kind)


ALL_CUTS = list(itertools.product((2, 4, 7, 64), (EVEN, UNEVEN)))
FEW_CUTS = [(2, EVEN), (4, UNEVEN), (7, EVEN), (64, UNEVEN)]


@functools.cache
def of_one_rank(device: Any, steps: int) -> Any:
    """Return batches, and what one rank makes of them."""
    batches = [drawn((9, 2, 5), seed=seed) for seed in range(steps)]
    return batches, over_ranks(device, batches, cut(9, 1))


@pytest.mark.parametrize(("ranks", "how"), ALL_CUTS if EVERYTHING else FEW_CUTS)
def test_any_cut_gives_the_bits_of_one_rank(device: Any, ranks: int, how: str) -> None:
    if device.kind == "hip" and ranks == 64 and not (EVERYTHING or AMD_GPU):
        pytest.skip("many small launches on the stand-in")
    batches, whole = of_one_rank(device, 20 if EVERYTHING or device.kind == "cuda" else 2)
    same_bits(over_ranks(device, batches, cut(9, ranks, how)), whole)


def test_running_statistics_are_within_their_bar_at_each_step(device: Any) -> None:
    batches, whole = of_one_rank(device, 20 if EVERYTHING or device.kind == "cuda" else 2)
    mean, var = np.zeros(2, "f4"), np.ones(2, "f4")
    for (x, _), found in zip(batches, whole, strict=True):  # the bar is of a step, from the running ones before
        wanted = references.updated_running_statistics(x, mean, var)
        mean, var = found["running_mean"], found["running_var"]
        for one, want in zip((mean, var), wanted, strict=True):
            assert relative_error(one, want) <= bar("batch_norm", "f32", want)


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("name", TYPES)
def test_results_are_within_their_bars(device: Any, name: str, last: bool) -> None:
    if device.kind == "hip" and (last or name != "f32") and not (EVERYTHING or AMD_GPU):
        pytest.skip("sim has the same text; here each type is a compile more")
    (x, go), w, b = drawn((6, 3, 37), name), *(np.linspace(k, 2, 3, dtype="f4") for k in (0.5, -1))
    (found,) = whole = over_ranks(device, [(x, go)], cut(6, 1), eps=1e-3)
    same_bits(over_ranks(device, [(x, go)], cut(6, 3, UNEVEN), last, eps=1e-3), whole)
    want, *statistics = references.batch_norm(x, w, b, None, None, training=True, eps=1e-3)
    given = {"batch_mean": found["batch_mean"], "batch_var": found["batch_var"]}
    gradients = references.batch_norm_backward(go, x, w, None, None, training=True, eps=1e-3, **given)
    wanted = {"y": want, "grad_input": gradients[0], "grad_weight": gradients[1], "grad_bias": gradients[2]}
    wanted |= dict(zip(given, statistics, strict=True))
    for one, values in wanted.items():
        kind = name if one in ("y", "grad_input") else "f32"
        assert relative_error(found[one], values) <= bar("batch_norm", kind, np.asarray(values)), one


def test_a_large_mean_costs_no_digits(device: Any) -> None:
    x, go = drawn((4, 2, 50), offset=1e4)
    (found,) = over_ranks(device, [(x, go)], cut(4, 2))
    w, b = (np.linspace(k, 2, 2, dtype="f4") for k in (0.5, -1))
    y, mean, var = references.batch_norm(x, w, b, None, None, training=True)
    given = {"batch_mean": found["batch_mean"], "batch_var": found["batch_var"]}
    grad_input, grad_weight, _ = references.batch_norm_backward(go, x, w, None, None, training=True, **given)
    wanted = {"y": y, "batch_mean": mean, "batch_var": var, "grad_input": grad_input, "grad_weight": grad_weight}
    for name, want in wanted.items():
        assert relative_error(found[name], want) <= LARGE_MEAN_BARS["f32"], name


def wild(shape: tuple[int, ...], low: int, high: int, seed: int = 0) -> Array:
    """Return values of any exponents from `low` to `high`, both signs, some zeros."""
    rng = np.random.default_rng(seed)
    values = np.ldexp(1 + rng.random(shape), rng.integers(low, high, shape)) * rng.choice([-1, 1], shape)
    values[rng.random(shape) < 0.1] = 0
    return np.asarray(values)


SUMS = {
    "any exponents": ("f32", (5, 2, 7), (-149, 127)),
    "any exponents, of whole vectors": ("f32", (3, 1, 700), (-149, 127)),
    "denormals": ("f32", (2, 1, 67), (-149, -120)),
    "the largest": ("f32", (2, 1, 8), (100, 127)),
    "about a window": ("f32", (70, 2, 1), (-25, 20)),
    "columns": ("f32", (70, 17), (-25, 20)),
    "columns of any exponents": ("f32", (19, 33), (-149, 127)),
    "bfloat16": ("bf16", (9, 2, 16), (-133, 127)),
    "bfloat16 in columns": ("bf16", (9, 16), (-133, 127)),
    "float16": ("f16", (9, 2, 16), (-24, 15)),
    "float16 in columns": ("f16", (9, 16), (-24, 15)),
}


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("which", SUMS)
def test_sums_are_exact(device: Any, which: str, backward: bool) -> None:
    name, shape, (low, high) = SUMS[which]
    kind = BY_NAME[name].numpy
    x, go = (wild(shape, low, high, seed).astype(kind) for seed in (0, 1))
    plan_of, problem_of = (SumsBackwardPlan, SumsBackwardDescriptor) if backward else (SumsPlan, SumsDescriptor)
    arrays = (go, x, np.zeros(shape[1], "f4")) if backward else (x,)
    plan = plan_of.select(device, problem_of(shape, BY_NAME[name]))
    rows = plan.run((*(on_device(array, device) for array in arrays), None)).to_host()
    assert wholes(rows, name) == wholes(integers(x, go if backward else None, name), name)
    assert plan.precision_guarantee.accumulator == "exact"


@pytest.mark.parametrize("value", [float(np.finfo("f4").max), 2.0**-149, 1.9999999 * 2.0**-20, -1.5])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_as_many_values_as_a_thread_may_add_stay_exact(device: Any, value: float, backward: bool) -> None:
    values = 256 * 32
    x = np.full((1, 1, values), value, "f4")
    x.flat[::3] = 1.9999999  # both ends of a window
    plan_of, problem_of = (SumsBackwardPlan, SumsBackwardDescriptor) if backward else (SumsPlan, SumsDescriptor)
    plan = plan_of.select(device, problem_of(x.shape), ptxrt.PlanPreference(config=SumsConfig(values, 256)))
    arrays = (-x, x, np.zeros(1, "f4")) if backward else (x,)
    assert plan.schedule.launches[0].block == 32
    rows = plan.run((*(on_device(array, device) for array in arrays), None)).to_host()
    assert wholes(rows) == wholes(integers(x, -x if backward else None))


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_sums_are_exact_where_the_last_slices_are_empty(device: Any, backward: bool) -> None:
    shape = (2, 1, 100)
    x, go = (wild(shape, -30, 30, seed).astype("f4") for seed in (0, 1))
    plan_of, problem_of = (SumsBackwardPlan, SumsBackwardDescriptor) if backward else (SumsPlan, SumsDescriptor)
    plan = plan_of.select(device, problem_of(shape), ptxrt.PlanPreference(config=SumsConfig(12)))
    (launch,) = plan.schedule.launches
    slices, values = launch.grid[1], launch.arguments[-1]
    assert isinstance(values, int)
    assert (slices - 1) * values > 200
    arrays = (go, x, np.zeros(1, "f4")) if backward else (x,)
    rows = plan.run((*(on_device(array, device) for array in arrays), None)).to_host()
    assert wholes(rows) == wholes(integers(x, go if backward else None))


@pytest.mark.ptx
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_as_many_rows_as_a_thread_may_add_stay_exact(device: Any, backward: bool) -> None:
    x = np.full((600, 3), np.finfo("f4").max, "f4")
    x[:, 1] = 1.9999999
    x[::3, 1] *= np.float32(2.0**-20)
    x[:, 2] = 2.0**-149
    plan_of, problem_of = (SumsBackwardPlan, SumsBackwardDescriptor) if backward else (SumsPlan, SumsDescriptor)
    plan = plan_of.select(device, problem_of(x.shape), ptxrt.PlanPreference(language="ptx", config=RowsConfig(256)))
    arrays = (-x, x, np.zeros(3, "f4")) if backward else (x,)
    rows = plan.run((*(on_device(array, device) for array in arrays), None)).to_host()
    assert wholes(rows) == wholes(integers(x, -x if backward else None))


@pytest.mark.parametrize("name", TYPES)
def test_special_values_are_those_of_the_formula_on_every_cut(device: Any, name: str) -> None:
    x, go = drawn((4, 7, 3), name)
    x[:, 4] += 4
    x[1, 4, 1] = 1  # above 0, and below the mean
    x[0, 0, 0] = np.nan
    x[3, 1, 2], x[2, 2, 0] = np.inf, -np.inf
    x[0, 3, 0], x[3, 3, 0] = np.inf, -np.inf
    go[1, 4, 1], go[2, 5, 0] = -np.inf, np.nan
    (one,) = whole = over_ranks(device, [(x, go)], cut(4, 1))
    same_bits(over_ranks(device, [(x, go)], cut(4, 3)), whole)
    with np.errstate(invalid="ignore"):
        want = references.batch_norm(x, None, None, None, None, training=True)
        given = {"batch_mean": one["batch_mean"], "batch_var": one["batch_var"]}
        gradients = references.batch_norm_backward(go, x, None, None, None, training=True, **given)
        grad_weight = (go.astype("f8") * (x - given["batch_mean"][:, None].astype("f8"))).sum((0, 2))
    assert np.array_equal(np.isnan(one["y"]), np.isnan(want[0]))
    assert [repr(float(v)) for v in one["batch_mean"][:4]] == ["nan", "inf", "-inf", "nan"]
    assert np.isnan(one["batch_var"][:4]).all()
    assert np.isfinite(one["batch_var"][4:]).all()
    assert np.array_equal(np.isfinite(one["grad_input"]), np.isfinite(gradients[0]))
    assert [repr(float(v)) for v in one["grad_bias"][4:6]] == ["-inf", "nan"]
    assert np.array_equal(one["grad_weight"][4:6], np.sign(grad_weight[4:6]) * np.inf, equal_nan=True)


def test_a_constant_channel_has_a_variance_of_zero(device: Any) -> None:
    x = np.full((3, 1, 7), 0.1, "f4")
    (found,) = over_ranks(device, [(x, x)], cut(3, 2))
    assert (found["batch_mean"], found["batch_var"]) == (np.float32(0.1), 0)
    assert np.array_equal(found["y"], np.full_like(x, -1))  # the bias


@pytest.mark.parametrize("count", [0, 1])
def test_a_whole_batch_of_fewer_than_two_values_has_no_variance(device: Any, count: int) -> None:
    x = np.full((count, 1, 1), 3, "f4")
    (found,) = over_ranks(device, [(x, x)], cut(count, 2))
    assert np.isnan(found["batch_var"])
    assert np.isnan(found["y"]).all()
    assert np.isnan(found["running_var"])


def test_the_inverse_deviation_is_saved_and_handed(device: Any) -> None:
    x, go = drawn((4, 2, 6))
    (plain,) = over_ranks(device, [(x, go)], cut(4, 1))
    (found,) = over_ranks(device, [(x, go)], cut(4, 2), save="inverse_deviation")
    inverse = 1 / np.sqrt(plain["batch_var"].astype("f8") + 1e-5)
    assert relative_error(found["batch_var"], inverse) <= bar("batch_norm", "f32", inverse)
    assert relative_error(found["grad_input"], plain["grad_input"]) <= 1e-6


def test_the_running_statistics_may_be_the_mean_over_all_batches(device: Any) -> None:
    (rank,), (x, _) = Group(1, device).ranks, drawn((4, 2, 6))
    mean, var = np.array([3, -1], "f4"), np.array([2, 1], "f4")
    running = [ptxrt.to_device(each, device) for each in (mean, var)]
    batches = ptxrt.to_device(np.array(4), device)
    how: Any = {"training": True, "momentum": None, "batches": batches, "communicator": rank}
    ops.batch_norm(on_device(x, device), None, None, *running, **how)
    assert batches.to_host() == 5
    wanted = references.updated_running_statistics(x, mean, var, momentum=None, batches=5)
    for one, want in zip(running, wanted, strict=True):
        assert relative_error(one.to_host(), want) <= bar("batch_norm", "f32", want)


def test_a_captured_call_is_replayed(device: Any) -> None:
    x, _ = drawn((4, 2, 6))
    (rank,) = Group(1, device).ranks
    stream, array = ptxrt.Stream(device), on_device(x, device)
    with stream:
        want = ops.batch_norm(array, None, None, None, None, training=True, communicator=rank).y.to_host()
    with ptxrt.capture(stream) as graph:
        found = ops.batch_norm(array, None, None, None, None, training=True, communicator=rank)
    graph.replay()
    assert found.y.to_host(stream).tobytes() == want.tobytes()


# Rounded sums ---------------------------------------------------------------------------------------------------------

VECTORS = ("y", "grad_input")


def wanted_of(found: dict[str, Array], x: Array, go: Array, eps: float = 1e-5) -> dict[str, Any]:
    """Return the references of a first step; of the gradients with the statistics that they were handed."""
    w, b = (np.linspace(k, 2, x.shape[1], dtype="f4") for k in (0.5, -1))
    y, mean, var = references.batch_norm(x, w, b, None, None, training=True, eps=eps)
    given: Any = {"batch_mean": found["batch_mean"], "batch_var": found["batch_var"]}
    gradients = references.batch_norm_backward(go, x, w, None, None, training=True, eps=eps, **given)
    return {"y": y, "batch_mean": mean, "batch_var": var} | dict(
        zip(("grad_input", "grad_weight", "grad_bias"), gradients, strict=True)
    )


@pytest.mark.parametrize(
    ("ranks", "how", "name", "last"),
    [
        (1, EVEN, "f32", False),
        (2, EVEN, "f32", False),
        (2, UNEVEN, "f16", False),
        (4, UNEVEN, "f32", True),  # the first one has nothing
        (4, EVEN, "bf16", True),
        (7, EVEN, "f32", False),
        (7, UNEVEN, "bf16", False),
    ],
)
def test_rounded_sums_give_results_within_the_bars(device: Any, ranks: int, how: str, name: str, last: bool) -> None:
    if device.kind == "hip" and (last or name != "f32") and not (EVERYTHING or AMD_GPU):
        pytest.skip("sim has the same text; here each type is a compile more")
    x, go = drawn((11, 3, 37), name)
    (found,) = over_ranks(device, [(x, go)], cut(11, ranks, how), last, eps=1e-3, exact=False)
    for one, values in wanted_of(found, x, go, 1e-3).items():
        kind = name if one in VECTORS else "f32"
        assert relative_error(found[one], values) <= bar("batch_norm", kind, np.asarray(values)), one
    running = references.updated_running_statistics(x, np.zeros(3, "f4"), np.ones(3, "f4"))
    for one, want in zip(("running_mean", "running_var"), running, strict=True):
        assert relative_error(found[one], want) <= bar("batch_norm", "f32", want), one


def test_rounded_sums_of_one_cut_give_the_same_bits_every_time(device: Any) -> None:
    batches = [drawn((9, 2, 5), seed=seed) for seed in range(2)]
    first, second = (over_ranks(device, batches, cut(9, 4, UNEVEN), exact=False) for _ in range(2))
    same_bits(first, second)


@pytest.mark.parametrize(
    ("shape", "ranks"), [((4, 2, 50), 2), ((2, 3), 2), ((3, 1, 1), 3), ((70, 17), 7), ((2, 2, 2000), 2)]
)
@pytest.mark.parametrize("offset", [1e4, -1e4, 1e6])
def test_rounded_sums_lose_nothing_by_a_large_mean(
    device: Any, shape: tuple[int, ...], ranks: int, offset: float
) -> None:
    x, go = drawn(shape, offset=offset)
    (found,) = over_ranks(device, [(x, go)], cut(shape[0], ranks), exact=False)
    wanted = wanted_of(found, x, go)
    del wanted["grad_bias"]  # has nothing to do with the mean
    for name, want in wanted.items():
        small = name in ("batch_mean", "batch_var")  # which are rounded once
        assert relative_error(found[name], want) <= (2e-7 if small else LARGE_MEAN_BARS["f32"]), name


def test_rounded_sums_of_shards_that_lie_far_apart(device: Any) -> None:
    (x, go), ranks = drawn((6, 2, 50)), 3
    x[2:4] += 1e6
    x[4:] -= 3e3
    (found,) = over_ranks(device, [(x, go)], cut(6, ranks), exact=False)
    for name, want in wanted_of(found, x, go).items():
        assert relative_error(found[name], want) <= bar("batch_norm", "f32", np.asarray(want)), name


def rounded_plans(device: Any, problem: Any) -> list[Any]:
    """Return a plan of each variant that rounds and takes the problem, with all sizes of slices."""
    plan_of = SumsBackwardPlan if problem.backward else SumsPlan
    configs = [None, SliceConfig(8), SliceConfig(64), ImagesConfig(1), ImagesConfig(3)]
    plans = []
    for variant in plan_of.variants:
        for config in configs if variant.name.startswith("rounded") else ():
            if config is None or config.__class__ is variant.config_type:
                wish = ptxrt.PlanPreference(language=variant.language, variant=variant.name, config=config)
                try:
                    plans.append(plan_of.select(device, problem, wish))
                except ptxrt.Unsupported:
                    continue
    assert plans
    return plans


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("which", SUMS)
def test_rounded_sums_are_near_the_exact_ones_in_every_variant(device: Any, which: str, backward: bool) -> None:
    name, shape, (low, high) = SUMS[which]
    if device.kind == "hip" and name != "f32" and not (EVERYTHING or AMD_GPU):
        pytest.skip("sim has the same text; here each type is a compile more")
    kind = BY_NAME[name].numpy
    x, go = (wild(shape, low, high, seed).astype(kind) for seed in (0, 1))
    mean = np.zeros(shape[1], "f4")
    problem = (SumsBackwardDescriptor if backward else SumsDescriptor)(shape, BY_NAME[name], exact=False)
    arrays = [on_device(array, device) for array in ((go, x, mean) if backward else (x,))]
    want = numbers(integers(x, go if backward else None, name), name)
    axes, count = tuple(axis for axis in range(x.ndim) if axis != 1), x.size // x.shape[1]
    most = [np.abs(each.astype("f8")).max(axes) * count for each in ((go, go * x.astype("f8")) if backward else (x, x))]
    most[1] = most[1] if backward else most[0] ** 2
    for plan in rounded_plans(device, problem):
        assert plan.precision_guarantee.accumulator == "f64"
        assert not any(isinstance(step, Zero) for step in plan.schedule.steps)
        rows = plan.run((*arrays, None)).to_host()
        found = numbers(rows, name)
        assert np.array_equal(found[:3], want[:3]), plan.variant
        for one, wanted, scale in zip(found[3:], want[3:], most, strict=True):
            assert (np.abs(one - wanted) <= 1e-15 * scale).all(), plan.variant
        below_the_last = np.delete(rows, [*range(3), (6 if name == "f16" else 13) - 1, len(rows) - 1], 0)
        assert (abs(below_the_last) < 2 << 32).all()  # of a high and of a low part each


@pytest.mark.ptx
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_rounded_sums_have_the_same_bits_in_both_languages(device: Any, backward: bool) -> None:
    shape = (9, 5, 40)
    x, go = drawn(shape)
    problem = (SumsBackwardDescriptor if backward else SumsDescriptor)(shape, exact=False)
    plan_of = SumsBackwardPlan if backward else SumsPlan
    arrays = (go, x, np.full(5, 0.5, "f4")) if backward else (x,)
    made = []
    for language in ("ptx", "hip"):
        wish = ptxrt.PlanPreference(language=language, variant="rounded", config=SliceConfig(64))
        plan = plan_of.select(device, problem, wish)
        made.append(plan.run((*(on_device(array, device) for array in arrays), None)).to_host())
    assert made[0].tobytes() == made[1].tobytes()


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_rounded_sums_have_the_flags_of_exact_ones_and_no_digits_beside_them(device: Any, backward: bool) -> None:
    x, go = drawn((4, 6, 3), offset=5)
    go += 9
    specials = [np.nan, np.inf, -np.inf]
    (go if backward else x)[2, :3, 1] = specials
    x[2, 3:, 1] = specials
    plan_of, problem_of = (SumsBackwardPlan, SumsBackwardDescriptor) if backward else (SumsPlan, SumsDescriptor)
    arrays = [on_device(array, device) for array in ((go, x, np.zeros(6, "f4")) if backward else (x,))]
    want = plan_of.select(device, problem_of(x.shape)).run((*arrays, None)).to_host()
    for plan in rounded_plans(device, problem_of(x.shape, exact=False)):
        rows = plan.run((*arrays, None)).to_host()
        assert np.array_equal(rows[:3], want[:3]), plan.variant
        assert not rows[3:13, (slice(None, 3) if backward else slice(None))].any()
        assert not rows[13:].any()


@pytest.mark.parametrize("exact", [False, True], ids=["rounded", "exact"])
@pytest.mark.parametrize("shape", [(3, 2, 40), (5, 16)], ids=str)
def test_sums_of_zeros_are_zeros(device: Any, shape: tuple[int, ...], exact: bool) -> None:
    x, mean = (ptxrt.zeros(each, "f4", device) for each in (shape, shape[1]))
    forward_rows = SumsPlan.select(device, SumsDescriptor(shape, exact=exact)).run((x, None)).to_host()
    plan = SumsBackwardPlan.select(device, SumsBackwardDescriptor(shape, exact=exact))
    for rows in (forward_rows, plan.run((x, x, mean, None)).to_host()):
        assert (rows[0] == x.size // shape[1]).all()
        assert not rows[1:].any()


@pytest.mark.parametrize("name", TYPES)
def test_rounded_sums_of_special_values_are_no_numbers_where_exact_ones_are_none(device: Any, name: str) -> None:
    x, go = drawn((4, 7, 3), name)
    x[0, 0, 0] = np.nan
    x[3, 1, 2], x[0, 2, 0] = np.inf, -np.inf  # the latter first of all
    x[0, 3, 0], x[3, 3, 0] = np.inf, -np.inf
    go[1, 4, 1], go[2, 5, 0] = -np.inf, np.nan
    (exact,) = over_ranks(device, [(x, go)], cut(4, 3))
    (found,) = over_ranks(device, [(x, go)], cut(4, 3), exact=False)
    for one, values in exact.items():
        assert np.array_equal(np.isfinite(found[one]), np.isfinite(values)), one
    for one in ("batch_var", "grad_bias", "grad_weight"):
        assert np.array_equal(np.isnan(found[one]), np.isnan(exact[one])), one
    assert [repr(float(v)) for v in found["batch_mean"][:4]] == ["nan", "inf", "nan", "nan"]


def test_rounded_sums_of_a_constant_channel_have_a_variance_of_zero(device: Any) -> None:
    x = np.full((3, 1, 7), 0.1, "f4")
    (found,) = over_ranks(device, [(x, x)], cut(3, 2), exact=False)
    assert (found["batch_mean"], found["batch_var"]) == (np.float32(0.1), 0)
    assert np.array_equal(found["y"], np.full_like(x, -1))  # the bias


@pytest.mark.parametrize("count", [0, 1])
def test_rounded_sums_of_fewer_than_two_values_have_no_variance(device: Any, count: int) -> None:
    x = np.full((count, 1, 1), 3, "f4")
    (found,) = over_ranks(device, [(x, x)], cut(count, 2), exact=False)
    assert np.isnan(found["batch_var"])
    assert np.isnan(found["running_var"])


def test_rounded_sums_serve_the_mean_over_all_batches_and_inverse_deviations(device: Any) -> None:
    x, go = drawn((5, 2, 6))
    mean, var = np.array([3, -1], "f4"), np.array([2, 1], "f4")

    def work(rank: Communicator) -> Any:
        own = cut(5, 2)[rank.rank]
        running = [ptxrt.to_device(each, device) for each in (mean, var)]
        batches = ptxrt.to_device(np.array(4), device)
        how: Any = {"training": True, "communicator": rank, "save": "inverse_deviation", "exact": False}
        mine, theirs = (on_device(each[own], device) for each in (x, go))
        made = ops.batch_norm(mine, None, None, *running, momentum=None, batches=batches, **how)
        back: Any = ops.batch_norm_backward(
            theirs, mine, None, None, None, batch_mean=made.batch_mean, batch_var=made.batch_var, **how
        )
        return [array.to_host() for array in (batches, *running, made.batch_var, back[0])]

    (batches, *running, inverse, one), (*_, other) = Group(2, device).run(work)
    assert batches == 5
    wanted = references.updated_running_statistics(x, mean, var, momentum=None, batches=5)
    for found, want in zip(running, wanted, strict=True):
        assert relative_error(found, want) <= bar("batch_norm", "f32", want)
    want = 1 / np.sqrt(x.astype("f8").var((0, 2)) + 1e-5)
    assert relative_error(inverse, want) <= bar("batch_norm", "f32", want)
    gradients = references.batch_norm_backward(go, x, None, None, None, training=True)
    assert relative_error(np.concatenate([one, other]), gradients[0]) <= 1e-6


def test_a_call_with_rounded_sums_is_captured_and_replayed(device: Any) -> None:
    (rank,) = Group(1, device).ranks
    stream, array = ptxrt.Stream(device), on_device(drawn((4, 2, 6))[0], device)
    with stream:
        want = forward(array, rank, exact=False).y.to_host()
    with ptxrt.capture(stream) as graph:
        found = forward(array, rank, exact=False)
    found.y.fill_bytes(0, stream=stream)
    graph.replay()
    assert found.y.to_host(stream).tobytes() == want.tobytes()


def test_in_eval_it_does_not_matter_whether_sums_would_be_exact(device: Any) -> None:
    (rank,) = Group(1, device).ranks
    one = ptxrt.ones(2, "f4", device)
    x = ptxrt.ones((2, 2, 4), "f4", device)
    result = ops.batch_norm(x, None, None, one, one, training=False, communicator=rank, exact=False)
    assert not result.y.to_host().any()


@pytest.mark.parametrize("given", [0, None, 1, "no"])
def test_exact_is_true_or_false(device: Any, given: Any) -> None:
    (rank,) = Group(1, device).ranks
    x = ptxrt.ones((2, 2, 4), "f4", device)
    with refused(ptxrt.InvalidArgument, "batch_norm", "exact", "True or False"):
        forward(x, rank, exact=given)
    with refused(ptxrt.InvalidArgument, "batch_norm_backward", "exact", "True or False"):
        ops.batch_norm_backward(x, x, None, None, None, training=True, communicator=rank, exact=given)
    with refused(ptxrt.InvalidArgument, "batch_norm", "exact", "True or False"):
        SumsDescriptor((2, 2, 4), exact=given)


def test_exact_is_about_a_communicator(device: Any) -> None:
    x = ptxrt.ones((2, 2, 4), "f4", device)
    with refused(ptxrt.InvalidArgument, "batch_norm", "exact", "True without a communicator"):
        ops.batch_norm(x, None, None, None, None, training=True, exact=False)
    with refused(ptxrt.InvalidArgument, "batch_norm_backward", "exact", "True without a communicator"):
        ops.batch_norm_backward(x, x, None, None, None, training=True, exact=False)


# Errors ---------------------------------------------------------------------------------------------------------------


def forward(x: Any, communicator: Any, **how: Any) -> Any:
    return ops.batch_norm(x, None, None, None, None, training=True, communicator=communicator, **how)


@pytest.mark.parametrize(
    ("what", "given"),
    [
        ("channels", "2 on rank 0, 2; 3 on rank 1"),
        ("dtype", "f32 on rank 0, 2; f16 on rank 1"),
        ("eps", "1e-05 on rank 0, 2; 0.001 on rank 1"),
        ("momentum", "0.1 on rank 0, 2; 0.2 on rank 1"),
        ("exact", "True on rank 0, 2; False on rank 1"),
    ],
)
def test_ranks_that_disagree_are_told_so_on_every_rank(device: Any, what: str, given: str) -> None:
    group, errors = Group(3, device, timeout=20), {}

    def work(rank: Communicator) -> None:
        other = rank.rank == 1
        shape = (2, 3 if other and what == "channels" else 2, 4)
        x = ptxrt.ones(shape, "f2" if other and what == "dtype" else "f4", device)
        others = {"eps": 1e-3, "momentum": 0.2, "exact": False}
        how: Any = {what: others[what]} if other and what in others else {}
        try:
            forward(x, rank, **how)
        except ptxrt.PtxrtError as error:
            errors[rank.rank] = error

    group.run(work)
    assert {type(error) for error in errors.values()} == {ptxrt.RanksDisagree}
    assert len(errors) == 3
    said = given.replace("rank 0, 2", "ranks 0, 2")
    assert {str(error) for error in errors.values()} == {
        f"batch_norm: communicator: expected the same {what} on all ranks, given {said}"
    }


def test_numbers_that_are_equal_are_no_disagreement(device: Any) -> None:
    x = ptxrt.to_device(drawn((2, 2, 4))[0], device)

    def work(rank: Communicator) -> None:
        how: Any = {"eps": 0, "momentum": np.float32(0.5)} if rank.rank else {"eps": 0.0, "momentum": 0.5}
        forward(x, rank, **how)

    Group(2, device, timeout=20).run(work)


def test_a_rank_that_ends_is_named_on_the_others(device: Any) -> None:
    group, errors = Group(3, device, timeout=20), {}

    def work(rank: Communicator) -> None:
        x = ptxrt.ones((2, 2, 4), "f4", device)
        forward(x, rank)
        if rank.rank == 1:
            raise KeyError("out of data")
        try:
            forward(x, rank)
        except ptxrt.PtxrtError as error:
            errors[rank.rank] = error

    with pytest.raises(KeyError, match="out of data"):
        group.run(work)
    assert {type(error) for error in errors.values()} == {ptxrt.RankLost}
    assert errors.keys() == {0, 2}
    assert all("rank 1 ended with KeyError" in str(error) for error in errors.values())


def test_a_rank_that_does_not_come_is_named_after_the_time_limit(device: Any) -> None:
    group = Group(3, device, timeout=0.2)
    errors: list[Any] = []

    def work(rank: Communicator) -> None:
        try:
            forward(ptxrt.ones((2, 2, 4), "f4", device), rank)
        except ptxrt.PtxrtError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in group.ranks[:2]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [type(error) for error in errors] == [ptxrt.RankLost] * 2
    assert all("nothing of rank 2" in str(error) for error in errors)


def test_a_communicator_of_another_device_is_refused(device: Any) -> None:
    other = ptxrt.Device("sim:1")
    with refused(ptxrt.DeviceMismatch, "batch_norm", "communicator", str(other), str(device)):
        forward(ptxrt.ones((2, 2, 4), "f4", device), Group(1, other).ranks[0])


def test_what_is_not_built_is_refused_with_a_reason(device: Any) -> None:
    (rank,) = Group(1, device).ranks
    for exact in (True, False):
        with refused(ptxrt.Unsupported, "batch_norm", "communicator", "float64"):
            forward(ptxrt.ones((2, 2, 4), "f8", device), rank, exact=exact)
    x = ptxrt.ones((2, 2, 4), "f4", device)
    with refused(ptxrt.Unsupported, "batch_norm_backward", "batch_mean", "both batch statistics"):
        ops.batch_norm_backward(x, x, None, None, None, training=True, communicator=rank)


def test_a_wrong_operand_is_refused_before_the_ranks_meet(device: Any) -> None:
    rank = Group(2, device, timeout=0.1).ranks[0]
    with refused(ptxrt.ShapeMismatch, "batch_norm", "weight"):
        ops.batch_norm(
            ptxrt.ones((2, 2, 4), "f4", device),
            *(ptxrt.ones(3, "f4", device), None, None, None),
            training=True,
            communicator=rank,
        )


def test_eval_needs_no_communicator(device: Any) -> None:
    rank = Group(2, device, timeout=0.1).ranks[0]
    x, one = ptxrt.ones((2, 2, 4), "f4", device), ptxrt.ones(2, "f4", device)
    result = ops.batch_norm(x, None, None, one, one, training=False, communicator=rank)
    assert result.batch_mean is None
    assert not result.y.to_host().any()


def test_special_values_in_columns(device: Any) -> None:
    x, go = drawn((6, 17))
    x[0, 0], x[3, 1], go[5, 2] = np.nan, np.inf, -np.inf
    (one,) = whole = over_ranks(device, [(x, go)], cut(6, 1))
    same_bits(over_ranks(device, [(x, go)], cut(6, 4, UNEVEN)), whole)
    assert [repr(float(v)) for v in one["batch_mean"][:2]] == ["nan", "inf"]
    assert repr(float(one["grad_bias"][2])) == "-inf"
    assert np.isfinite(one["y"][:, 2:]).all()


def test_channels_last_shards_of_one_position(device: Any) -> None:
    shape = (5, 3, 2)
    assert SumsDescriptor(shape, strides=channels_last(shape)).hw == 1
    x, go = drawn((5, 3))
    same_bits(over_ranks(device, [(x, go)], cut(5, 3)), over_ranks(device, [(x, go)], cut(5, 1)))
