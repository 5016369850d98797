"""layer_norm and rms_norm with a row's values in registers."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers import EVERYTHING, NVIDIA_GPU, Patch, Rng, Shape, covering, refused
from op_testing import Guarded, check_error, on_device, wish
from tolerances import bar

import ptxrt
from ptxrt import Device, ops
from ptxrt.dtypes import BY_NAME, element_type
from ptxrt.ops import references
from ptxrt.ops.framework import parameter_type, rows
from ptxrt.ops.framework.rows_held import HeldBackwardConfig, HeldConfig, WarpsBackwardConfig, WarpsConfig
from ptxrt.ops.framework.schedule import Limits

NORMS = {"layer_norm": "LayerNorm", "rms_norm": "RmsNorm"}
every_norm = pytest.mark.parametrize("norm", NORMS)
every_language = pytest.mark.parametrize("variant", ["held_warps", "hip/held_warps"])
every_variant = pytest.mark.parametrize("variant", ["held", "hip/held"])
every_type = pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
WAYS = [("held", "f32"), ("hip/held", "f32"), ("held", "f64")]
every_way = pytest.mark.parametrize(("variant", "name"), WAYS)
every_way_of_every_type = pytest.mark.parametrize(
    ("variant", "name"), [*WAYS, *((variant, name) for variant, _ in WAYS[:2] for name in ("f16", "bf16"))]
)

# Width, threads: a vector; round a warp's one turn; a rest in the last slot; whole slots; each other number of slots.
WIDTHS = [(8, 32), (264, 64), (1016, 96), (1024, 64), (900, 96), (516, 32), (768, 32), (780, 32), (1000, 32)]
# The same of f64; and more warps than lanes add up at once.
WIDTHS_OF_F64 = [(2, 32), (62, 32), (64, 32), (66, 64), (66, 32), (190, 32), (256, 32), (318, 32), (384, 32), (386, 32),
                 (1002, 64), (530, 288), (2048, 512)]  # fmt: skip

# Words of 4 bytes in rows that a part of a warp has, or a warp: of whole vectors, and not.
WORDS = [8, 12, 16, 20, 28, 32, 36, 60, 64, 68, 128, 1, 2, 3, 4, 5, 9, 17, 33, 50, 99, 129, 255, 257, 510]


def problem(
    norm: str, rng: Rng, shape: tuple[int, int], name: str = "f32", mean: float = 0.0, scale: float = 1.0
) -> tuple[Any, ...]:
    """Return grad_out, x and the weights."""
    kind, real = BY_NAME[name].numpy, parameter_type(BY_NAME[name]).numpy
    tensors = [(rng.standard_normal(shape) * by + at).astype(kind) for at, by in ((0.0, 1.0), (mean, scale))]
    return (*tensors, *(rng.standard_normal(shape[1:]).astype(real) for _ in ("wb" if norm == "layer_norm" else "w")))


def select(device: Device, norm: str, way: str, x: Any, eps: float, variant: str | None, config: Any = None) -> Any:
    descriptor = getattr(ops, f"{NORMS[norm]}{way}Descriptor")(x.shape, x.shape[1:], element_type(x.dtype), eps)
    return getattr(ops, f"{NORMS[norm]}{way}Plan").select(device, descriptor, wish(variant, config=config))


def forward(
    device: Device, norm: str, x: Any, *weights: Any, eps: float = 1e-5, variant: str = "held", threads: int = 0,
    offset: int = 0, config: Any = None,
) -> Any:  # fmt: skip
    plan = select(device, norm, "", x, eps, variant, HeldConfig(threads) if threads else config)
    out = Guarded(x.shape, x.dtype, device, offset)
    given = [on_device(a, device, offset) for a in (x, *weights)]
    plan.run(getattr(ops, f"{NORMS[norm]}Args")(*given, out=out.array))
    return out.host()


def backward(
    device: Device, norm: str, go: Any, x: Any, w: Any, eps: float = 1e-5, variant: str = "held", threads: int = 0,
    length: int = 1, offset: int = 0, slices: int = 0, config: Any = None,
) -> list[Any]:  # fmt: skip
    if slices or threads:
        config = WarpsBackwardConfig(slices) if slices else HeldBackwardConfig(threads, length)
    plan = select(device, norm, "Backward", x, eps, variant, config)
    out = Guarded(x.shape, x.dtype, device, offset)
    given = [on_device(a, device, offset) for a in (go, x, w)]
    real, names = (
        parameter_type(element_type(x.dtype)).numpy,
        ["grad_weight", "grad_bias"][: 1 + (norm == "layer_norm")],
    )
    sums = {name: Guarded(x.shape[1:], real, device) for name in (names if w is not None else names[1:])}
    arrays = {name: some.array for name, some in sums.items()}
    plan.run(getattr(ops, f"{NORMS[norm]}BackwardArgs")(*given, grad_input=out.array, **arrays))
    return [out.host(), *(sums[name].host() if name in sums else None for name in names)]


def in_place(
    device: Device, norm: str, variant: str, x: Any, *weights: Any, eps: float = 1e-5, offset: int = 0,
    config: Any = None,
) -> Any:  # fmt: skip
    """Return what a norm makes of x where x is."""
    there = [on_device(a, device, offset) for a in (x, *weights)]
    select(device, norm, "", x, eps, variant, config).run(getattr(ops, f"{NORMS[norm]}Args")(*there, out=there[0]))
    return there[0].to_host()


def check_one_unaligned(device: Device, norm: str, variant: str, x: Any, *weights: Any) -> None:
    """One array alone lies at no multiple of 16 bytes, each in turn: the bits are the same."""
    want = forward(device, norm, x, *weights, variant=variant)
    for odd in range(2 + len(weights)):
        out = Guarded(x.shape, x.dtype, device, int(odd == 0))
        given = [on_device(a, device, int(odd == i)) for i, a in enumerate((x, *weights), 1)]
        plan = select(device, norm, "", x, 1e-5, variant)
        plan.run(getattr(ops, f"{NORMS[norm]}Args")(*given, out=out.array))
        assert out.host().tobytes() == want.tobytes(), odd


def check_without_weights(device: Device, norm: str, variant: str, given: Any, config: Any = None) -> None:
    """Without any weight, and without one of two."""
    x, *weights = given
    for some in ((None,) * len(weights), (None, *weights[1:]), (*weights[:1], *(None,) * len(weights[1:]))):
        args = [on_device(x, device), *(None if a is None else on_device(a, device) for a in some)]
        plan = select(device, norm, "", x, 1e-5, variant, config)
        got = plan.run(getattr(ops, f"{NORMS[norm]}Args")(*args)).to_host()
        want = getattr(references, norm)(x, x.shape[1:], *some, eps=1e-5)
        check_error(norm, device, got, want, bar(norm, "f32", want))


def check_gradients(
    device: Device, norm: str, got: Any, go: Any, x: Any, w: Any, eps: float = 1e-5, large_mean: bool = False,
    where: Any = None,
) -> None:  # fmt: skip
    wants = getattr(references, f"{norm}_backward")(go, x, x.shape[1:], w, eps=eps)
    for place, (a, want) in enumerate(zip(got, wants, strict=True)):
        assert (a is None) == (want is None)
        if a is not None:
            limit = bar(norm, element_type(a.dtype).name, want, large_mean=large_mean)
            check_error(f"{norm} gradient {place}", device, a, want, limit, where)


def check(device: Device, norm: str, given: Any, large_mean: bool = False, eps: float = 1e-5, **how: Any) -> None:
    go, x, *weights = given
    row, name = x.shape[1:], element_type(x.dtype).name
    way = {key: value for key, value in how.items() if key != "length"}
    want = getattr(references, norm)(x, row, *weights, eps=eps)
    got = forward(device, norm, x, *weights, eps=eps, **way)
    check_error(norm, device, got, want, bar(norm, name, want, large_mean=large_mean), (x.shape, how))
    values = 256 if name == "f64" else 512  # of a warp in the backward
    how["threads"] = max(how.get("threads", 0), 32 * -(-row[0] // values)) if "threads" in how else 0
    results = backward(device, norm, go, x, weights[0], eps=eps, **how)
    check_gradients(device, norm, results, go, x, weights[0], eps, large_mean, (x.shape, how))


@every_norm
@pytest.mark.parametrize(
    ("variant", "name", "width", "threads"),
    [(*way, *shape) for way in WAYS for shape in (WIDTHS_OF_F64 if way[1] == "f64" else WIDTHS)],
)
@pytest.mark.sanitize
def test_held_rows_match_cpu(
    device: Device, rng: Rng, norm: str, variant: str, name: str, width: int, threads: int
) -> None:
    given = problem(norm, rng, (3, width), name)
    if width < 64:  # a few values nearly cancel in the gradient
        got = forward(device, norm, *given[1:], variant=variant, threads=threads)
        want = getattr(references, norm)(given[1], (width,), *given[2:], eps=1e-5)
        check_error(norm, device, got, want, bar(norm, name))
    else:
        check(device, norm, given, variant=variant, threads=threads, length=2)


@every_norm
@every_type
@every_language
@pytest.mark.parametrize(("count", "of_block", "turns"), [(5, 2, 1), (9, 4, 2), (2, 3, 1)])
@pytest.mark.sanitize
def test_warps_have_the_bits_of_blocks(
    device: Device, rng: Rng, norm: str, variant: str, name: str, count: int, of_block: int, turns: int,
    monkeypatch: Patch,
) -> None:  # fmt: skip
    """Each number of slots; warps without a row; squares that f32 does not hold; more rows than warps, unaligned."""
    vector = 16 // BY_NAME[name].size
    for slots in range(2, (16 if variant == "hip/held_warps" else 32) // vector + 1):
        _, x, *weights = problem(norm, rng, (count, 32 * vector * slots - vector * (slots % 3)), name)
        if name != "f16":
            x[1] *= x.dtype.type(1e30)
        blocks = forward(device, norm, x, *weights, variant=variant.removesuffix("_warps"), threads=32)
        config = WarpsConfig(of_block, turns)
        assert forward(device, norm, x, *weights, variant=variant, config=config).tobytes() == blocks.tobytes()
        # By one block, in place, where a row that is taken twice shows.
        with monkeypatch.context() as patch:
            patch.setattr(rows, "blocks_in_hip", lambda count, threads: 1)
            there = in_place(device, norm, variant, x, *weights, offset=1, config=config)
        assert there.tobytes() == blocks.tobytes(), slots


@every_language
@pytest.mark.parametrize(
    ("norm", "name", "words"),
    covering(product(NORMS, ("f32", "f16", "bf16"), WORDS), lambda row: [(row[0], row[2]), row[1:]]),
)
@pytest.mark.sanitize
def test_several_rows_of_a_warp(device: Device, rng: Rng, norm: str, variant: str, name: str, words: int) -> None:
    """Each number of lanes, full and not, of whole vectors and of words; scaled rows beside others; rows to spare."""
    width = words * 4 // BY_NAME[name].size
    if words > 256 and name != "f32":
        with refused(ptxrt.errors.Unsupported, norm, "descriptor", f"a warp holds 512 values, not {width}"):
            select(device, norm, "", np.zeros((2, width), BY_NAME[name].numpy), 1e-5, variant)
        return
    shares = ((1, 1, 1), (7, 2, 1), (70, 2, 3), (33, 4, 1))
    for count, warps, turns in shares if EVERYTHING or device.kind == "cuda" else shares[1:3]:
        _, x, *weights = problem(norm, rng, (count, width), name)
        x[0] += 100
        if count > 1 and name != "f16":
            x[1], x[-1], x[4] = x[1] * x.dtype.type(1e30), x[-1] * x.dtype.type(1e-18), x.dtype.type(2.0**127)
        how: dict[str, Any] = {"variant": variant, "config": WarpsConfig(warps, turns)}
        got = forward(device, norm, x, *weights, **how)
        want = getattr(references, norm)(x, (width,), *weights, eps=1e-5)
        check_error(norm, device, got, want, bar(norm, name, want), (x.shape, how))
        alone = forward(device, norm, x[-1:], *weights, variant=variant, config=WarpsConfig(1, 1))
        assert got[-1:].tobytes() == alone.tobytes(), "a row's place shows"
        assert forward(device, norm, x, *weights, offset=1, **how).tobytes() == got.tobytes()
        there = in_place(device, norm, variant, x, *weights, config=WarpsConfig(1, count))
        assert there.tobytes() == got.tobytes(), "in place"


@pytest.mark.parametrize(("norm", "name"), [("layer_norm", "f32"), ("rms_norm", "bf16")])
@pytest.mark.ptx
def test_warps_have_the_same_bits_in_both_languages(device: Device, rng: Rng, norm: str, name: str) -> None:
    """Each number of lanes and of slots, lanes without a value, rows to spare, and scaled ones."""
    all_words: tuple[int, ...] = (1, 12, 14, 13, 28, 30, 31, 60, 62, 63, 124, 126, 127, 252, 254, 255)
    all_words += (380, 382, 508, 510, 511) if name == "f32" else ()
    for words in all_words if EVERYTHING or NVIDIA_GPU else all_words[::2]:  # tests/hip has each number of lanes
        _, x, *weights = problem(norm, rng, (19, words * 4 // BY_NAME[name].size), name, mean=1.0)
        x[1] *= x.dtype.type(1e30)
        config = WarpsConfig(2, 2)
        one, other = (
            forward(device, norm, x, *weights, variant=variant, config=config).tobytes()
            for variant in ("held_warps", "hip/held_warps")
        )
        assert one == other, words
    for width in (60, 62, 63, 64, 68, 124, 126, 127, 132, 252, 254, 255, 256)[:: 1 if EVERYTHING or NVIDIA_GPU else 3]:
        if width * BY_NAME[name].size % 4:
            continue
        go, x, *weights = problem(norm, rng, (37, width), name, mean=1.0)
        x[1] *= x.dtype.type(1e30)
        one, other = (
            [a is None or a.tobytes() for a in backward(device, norm, go, x, weights[0], variant=variant, slices=2)]
            for variant in ("held_warps", "hip/held_warps")
        )
        assert one == other, width


@every_norm
@every_language
@pytest.mark.parametrize(("width", "name"), [(64, "f32"), (66, "f32"), (68, "f16")])  # of vectors, of eights
def test_one_array_alone_is_unaligned(device: Device, rng: Rng, norm: str, variant: str, width: int, name: str) -> None:
    go, x, *weights = problem(norm, rng, (5, width), name)
    check_one_unaligned(device, norm, variant, x, *weights)
    want = backward(device, norm, go, x, weights[0], variant=variant)[0]
    for odd in range(4):
        out = Guarded(x.shape, x.dtype, device, int(odd == 0))
        given = [on_device(a, device, int(odd == i)) for i, a in enumerate((go, x, weights[0]), 1)]
        plan = select(device, norm, "Backward", x, 1e-5, variant)
        plan.run(getattr(ops, f"{NORMS[norm]}BackwardArgs")(*given, grad_input=out.array))
        assert out.host().tobytes() == want.tobytes(), odd


@every_norm
@every_language
def test_eights_at_odd_multiples_of_8_bytes(device: Device, rng: Rng, norm: str, variant: str) -> None:
    """Where a row's own pieces would be accesses, and those of weights, of 16 bytes, would not."""
    go, x, *weights = problem(norm, rng, (5, 68), "f16")
    want = forward(device, norm, x, *weights, variant=variant, config=WarpsConfig(1, 1))
    gradient = backward(device, norm, go, x, weights[0], variant=variant, slices=1)[0]
    arrays = [on_device(a, device, 4) for a in (go, x)] + [on_device(a, device, 2) for a in weights]
    out = Guarded(x.shape, x.dtype, device, 4)
    plan = select(device, norm, "", x, 1e-5, variant, WarpsConfig(1, 1))
    plan.run(getattr(ops, f"{NORMS[norm]}Args")(*arrays[1:], out=out.array))
    assert out.host().tobytes() == want.tobytes()
    plan = select(device, norm, "Backward", x, 1e-5, variant, WarpsBackwardConfig(1))
    plan.run(getattr(ops, f"{NORMS[norm]}BackwardArgs")(*arrays[:3], grad_input=out.array))
    assert out.host().tobytes() == gradient.tobytes()


