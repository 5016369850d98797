"""batch_norm that saves inverse deviations, and that averages over all batches, counted on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from helpers import Rng
from op_testing import Guarded, check_error, key_of, on_device, wish
from tolerances import bar

import ptxrt
from ptxrt import Device
from ptxrt.dtypes import BY_NAME
from ptxrt.ops import (
    BatchNormArgs,
    BatchNormBackwardArgs,
    BatchNormBackwardDescriptor,
    BatchNormBackwardPlan,
    BatchNormDescriptor,
    BatchNormPlan,
    batch_norm,
    batch_norm_backward,
    references,
)
from ptxrt.ops._batch_norm_statistics import FAMILY
from ptxrt.ops.framework import parameter_type

SHAPE = (4, 3, 11)
VARIANTS = ("cached", "columns", "split", "baseline", "hip/baseline")
each_variant = pytest.mark.parametrize("variant", VARIANTS)
each_type = pytest.mark.parametrize("name", ["f32", "f64", "f16", "bf16"])
in_both = pytest.mark.parametrize("variant", ["baseline", "hip/baseline"])


def made(rng: Rng, name: str = "f32", shape: Any = SHAPE) -> Any:
    """Return values whose channels have means of their own."""
    return (rng.standard_normal(shape) + rng.standard_normal((shape[1], 1))).astype(BY_NAME[name].numpy)


def real(name: str) -> str:
    return parameter_type(BY_NAME[name]).name


def vectors(rng: Rng, count: int, name: str = "f32", channels: int = SHAPE[1]) -> list[Any]:
    kind = BY_NAME[real(name)].numpy
    return [(np.abs(rng.standard_normal(channels)) + 0.5).astype(kind) for _ in range(count)]


def selected(plan: Any, device: Device, problem: Any, variant: str | None) -> Any:
    found = plan.select(device, problem, wish(variant))
    assert variant is None or key_of(found.variant) == variant
    return found


class Net:
    """A batch_norm with its running statistics and its counter on a device."""

    def __init__(self, device: Device, rng: Rng, name: str, variant: str | None, count: int | None = 0) -> None:
        self.device, self.name, self.variant = device, name, variant
        self.first = vectors(rng, 2, name)
        self.running = [Guarded(a.shape, a.dtype, device) for a in self.first]
        for guarded, a in zip(self.running, self.first, strict=True):
            guarded.array.copy_from(a)
        self.counter = Guarded((1,), np.int64, device)
        if count is not None:
            self.counter.array.copy_from(np.array([count]))
        self.counted = count is not None

    def step(self, x: Any, w: Any = None, b: Any = None, **how: Any) -> list[Any]:
        """Return y, the batch's mean, and what is saved."""
        problem = BatchNormDescriptor(x.shape, True, BY_NAME[self.name], counted=self.counted, **how)
        plan = selected(BatchNormPlan, self.device, problem, self.variant)
        kind = BY_NAME[real(self.name)].numpy
        outputs = [Guarded(x.shape, x.dtype, self.device)]
        outputs += [Guarded(x.shape[1:2], kind, self.device) for _ in range(2)]
        inputs = [*(on_device(a, self.device) for a in (x, w, b)), *(each.array for each in self.running)]
        outputs_there = [*(o.array for o in outputs), self.counter.array if self.counted else None]
        plan.run(BatchNormArgs(*[*inputs, *outputs_there]))
        return [o.host() for o in outputs]

    def statistics(self) -> list[Any]:
        return [each.host() for each in self.running]


def check(
    results: str, device: Device, got: Sequence[Any], want: Sequence[Any], kinds: Sequence[str], case: Any
) -> None:
    for result, a, ref, kind in zip(results.split(), got, want, kinds, strict=True):
        check_error(f"batch_norm {result}", device, a, ref, bar("batch_norm", kind, ref), case)


