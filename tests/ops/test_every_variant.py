"""What holds of every variant: its results in each config; no bit of them depends on where they lie."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pytest
from helpers import EVERYTHING, NVIDIA_GPU, Patch, covering, launches_by, skip_stand_in
from op_testing import Guarded, check_error, key_of, on_device, variants, wish
from problems import Case, cases, operands, ways
from tolerances import EPSILON

import ptxrt
from ptxrt import Device, ops
from ptxrt.dtypes import BY_NAME
from ptxrt.ops.framework import Plan
from ptxrt.runtime.layout import channels_last

SIZES: dict[str, Any] = {
    # Vectors and single elements, several turns of a block, slices; groups of one warp; one image and many.
    "group_norm": {
        "f32": [((2, 6, 36), 3), ((1, 3, 33), 1), ((2, 8, 700), 2), ((2, 4, 5001), 2), ((2, 4, 5000), 2),
                ((300, 4, 3), 2), ((1, 600, 2), 2), ((1, 8, 129), 2, True), ((2, 6, 40), 2, True),
                ((1, 160, 3, 3), 1, True)],
        "others": [((2, 6, 40), 3), ((1, 16, 40), 2, True)],
    },
    "softmax2d": {
        "f32": [((2, 36, 8),), ((2, 21, 300),), ((1, 300, 9),), ((40, 70, 1),), ((1, 1100, 9),), ((2, 36, 8), True)],
        "others": [((2, 70, 9),)],
    },
    "batch_norm": {
        "f32": [((3, 4, 36),), ((2, 8, 300),), ((5, 3, 301),), ((9, 3, 1000),)],
        "others": [((2, 2, 40),)],
    },
    "local_response_norm": {"f32": [((2, 6, 35),), ((2, 29, 60),)], "others": [((2, 6, 35),)]},
    "upsample_nearest2d": {
        "f32": [((2, 3, 33, 21), (50, 60)), ((2, 3, 7, 5), (14, 10))],
        "others": [((2, 3, 4, 5), (6, 7)), ((2, 3, 3, 6), (6, 12))],
    },
    "grid_sample": {
        "f32": [((2, 3, 5, 6), (4, 9)), ((2, 9, 17, 13), (35, 150))],
        "others": [((2, 9, 5, 6), (4, 9))],
    },
    # Vectors and single values, several turns of a block, more slices of rows than one.
    **{norm: {"f32": [((2, 4, 6), (4, 6)), ((1, 2064), (2064,)), ((17, 60), (60,))],
              "others": [((1, 1001), (1001,)), ((9, 136), (136,))]} for norm in ("layer_norm", "rms_norm")},
    "grid_sample_modes": {"others": [((2, 9, 5, 6), (5, 70))]},
}  # fmt: skip
IN_PLACE = {  # of the first output
    "group_norm": ("x",), "group_norm_backward": ("grad_out", "x"),
    "batch_norm": ("x",), "batch_norm_backward": ("grad_out", "x"),
    "softmax2d": ("x",), "softmax2d_backward": ("grad_out", "y"),
    "layer_norm": ("x",), "rms_norm": ("x",),
}  # fmt: skip
EMPTY: dict[str, Any] = {
    "group_norm": {"others": [((0, 4, 3), 2), ((2, 4, 0), 2), ((2, 0, 3), 2), ((0, 4), 2)]},
    "softmax2d": {"others": [((0, 4, 3),), ((2, 4, 0),), ((2, 0, 3),), ((0, 0),), ((3, 5, 0, 2),)]},
    "batch_norm": {"others": [((2, 0, 3),), ((0, 4, 3), (False,)), ((2, 4, 0), (False,)), ((0, 4), (False,))]},
    "local_response_norm": {"others": [((0, 4, 3),), ((2, 4, 0),), ((2, 0, 3),)]},
    "upsample_nearest2d": {
        "f16": [((n, c, h, w), (5, 7)) for n, c, h, w in
                ((0, 4, 3, 3), (2, 0, 3, 3), (0, 2, 0, 3), (2, 0, 3, 0), (0, 0, 0, 0))],
    },
    "grid_sample": {
        "f32": [((0, 3, 4, 4), (2, 2)), ((2, 0, 4, 4), (2, 2)), ((2, 3, 4, 4), (0, 2)), ((2, 3, 4, 4), (2, 0)),
                ((0, 3, 1 << 31, 4), (2, 2)), ((2, 3, 4, 4), (0, 1 << 31))],  # which a kernel could not take
    },
    "layer_norm": {"others": [((0, 4), (4,)), ((3, 0), (0,)), ((0,), (0,)), ((0, 1 << 33, 4), (4,))]},
    "rms_norm": {"others": [((0, 4), (4,)), ((3, 0), (0,)), ((0,), (0,)), ((2, 0, 5), (0, 5))]},
    "grid_sample_modes": {"f32": [((0, 3, 4, 4), (2, 2))], "f16": [((2, 3, 4, 4), (0, 2))]},
}  # fmt: skip


def each(sizes: Any, sanitized: Collection[str] = (), facts: Any = lambda row: (row,)) -> pytest.MarkDecorator:
    """Parametrize over cases and the variants of each; compute-sanitizer runs those of some types."""

    def marked(case: Case, key: str) -> Any:
        marks = [pytest.mark.sanitize] if case.dtype in sanitized else []
        return pytest.param(case, key, marks=[*marks, *([pytest.mark.partial_barriers] if key == "grid" else [])])

    rows = ((case, key) for case in cases(sizes) for key in variants(case.plan) if _is_for(case, key))
    chosen = [marked(case, key) for case, key in covering(rows, facts)]
    return pytest.mark.parametrize(("case", "variant"), chosen, ids=str)


def in_one_type_beside_f32(row: tuple[Case, str]) -> Iterator[Any]:
    """Each variant in PTX on each problem in f32 and in a type of each other size, one in HIP in one of its types.

    Each op is in each type. Each type and problem of the variants in HIP is in tests/hip too.
    """
    case, variant = row
    if variant.startswith("hip/"):
        yield case.plan.op, variant
    elif case.dtype == "f32":
        yield row
    else:
        yield from ((case.plan.op, variant, BY_NAME[case.dtype].size), (case.plan.op, case.dtype))


def in_each_way(row: tuple[Case, str]) -> Iterator[Any]:
    """Each problem in f32, each op in each type; each variant in f32 on one of each form, with a GPU in one more type,
    and, where all is wanted, in PTX on a small and a large one, with and without a rest behind its vectors. None where
    it does not run.
    """
    case, variant = row
    if all(key != variant for key, _ in ways(case, Device("sim:0"))):
        return
    if case.dtype != "f32":
        if NVIDIA_GPU:
            yield case.plan.op, variant if not variant.startswith("hip/") else "hip"
        yield case.plan.op, case.dtype
        return
    *outer, inner = case.problem.shape
    form = case.name.partition("(")[0], getattr(case.problem, "strides", ()) == channels_last(case.problem.shape)
    yield variant, *form
    if not variant.startswith("hip/"):
        yield case.name
        if EVERYTHING:
            yield variant, *form, np.prod(outer) * inner < 1000, inner % 4 == 0


def _is_for(case: Case, key: str) -> bool:
    """Whether a case is there to test a variant: grid_sample's general ones have their own."""
    return "general" not in key or not case.problem.plain