@every_norm
@every_language
@every_type
def test_nan_and_infinity_spoil_no_other_row_of_their_warp(
    device: Device, rng: Rng, norm: str, variant: str, name: str
) -> None:
    _, x, *weights = problem(norm, rng, (19, 64), name)
    how: dict[str, Any] = {"variant": variant, "config": WarpsConfig(2, 2)}
    right = forward(device, norm, x, *weights, **how)
    x[0, 3], x[5, 0], x[18, 63] = np.nan, np.inf, -np.inf
    y = forward(device, norm, x, *weights, **how)
    spoiled = [0, 5, 18]
    assert np.isnan(y[spoiled].astype("f4")).any(axis=1).all()
    rest = [i for i in range(19) if i not in spoiled]
    assert y[rest].tobytes() == right[rest].tobytes()


@every_norm
@every_language
@every_type
@pytest.mark.parametrize(
    ("count", "width", "slices"),
    [
        (1, 64, 1),
        (3, 64, 2),
        (70, 64, 1),
        (33, 72, 2),
        (37, 128, 3),
        (9, 136, 9),
        (20, 136, 1),
        (5, 256, 7),
        (33, 66, 2),
        (7, 100, 1),
        (70, 130, 3),
        (19, 254, 2),
        (67, 256, 2),
    ],
)
@pytest.mark.sanitize
def test_the_gradients_of_several_rows_of_a_warp(
    device: Device,
    rng: Rng,
    norm: str,
    variant: str,
    name: str,
    count: int,
    width: int,
    slices: int,
    monkeypatch: Patch,
) -> None:
    """Each number of lanes, full and not; more than eight turns; rows, warps and slices to spare; scaled rows."""
    go, x, *weights = problem(norm, rng, (count, width), name)
    x[-1] += 100
    if count > 3 and name != "f16":
        x[0], x[3] = x[0] * x.dtype.type(1e30), x[3] * x.dtype.type(1e-18)
    how: dict[str, Any] = {"variant": variant, "slices": slices}
    got = backward(device, norm, go, x, weights[0], **how)
    check_gradients(device, norm, got, go, x, weights[0], where=(x.shape, how))
    again = backward(device, norm, go, x, weights[0], offset=1, **how)
    monkeypatch.setattr(rows, "blocks_in_hip", lambda count, threads: 1)  # which has all slices in turn
    ops.forget_plans()
    again_in_turn = backward(device, norm, go, x, weights[0], **how)
    ops.forget_plans()
    for a, b, c in zip(got, again, again_in_turn, strict=True):
        if a is not None:
            assert a.tobytes() == b.tobytes() == c.tobytes()


