"""layer_norm and rms_norm, and their backwards, of rows that stream through shared memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers import Rng, refused
from op_testing import check_error
from test_rows_held import backward, check_gradients, every_norm, forward, in_place, problem, select
from tolerances import bar

import ptxrt
from ptxrt import Device, ops
from ptxrt.dtypes import element_type
from ptxrt.ops import references
from ptxrt.ops.framework.rows_streamed import StreamedBackwardConfig, StreamedConfig

pytestmark = pytest.mark.ptx

every_type = pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
every_half = pytest.mark.parametrize("name", ["f16", "bf16"])


def streamed(device: Device, norm: str, go: Any, x: Any, w: Any, *config: int, **how: Any) -> list[Any]:
    return backward(device, norm, go, x, w, variant="streamed", config=StreamedBackwardConfig(*config), **how)


def check(
    device: Device, norm: str, given: Any, *config: int, eps: float = 1e-5, large_mean: bool = False
) -> list[Any]:
    go, x, w = given[:3]
    got = streamed(device, norm, go, x, w, *config, eps=eps)
    check_gradients(device, norm, got, go, x, w, eps, large_mean, (x.shape, config))
    return got


@every_norm
@every_type
@pytest.mark.parametrize(
    ("width", "threads"),
    [(64, 32), (264, 64), (264, 96), (1032, 160), (1000, 256), (1000, 96), (1000, 64)],
)
@pytest.mark.sanitize
def test_streamed_rows_match_cpu(device: Device, rng: Rng, norm: str, name: str, width: int, threads: int) -> None:
    """Threads and warps without values, one vector a thread and more; blocks without rows, and with fewer."""
    check(device, norm, problem(norm, rng, (5, width), name), threads, 6)


@every_norm
@every_type
@pytest.mark.parametrize(
    ("width", "threads", "sharers"),
    [
        (528, 32, 2),
        (1000, 32, 2),
        (1024, 32, 2),
        (1592, 64, 2),
        (1056, 32, 4),
        (1560, 32, 4),
        (2040, 32, 4),
        (3992, 64, 4),
    ],
)
@pytest.mark.sanitize
def test_rows_that_blocks_share_match_cpu(
    device: Device, rng: Rng, norm: str, name: str, width: int, threads: int, sharers: int
) -> None:
    check(device, norm, problem(norm, rng, (5, width), name), threads, 8, sharers)


@every_norm
@every_type
def test_the_widest_rows(device: Device, rng: Rng, norm: str, name: str) -> None:
    check(device, norm, problem(norm, rng, (3, 8192), name), 512, 2)


@every_norm
@pytest.mark.parametrize(("name", "width", "sharers"), [("f32", 1 << 14, 2), ("f16", 1 << 14, 2), ("bf16", 1 << 15, 4)])
def test_the_widest_rows_that_blocks_share(
    device: Device, rng: Rng, norm: str, name: str, width: int, sharers: int
) -> None:
    check(device, norm, problem(norm, rng, (2, width), name), 512, sharers, sharers)


@every_norm
@every_type
@pytest.mark.parametrize(("count", "blocks"), [(1, 2), (2, 2), (7, 4), (17, 2), (71, 4)])
def test_a_block_has_any_number_of_rows(
    device: Device, rng: Rng, norm: str, name: str, count: int, blocks: int
) -> None:
    """Of one cluster and of more; round the rows under way, and the eight whose sums are added up together."""
    check(device, norm, problem(norm, rng, (count, 72), name), 32, blocks)
    check(device, norm, problem(norm, rng, (count, 536), name), 32, 2 * blocks, 2)


@every_norm
@every_type
@pytest.mark.parametrize(("mean", "scale"), [(1e4, 1.0), (0.0, 1e-3), (0.0, 100.0)])
def test_any_mean_and_deviation_costs_no_digits(
    device: Device, rng: Rng, norm: str, name: str, mean: float, scale: float
) -> None:
    for width, *config in ((264, 64, 2), (536, 32, 4, 2)):
        given = problem(norm, rng, (4, width), name, mean, scale)
        check(device, norm, given, *config, eps=0.0, large_mean=mean > 0)


@every_norm
@pytest.mark.parametrize("name", ["f32", "bf16"])
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_squares_need_not_be_numbers_of_f32(device: Device, rng: Rng, norm: str, name: str, scale: float) -> None:
    """Nor are other rows of the block another's, once one has been taken again."""
    for width, *config in ((136, 64, 2), (1096, 32, 4, 4)):
        go, x, *weights = problem(norm, rng, (5, width), name)
        x[1::2] = (x[1::2].astype("f8") * scale).astype(x.dtype)
        go[1::2] = (go[1::2].astype("f8") * scale).astype(x.dtype)
        check(device, norm, (go, x, *weights), *config, eps=0.0)