def configs(case: Case, device: Device, variant: str) -> list[Any]:
    """Return those of a variant that can run the case; skip where there are none."""
    found = [config for key, config in ways(case, device) if key == variant]
    if not found:
        pytest.skip(f"{variant} does not take it")
    return found


def run(
    case: Case, device: Device, plan: Plan[Any, Any, Any], offset: int = 0, place: int | None = None, within: str = ""
) -> list[Any]:
    """Run on guarded outputs and a guarded workspace; return the host results, then the statistics that it updates.

    All operands, or that at `place`, lie `offset` elements behind a round address; `within`, an input, is the output.
    """
    host = case.inputs(np.random.default_rng(7))
    given: dict[str, Any] = {}
    for i, o in enumerate(plan.operands):
        by = offset if place in (None, i) else 0
        if o.output:
            given[o.name] = None if o.absent else Guarded(o.shape, o.type.numpy, device, by, o.strides)
        else:
            given[o.name] = on_device(host.get(o.name), device, by, o.strides)
    arrays = {name: a.array if isinstance(a, Guarded) else a for name, a in given.items()}
    if within:
        name = next(o.name for o in plan.operands if o.output)
        given[name] = arrays[name] = arrays[within]
    workspace = Guarded((plan.workspace_size,), np.uint8, device)
    plan.run(tuple(arrays.values()), workspace=workspace.array)
    workspace.host()
    results = [given[o.name] for o in plan.operands if o.output]
    results += [given[o.name] for o in plan.operands if o.written and not o.output]
    return [a.host() if isinstance(a, Guarded) else None if a is None else a.to_host() for a in results]