@every_norm
@every_type
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.ptx
def test_no_copy_comes_before_a_row_has_been_read(
    sim: Device, rng: Rng, monkeypatch: Patch, norm: str, name: str, offset: int
) -> None:
    """Of gradients whose rows are on their way: sim's checks say so, values do not."""
    monkeypatch.setenv("PTXRT_SIM_CHECKS", "all")
    go, x, w, *_ = problem(norm, rng, (100, 72), name)
    got = backward(sim, norm, go, x, w, variant="held_warps", slices=1, offset=offset)
    monkeypatch.setattr(rows, "blocks_in_hip", lambda count, threads: 1)  # which has all slices in turn
    ops.forget_plans()
    in_turn = backward(sim, norm, go, x, w, variant="held_warps", slices=3, offset=offset)
    ops.forget_plans()
    assert got[0].tobytes() == in_turn[0].tobytes()


@every_norm
@every_language
@every_type
@pytest.mark.parametrize("width", [20, 64])
def test_in_place_no_lane_without_a_row_reads_one(
    sim: Device, rng: Rng, monkeypatch: Patch, norm: str, variant: str, name: str, width: int
) -> None:
    """All rows of a wave are taken once more for one of large numbers, or for lanes without a row if eps is 0."""
    monkeypatch.setenv("PTXRT_SIM_CHECKS", "all")
    for count in (1, 3, 9):
        _, x, *weights = problem(norm, rng, (count, width), name)
        if name != "f16":
            x[count // 2] *= x.dtype.type(1e30)
        for eps in (0.0, 1e-5):
            want = forward(sim, norm, x, *weights, eps=eps, variant=variant, config=WarpsConfig(2, 1))
            for offset in (0, 1):
                there = in_place(sim, norm, variant, x, *weights, eps=eps, offset=offset, config=WarpsConfig(2, 1))
                assert there.tobytes() == want.tobytes()


@every_norm
def test_where_copies_cannot_be_under_way_words_are_taken(sim: Device, norm: str) -> None:
    plan = getattr(ops, f"{NORMS[norm]}BackwardPlan")
    variant = next(some for some in plan.variants if (some.name, some.language) == ("held_warps", "ptx"))
    of = getattr(ops, f"{NORMS[norm]}BackwardDescriptor")((9, 128), (128,))
    limits, config = Limits.of(sim.properties), WarpsBackwardConfig.heuristic(of)
    eights = getattr(ops, f"{NORMS[norm]}BackwardDescriptor")((9, 126), (126,))
    for shape, target, entry, needs in (
        (of, None, "2_rows16", 80), (of, 80, "2_rows16", 80), (of, 75, "8_words16", None),
        (eights, 80, "4_eights16", 80), (eights, 75, "8_words16", None),
    ):  # fmt: skip
        rows_of, _ = variant.schedule(shape, config, limits._replace(target=target)).steps
        assert (rows_of.kernel.entry, rows_of.kernel.target) == (f"{norm}_held_backward_{entry}_kernel", needs)


@every_norm
@every_language
@every_type
def test_a_row_that_is_not_there_adds_nothing(device: Device, rng: Rng, norm: str, variant: str, name: str) -> None:
    """Nor does a bad one to any other row; without eps, with which what is not there would be 0 / 0."""
    go, x, w, *_ = problem(norm, rng, (5, 64), name)
    got = backward(device, norm, go, x, w, eps=0.0, variant=variant, slices=1)
    check_gradients(device, norm, got, go, x, w, eps=0.0)
    x[2, 7] = np.nan
    spoiled = backward(device, norm, go, x, w, eps=0.0, variant=variant, slices=1)
    assert np.isnan(spoiled[0][2].astype("f4")).all()
    assert spoiled[0][[0, 1, 3, 4]].tobytes() == got[0][[0, 1, 3, 4]].tobytes()


@every_norm
@every_language
def test_rows_of_a_warp_have_first_values_far_apart(device: Device, rng: Rng, norm: str, variant: str) -> None:
    """Sums of differences from the first value of another row would have no digits left."""
    go, x, w, *_ = problem(norm, rng, (32, 64))
    x[::4] = 2.0**30 + 128 * np.rint(8 * x[::4])
    got = backward(device, norm, go, x, w, variant=variant, slices=1)
    check_gradients(device, norm, got, go, x, w)


@every_norm
@every_language
def test_long_columns_of_equal_values_in_warps(device: Device, rng: Rng, norm: str, variant: str) -> None:
    """As many turns as a lane takes at most, by one block."""
    go, x, w, *_ = problem(norm, rng, (1, 64))
    count = 64 * 16
    go, x = np.tile(go, (count, 1)), np.tile(x, (count, 1))
    got = backward(device, norm, go, x, w, variant=variant, slices=1)
    check_gradients(device, norm, got, go, x, w)


@every_norm
@every_language
@pytest.mark.parametrize("width", [64, 512])
def test_warps_without_weights_and_without_a_row(device: Device, rng: Rng, norm: str, variant: str, width: int) -> None:
    check_without_weights(device, norm, variant, problem(norm, rng, (3, width))[1:], WarpsConfig(4, 1))


@every_norm
@every_way_of_every_type
@pytest.mark.parametrize(("mean", "scale"), [(1e4, 1.0), (0.0, 1e-3), (0.0, 100.0)])
def test_any_mean_and_deviation_costs_no_digits(
    device: Device, rng: Rng, norm: str, variant: str, name: str, mean: float, scale: float
) -> None:
    given = problem(norm, rng, (4, 264), name, mean, scale)
    check(device, norm, given, large_mean=mean > 0, eps=0.0, variant=variant)


@every_norm
@every_variant
@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e30, 3e37])
def test_squares_need_not_be_numbers_of_f32(device: Device, rng: Rng, norm: str, variant: str, scale: float) -> None:
    go, x, *weights = problem(norm, rng, (2, 128), scale=scale)
    want = getattr(references, norm)(x, (128,), *weights, eps=0.0)
    check_error(norm, device, forward(device, norm, x, *weights, eps=0.0, variant=variant), want, 2e-7)
    if 1e-38 < scale < 1e35:  # elsewhere the gradients have few digits, or are infinite
        go *= np.float32(scale)
        wants = getattr(references, f"{norm}_backward")(go, x, (128,), weights[0], eps=0.0)
        for a, ref in zip(backward(device, norm, go, x, weights[0], 0.0, variant), wants, strict=True):
            check_error(f"{norm} gradient", device, a, ref, 2e-7)