def check_backward(
    device: Device, rng: Rng, x: Any, mean: Any, inverse: Any, name: str, variant: Any, eps: float
) -> None:
    """Hold the gradients, from an inverse deviation that is handed, to the reference."""
    go, (w,) = made(rng, name, x.shape), vectors(rng, 1, name, x.shape[1])
    problem = BatchNormBackwardDescriptor(x.shape, True, BY_NAME[name], eps, handed=True, save="inverse_deviation")
    plan = selected(BatchNormBackwardPlan, device, problem, variant)
    arrays = [on_device(a, device) for a in (go, x, w, None, None, mean, inverse)]
    got = [a.to_host() for a in plan.run(BatchNormBackwardArgs(*arrays))]
    how: Any = {"training": True, "batch_mean": mean, "batch_var": inverse, "save": "inverse_deviation", "eps": eps}
    want = references.batch_norm_backward(go, x, w, None, None, **how)
    kinds = (name, real(name), real(name))
    check("grad_input grad_weight grad_bias", device, got, want, kinds, (name, variant, eps))


# The inverse deviation ------------------------------------------------------------------------------------------------


@each_variant
@each_type
@pytest.mark.sanitize
def test_the_inverse_deviation_is_saved_and_taken_back(device: Device, rng: Rng, name: str, variant: str) -> None:
    x, (w, b) = made(rng, name), vectors(rng, 2, name)
    net = Net(device, rng, name, variant, None)
    got = net.step(x, w, b, save="inverse_deviation", eps=0.25)
    want = references.batch_norm(x, w, b, None, None, training=True, save="inverse_deviation", eps=0.25)
    check("y batch_mean batch_inverse", device, got, want, (name, real(name), real(name)), (name, variant))
    updated = references.updated_running_statistics(x, *net.first)  # of the variance, not of what is saved
    check("running_mean running_var", device, net.statistics(), updated, [real(name)] * 2, (name, variant))
    check_backward(device, rng, x, got[1], got[2], name, variant, 0.25)


@pytest.mark.parametrize("name", ["f32", "f64"])
@pytest.mark.parametrize(
    ("deviation", "eps"), [(1.0, 0.0), (1e-12, 1e-5), (1e-12, 0.0), (1e12, 1e-5), (1e-3, 1e3), (1e-7, 1e-14)]
)
@in_both
def test_an_inverse_of_any_size(
    device: Device, rng: Rng, name: str, deviation: float, eps: float, variant: str
) -> None:
    x = (rng.standard_normal(SHAPE) * deviation).astype(BY_NAME[name].numpy)
    _, mean, inverse = Net(device, rng, name, variant, None).step(x, save="inverse_deviation", eps=eps)
    _, _, want = references.batch_norm(x, None, None, None, None, training=True, save="inverse_deviation", eps=eps)
    check("batch_inverse", device, [inverse], [want], [name], (name, deviation, eps))
    check_backward(device, rng, x, mean, inverse, name, variant, eps)


@in_both
def test_a_channel_without_a_deviation(device: Device, rng: Rng, variant: str) -> None:
    # One of the channels has a variance of 0; with an eps of 0 its inverse is infinite, and so the gradients NaN.
    x, (w,), go = made(rng), vectors(rng, 1), made(rng)
    x[:, 1] = 3.0
    for eps, inverse_of_1 in ((0.0, np.inf), (0.25, 2.0)):
        _, mean, inverse = Net(device, rng, "f32", variant, None).step(x, save="inverse_deviation", eps=eps)
        assert inverse[1] == inverse_of_1
        problem = BatchNormBackwardDescriptor(SHAPE, True, eps=eps, handed=True, save="inverse_deviation")
        plan = selected(BatchNormBackwardPlan, device, problem, variant)
        arrays = [on_device(a, device) for a in (go, x, w, None, None, mean, inverse)]
        gradients = plan.run(BatchNormBackwardArgs(*arrays))
        with np.errstate(invalid="ignore"):
            want = references.batch_norm_backward(
                go,
                x,
                w,
                None,
                None,
                training=True,
                batch_mean=mean,
                batch_var=inverse,
                save="inverse_deviation",
                eps=eps,
            )
        for got, ref in zip(gradients, want, strict=True):
            assert ref is not None
            np.testing.assert_allclose(got.to_host(), ref, rtol=1e-5, atol=1e-6)