@every_norm
@every_type
@pytest.mark.sanitize
def test_at_any_address_and_without_weights(device: Device, rng: Rng, norm: str, name: str) -> None:
    """The bits do not depend on where the arrays lie."""
    for width, *config in ((136, 64, 4), (536, 32, 4, 2)):
        go, x, w, *_ = problem(norm, rng, (11, width), name)
        for weight in (w, None):
            want = check(device, norm, (go, x, weight), *config)
            moved = streamed(device, norm, go, x, weight, *config, offset=1)
            for a, b in zip(moved, want, strict=True):
                np.testing.assert_array_equal(a, b)


@every_norm
@every_type
def test_nan_and_infinity_spoil_their_row_alone(device: Device, rng: Rng, norm: str, name: str) -> None:
    for width, *config in ((136, 64, 2), (536, 32, 4, 2)):
        go, x, *weights = problem(norm, rng, (4, width), name)
        x[0, 3], x[1, 0], go[2, 5] = np.nan, np.inf, np.nan
        got = streamed(device, norm, go, x, weights[0], *config)[0]
        assert np.isnan(got[[0, 2]]).all()
        assert np.isfinite(got[3]).all()


@every_norm
def test_a_column_of_equal_gradients_costs_no_digits(device: Device, rng: Rng, norm: str) -> None:
    """Added up one by one, 32 of this number are off by 5e-7."""
    go = np.full((256, 64), 1.6000991, "f4")
    x = rng.standard_normal((256, 64)).astype("f4") if norm == "layer_norm" else np.ones_like(go)
    w = np.ones(64, "f4")
    got = streamed(device, norm, go, x, w, 32, 8)
    wants = getattr(references, f"{norm}_backward")(go, x, (64,), w, eps=1e-5)
    check_error(f"{norm} columns", device, got[-1], wants[-1], 2e-7)


def streamed_forward(device: Device, norm: str, x: Any, weights: Any, *config: int, **how: Any) -> Any:
    return forward(device, norm, x, *weights, variant="streamed", config=StreamedConfig(*config), **how)


def check_forward(
    device: Device, norm: str, x: Any, weights: Any, *config: int, eps: float = 1e-5, large_mean: bool = False
) -> Any:
    got = streamed_forward(device, norm, x, weights, *config, eps=eps)
    want = getattr(references, norm)(x, x.shape[1:], *weights, eps=eps)
    limit = bar(norm, element_type(x.dtype).name, want, large_mean=large_mean)
    check_error(norm, device, got, want, limit, (x.shape, config))
    return got


@every_norm
@every_half
@pytest.mark.parametrize(("width", "threads"), [(520, 32), (768, 32), (1024, 32), (1544, 64), (2056, 96), (4096, 160)])
@pytest.mark.sanitize
def test_streamed_rows_match_cpu_forward(
    device: Device, rng: Rng, norm: str, name: str, width: int, threads: int
) -> None:
    """Of one warp, of two and of more; last slots that few threads have; blocks with several rows, and without."""
    _, x, *weights = problem(norm, rng, (13, width), name)
    for blocks in (2, 15):
        check_forward(device, norm, x, weights, threads, blocks)


@every_norm
@every_half
def test_the_widest_rows_forward(device: Device, rng: Rng, norm: str, name: str) -> None:
    _, x, *weights = problem(norm, rng, (3, 1 << 14), name)
    check_forward(device, norm, x, weights, 512, 2)


@every_norm
@every_half
@pytest.mark.parametrize(("mean", "scale"), [(1e4, 1.0), (0.0, 1e-3), (0.0, 100.0)])
def test_any_mean_and_deviation_costs_no_digits_forward(
    device: Device, rng: Rng, norm: str, name: str, mean: float, scale: float
) -> None:
    _, x, *weights = problem(norm, rng, (4, 776), name, mean, scale)
    check_forward(device, norm, x, weights, 32, 1, eps=0.0, large_mean=mean > 0)


@every_norm
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_squares_need_not_be_numbers_of_f32_forward(device: Device, rng: Rng, norm: str, scale: float) -> None:
    _, x, *weights = problem(norm, rng, (5, 776), "bf16")
    x[1::2] = (x[1::2].astype("f8") * scale).astype(x.dtype)
    check_forward(device, norm, x, weights, 32, 1, eps=0.0)


@every_norm
@every_half
@pytest.mark.sanitize
def test_forward_at_any_address_in_place_and_without_weights(device: Device, rng: Rng, norm: str, name: str) -> None:
    _, x, *weights = problem(norm, rng, (11, 776), name)
    for some in (weights, [None] * len(weights)):
        want = check_forward(device, norm, x, some, 32, 3)
        np.testing.assert_array_equal(streamed_forward(device, norm, x, some, 32, 3, offset=1), want)
        for offset in (0, 1):
            got = in_place(device, norm, "streamed", x, *some, offset=offset, config=StreamedConfig(32, 3))
            np.testing.assert_array_equal(got, want)