def check_results(case: Case, device: Device, plan: Any, results: list[Any], what: object) -> None:
    want = case.reference(**case.inputs(np.random.default_rng(7)))
    for place, (got, ref) in enumerate(zip(results, want, strict=False)):
        if got is not None and place == 0:
            check_error(case.plan.op, device, got, ref, case.bar(ref), (case.name, key_of(plan.variant), what))
        elif got is not None:  # statistics and their gradients may cancel, and are held to the bar by their own tests
            near = 1e-4 if got.dtype.itemsize > 2 else EPSILON[case.dtype]
            np.testing.assert_allclose(got.astype(np.float64), ref.astype(np.float64), rtol=near, atol=near)


@each(None, sanitized=BY_NAME, facts=in_one_type_beside_f32)
def test_every_config_gives_the_result_and_writes_nothing_else(device: Device, case: Case, variant: str) -> None:
    skip_stand_in(device)
    found = configs(case, device, variant)

    def planned(config: Any) -> Any:
        return case.plan.select(device, case.problem, wish(variant, config=config))

    if case.dtype != "f32" or not EVERYTHING:  # each kernel in each type
        ends = dict.fromkeys((found[0], found[-1]))
        found = covering(ends, lambda config: {step.kernel for step in planned(config).schedule.launches})
    for config in found:
        plan = planned(config)
        assert plan.config == config
        check_results(case, device, plan, run(case, device, plan), config)


@each(SIZES, sanitized=["f32"], facts=in_each_way)
def test_no_bit_depends_on_the_run_the_device_the_alignment_or_the_place(
    device: Device, case: Case, variant: str
) -> None:
    skip_stand_in(device)
    in_vectors = EVERYTHING or not variant.startswith("hip/")  # those in HIP move single elements
    # On sim each launch of `ring` has blocks of 1024 threads, and as much shared memory as there is, for any problem.
    large = variant == "ring" and device.kind == "sim" and not EVERYTHING
    # 3 is as odd as 1, and so is 2, since no access of memory is of two values of f32; 4 of 16 bits are half a vector.
    offsets = (1, 2, 3, 4) if EVERYTHING and case.dtype == "f32" else (1, 4) if BY_NAME[case.dtype].size == 2 else (1,)

    def others(plan: Any, first: bool) -> Iterator[tuple[str, list[Any]]]:
        sim, small = Device("sim:0"), np.prod(plan.operands[0].shape) < 1000
        in_ptx = variant.removeprefix("hip/")
        twin = in_ptx if in_ptx in variants(case.plan) else variant  # HIP has some alone
        if first and (EVERYTHING or device != sim):
            yield "again", run(case, device, plan)
        if first and (device != sim or twin != variant):
            # All arithmetic is explicit .rn, so the machine and the GPU agree to the bit.
            yield "on sim", run(case, sim, case.plan.select(sim, case.problem, wish(twin)))
        if first or small:
            for offset in offsets if small and in_vectors else (1,):
                yield f"at {offset}", run(case, device, plan, offset)
        alone = first and small and in_vectors and case.dtype == "f32" and not large
        for place in range(len(plan.operands) if alone else 0):
            yield f"{plan.operands[place].name} at 1", run(case, device, plan, 1, place)
        for name in IN_PLACE.get(case.plan.op, ()):
            yield f"in place of {name}", run(case, device, plan, within=name)

    found = configs(case, device, variant)
    declared = {name for o in case.plan.select(device, case.problem).operands for name in o.in_place}
    assert declared == set(IN_PLACE.get(case.plan.op, ()))
    heuristic = case.plan.select(device, case.problem, wish(variant)).config
    of_one_warp = case.plan.op.startswith(("group_norm", "layer_norm", "rms_norm"))
    another = found[-1] if of_one_warp and not large else heuristic
    for config in dict.fromkeys((heuristic, another)):
        plan = case.plan.select(device, case.problem, wish(variant, config=config))
        want = run(case, device, plan)
        check_results(case, device, plan, want, config)
        certain = int(not plan.precision_guarantee.deterministic)  # else atomics add up the first output
        for what, results in others(plan, config == heuristic):
            check_results(case, device, plan, results[:certain], what)
            for a, b in list(zip(results, want, strict=True))[certain:]:
                assert (a is None) == (b is None)
                if a is not None:
                    # There a slope of 0 is taken the other way round, perhaps: its sign does not count.
                    unsigned = what == "on sim" and variant == "hip/tiled"
                    one, other = (x + x.dtype.type(0) if unsigned else x for x in (a, b))
                    assert one.tobytes() == other.tobytes(), (config, what)