@every_norm
@every_variant
@pytest.mark.parametrize("name", ["f32", "bf16"])
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.sanitize
def test_large_squares_where_threads_have_no_values(
    device: Device, rng: Rng, norm: str, variant: str, name: str, offset: int
) -> None:
    _, x, *weights = problem(norm, rng, (2, 136), name, scale=1e30)
    want = getattr(references, norm)(x, (136,), *weights, eps=0.0)
    got = forward(device, norm, x, *weights, eps=0.0, variant=variant, offset=offset)
    check_error(norm, device, got, want, bar(norm, name, want))


@every_norm
@every_variant
@pytest.mark.parametrize(("scale", "eps"), [(1e-20, 2.0**-133), (1e20, 2.0**126)])
def test_eps_beside_squares_that_are_no_numbers_of_f32(
    device: Device, rng: Rng, norm: str, variant: str, scale: float, eps: float
) -> None:
    _, x, *weights = problem(norm, rng, (2, 128), scale=scale)
    want = getattr(references, norm)(x, (128,), *weights, eps=eps)
    check_error(norm, device, forward(device, norm, x, *weights, eps=eps, variant=variant), want, 2e-7)


@every_norm
@every_variant
def test_a_row_behind_one_of_large_squares_is_as_any_other(
    device: Device, rng: Rng, monkeypatch: Patch, norm: str, variant: str
) -> None:
    go, x, *weights = problem(norm, rng, (3, 128))
    x[1] *= np.float32(1e30)
    monkeypatch.setattr(rows, "blocks_in_hip", lambda count, threads: 1)
    check(device, norm, (go, x, *weights), eps=0.5, variant=variant, threads=32, length=3)