@every_norm
@every_half
def test_nan_and_infinity_spoil_their_row_alone_forward(device: Device, rng: Rng, norm: str, name: str) -> None:
    _, x, *weights = problem(norm, rng, (6, 776), name)
    x[0, 3], x[2, 0] = np.nan, np.inf
    got = streamed_forward(device, norm, x, weights, 32, 1)
    assert np.isnan(got[0]).all()
    assert np.isnan(got[2]).any()
    assert np.isfinite(got[[1, 3, 4, 5]]).all()


@every_norm
@pytest.mark.parametrize(("name", "threads"), [("f32", 32), ("f32", 64), ("bf16", 32), ("bf16", 64)])
def test_no_copy_comes_before_a_row_has_been_read(
    sim: Device, rng: Rng, monkeypatch: pytest.MonkeyPatch, norm: str, name: str, threads: int
) -> None:
    """And no thread touches what is another's: sim's checks say so, values do not. Of each number of rows under way."""
    monkeypatch.setenv("PTXRT_SIM_CHECKS", "all")
    check(sim, norm, problem(norm, rng, (25, 264), name), threads, 2)
    check(sim, norm, problem(norm, rng, (25, 1560), name), threads, 8, 4 if threads == 32 else 2)
    if name != "f32":
        _, x, *weights = problem(norm, rng, (13, 776), name)
        check_forward(sim, norm, x, weights, 32, 1)


@every_norm
@pytest.mark.parametrize(("width", "name", "config", "reason"), [
    (130, "f4", StreamedBackwardConfig(64, 2), "rows of 130 values are not whole vectors of 4"),
    (256, "f8", StreamedBackwardConfig(64, 2), "there are no entries of f64"),
    (256, "f4", StreamedBackwardConfig(48, 2), "a block has whole warps, up to 512 threads, not 48"),
    (256, "f4", StreamedBackwardConfig(544, 2), "a block has whole warps, up to 512 threads, not 544"),
    (256, "f4", StreamedBackwardConfig(0, 2), "a block has whole warps, up to 512 threads, not 0"),
    (520, "f2", StreamedBackwardConfig(32, 2), "32 threads hold 512 values, not 520: more threads or sharers do"),
    (256, "f4", StreamedBackwardConfig(64, 2, 3), "1, 2 or 4 blocks share a row, not 3"),
    (1024, "f4", StreamedBackwardConfig(64, 2, 2), "a thread has 3 or 4 vectors of a row, not 2"),
    (1024, "f2", StreamedBackwardConfig(64, 2, 2), "a thread has 2 vectors of a row, not 1"),
    (1032, "f2", StreamedBackwardConfig(32, 2, 2), "64 threads hold 1024 values, not 1032"),
    (2048, "f4", StreamedBackwardConfig(32, 2, 4), "blocks are fours, not 2"),
    (256, "f4", StreamedBackwardConfig(64, 3), "blocks are pairs, not 3"),
    (256, "f4", StreamedBackwardConfig(64, 0), "blocks are pairs, not 0"),
    (1024, "f4", StreamedConfig(32, 1), "there are no entries of f32"),
    (1025, "f2", StreamedConfig(64, 1), "rows of 1025 values are not whole vectors of 8"),
    (1032, "f2", StreamedConfig(32, 1), "32 threads hold 1024 values, not 1032: more threads do"),
    (8200, "f2", StreamedBackwardConfig(512, 2), "512 threads hold 8192 values, not 8200: more sharers do"),
    (32776, "f2", StreamedBackwardConfig(512, 4, 4), "2048 threads hold 32768 values, not 32776. "),
    (16392, "f2", StreamedConfig(512, 1), "512 threads hold 16384 values, not 16392. "),
    (1024, "f2", StreamedConfig(64, 1), "a thread has 3 or 4 vectors of a row, not 2"),
    (1024, "f2", StreamedConfig(32, 0), "blocks are at least one, not 0"),
])  # fmt: skip
def test_what_blocks_cannot_have_is_refused(
    sim: Device, norm: str, width: int, name: str, config: StreamedConfig, reason: str
) -> None:
    x = np.broadcast_to(np.zeros(1, name), (4, width))
    way = "Backward" if isinstance(config, StreamedBackwardConfig) else ""
    with refused(ptxrt.errors.Unsupported, f"{norm}{way and '_backward'}", "descriptor", reason):
        select(sim, norm, way, x, 1e-5, "streamed", config)


