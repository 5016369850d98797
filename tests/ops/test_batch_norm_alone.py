"""batch_norm in eval, whose threads have all that their values need."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Rng, refused
from op_testing import on_device, wish
from test_batch_norm import check, check_any_variance, problem, run

import ptxrt
from ptxrt import Device
from ptxrt.dtypes import BY_NAME
from ptxrt.ops import BatchNormArgs, BatchNormDescriptor, BatchNormPlan
from ptxrt.ops._batch_norm_alone import AloneConfig
from ptxrt.ops.framework import reciprocal

LAST, ROWS = (
    ("channels_last_alone", "hip/channels_last_alone"),
    ("alone", "hip/alone"),
)  # of channels, and of a channel's values
every_language = pytest.mark.parametrize("variant", LAST)
of_each_layout = pytest.mark.parametrize(
    ("variant", "shape"), [*((variant, (9, 16)) for variant in LAST), *((variant, (2, 11, 48)) for variant in ROWS)]
)  # of rows more vectors than a block has threads, so that some threads have two


@every_language
@pytest.mark.parametrize(
    ("name", "shape", "threads"),
    [
        ("f32", (1, 4), 1),  # one vector, one thread of two
        ("f32", (37, 4), 128),
        ("f32", (5, 64), 128),
        ("f32", (257, 12), 128),  # 3 units, which 126 threads share
        ("f32", (64, 80), 512),
        ("f32", (3, 2048), 128),  # all threads that a block can have
        ("f16", (1, 8), 128),
        ("f16", (67, 40), 256),
        ("f16", (3, 4096), 128),
        ("bf16", (67, 40), 128),
    ],
)
@pytest.mark.sanitize
def test_every_number_of_units(
    device: Device, rng: Rng, name: str, shape: tuple[int, int], threads: int, variant: str
) -> None:
    values = problem(rng, shape, name=name)
    how: dict[str, Any] = {"training": False, "variant": variant, "config": AloneConfig(threads)}
    got = check(device, values, **how)
    unaligned = run(device, values, offset=1, out_offset=3, **how)
    assert unaligned["y"].tobytes() == got["y"].tobytes()
    check(device, problem(rng, shape, 1e4, name), large_mean=True, **how)


@pytest.mark.parametrize("variant", ROWS)
@pytest.mark.parametrize(
    ("name", "shape", "threads"),
    [
        ("f32", (1, 1, 4), 1),  # one vector, one thread of two
        ("f32", (37, 1, 4), 128),
        ("f32", (5, 3, 8, 8), 128),
        ("f32", (7, 5, 12), 96),  # rows and channels that are no powers of two
        ("f32", (2, 600, 4), 512),
        ("f32", (3, 2, 1028), 128),  # a thread's vectors are of one channel, or of two
        ("f16", (1, 1, 8), 128),
        ("f16", (3, 67, 40), 256),
        ("bf16", (3, 67, 40), 128),
    ],
)
@pytest.mark.sanitize
def test_rows_of_every_length(
    device: Device, rng: Rng, name: str, shape: tuple[int, ...], threads: int, variant: str
) -> None:
    values = problem(rng, shape, name=name)
    how: dict[str, Any] = {"training": False, "variant": variant, "config": AloneConfig(threads)}
    got = check(device, values, **how)
    unaligned = run(device, values, offset=1, out_offset=3, **how)
    assert unaligned["y"].tobytes() == got["y"].tobytes()
    check(device, problem(rng, shape, 1e4, name), large_mean=True, **how)


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 784, 3136, 65535, 65537, (1 << 30) + 1, (1 << 31) - 1])
def test_products_are_quotients(divisor: int) -> None:
    """At each multiple's neighbours, where a product that is a little too large, or too small, shows first."""
    factor, shift = reciprocal(divisor)
    assert factor < 1 << 32
    last = (1 << 31) - 1
    for multiple in {0, 1, 2, last // divisor // 2, last // divisor}:
        for i in (multiple * divisor - 1, multiple * divisor, multiple * divisor + 1, last):
            if 0 <= i <= last:
                assert i * factor >> shift == i // divisor, i


@of_each_layout
def test_one_array_alone_is_unaligned_or_not_there(
    device: Device, rng: Rng, variant: str, shape: tuple[int, ...]
) -> None:
    values = problem(rng, shape)
    plan = BatchNormPlan.select(device, BatchNormDescriptor(shape, False), wish(variant))
    want = run(device, values, training=False, variant=variant)["y"].tobytes()
    for odd in range(6):
        *given, y = (on_device(a, device, int(odd == i)) for i, a in enumerate((*values, values[0])))
        plan.run(BatchNormArgs(*given)._replace(y=y))
        assert y.to_host().tobytes() == want, odd
    x, w, b, *running = values
    check(device, (x, None, b, *running), training=False, variant=variant)
    check(device, (x, w, None, *running), training=False, variant=variant)
    in_place = on_device(x, device)
    plan.run(BatchNormArgs(in_place, *(on_device(a, device) for a in values[1:]))._replace(y=in_place))
    assert in_place.to_host().tobytes() == want


@of_each_layout
def test_in_place_no_thread_reads_what_another_one_writes(
    sim: Device, rng: Rng, monkeypatch: pytest.MonkeyPatch, variant: str, shape: tuple[int, ...]
) -> None:
    monkeypatch.setenv("PTXRT_SIM_CHECKS", "all")
    x, *vectors = (on_device(a, sim) for a in problem(rng, shape))
    plan = BatchNormPlan.select(sim, BatchNormDescriptor(shape, False), wish(variant))
    plan.run(BatchNormArgs(x, *vectors)._replace(y=x))


@pytest.mark.parametrize(
    ("variant", "shape"), [*((variant, (7, 12)) for variant in LAST), *((variant, (3, 12, 8)) for variant in ROWS)]
)
def test_any_variance(device: Device, rng: Rng, variant: str, shape: tuple[int, ...]) -> None:
    check_any_variance(device, rng, shape, variant)


@of_each_layout
def test_eps_counts_where_results_are_made_in_f64(
    device: Device, rng: Rng, variant: str, shape: tuple[int, ...]
) -> None:
    x, w, b, mean, var = problem(rng, shape)
    values = (x, w * np.float32(1e-15), b, mean, var * np.float32(1e-31))
    check(device, values, training=False, eps=3e-31, variant=variant)


@of_each_layout
@pytest.mark.parametrize("name", ["f32", "f16"])
def test_nan_and_infinity_stay_where_they_are(
    device: Device, rng: Rng, name: str, variant: str, shape: tuple[int, ...]
) -> None:
    x, *vectors = problem(rng, shape, name=name)
    right = run(device, (x, *vectors), training=False, variant=variant)["y"]
    x.flat[35], x.flat[127] = np.nan, np.inf
    y = run(device, (x, *vectors), training=False, variant=variant)["y"]
    assert np.isnan(y.flat[35])
    assert np.isinf(y.flat[127])
    right.flat[35], right.flat[127] = y.flat[35], y.flat[127]
    assert y.tobytes() == right.tobytes()


@pytest.mark.ptx
@pytest.mark.parametrize(("languages", "shape"), [(LAST, (19, 48)), (ROWS, (3, 48, 24))])
@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_the_bits_are_those_of_the_other_language(
    device: Device, rng: Rng, name: str, languages: tuple[str, str], shape: tuple[int, ...]
) -> None:
    x, w, b, mean, var = problem(rng, shape, name=name)
    var[5] = 1e-35  # in f64
    one, other = (run(device, (x, w, b, mean, var), training=False, eps=0.0, variant=each)["y"] for each in languages)
    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    ("variant", "shape", "training", "name", "threads", "why"),
    [
        (LAST[0], (8, 16), True, "f32", 128, "in eval"),
        (LAST[0], (8, 16, 2), False, "f32", 128, "channels that lie side by side"),
        (LAST[0], (8, 16), False, "f64", 128, "no entries of f64"),
        (LAST[0], (8, 18), False, "f32", 128, "18 channels are not 1 to 512 vectors of 4"),
        (LAST[0], (8, 2052), False, "f32", 128, "2052 channels"),
        (LAST[0], (8, 16), False, "f32", 0, "1 to 512 threads, not 0"),
        (LAST[0], (8, 16), False, "f32", 513, "1 to 512 threads, not 513"),
        (LAST[0], (1 << 29, 16), False, "f32", 128, f"vectors are more than {(1 << 31) - 1024}"),
        (ROWS[0], (8, 16, 4), True, "f32", 128, "is for eval"),
        (ROWS[0], (8, 16, 6), False, "f32", 128, "rows of 6 values are not whole vectors of 4"),
        (ROWS[0], (8, 16), False, "f32", 128, "rows of 1 values"),
        (ROWS[0], (8, 16, 4), False, "f64", 128, "no entries of f64"),
        (ROWS[0], (8, 16, 4), False, "f32", 0, "1 to 512 threads, not 0"),
        (ROWS[0], (8, 16, 4), False, "f32", 513, "1 to 512 threads, not 513"),
        (ROWS[0], (1 << 27, 16, 4), False, "f32", 128, f"vectors are more than {(1 << 31) - 1024}"),
    ],
)
def test_what_it_cannot_do(variant: str, shape: Any, training: bool, name: str, threads: int, why: str) -> None:
    descriptor = BatchNormDescriptor(shape, training, BY_NAME[name])
    preference = wish(variant, config=AloneConfig(threads))
    with refused(ptxrt.errors.Unsupported, "batch_norm", "descriptor", why):
        BatchNormPlan.select(Device("sim:0"), descriptor, preference)