@every_norm
@every_way
def test_a_first_value_far_from_all_others_costs_no_digits(
    device: Device, rng: Rng, norm: str, variant: str, name: str
) -> None:
    given = problem(norm, rng, (2, 512), name)
    given[1][:, 0] = 1e6
    check(device, norm, given, variant=variant)


@every_norm
@every_way_of_every_type
def test_without_weights_and_at_any_address(device: Device, rng: Rng, norm: str, variant: str, name: str) -> None:
    """The bits do not depend on where the arrays lie."""
    go, x, *weights = problem(norm, rng, (3, 136), name)
    check(device, norm, (go, x, *(None for _ in weights)), variant=variant)
    for some in (weights, [None] * len(weights)):
        want = forward(device, norm, x, *some, variant=variant)
        np.testing.assert_array_equal(forward(device, norm, x, *some, variant=variant, offset=1), want)
        wants = backward(device, norm, go, x, some[0], variant=variant, threads=32, length=2)
        moved = backward(device, norm, go, x, some[0], variant=variant, threads=32, length=2, offset=1)
        for a, b in zip(moved, wants, strict=True):
            np.testing.assert_array_equal(a, b)


@every_norm
@every_way
def test_blocks_take_rows_and_slices_and_columns_in_turn(
    device: Device, rng: Rng, monkeypatch: Patch, norm: str, variant: str, name: str
) -> None:
    """And a slice may have any number of rows, and there may be more slices than a block adds up at once."""
    go, x, *weights = problem(norm, rng, (67, 72), name)
    check(device, norm, (go, x, *weights), variant=variant, threads=64, length=1)
    go, x = go[:7].copy(), x[:7].copy()
    runs: list[list[Any]] = []
    for _ in range(2):
        y = forward(device, norm, x, *weights, variant=variant, threads=64)
        runs.append([y, *backward(device, norm, go, x, weights[0], variant=variant, threads=64, length=2)])
        monkeypatch.setattr(rows, "blocks_in_hip", lambda count, threads: 2)
    for one, other in zip(*runs, strict=True):
        np.testing.assert_array_equal(one, other)


@every_norm
@every_way
def test_nan_and_infinity_spoil_their_row_alone(device: Device, rng: Rng, norm: str, variant: str, name: str) -> None:
    go, x, *weights = problem(norm, rng, (4, 136), name)
    x[0, 3], x[1, 0], go[2, 5] = np.nan, np.inf, np.nan
    y = forward(device, norm, x, *weights, variant=variant)
    assert np.isnan(y[0]).all()
    if norm == "layer_norm":
        assert np.isnan(y[1]).all()
    else:  # its root is infinite
        assert np.isnan(y[1]).tolist() == [i == 0 for i in range(136)]
        assert not y[1, 1:].any()
    assert np.isfinite(y[2:]).all()
    grad_input = backward(device, norm, go, x, weights[0], variant=variant)[0]
    assert np.isnan(grad_input[[0, 2]]).all()
    assert np.isfinite(grad_input[3]).all()