@each(EMPTY, facts=in_one_type_beside_f32)
def test_pain25_what_is_empty_launches_nothing_and_has_zeros(
    device: Device, monkeypatch: Patch, case: Case, variant: str
) -> None:
    launches_by(monkeypatch, device, lambda *_: pytest.fail("launched"))
    if variant not in variants(case.plan, device):
        pytest.skip(f"{device} takes no PTX")
    plan = case.plan.select(device, case.problem, wish(variant))
    assert not any(a is not None and a.any() for a in run(case, device, plan)[: sum(o.output for o in plan.operands)])
    given = operands(case, device)
    outputs = [o for o in plan.operands if o.output]
    bare = {**given, **{o.name: None for o in outputs}, **{str(o.needs): None for o in outputs if o.needs}}
    for arrays in (given, bare):
        results = case.call(arrays, None, None)
        for o, result in zip(outputs, results if isinstance(results, tuple) else (results,), strict=True):
            if o.absent or (o.needs and arrays[o.needs] is None):
                assert result is None
            else:
                assert (result.shape, result.dtype) == (o.shape, o.type.numpy)
                assert not result.to_host().any()


@pytest.mark.parametrize(
    ("plan", "variant", "name"),
    [
        (plan, variant, name)
        for plan in (ops.BatchNormPlan, ops.GroupNormPlan)
        for variant in variants(plan)
        if EVERYTHING or NVIDIA_GPU or not variant.startswith("hip/")  # of which most are PTX's formulas
        for name in (("f32", "bf16") if EVERYTHING and not variant.startswith("hip/") else ("bf16",))
    ],
    ids=lambda v: getattr(v, "op", v),
)
def test_equal_values_near_the_largest_number_give_the_bias(device: Device, plan: Any, variant: str, name: str) -> None:
    """times 1 / sqrt(eps) they are no numbers; nor are they in eval, where the mean is one of them."""
    skip_stand_in(device)
    dtype, taken, large = BY_NAME[name], 0, np.float32(2.0**127)
    of_channels = [np.full(8, value, np.float32) for value in (1.0, 0.5, large, 0.0)]
    weight, bias, mean, var = (ptxrt.to_device(a, device) for a in of_channels)
    for shape, last in (((16, 8), False), ((4, 8, 8), False), ((600, 8, 8), True)):
        strides = channels_last(shape) if last else None
        more: Any = {"strides": strides} if last else {}
        for training in (True, False) if plan is ops.BatchNormPlan else (True,):
            if plan is ops.BatchNormPlan:
                problem: Any = ops.BatchNormDescriptor(shape, training, dtype, **more)
            else:
                problem = ops.GroupNormDescriptor(shape, 4, dtype=dtype, **more)
            try:
                chosen = plan.select(device, problem, wish(variant))
            except ptxrt.errors.Unsupported:
                continue
            x = on_device(np.full(shape, large).astype(dtype.numpy), device, 0, strides)
            given = {"x": x, "weight": weight, "bias": bias, "running_mean": mean, "running_var": var}
            results = chosen.run(tuple(given.get(operand.name) for operand in chosen.operands))
            y = results[0] if isinstance(results, tuple) else results
            np.testing.assert_array_equal(y.to_host().astype(np.float32), 0.5)
            taken += 1
    assert taken
