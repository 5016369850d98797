"""batch_norm in eval of channels-last arrays, whose threads have all that their values need."""

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

LANGUAGES = ("channels_last_alone", "hip/channels_last_alone")
every_language = pytest.mark.parametrize("variant", LANGUAGES)


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


@every_language
def test_one_array_alone_is_unaligned_or_not_there(device: Device, rng: Rng, variant: str) -> None:
    values = problem(rng, (9, 16))
    plan = BatchNormPlan.select(device, BatchNormDescriptor((9, 16), False), wish(variant))
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


@every_language
def test_in_place_no_thread_reads_what_another_one_writes(
    sim: Device, rng: Rng, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    monkeypatch.setenv("PTXRT_SIM_CHECKS", "all")
    x, *vectors = (on_device(a, sim) for a in problem(rng, (9, 16)))
    plan = BatchNormPlan.select(sim, BatchNormDescriptor((9, 16), False), wish(variant))
    plan.run(BatchNormArgs(x, *vectors)._replace(y=x))


@every_language
def test_any_variance(device: Device, rng: Rng, variant: str) -> None:
    check_any_variance(device, rng, (7, 12), variant)


@every_language
@pytest.mark.parametrize("name", ["f32", "f16"])
def test_nan_and_infinity_stay_where_they_are(device: Device, rng: Rng, name: str, variant: str) -> None:
    x, *vectors = problem(rng, (9, 16), name=name)
    right = run(device, (x, *vectors), training=False, variant=variant)["y"]
    x[2, 3], x[7, 15] = np.nan, np.inf
    y = run(device, (x, *vectors), training=False, variant=variant)["y"]
    assert np.isnan(y[2, 3])
    assert np.isinf(y[7, 15])
    right[2, 3], right[7, 15] = y[2, 3], y[7, 15]
    assert y.tobytes() == right.tobytes()


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_the_bits_are_those_of_the_other_language(device: Device, rng: Rng, name: str) -> None:
    x, w, b, mean, var = problem(rng, (19, 48), name=name)
    var[5] = 1e-35  # in f64
    one, other = (run(device, (x, w, b, mean, var), training=False, eps=0.0, variant=each)["y"] for each in LANGUAGES)
    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    ("shape", "training", "name", "threads", "why"),
    [
        ((8, 16), True, "f32", 128, "in eval"),
        ((8, 16, 2), False, "f32", 128, "channels that lie side by side"),
        ((8, 16), False, "f64", 128, "no entries of f64"),
        ((8, 18), False, "f32", 128, "18 channels are not 1 to 512 vectors of 4"),
        ((8, 2052), False, "f32", 128, "2052 channels"),
        ((8, 16), False, "f32", 0, "1 to 512 threads, not 0"),
        ((8, 16), False, "f32", 513, "1 to 512 threads, not 513"),
        ((1 << 29, 16), False, "f32", 128, "vectors are more than"),
    ],
)
def test_what_it_cannot_do(shape: Any, training: bool, name: str, threads: int, why: str) -> None:
    descriptor = BatchNormDescriptor(shape, training, BY_NAME[name])
    preference = wish("channels_last_alone", config=AloneConfig(threads))
    with refused(ptxrt.errors.Unsupported, "batch_norm", "descriptor", why):
        BatchNormPlan.select(Device("sim:0"), descriptor, preference)


@pytest.mark.parametrize(
    ("shape", "name", "variant"),
    [
        ((2, 64), "f32", "channels_last_alone"),
        ((1 << 20, 64), "f16", "channels_last_alone"),
        ((1 << 20, 64), "f64", "channels_last"),
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