@every_norm
@every_way
def test_equal_values_and_eps(device: Device, rng: Rng, norm: str, variant: str, name: str) -> None:
    _, x, *weights = problem(norm, rng, (2, 128), name)
    x[0], x[1] = 3.1, 0.0
    want = getattr(references, norm)(x, (128,), *weights, eps=0.5)
    check_error(norm, device, forward(device, norm, x, *weights, eps=0.5, variant=variant), want, bar(norm, name))
    none = forward(device, norm, x, *weights, eps=0.0, variant=variant)
    assert np.isnan(none).all(axis=1).tolist() == [norm == "layer_norm", True]


@every_norm
@pytest.mark.parametrize("name", ["f32", "bf16"])
@every_variant
@pytest.mark.parametrize("width", [64, 264, 1000])
def test_equal_values_near_the_largest_number(
    device: Device, rng: Rng, norm: str, variant: str, name: str, width: int
) -> None:
    """Their sums are no numbers of f32; once they are scaled, eps is none."""
    given = problem(norm, rng, (3, width), name)
    given[1][...] = 2.0**127
    check(device, norm, given, variant=variant)
    if variant == "held" and width <= 512:
        go, x, w = given[:3]
        wants = getattr(references, f"{norm}_backward")(go, x, (width,), w, eps=1e-5)
        for got, want in zip(backward(device, norm, go, x, w, variant="few"), wants, strict=True):
            if got is not None:
                check_error(norm, device, got, want, bar(norm, element_type(got.dtype).name, want))


@every_variant
@pytest.mark.parametrize(("name", "values"), [("f16", (20480, 64512)), ("bf16", (1.02e5, 5.2e5, -1.3e6))])
def test_equal_values_far_from_0_have_a_variance_of_0(
    device: Device, rng: Rng, variant: str, name: str, values: tuple[float, ...]
) -> None:
    """1 / width is not exact, and what it costs the square of the mean is more than eps."""
    given = problem("layer_norm", rng, (len(values) + 1, 1968), name)
    given[1][:-1] = np.array(values)[:, None]
    given[1][-1], given[1][-1, 7] = values[0], values[0] * 1.01
    check(device, "layer_norm", given, variant=variant)


@every_norm
@pytest.mark.parametrize(("width", "dtype", "way", "config", "reason"), [
    (70, "f4", "", HeldConfig(32), "rows of 70 values are not whole vectors of 4"),
    (65, "f8", "", HeldConfig(32), "rows of 65 values are not whole vectors of 2"),
    (258, "f8", "Backward", HeldBackwardConfig(32, 1), "32 threads hold 256 values, not 258"),
    (1028, "f4", "", HeldConfig(32), "32 threads hold 1024 values, not 1028"),
    (512, "f4", "", HeldConfig(544), "up to 512 threads, not 544"),
    (512, "f4", "Backward", HeldBackwardConfig(48, 1), "whole warps, up to 512 threads, not 48"),
    (8200, "f2", "Backward", HeldBackwardConfig(512, 1), "512 threads hold 8192 values, not 8200"),
    (66, "f8", "", WarpsConfig(2, 1), "there are no entries of f64"),
    (64, "f4", "", WarpsConfig(5, 1), "a block has 1 to 4 warps, not 5"),
    (64, "f4", "", WarpsConfig(0, 1), "a block has 1 to 4 warps, not 0"),
    (64, "f4", "", WarpsConfig(1, 0), "a warp has rows at least once, not 0 times"),
    (9, "f2", "", WarpsConfig(1, 1), "rows of 9 values are not whole words of 4 bytes"),
    (514, "f2", "", WarpsConfig(1, 1), "a warp holds 512 values, not 514"),
    (513, "f4", "", WarpsConfig(1, 1), "a warp holds 512 values, not 513"),
    (1028, "f4", "", WarpsConfig(2, 1), "32 threads hold 1024 values, not 1028"),
    (64, "f8", "Backward", WarpsBackwardConfig(1), "there are no entries of f64"),
    (64, "f4", "Backward", WarpsBackwardConfig(0), "there is at least a slice, not 0"),
    (65, "f2", "Backward", WarpsBackwardConfig(1), "rows of 65 values are not whole words of 4 bytes"),
    (257, "f4", "Backward", WarpsBackwardConfig(1), "a warp holds 256 values, not 257"),
])  # fmt: skip
def test_what_registers_cannot_hold_is_refused(
    sim: Device, norm: str, width: int, dtype: str, way: str, config: Any, reason: str
) -> None:
    x = np.broadcast_to(np.zeros(1, dtype), (2, width))
    variant = "held_warps" if isinstance(config, (WarpsConfig, WarpsBackwardConfig)) else "held"
    with refused(ptxrt.errors.Unsupported, f"{norm}{way and '_backward'}", "descriptor", reason):
        select(sim, norm, way, x, 1e-5, variant, config)


@pytest.mark.parametrize(
    ("shape", "name", "threads"),
    [
        ((512, 768), "f32", 192),  # few rows: down to one vector a thread
        ((2048, 768), "f32", 64),
        ((4096, 1024), "f32", 64),
        ((512, 4096), "f32", 256),
        ((8192, 768), "f16", 32),  # many: as many values a thread as there are registers for
        ((32768, 768), "f16", 32),
        ((32768, 768), "f32", 64),  # but of f32, with a mean, not a warp's block
        ((4096, 4096), "f16", 128),
    ],
    ids=str,
)
def test_threads_of_a_row_are_as_many_as_keep_a_gpu_busy(shape: Shape, name: str, threads: int) -> None:
    problem = ops.LayerNormDescriptor(shape, shape[-1:], BY_NAME[name])
    assert HeldConfig.heuristic(problem) == HeldConfig(threads)


