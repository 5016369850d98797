"""What is asked of all kernels in HIP on the host (wave_cases.py), and tests of the host's waves themselves."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import test_waves_batch_norm as batch_norm
import test_waves_grid_sample as grid_sample
import test_waves_group_norm as group_norm
import test_waves_images as images
import test_waves_rows as rows
import waves
from helpers import covering
from wave_cases import HIP, RUNS, TEXTS, Case, check, planned, short_grids  # noqa: F401

from ptxrt.ops.framework import Launch
from ptxrt.runtime.signature import Signature

pytestmark = pytest.mark.amd

each_run = pytest.mark.parametrize(("wave", "schedule"), RUNS)
FILES = (batch_norm, group_norm, rows, images, grid_sample)
CASES = {family: cases for file in FILES for family, cases in file.CASES.items()}
AS_MACHINE_CODE = [row for file in FILES for row in file.AS_MACHINE_CODE]


def test_every_kernel_in_hip_is_launched_here() -> None:
    launched = set()
    for make, arguments in (c for cases in CASES.values() for c in cases):
        plan = planned(make(*arguments))
        launched |= {s.kernel for s in plan.schedule.steps if isinstance(s, Launch)}
    # Of grid_sample's many entries those of f32, and the one that f32 has not: each type takes the same ways.
    modes = {spec for spec in HIP if spec.family.startswith("grid_sample_modes")}
    of_f32 = {spec for spec in modes if spec.dtype == "f32"}
    rounds = next(spec for spec in modes if spec.entry == "grid_sample_modes_backward_round_f16")
    assert launched - modes == set(HIP) - modes
    assert launched >= of_f32 | {rounds}


# The harness ----------------------------------------------------------------------------------------------------------

BARRIER = "__syncthreads();"


def passes(case: Case, text: str) -> bool:
    """Return whether a text in the kernels' place passes for them, in every run."""
    try:
        for wave, schedule in RUNS:
            check(case, wave, schedule, text)
    except (AssertionError, waves.Divergence):
        return False
    return True


# block_sum.jinja's first is for its second call, which the kernels of some families do not make. Two of tickets.jinja's
# are for blocks that run at once, and here one runs after the other.
SPARE = {
    ("batch_norm", 0),
    ("batch_norm_cached", 0),
    ("batch_norm_rounded", 0),
    ("grid_sample_modes_tiled", 0),  # points that the box misses are read elsewhere, as right
    ("grid_sample_tiled_backward", 0),  # the same
    ("norm_last", 0),
    ("group_norm_teams_backward", 0),  # between one block's columns and the next ones, of which it has no others
    *((f"{op}_norm_tickets", number) for op in ("batch", "group") for number in (0, 3, 4)),
    ("norm_last_tickets", 1),  # that of announce(): as above
}
BARRIERS = [
    (family, i)
    for (family, dtype), text in TEXTS.items()
    if dtype == "f32"
    for i in range(text.count(BARRIER))
    if (family, i) not in SPARE
]


@pytest.mark.parametrize(
    ("family", "number"),
    # One of those of which test_machine_code.py has each.
    covering(BARRIERS, lambda row: ["" if re.match("(group|batch)_norm|grid_sample_.*backward", row[0]) else row[0]]),
)
def test_a_barrier_that_is_missing_from_a_kernel_is_noticed(family: str, number: int) -> None:
    parts = TEXTS[family, "f32"].split(BARRIER)
    text = BARRIER.join(parts[: number + 1]) + BARRIER.join(parts[number + 1 :])
    cases = [make(*arguments) for make, arguments in CASES[family]]
    assert not all(passes(case, text) for case in cases if case.problem.dtype.name == "f32")


@pytest.mark.parametrize(
    ("line", "instead", "said"),
    [
        (
            "if (image >= shape[0]) return;",
            "if (image >= shape[0]) { if (image + channel + i + j == shape[0]) dst[element] = 1; return; }",
            "written outside of out",
        ),
        ("dst[element] =", "const_cast<Bits*>(src)[0] += 1;\ndst[element] =", "written to x"),
    ],
)
def test_what_is_written_elsewhere_is_noticed(line: str, instead: str, said: str) -> None:
    text = TEXTS["upsample_nearest2d", "u8"]
    assert line in text
    with pytest.raises(AssertionError, match=said):
        check(images.upsample_nearest2d("u8", (2, 3, 5, 7), 9, 20), 32, "forward", text.replace(line, instead))


# The sum of a block, in which waves are as wide as STEP and ROW have it.
SUM = """
    __shared__ float rows[8];
    float value = x[threadIdx.x];
    for (int step = STEP; step > 0; step /= 2) value += __shfl_down(value, step);
    if (threadIdx.x % ROW == 0) rows[threadIdx.x / ROW] = value;
    __syncthreads();
    if (threadIdx.x == 0) {
        *y = 0;
        for (int row = 0; row < int(blockDim.x) / ROW; ++row) *y += rows[row];
    }
"""