def test_the_functions_take_save(device: Device, rng: Rng) -> None:
    x, go, w = (on_device(a, device) for a in (made(rng), made(rng), *vectors(rng, 1)))
    _, mean, inverse = batch_norm(x, w, None, None, None, training=True, save="inverse_deviation")
    assert mean is not None
    assert inverse is not None
    host = x.to_host()
    _, _, want = references.batch_norm(host, None, None, None, None, training=True, save="inverse_deviation")
    check("batch_inverse", device, [inverse.to_host()], [want], ["f32"], "the function")
    how: Any = {"training": True, "batch_mean": mean, "batch_var": inverse, "save": "inverse_deviation"}
    got = batch_norm_backward(go, x, w, None, None, **how)
    again = batch_norm_backward(go, x, w, None, None, training=True)
    for one, other in zip(got, again, strict=True):
        assert one is not None
        assert other is not None
        np.testing.assert_allclose(one.to_host(), other.to_host(), rtol=1e-5, atol=1e-6)
    assert batch_norm(x, w, None, mean, inverse, training=False, save="inverse_deviation").batch_var is None


# The mean over all batches --------------------------------------------------------------------------------------------


@each_variant
@each_type
def test_running_statistics_over_twenty_steps(device: Device, rng: Rng, name: str, variant: str) -> None:
    net = Net(device, rng, name, variant)
    steps = 20 if variant in ("cached", "hip/baseline") else 3
    mean, var = net.first
    for n in range(1, steps + 1):
        x = made(rng, name)
        net.step(x, momentum=None)
        wide = mean.astype(np.longdouble), var.astype(np.longdouble)
        mean, var = references.updated_running_statistics(x, *wide, momentum=None, batches=n)
        assert net.counter.host().tolist() == [n]
    # Each step rounds to the type of the statistics; most of these roundings have become small.
    for got, want in zip(net.statistics(), (mean, var), strict=True):
        limit = bar("batch_norm", real(name), want)
        check_error("batch_norm running statistics", device, got, want, limit, (name, variant))


@each_variant
def test_the_first_batch_leaves_nothing_of_what_was_there(device: Device, rng: Rng, variant: str) -> None:
    net, x = Net(device, rng, "f32", variant), made(rng)
    for guarded in net.running:
        guarded.array.copy_from(np.full(SHAPE[1], 1e30, np.float32))
    _, mean, var = net.step(x, momentum=None)
    np.testing.assert_array_equal(net.statistics()[0], mean)
    unbiased = var.astype(np.float64) * 44 / 43
    np.testing.assert_allclose(net.statistics()[1], unbiased, rtol=1e-7)


@each_variant
def test_a_counter_beside_a_momentum_is_incremented(device: Device, rng: Rng, variant: str) -> None:
    net, x = Net(device, rng, "f32", variant, 2**40), made(rng)
    net.step(x, momentum=0.25, save="inverse_deviation")
    updated = references.updated_running_statistics(x, *net.first, momentum=0.25)
    check("running_mean running_var", device, net.statistics(), updated, ["f32"] * 2, variant)
    assert net.counter.host().tolist() == [2**40 + 1]


@in_both
def test_more_channels_than_a_block_has_threads(device: Device, rng: Rng, variant: str) -> None:
    shape = (2, 259, 3)
    x = made(rng, shape=shape)
    problem = BatchNormDescriptor(shape, True, momentum=None, save="inverse_deviation", counted=True)
    plan = selected(BatchNormPlan, device, problem, variant)
    first = vectors(rng, 2, channels=259)
    running, counter = [on_device(a, device) for a in first], on_device(np.array([6]), device)
    _, mean, inverse = plan.run(BatchNormArgs(*[on_device(x, device), None, None, *running, None, None, None, counter]))
    updated = references.updated_running_statistics(x, *first, momentum=None, batches=7)
    check("running_mean running_var", device, [a.to_host() for a in running], updated, ["f32"] * 2, variant)
    want = references.batch_norm(x, None, None, None, None, training=True, save="inverse_deviation")[2]
    check("batch_inverse", device, [inverse.to_host()], [want], ["f32"], variant)
    check_backward(device, rng, x, mean.to_host(), inverse.to_host(), "f32", variant, 1e-5)