def test_a_warp_has_a_row_of_f32_without_a_mean() -> None:
    assert HeldConfig.heuristic(ops.RmsNormDescriptor((1 << 13, 768), (768,))) == HeldConfig(32)
    assert HeldConfig.heuristic(ops.RmsNormDescriptor(((1 << 13) - 1, 768), (768,))) == HeldConfig(64)


@pytest.mark.parametrize(
    ("shape", "name", "config"),
    [
        ((8192, 768), "f32", HeldBackwardConfig(64, 8)),
        ((2048, 768), "f16", HeldBackwardConfig(64, 4)),  # shorter ones would leave many sums
        ((512, 768), "f32", HeldBackwardConfig(64, 2)),  # longer ones few slices
        ((32768, 768), "f16", HeldBackwardConfig(64, 32)),
        ((4096, 4096), "f32", HeldBackwardConfig(256, 16)),
        ((4096, 5120), "f32", HeldBackwardConfig(320, 32)),  # a power of two
        ((1024, 8192), "f32", HeldBackwardConfig(512, 8)),
        ((100, 768), "f32", HeldBackwardConfig(64, 1)),
    ],
    ids=str,
)
def test_slices_are_as_many_as_run_at_a_time(shape: Shape, name: str, config: HeldBackwardConfig) -> None:
    problem = ops.LayerNormBackwardDescriptor(shape, shape[-1:], BY_NAME[name])
    assert HeldBackwardConfig.heuristic(problem) == config


@every_norm
def test_the_heuristic_holds_rows_where_that_is_accurate(sim: Device, norm: str) -> None:
    def chosen(width: int, dtype: str, way: str = "", count: int = 4) -> str:
        x = np.broadcast_to(np.zeros(1, dtype), (count, width))
        return str(select(sim, norm, way, x, 1e-5, None).key.variant)

    assert [chosen(width, "f4") for width in (4, 30, 64, 512, 516, 1 << 14, (1 << 14) + 4)] == [
        "held_warps", "held_warps", "held_warps", "held_warps", "held", "held", "baseline",
    ]  # fmt: skip
    assert [chosen(width, "f2") for width in (31, 30, 510, 514, 4)] == [
        "baseline", "held_warps", "held_warps", "baseline", "held_warps",
    ]  # fmt: skip
    assert [chosen(width, "f2", count=count) for width, count in (
        (256, 1024), (256, 1023), (504, 2048), (520, 2080),
    )] == ["held_warps", "held", "held_warps", "held"]  # fmt: skip
    many = 1 << 12
    single = "held" if norm == "layer_norm" else "held_warps"  # a block finds a mean as soon
    assert [chosen(width, name, count=count) for width, name, count in (
        (516, "f4", many), (1024, "f4", many), (1024, "f4", many - 1), (1032, "f2", 1 << 15), (64, "f8", many),
        (520, "f2", many), (520, "f2", many - 1),
    )] == [single, single, "held", "held", "held", "held_warps", "held"]  # fmt: skip
    assert [chosen(width, "f2", "Backward") for width in (24, 32, 520, 1 << 13, (1 << 13) + 8, (1 << 13) + 4)] == [
        "baseline", "few", "held", "held", "streamed", "baseline",
    ]  # fmt: skip
    assert [chosen(width, "f2", "Backward", 1025) for width in (24, 32, 256, 264)] == [
        "baseline", "held_warps", "held_warps", "held",
    ]  # fmt: skip
    slices = [WarpsBackwardConfig.heuristic(ops.RmsNormBackwardDescriptor((count, 128), (128,))).slices
              for count in (0, 9, 8 * 132, 8 * 4 * 200, 8 * 2000, 8 * 64 * 400)]  # fmt: skip
    assert slices == [1, 2, 132, 200, 396, 400]
    of_many = [WarpsBackwardConfig.heuristic(ops.RmsNormBackwardDescriptor((8 * 2200, width), (width,))).slices
               for width in (127, 126)]  # fmt: skip
    assert of_many == [4 * 132, 3 * 132]  # by words, by eights
    assert [chosen(width, "f8") for width in (2, 63, 1 << 13, (1 << 13) + 2)] == [
        "held", "baseline", "held", "baseline",
    ]  # fmt: skip
    assert [chosen(width, "f8", "Backward") for width in (62, 64, 1 << 12, (1 << 12) + 2)] == [
        "baseline", "held", "held", "baseline",
    ]  # fmt: skip


def test_warps_take_as_many_turns_as_leave_no_wave_nearly_empty() -> None:
    def warps(op: str, name: str, *shape: int) -> WarpsConfig:
        return WarpsConfig.heuristic(getattr(ops, f"{op}Descriptor")(shape, shape[1:], BY_NAME[name]))

    assert [warps("LayerNorm", "f16", 1 << 15, width).turns for width in (36, 100, 250)] == [2, 4, 7]
    assert [warps(f"{norm}Norm", "f32", 1 << 15, 100).turns for norm in ("Layer", "Rms")] == [2, 1]
    assert [warps("RmsNorm", "f16", rows, 100).turns for rows in (1 << 15, 1 << 16, 1 << 20)] == [3, 6, 7]
    assert warps("LayerNorm", "f16", 8192, 100) == WarpsConfig(4, 1)
    assert warps("LayerNorm", "f16", 1 << 15, 520) == WarpsConfig(2, 1)  # whose weights no lane keeps


@every_norm
@every_way
def test_a_column_of_equal_gradients_costs_no_digits(
    device: Device, rng: Rng, norm: str, variant: str, name: str
) -> None:
    """Added up one by one, 32 of this number are off by 5e-7, or in f64 by 9e-16."""
    value, limit = {"f32": (1.6000991, 2e-7), "f64": (1.8823876941811584, 3e-16)}[name]
    go = np.full((32, 64), value, BY_NAME[name].numpy)
    x = rng.standard_normal((32, 64)).astype(go.dtype) if norm == "layer_norm" else np.ones_like(go)
    w = np.ones(64, go.dtype)
    results = backward(device, norm, go, x, w, variant=variant, threads=32, length=32)
    wants = getattr(references, f"{norm}_backward")(go, x, (64,), w, eps=1e-5)
    check_error(f"{norm} columns", device, results[-1], wants[-1], limit)