@pytest.mark.parametrize(
    ("shape", "name", "variant"),
    [
        ((2, 64), "f32", "channels_last_alone"),
        ((1 << 20, 64), "f16", "channels_last_alone"),
        ((1 << 20, 64), "f64", "channels_last"),
        ((32, 256, 56, 56), "f32", "alone"),
        ((32, 256, 56, 56), "bf16", "alone"),
        ((32, 256, 56, 56), "f64", "elementwise"),
        ((32, 256, 55, 55), "f32", "elementwise"),
    ],
)
@pytest.mark.parametrize("language", ["ptx", "hip"])
def test_what_is_chosen(shape: Any, name: str, variant: str, language: str) -> None:
    descriptor = BatchNormDescriptor(shape, False, BY_NAME[name])
    assert BatchNormPlan.select(Device("sim:0"), descriptor, wish(language=language)).variant.name == variant


@pytest.mark.parametrize(
    ("channels", "threads", "block"), [(12, 128, 126), (64, 128, 128), (2048, 128, 512), (4, 1, 1)]
)
def test_a_block_has_whole_rows_of_units(channels: int, threads: int, block: int) -> None:
    preference = wish("channels_last_alone", config=AloneConfig(threads))
    plan = BatchNormPlan.select(Device("sim:0"), BatchNormDescriptor((1000, channels), False), preference)
    (launch,) = plan.schedule.launches
    assert (launch.block, launch.grid) == (block, (-(-1000 * channels // 4 // (2 * block)),))