@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
def test_the_function_takes_a_counter(device: Device, rng: Rng, shape: Any) -> None:
    x, first = made(rng), vectors(rng, 2)
    running = [on_device(a, device) for a in first]
    counter = ptxrt.to_device(np.full(shape, 4, np.int64), device)
    for _ in range(2):
        batch_norm(on_device(x, device), None, None, *running, training=True, momentum=None, batches=counter)
    assert counter.to_host().tolist() == np.full(shape, 6).tolist()
    mean, var = first
    for n in (5, 6):
        mean, var = references.updated_running_statistics(x, mean, var, momentum=None, batches=n)
    check("running_mean running_var", device, [a.to_host() for a in running], (mean, var), ["f32"] * 2, shape)


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_in_hip_threads_take_turns(device: Device, rng: Rng, name: str) -> None:
    kind = BY_NAME[name]
    mean, var, running_mean, running_var = vectors(rng, 4, name, 150)
    there = [on_device(a, device) for a in (mean, var, running_mean, running_var)]
    counter = on_device(np.array([3]), device)
    role = {each: FAMILY.kernel(f"batch_norm_{each}", kind, "hip").load(device) for each in
            ("cumulative", "inverse_deviation", "backward_variance")}  # fmt: skip
    role["cumulative"].launch(2, 32, *there, counter, 5, 150, 7)
    wide = [a.astype(np.longdouble) for a in (mean, var, running_mean, running_var)]
    np.testing.assert_allclose(there[2].to_host(), (2 * wide[2] + wide[0]) / 3, rtol=2e-7 if name == "f32" else 1e-15)
    want = (2 * wide[3] + wide[1] * 35 / 34) / 3
    np.testing.assert_allclose(there[3].to_host(), want, rtol=2e-7 if name == "f32" else 1e-15)
    squares = Guarded((150,), kind.numpy, device)
    role["backward_variance"].launch(2, 32, there[0], squares.array, 150)
    np.testing.assert_allclose(squares.host(), 1 / wide[0] ** 2, rtol=2e-7 if name == "f32" else 1e-15)
    role["inverse_deviation"].launch(2, 32, there[1], 150, 0.5)
    np.testing.assert_allclose(there[1].to_host(), 1 / np.sqrt(wide[1] + 0.5), rtol=2e-7 if name == "f32" else 1e-15)


@each_variant
def test_nothing_goes_to_the_host_and_few_launches_are_added(device: Device, variant: str) -> None:
    plain = BatchNormDescriptor(SHAPE, True)
    full = BatchNormDescriptor(SHAPE, True, momentum=None, save="inverse_deviation", counted=True)
    entries = [
        [launch.kernel.entry for launch in selected(BatchNormPlan, device, problem, variant).schedule.launches]
        for problem in (plain, full)
    ]
    added = ["batch_norm_count", "batch_norm_cumulative", "batch_norm_inverse_deviation"]
    assert entries[1] == [entry for entry in entries[0] if entry != "batch_norm_running"] + added
    assert not set(added) & set(entries[0])
    backwards = [
        selected(
            BatchNormBackwardPlan, device, BatchNormBackwardDescriptor(SHAPE, True, handed=True, save=save), variant
        )
        for save in ("variance", "inverse_deviation")
    ]
    entries = [[launch.kernel.entry for launch in plan.schedule.launches] for plan in backwards]
    assert entries[1] == ["batch_norm_backward_variance", *entries[0]]
    assert backwards[1].workspace_size >= 4 * SHAPE[1]


# Checks ---------------------------------------------------------------------------------------------------------------


def refused(error: type[ptxrt.PtxrtError], argument: str, call: Any, *args: Any, **how: Any) -> str:
    with pytest.raises(error) as caught:
        call(*args, **how)
    assert type(caught.value) is error
    assert (caught.value.op, caught.value.argument) == ("batch_norm", argument)
    return str(caught.value)


@pytest.fixture
def given(device: Device, rng: Rng) -> list[Any]:
    return [on_device(a, device) for a in (made(rng), *vectors(rng, 4))]


@pytest.mark.parametrize("momentum", [-0.1, 1.5, float("nan"), "0.1", True])
def test_a_momentum_outside_of_its_bounds_is_told_them(given: list[Any], momentum: Any) -> None:
    said = refused(ptxrt.InvalidArgument, "momentum", batch_norm, *given, training=True, momentum=momentum)
    assert f"expected a number from 0 to 1, given {momentum!r}" in said