@every_norm
@every_way_of_every_type
def test_a_slice_has_any_number_of_rows(device: Device, rng: Rng, norm: str, variant: str, name: str) -> None:
    """Round eight rows, whose sums are added up together, and the last slice fewer."""
    check(device, norm, problem(norm, rng, (27, 72), name), variant=variant, threads=32, length=11)


@every_norm
@pytest.mark.parametrize(
    ("way", "variant", "width", "dtype", "reason"),
    [
        ("", "held", 64, "f8", "no entries of f64"),
        ("Backward", "held", 64, "f8", "no entries of f64"),
        ("", "held_warps", 516, "f4", "in HIP a warp holds 512 values, not 516"),
        ("", "held_warps", 520, "f2", "in HIP a warp holds 512 values, not 520"),
    ],
)
def test_what_hip_has_no_entries_of_is_refused(
    sim: Device, norm: str, way: str, variant: str, width: int, dtype: str, reason: str
) -> None:
    with refused(ptxrt.errors.Unsupported, f"{norm}{way and '_backward'}", "descriptor", reason):
        select(sim, norm, way, np.zeros((2, width), dtype), 1e-5, f"hip/{variant}")


@every_norm
def test_in_f64_gradients_of_rows_of_two_values_are_left_to_pairs(sim: Device, norm: str) -> None:
    select(sim, norm, "Backward", np.zeros((64, 4)), 1e-5, "held")
    with refused(ptxrt.errors.Unsupported, f"{norm}_backward", "descriptor", "rows of 2 values cancel"):
        select(sim, norm, "Backward", np.zeros((64, 2)), 1e-5, "held")


@every_norm
def test_what_equals_a_shape_that_was_taken_is_looked_at(sim: Device, norm: str) -> None:
    x = ptxrt.ones((3, 4), device=sim)
    getattr(ops, norm)(x, (4,))
    for given in ((4.0,), 4.0):
        with refused(ptxrt.InvalidArgument, norm, "normalized_shape", repr(given)):
            getattr(ops, norm)(x, given)


@every_norm
def test_hip_has_short_rows_by_warps(sim: Device, norm: str) -> None:
    def chosen(width: int, dtype: str, way: str = "", count: int = 4) -> str:
        problem = getattr(ops, f"{NORMS[norm]}{way}Descriptor")((count, width), (width,), element_type(np.dtype(dtype)))
        return str(getattr(ops, f"{NORMS[norm]}{way}Plan").select(sim, problem, wish(language="hip")).key.variant)

    assert [chosen(*case) for case in (
        (128, "f4"), (100, "f2"), (256, "f2", "", 1024), (256, "f2"), (31, "f2"), (1024, "f4", "", 32 * 132 + 1),
    )] == ["held_warps", "held_warps", "held_warps", "held", "baseline", "held"]  # fmt: skip
    assert [chosen(width, "f2", "Backward", 1025) for width in (24, 32, 256, 264)] == [
        "baseline", "held_warps", "held_warps", "held",
    ]  # fmt: skip


@pytest.mark.ptx
@pytest.mark.parametrize(("width", "threads"), [(64, 32), (66, 32), (322, 64), (1000, 128), (770, 128)])
def test_in_f64_neither_an_outlier_in_front_costs_accuracy_nor_a_constant_in_grad_out(
    device: Device, rng: Rng, width: int, threads: int
) -> None:
    go, x, *weights = problem("layer_norm", rng, (2, width), "f64")
    x[1, 0] = 1e10
    check(device, "layer_norm", (go, x, *weights), threads=threads, length=2)
    go += 1e8  # which counts for grad_bias alone
    grad_input, _, grad_bias = references.layer_norm_backward(go.astype(np.longdouble) - 1e8, x, width)
    got = backward(device, "layer_norm", go, x, None, threads=threads, length=2)
    for a, want in ((got[0], grad_input), (got[2], grad_bias + 2e8)):
        check_error("layer_norm gradient", device, a, want, bar("layer_norm", "f64"), width)


@pytest.mark.ptx
@pytest.mark.parametrize(("width", "threads"), [(64, 32), (66, 32), (322, 64), (1000, 128), (770, 128)])
def test_in_f64_terms_of_rms_norm_that_cancel_cost_no_accuracy(
    device: Device, rng: Rng, width: int, threads: int
) -> None:
    go, x, _ = problem("rms_norm", rng, (2, width), "f64", 1e4)
    go += 1e4  # nearly a multiple of x
    check(device, "rms_norm", (go, x, None), large_mean=True, threads=threads, length=2)


@pytest.mark.ptx
@every_norm
def test_in_f64_numbers_are_lost_where_baseline_loses_them(device: Device, rng: Rng, norm: str) -> None:
    """Squares that are infinite or 0, and numbers that are no numbers."""
    go, x, *weights = problem(norm, rng, (9, 130), "f64")
    x[0] *= 1e150
    x[1] *= 1e-150
    x[2, 0], x[3, 5], x[4, 129], x[5, 64], x[6, 128] = 1e300, 1e300, -1e300, np.inf, np.nan
    go[7, 129], go[8, 0] = np.inf, np.nan
    for variants in (
        [forward(device, norm, x, *weights, eps=0.0, variant=variant) for variant in ("held", "baseline")],
        *zip(
            *(backward(device, norm, go, x, weights[0], 0.0, variant) for variant in ("held", "baseline")), strict=True
        ),
    ):
        held, baseline = (np.where(np.isfinite(a), a, np.nan) for a in variants)
        np.testing.assert_allclose(held, baseline, rtol=1e-12, atol=0)
