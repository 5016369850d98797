"""batch_norm by a block a channel, which holds its values: what its rows are read by, and its threads."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from helpers import Rng, Shape
from op_testing import wish
from test_batch_norm import check as check_forward
from test_batch_norm import problem as forward_problem
from test_batch_norm import run as run_forward
from test_batch_norm_backward import check as check_backward
from test_batch_norm_backward import problem as backward_problem
from test_batch_norm_backward import run as run_backward

from ptxrt import Device, PlanPreference, Unsupported
from ptxrt.dtypes import BY_NAME
from ptxrt.ops._batch_norm import BatchNormBackwardDescriptor, BatchNormBackwardPlan, BatchNormDescriptor, BatchNormPlan
from ptxrt.ops._batch_norm_cached import FAMILY, ThreadsConfig
from ptxrt.ops.framework import Limits

FORWARD = [("cached", 128), ("cached", 256), ("cached", 512), ("hip/cached", 128), ("hip/cached", 256)]
BACKWARD = [("cached", 128), ("cached", 256), ("cached", 512), ("hip/cached", 128), ("hip/cached", 512)]


def by(variant: str, threads: int) -> dict[str, Any]:
    """Return what a run is asked for: a variant and its threads."""
    return {"variant": variant, "config": ThreadsConfig(threads)}


def asked(variant: str, threads: int) -> PlanPreference:
    return wish(variant, config=ThreadsConfig(threads))


def rows_for(threads: int, hw: int, values: int = 24) -> Shape:
    """Return a shape whose channels have more than so many values a thread: whole turns, and one that is not."""
    return -(-values * threads // hw) + 2, 3, hw


@pytest.mark.sanitize
@pytest.mark.parametrize(("name", "hw"), [("f16", 196), ("bf16", 196), ("f16", 49), ("f16", 56), ("f32", 36)], ids=str)
@pytest.mark.parametrize(("variant", "threads"), FORWARD)
def test_forward(device: Device, rng: Rng, variant: str, threads: int, name: str, hw: int) -> None:
    """Rows of vectors, of half vectors, and of neither."""
    values = forward_problem(rng, rows_for(threads, hw), name=name)
    check_forward(device, values, training=True, **by(variant, threads))


@pytest.mark.sanitize
@pytest.mark.parametrize(("name", "hw"), [("f16", 196), ("bf16", 196), ("f16", 49), ("f16", 56), ("f32", 36)], ids=str)
@pytest.mark.parametrize(("variant", "threads"), BACKWARD)
def test_backward(device: Device, rng: Rng, variant: str, threads: int, name: str, hw: int) -> None:
    values = backward_problem(rng, rows_for(threads, hw, 12), name=name)
    for kind in ("training", "handed"):
        check_backward(device, values, kind=kind, **by(variant, threads))


@pytest.mark.ptx
@pytest.mark.sanitize
@pytest.mark.parametrize("batch", [1, 6, 56, 57, 64, 65, 73])
def test_as_many_copies_of_a_thread_as_may_be_under_way_and_more(device: Device, rng: Rng, batch: int) -> None:
    """Rows of 16 vectors, 128 threads: 57 rows are 8 copies for some threads, 64 for all, 65 one more for some."""
    shape, how = (batch, 2, 64), by("cached", 128)
    check_forward(device, forward_problem(rng, shape, name="f32"), training=True, **how)
    check_backward(device, backward_problem(rng, shape, name="f32"), kind="training", **how)


@pytest.mark.parametrize(("offset", "out_offset"), [(4, 4), (4, 0), (0, 4), (2, 0), (0, 2), (1, 1)])
@pytest.mark.parametrize("hw", [12, 16])
@pytest.mark.parametrize("variant", ["cached", "split", "hip/cached", "hip/tickets"])
def test_arrays_at_multiples_of_8_bytes_and_less(
    device: Device, rng: Rng, variant: str, hw: int, offset: int, out_offset: int
) -> None:
    how: Any = {"variant": variant, "offset": offset, "out_offset": out_offset}
    check_forward(device, forward_problem(rng, (5, 2, hw), name="f16"), training=True, **how)
    check_backward(device, backward_problem(rng, (5, 2, hw), name="f16"), kind="training", **how)


@pytest.mark.parametrize("variant", ["cached", "split", "hip/cached", "hip/tickets"])
def test_rows_of_two_values_more_than_half_vectors(device: Device, rng: Rng, variant: str) -> None:
    check_forward(device, forward_problem(rng, (6, 2, 10), name="f16"), training=True, variant=variant)
    check_backward(device, backward_problem(rng, (6, 2, 10), name="f16"), kind="training", variant=variant)


@pytest.mark.parametrize("offset", [0, 4])
@pytest.mark.parametrize("variant", ["split", "hip/split"])
def test_gradients_in_eval_by_half_vectors(device: Device, rng: Rng, variant: str, offset: int) -> None:
    for hw in (12, 16):
        check_backward(
            device, backward_problem(rng, (9, 2, hw), name="f16"), kind="eval", variant=variant, offset=offset
        )


@pytest.mark.ptx
@pytest.mark.parametrize(
    "ways",
    [
        [by("cached", 128), by("hip/cached", 128)],
        [{"variant": "split"}, {"variant": "hip/tickets"}],
    ],
    ids=["cached", "split"],
)
def test_the_bits_are_those_of_the_other_language(device: Device, rng: Rng, ways: Any) -> None:
    """Of half vectors, and of whole ones."""
    for hw in (196, 200):
        values = forward_problem(rng, (9, 3, hw), name="f16")
        of_ptx, of_hip = (run_forward(device, values, training=True, **each) for each in ways)
        for name, result in of_ptx.items():
            np.testing.assert_array_equal(result, of_hip[name], name)
        values = backward_problem(rng, (9, 3, hw), name="f16")
        for one, another in zip(*(run_backward(device, values, kind="training", **each) for each in ways), strict=True):
            np.testing.assert_array_equal(one, another)


@pytest.mark.parametrize(("variant", "threads"), [("cached", 64), ("hip/cached", 512), ("hip/cached", 64)])
def test_other_numbers_of_threads_are_refused(device: Device, variant: str, threads: int) -> None:
    problem = BatchNormDescriptor((2, 3, 8), True)
    with pytest.raises(Unsupported, match=f"no block of {threads} threads holds a channel"):
        BatchNormPlan.select(device, problem, asked(variant, threads))


@pytest.mark.parametrize("arrays", [1, 2])
@pytest.mark.parametrize("name", FAMILY.dtypes)
def test_its_copies_came_with_sm_80(sim: Device, name: str, arrays: int) -> None:
    plan: Any = (BatchNormPlan, BatchNormBackwardPlan)[arrays - 1]
    descriptor: Any = (BatchNormDescriptor, BatchNormBackwardDescriptor)[arrays - 1]
    variant = next(v for v in plan.variants if (v.name, v.language) == ("cached", "ptx"))
    problem, limits = descriptor((2, 4, 64), True, dtype=BY_NAME[name]), Limits.of(sim.properties)
    (launch,) = variant.schedule(problem, ThreadsConfig(256), limits).steps
    assert launch.refusal(limits._replace(target=80)) is None
    assert launch.refusal(limits._replace(target=75)) == f"{launch.kernel.entry} needs sm_80, and this is sm_75"


def test_what_a_small_block_in_hip_does_not_hold_is_refused(device: Device) -> None:
    fits, larger = (BatchNormDescriptor((1, 1, count), True) for count in (6784, 6785))
    BatchNormPlan.select(device, fits, asked("hip/cached", 128))
    with pytest.raises(Unsupported, match="27140 bytes of values are more than 27136"):
        BatchNormPlan.select(device, larger, asked("hip/cached", 128))


@pytest.mark.parametrize("name", FAMILY.dtypes)
@pytest.mark.parametrize(("entry", "arrays"), [("batch_norm_cached128", 1), ("batch_norm_backward_cached", 2)])
def test_all_but_single_values_of_16_bits_are_copied(entry: str, arrays: int, name: str) -> None:
    text = FAMILY.kernel(entry, BY_NAME[name], "ptx").source.text
    copies = re.findall(r"cp\.async\.(c\w)\S+ \[\S+\], \[\S+\], (\d+);", text)
    size = 8 if name.endswith("16") else BY_NAME[name].size
    assert copies == [("cg", "16")] * arrays + [("ca", str(size))] * arrays
    found = set(re.findall(r"(?:ld|st)\.(?:global|shared)\.v\d\.[bf]\d+", text))
    whole = f"v{min(4, 16 // BY_NAME[name].size)}.{'b32' if name.endswith('16') else name}"
    halves = {f"{way}.v2.b32" for way in ("ld.shared", "st.global") if name.endswith("16")}
    assert found == {f"ld.shared.{whole}", f"st.global.{whole}", *halves}