@every_norm
def test_a_block_adds_up_few_rows(sim: Device, norm: str) -> None:
    x = np.broadcast_to(np.zeros(1, "f4"), (129, 1024))
    for config in (StreamedBackwardConfig(64, 2), StreamedBackwardConfig(32, 4, 2)):
        with refused(ptxrt.errors.Unsupported, f"{norm}_backward", "descriptor", "64 rows at most, not 65"):
            select(sim, norm, "Backward", x, 1e-5, "streamed", config)


@pytest.mark.parametrize(("count", "width", "name", "config"), [
    (8192, 768, "f4", StreamedBackwardConfig(64, 1024)),  # eight blocks a multiprocessor, all with eight rows
    (4096, 4096, "f2", StreamedBackwardConfig(256, 256)),
    (4096, 520, "f4", StreamedBackwardConfig(64, 1024)),  # not fewer threads than two warps
    (1 << 20, 1024, "f2", StreamedBackwardConfig(64, 1 << 14)),  # not more rows than f32 adds up
    (3, 8192, "f4", StreamedBackwardConfig(512, 4)),
    (0, 512, "f4", StreamedBackwardConfig(64, 2)),
    (2, 0, "f4", StreamedBackwardConfig(32, 2)),
    (4096, 4096, "f4", StreamedBackwardConfig(352, 128)),  # of wide rows of f32 fewer values a thread
    (4096, 4092, "f4", StreamedBackwardConfig(256, 256)),
    (2048, 12288, "f2", StreamedBackwardConfig(384, 128, 2)),  # rows that blocks share
    (2048, 12288, "f4", StreamedBackwardConfig(512, 128, 2)),
    (2048, 16384, "f4", StreamedBackwardConfig(512, 128, 2)),
    (64, 16384, "f2", StreamedBackwardConfig(256, 128, 4)),  # few of them, or wider ones
    (65, 16384, "f2", StreamedBackwardConfig(512, 130, 2)),
    (2048, 16392, "f2", StreamedBackwardConfig(288, 128, 4)),
    (1 << 20, 12288, "f2", StreamedBackwardConfig(384, 1 << 15, 2)),
    (4096, 4096, "f2", StreamedConfig(128, 512)),
    (10561, 1536, "f2", StreamedConfig(64, 961)),
    (0, 0, "f2", StreamedConfig(512, 1)),
])  # fmt: skip
def test_blocks_are_as_many_as_run_at_a_time(count: int, width: int, name: str, config: StreamedConfig) -> None:
    x = ops.LayerNormBackwardDescriptor((count, width), (width,), element_type(np.dtype(name)))
    assert type(config).heuristic(x) == config
    assert all(type(config).candidates(x).count(each) == 1 for each in type(config).candidates(x))


def variant_of(device: Device, norm: str, way: str, count: int, width: int, name: str = "f2") -> str:
    """Return which variant is chosen for so many rows."""
    x = np.broadcast_to(np.zeros(1, name), (count, width))
    return str(select(device, norm, way, x, 1e-5, None).key.variant)


@every_norm
def test_it_is_for_wide_rows_and_not_for_the_largest_problems(sim: Device, norm: str) -> None:
    chosen = partial(variant_of, sim, norm, "")
    for width, least, most in ((776, 1352, 21620), (1272, 825, 13189), (1280, 820, 26214), (4096, 256, 8192)):
        counts = (least - 1, least, most, most + 1)
        assert [chosen(count, width) for count in counts] == ["held", "streamed", "streamed", chosen(1 << 15, width)]
    assert [chosen(1 << 14, 760), chosen(1 << 15, 4096), chosen(1 << 15, 776)] == ["held_warps", "held", "held_warps"]
    # Of rows that warps can share out evenly, too, but of the largest problems several at a time.
    assert [chosen(count, 1024) for count in (1024, 1 << 14, (1 << 14) + 1)] == ["streamed", "streamed", "together"]
    assert [chosen(1, width) for width in (12280, 12288, 1 << 14)] == ["held", "streamed", "streamed"]
    assert [chosen(1024, 4096, name) for name in ("f4", "f8")] == ["held", "held"]


@every_norm
def test_the_backward_is_for_many_values_of_wide_rows(sim: Device, norm: str) -> None:
    chosen = partial(variant_of, sim, norm, "Backward")
    for width, least in ((512, 6144), (768, 4096), (3072, 683), (8192, 256)):
        assert [chosen(count, width) for count in (least, least - 1)] == ["streamed", "held"]
    assert [chosen(1 << 13, width) for width in (504, 1 << 13)] == ["held", "streamed"]
    # Blocks share rows that no other variant holds, whatever their number.
    wide = [(1, (1 << 13) + 8), (1 << 13, 1 << 14), (1, 1 << 15), (1, (1 << 15) + 8), (1 << 13, (1 << 13) + 4)]
    assert [chosen(*shape) for shape in wide] == ["streamed"] * 3 + ["baseline"] * 2
    assert chosen(1 << 13, 1024, "f8") == "held"