def test_a_mean_over_all_batches_needs_a_counter(given: list[Any]) -> None:
    said = refused(ptxrt.InvalidArgument, "batches", batch_norm, *given, training=True, momentum=None)
    assert "since momentum is None" in said


def test_a_mean_over_all_batches_needs_running_statistics(given: list[Any]) -> None:
    first = (*given[:3], None, None)
    refused(ptxrt.InvalidArgument, "momentum", batch_norm, *first, training=True, momentum=None)


def test_eval_has_no_mean_over_all_batches(given: list[Any]) -> None:
    refused(ptxrt.InvalidArgument, "momentum", batch_norm, *given, training=False, momentum=None)


def test_eval_counts_no_batches(device: Device, given: list[Any]) -> None:
    counter = on_device(np.array([1]), device)
    refused(ptxrt.InvalidArgument, "batches", batch_norm, *given, training=False, batches=counter)


def test_without_running_statistics_no_batches_are_counted(device: Device, given: list[Any]) -> None:
    counter = on_device(np.array([1]), device)
    refused(ptxrt.InvalidArgument, "batches", batch_norm, *given[:3], None, None, training=True, batches=counter)


@pytest.mark.parametrize("op", ["batch_norm", "batch_norm_backward"])
def test_save_is_one_of_two(given: list[Any], op: str) -> None:
    cls: Any = BatchNormDescriptor if op == "batch_norm" else BatchNormBackwardDescriptor
    for save in ("deviation", None, np.ones(2)):
        with pytest.raises(ptxrt.InvalidArgument, match="'variance' or 'inverse_deviation'") as caught:
            cls(SHAPE, True, save=save)
        assert (caught.value.op, caught.value.argument) == (op, "save")


def test_counted_is_a_bool() -> None:
    refused(ptxrt.InvalidArgument, "batches", BatchNormDescriptor, SHAPE, True, counted=1)


@pytest.mark.parametrize(
    ("counter", "error"),
    [
        (np.array([1], np.int32), ptxrt.DTypeMismatch),
        (np.array([1.0], np.float32), ptxrt.DTypeMismatch),
        (np.array([1, 2]), ptxrt.ShapeMismatch),
        (np.array([[1]]), ptxrt.ShapeMismatch),
    ],
)
def test_a_counter_is_one_int64(device: Device, given: list[Any], counter: Any, error: Any) -> None:
    there = on_device(counter, device)
    refused(error, "batches", batch_norm, *given, training=True, momentum=None, batches=there)
    np.testing.assert_array_equal(there.to_host(), counter)


def test_a_counter_is_on_the_device(device: Device, other_device: Device, given: list[Any]) -> None:
    how: Any = {"training": True, "momentum": None}
    refused(ptxrt.InvalidArgument, "batches", batch_norm, *given, **how, batches=np.array([1]))
    refused(ptxrt.DeviceMismatch, "batches", batch_norm, *given, **how, batches=on_device(np.array([1]), other_device))


def test_a_counter_shares_no_memory_with_an_operand(device: Device, rng: Rng) -> None:
    whole = ptxrt.zeros(6, np.int64, device)
    place = ptxrt.DeviceArray.from_pointer(whole.ptr, (3,), np.dtype(np.float32), device, owner=whole)
    first: list[Any] = [on_device(made(rng), device), None, None, on_device(vectors(rng, 1)[0], device), place]
    with pytest.raises(ptxrt.LayoutError, match="batches"):
        batch_norm(*first, training=True, momentum=None, batches=whole[1:2])
    batch_norm(*first, training=True, momentum=None, batches=whole[2:3])


def test_a_plan_without_a_counter_takes_none(device: Device, given: list[Any]) -> None:
    plan = BatchNormPlan.select(device, BatchNormDescriptor(SHAPE, True))
    with pytest.raises(ptxrt.InvalidArgument, match="counts no batches"):
        plan.run(BatchNormArgs(*[*given, None, None, None, on_device(np.array([1]), device)]))