# What a lane gets of each, in waves of 32 and of 64: that of the last wave of 48 threads whose v is 42 and number 41.
OF_A_LANE = {
    "__shfl(v, 3)": (36, 4),
    "__shfl(v, 3, 8)": (44, 44),
    "__shfl(v, 13, 8)": (46, 46),
    "__shfl_up(v, 4)": (38, 38),
    "__shfl_up(v, 10)": (42, 32),
    "__shfl_up(v, 2, 8)": (42, 42),
    "__shfl_down(v, 3)": (45, 45),
    "__shfl_down(v, 7, 8)": (42, 42),
    "__shfl_down(v, 7)": (np.nan, np.nan),
    "__shfl_xor(v, 5)": (45, 45),
    "__shfl_xor(v, 32)": (42, 10),
    "__shfl_xor(v, 8, 8)": (34, 34),
    "__shfl_xor(v, 16, 8)": (42, 42),
    "__shfl_xor(double(v), 16)": (np.nan, np.nan),
    "__ballot(v > 47) >> 8": (0x80, 0x80 << 32),
    "__ballot(v < 3)": (0, 3),
    "__all(v > 32)": (1, 0),
    "__any(v == 1)": (0, 1),
}

KERNELS = {
    "any_width": SUM.replace("STEP", "warpSize / 2").replace("ROW", "warpSize"),
    "step_of_32": SUM.replace("STEP", "16").replace("ROW", "warpSize"),
    "all_of_64": SUM.replace("STEP", "32").replace("ROW", "64"),
    "two_barriers": "if (threadIdx.x < 7) __syncthreads();\nelse\n__syncthreads();",
    "half_a_shuffle": "float v = x[0];\nif (threadIdx.x < 7) v = __shfl_xor(v, 1);\n__syncthreads();",
    "two_votes": "if (threadIdx.x < 7) __any(1);\nelse\n__all(1);",
    "too_wide": "*y = __shfl_xor(x[0], 1, 128);",
    "odd_width": "*y = __shfl_xor(x[0], 1, 24);",
    "a_lane": "float v = x[threadIdx.x], got;\n"
    + "".join(f"got = {get};\nif (v == 42) y[{i}] = got;\n" for i, get in enumerate(OF_A_LANE)),
    "half_ends": "if (threadIdx.x % 2) return;\n__syncthreads();\n*y = __all(threadIdx.x % 2 == 0);",
    "order": "__shared__ int last;\ny[atomicAdd(&last, 1) + 1] = threadIdx.x;",  # -1, being poison, at first
    "blocks": "y[y[0] == y[0]] = blockIdx.x;",  # y[0], which is NaN at first, then y[1]
    "reads_before": "__shared__ float v;\n*y = threadIdx.x ? *y : v;\nv = 1;",
}


def kernel(name: str, body: str) -> str:
    return f'extern "C" __global__ void {name}(const float* x, float* y) {{\n{body}\n}}\n'


def launched(name: str, wave: int, schedule: str, block: int = 256, grid: int = 1) -> Any:
    """Run one of KERNELS with x = 1, 2, 3, ... and return its y."""
    x, y = np.arange(1, block + 1, dtype=np.float32), np.full(256, np.nan, np.float32)
    program = waves.compiled("".join(kernel(*each) for each in KERNELS.items()), tuple(KERNELS))
    signature = Signature.parse("const f32* x, f32* y")
    program.launch(name, signature, (grid,), block, (x.ctypes.data, y.ctypes.data), wave, schedule)
    return y


@each_run
@pytest.mark.parametrize(("name", "right"), [("any_width", (32, 64)), ("step_of_32", (32,)), ("all_of_64", (64,))])
def test_a_kernel_for_one_width_of_a_wave_is_wrong_in_another(wave: int, schedule: str, name: str, right: Any) -> None:
    assert (launched(name, wave, schedule)[0] == 256 * 257 / 2) == (wave in right)


@each_run
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("two_barriers", "for its block.*for its block"),
        ("half_a_shuffle", "for its wave.*for its block|for its block.*for its wave"),
        ("two_votes", "for its wave.*for its wave"),
        ("too_wide", "width is 128, in waves of"),
        ("odd_width", "width is 24, in waves of"),
    ],
)
def test_threads_that_do_not_meet_are_reported(wave: int, schedule: str, name: str, said: str) -> None:
    with pytest.raises(waves.Divergence, match=f"{name}, waves of {wave}, {schedule}: line .*{said}"):
        launched(name, wave, schedule)


@each_run
def test_shuffles_and_votes_are_those_of_hip(wave: int, schedule: str) -> None:
    got = dict(zip(OF_A_LANE, launched("a_lane", wave, schedule, 48), strict=False))
    want = {get: values[wave == 64] for get, values in OF_A_LANE.items()}
    np.testing.assert_equal(got, {get: np.float32(value) for get, value in want.items()})


@pytest.mark.parametrize("wave", [32, 64])
def test_each_schedule_has_its_order(wave: int) -> None:
    threads = list(range(96))
    by_wave = sorted(threads, key=lambda thread: -(thread // wave))
    orders = {"forward": threads, "backward": threads[::-1], "wave by wave": by_wave}
    assert {schedule: launched("order", wave, schedule, 96)[:96].tolist() for schedule in waves.SCHEDULES} == orders
    blocks = {schedule: launched("blocks", wave, schedule, 1, 2)[:2].tolist() for schedule in waves.SCHEDULES}
    assert blocks == {"forward": [0, 1], "backward": [1, 0], "wave by wave": [0, 1]}


@each_run
def test_lanes_that_have_ended_take_no_part(wave: int, schedule: str) -> None:
    assert launched("half_ends", wave, schedule)[0] == 1


def test_shared_memory_is_poison_when_a_block_begins() -> None:
    for _ in range(2):
        assert np.isnan(launched("reads_before", 32, "forward")[0])


def test_what_the_compiler_refuses_is_reported() -> None:
    with pytest.raises(RuntimeError, match=r"text\.hip:2.*nonsense"):
        waves.Program(kernel("k", "nonsense();"), ("k",))
