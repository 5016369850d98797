"""Tuned choices: the search, the tables, and the selections that use them. Times are a clock's that the tests make."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import ROOT, Patch, refused, skip_stand_in
from op_testing import on_device
from problems import cases
from tolerances import relative_error

import ptxrt
from ptxrt import Device, ops
from ptxrt.dtypes import BY_NAME
from ptxrt.ops import references, tuning
from ptxrt.ops._softmax2d import ThreadsConfig, Tiled
from ptxrt.ops.framework import Limits, PlanPreference, PrecisionGuarantee, Schedule, forget_plans, texts, tuned
from ptxrt.ops.trials import Trial
from ptxrt.ops.tuning import problem_of, tune
from ptxrt.runtime.layout import channels_last

SMALL = ops.Softmax2dDescriptor((2, 7, 6))  # which `held` refuses: images that are not whole 16 bytes
CASES = cases()
SHIPPED = tuned.SHIPPED


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: Patch) -> Iterator[Path]:
    """The user's table, in a folder of its own; no table comes with ptxrt."""
    monkeypatch.setenv("PTXRT_CACHE_DISABLE", "0")
    monkeypatch.setenv("PTXRT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tuned, "SHIPPED", tmp_path / "shipped")
    forget_plans()
    yield tmp_path / "cache" / "tuned.json"
    forget_plans()


def choice(problem: Any = SMALL, device: str = "sim:0", **changes: Any) -> tuned.Choice:
    """A choice as `tune` would have made it, that nobody has measured: tiles of 512 threads."""
    where = Device(device)
    key = tuned.Key.of(where, problem.op, problem, "ptx")
    plan = next(plan for plan in ops.plans() if plan.op == problem.op)
    among = tuple(variant.name for variant in plan.variants if variant.language == "ptx")
    kernels = tuned.texts([f"{problem.op.removesuffix('_backward')}.ptx"])
    made = tuned.Choice(key, "tiled", {"threads": 512}, among, kernels, {"microseconds": 1.0})
    return replace(made, **changes)


def clock_of(fast: Callable[[Any], bool], quick: float = 1.0, slow: float = 2.0) -> tuning.Clock:
    return lambda plan, run: quick if fast(plan) else slow


def selected(problem: Any = SMALL, **preference: Any) -> Any:
    plan = next(plan for plan in ops.plans() if plan.op == problem.op)
    return plan.select("sim:0", problem, PlanPreference(**preference))


# The search -------------------------------------------------------------------------------------------------------


def test_the_fastest_is_stored_and_selected_for_its_class_until_a_preference_says_otherwise(
    device: Device, file: Path
) -> None:
    skip_stand_in(device)
    language = device.backend.languages[0]
    before = ops.Softmax2dPlan.select(device, SMALL)
    assert (before.config, before.chosen_by) == (ThreadsConfig(128), "heuristic")
    found = tune(device, SMALL, clock=clock_of(lambda plan: plan.config.threads == 512))
    assert (found.config, found.key.language) == ({"threads": 512}, language)
    tuned.update(file, [found])
    forget_plans()
    for problem in (SMALL, ops.Softmax2dDescriptor((2, 8, 6))):
        plan = ops.Softmax2dPlan.select(device, problem)
        assert (plan.variant.name, plan.config, plan.chosen_by) == (found.variant, ThreadsConfig(512), str(file))
        assert ops.Softmax2dPlan.select(device, problem, PlanPreference(tuned=False)).chosen_by == "heuristic"
        wish = PlanPreference(config=ThreadsConfig(256))
        assert ops.Softmax2dPlan.select(device, problem, wish).chosen_by == "preference"
    assert ops.Softmax2dPlan.select(device, ops.Softmax2dDescriptor((2, 9, 6))).chosen_by == "heuristic"
    x = np.random.default_rng(1).standard_normal(SMALL.shape, np.float32)
    assert relative_error(ops.softmax2d(on_device(x, device)).to_host(), references.softmax2d(x)) < 2e-7


def test_the_device_is_timed_and_what_was_measured_is_in_the_table(device: Device, file: Path) -> None:
    skip_stand_in(device)
    found = tune(device, SMALL, rounds=1)
    measured = found.measured
    assert measured["microseconds"] == min(row["microseconds"] for row in measured["candidates"]) or (
        measured["microseconds"] == measured["heuristic_microseconds"]
    )
    assert all(row["microseconds"] > 0 for row in measured["candidates"])
    assert (measured["ptxrt"], measured["driver"]) == (ptxrt.__version__, device.properties.driver)
    assert problem_of(measured["problem"]) == SMALL
    tuned.update(file, [found])
    assert tuned.read(file) == {found.key: found}


def test_candidates_take_turns_and_the_first_round_warms_up() -> None:
    calls: list[tuple[str, int]] = []

    def clock(plan: Any, run: Any) -> float:
        calls.append((plan.variant.name, plan.config.threads))
        return float((len(calls) - 1) // 6)  # the round

    measured = tune("sim:0", SMALL, rounds=8, clock=clock).measured
    rounds = [calls[i : i + 6] for i in range(0, len(calls), 6)]
    assert len(rounds) == 9
    assert len(set(calls)) == 6
    assert all(one == two[::-1] for one, two in itertools.pairwise(rounds))
    assert {row["microseconds"] for row in measured["candidates"]} == {4.5}  # of 1 to 8


@pytest.mark.parametrize(("slow", "threads"), [(1.005, 128), (1.02, 512)])
def test_the_heuristics_choice_stays_where_nothing_is_faster_than_noise(slow: float, threads: int) -> None:
    found = tune("sim:0", SMALL, clock=clock_of(lambda plan: plan.config.threads == 512, slow=slow))
    assert found.config == {"threads": threads}


def test_a_wrong_result_stops_the_search_with_the_candidates_name(monkeypatch: Patch) -> None:
    right = Tiled.schedule

    def wrong(self: Any, problem: Any, config: Any, limits: Any) -> Any:
        found = right(self, problem, config, limits)
        return replace(found, steps=()) if isinstance(found, Schedule) and config.threads == 512 else found

    monkeypatch.setattr(Tiled, "schedule", wrong)
    with refused(ptxrt.WrongResult, "softmax2d", "ptx/tiled with ThreadsConfig(threads=512)", "out["):
        tune("sim:0", SMALL, clock=lambda plan, run: pytest.fail("timed"))


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_one_element_that_is_slightly_off_is_a_wrong_result(monkeypatch: Patch, dtype: str) -> None:
    right = references.softmax2d

    def off(x: Any) -> Any:
        found = right(x)
        found[1, 3, 5] += {"f32": 1e-5, "f16": 1e-2}[dtype]
        return found

    monkeypatch.setattr(references, "softmax2d", off)
    with refused(ptxrt.WrongResult, "softmax2d", "ptx/tiled with ThreadsConfig(threads=128)", "out[1, 3, 5] = "):
        tune("sim:0", replace(SMALL, dtype=BY_NAME[dtype]), clock=clock_of(lambda plan: True))


ONE_EACH = list({case.plan.op: case for case in CASES if case.dtype == "f32"}.values())


def larger(problem: Any) -> Any:
    """A problem with many more images, or rows."""
    words = tuning._words_of(problem)
    for name in {"shape", "grid_shape"} & words.keys():
        words[name][0] *= 64
    return problem_of(words)


@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_each_op_can_be_tuned_and_a_config_meant_for_another_problem_is_refused_or_right(case: Any) -> None:
    trial = Trial(tuning.heuristic("sim:0", case.problem))
    for plan in tuning._candidates(tuning.heuristic("sim:0", larger(case.problem))):
        wish = PlanPreference(language="ptx", variant=plan.variant.name, config=plan.config)
        with contextlib.suppress(ptxrt.Unsupported):
            trial.check(plan.select("sim:0", case.problem, wish))


def test_what_is_updated_in_place_is_checked_too(monkeypatch: Patch) -> None:
    problem = ops.BatchNormDescriptor((2, 3, 4), True)
    first = tuning.heuristic("sim:0", problem)
    trial = Trial(first)
    trial.check(first)
    other = ops.BatchNormPlan.select("sim:0", replace(problem, momentum=0.2))
    with refused(ptxrt.WrongResult, "batch_norm", f"{other.variant} with {other.config}", "running_mean["):
        trial.check(other)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("image", [(1024, 1024), (33, 20), (6, 24, 10)])
@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
def test_points_lie_as_networks_have_them_and_where_no_rounding_makes_results_jump(
    dtype: str, image: tuple[int, ...], align_corners: bool
) -> None:
    axes = len(image)
    outside = image if axes == 3 else (128, 96)
    problem = problem_of(
        {"op": "grid_sample", "shape": [1, 1, *image], "dtype": dtype, "grid_shape": [1, *outside, axes],
         "align_corners": align_corners}
    )  # fmt: skip
    trial = Trial(ops.GridSamplePlan.select(Device("sim:0"), problem))
    held = trial._buffers["grid"]
    assert held is not None
    points = held.values.reshape(1, *outside, axes)
    smooth = np.stack(np.meshgrid(*(np.linspace(-0.9, 0.9, n) for n in outside), indexing="ij")[::-1], axis=-1)
    real = np.float64 if dtype == "f64" else np.float32
    sizes = np.array(image[::-1])
    spans = sizes - 1 if align_corners else sizes
    assert np.all(np.abs(points.astype(np.float64) - smooth) < 0.02 * 6 + 0.5 / spans)

    def doubled(kind: Any) -> Any:
        return (points.astype(kind) + kind(1)) * spans.astype(kind) - kind(not align_corners)

    far = doubled(np.longdouble)
    steps = np.abs(far - np.rint(far))
    assert np.all((steps > 1e-6 * sizes if dtype != "f64" else steps > 1e-13 * sizes) | (doubled(real) == far))


@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_points_of_16_bits_at_such_places_are_right(mode: str, padding_mode: str) -> None:
    for op, dtype in itertools.product(("grid_sample", "grid_sample_backward"), ("f16", "bf16")):
        words = {"op": op, "shape": [1, 2, 256, 17], "dtype": dtype, "grid_shape": [1, 8, 33, 2], "mode": mode}
        first = tuning.heuristic("sim:0", problem_of({**words, "padding_mode": padding_mode}))
        Trial(first).check(first)


def test_rounds_are_at_least_one() -> None:
    with refused(ptxrt.InvalidArgument, "tune", "rounds"):
        tune("sim:0", SMALL, rounds=0)


# What may be chosen -----------------------------------------------------------------------------------------------

SURE = PrecisionGuarantee("f32", "f64", True, True)


@pytest.mark.parametrize(
    ("change", "as_good", "reversed_"),
    [({}, True, True), ({"math_precision": "f64"}, False, False), ({"accumulator": "2 x f64"}, False, False),
     ({"deterministic": False}, False, True), ({"bit_stable_on_same_hardware": False}, False, True)],
)  # fmt: skip
def test_a_guarantee_is_as_good_where_types_are_the_same_and_no_less_is_promised(
    change: Any, as_good: bool, reversed_: bool
) -> None:
    other = replace(SURE, **change)
    assert (other.as_good_as(SURE), SURE.as_good_as(other)) == (as_good, reversed_)


def test_what_promises_something_else_is_neither_measured_nor_selected(file: Path) -> None:
    problem = ops.GridSampleBackwardDescriptor((2, 3, 4, 5), (2, 6, 7, 2))
    first = tuning.heuristic("sim:0", problem)
    assert not first.precision_guarantee.deterministic
    candidates = {plan.variant.name: asdict(plan.config) for plan in tuning._candidates(first)}
    assert len(candidates) > 1
    assert "fixed_point" not in candidates
    for name, config in {"fixed_point": {}, **candidates}.items():
        kernels = tuned.texts(["grid_sample.ptx"])
        tuned.update(file, [choice(problem, variant=name, config=config, kernels=kernels)])
        forget_plans()
        assert selected(problem).chosen_by == (str(file) if name in candidates else "heuristic"), name
    assert selected(problem, deterministic=True).variant.name == "fixed_point"
    assert selected(problem, deterministic=True).chosen_by == "heuristic"


# The tables -------------------------------------------------------------------------------------------------------


def test_a_stored_choice_is_selected(file: Path) -> None:
    tuned.update(file, [choice()])
    assert (selected().variant.name, selected().config.threads, selected().chosen_by) == ("tiled", 512, str(file))
    assert selected(variant="baseline").chosen_by == "heuristic"
    assert selected(language="hip").chosen_by == "heuristic"


KEY = choice().key


@pytest.mark.parametrize(
    "changes",
    [{"key": KEY._replace(device="NVIDIA H200")}, {"key": KEY._replace(arch="sm_80")},
     {"key": KEY._replace(op="softmax2d_backward")}, {"key": KEY._replace(dtype="f16")},
     {"key": KEY._replace(layout="channels-last")}, {"key": KEY._replace(language="hip")},
     {"key": KEY._replace(problem="2x8x16/2")}, {"kernels": {"softmax2d.ptx": "0" * 64}},
     {"kernels": {"softmax3d.ptx": "0" * 64}}, {"among": ("tiled",)}, {"among": ("baseline", "tiled", "fused")},
     {"variant": "fused"}, {"config": {"threads": 512.0}}, {"config": {"threads": 512, "warps": 1}}, {"config": {}}],
    ids=str,
)  # fmt: skip
def test_a_choice_for_something_else_is_not_used(file: Path, changes: Any) -> None:
    tuned.update(file, [choice(**changes)])
    assert (selected().config.threads, selected().chosen_by) == (128, "heuristic")


def test_a_new_variant_makes_stale_what_it_can_run(file: Path) -> None:
    """`last` is for channels that lie side by side, `small` for few values."""
    names = choice().among
    for new, threads in (("last", 512), ("small", 128)):
        tuned.update(file, [choice(among=tuple(name for name in names if name != new))])
        forget_plans()
        assert selected().config.threads == threads


def test_a_new_variant_that_the_device_cannot_run_makes_nothing_stale() -> None:
    """Clusters want sm_90."""
    problem = ops.GroupNormDescriptor((8, 320, 64, 64), 32)
    variants, limits = ops.GroupNormPlan.variants, Limits.of(Device("sim:0").properties)
    stored = choice(problem, kernels={})
    before = replace(stored, among=tuple(name for name in stored.among if name != "cluster"))
    for target, current in ((90, False), (80, True)):
        assert before.is_current(variants, problem, limits._replace(target=target)) == current


def test_a_neighbour_that_the_stored_choice_cannot_run_gets_the_heuristics() -> None:
    fits, far = (ops.Softmax2dDescriptor((images, 8, 4)) for images in ((1 << 30) - 1, 1 << 30))
    stored = choice(fits, variant="baseline", config={"threads": 128})
    assert stored.key == choice(far).key
    users = tuned.users_file()
    assert users is not None
    tuned.update(users, [stored])
    assert (selected(fits).variant.name, selected(fits).chosen_by) == ("baseline", str(users))
    assert (selected(far).variant.name, selected(far).chosen_by) == ("tiled", "heuristic")


def test_the_users_table_comes_before_a_shared_one_and_both_before_ptxrts_own(
    file: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("PTXRT_CACHE_SHARED", str(tmp_path / "shared"))
    shipped = tuned.shipped_file("NVIDIA H100 80GB HBM3")
    assert shipped == tmp_path / "shipped" / "nvidia-h100-80gb-hbm3.json"
    for path in (tuned.shipped_file("PTX machine"), tmp_path / "shared" / "tuned.json", file):
        tuned.update(path, [choice()])
        forget_plans()
        assert selected().chosen_by == str(path)
    tuned.update(file, [choice(kernels={"softmax2d.ptx": None})])  # stale, so the next one is asked
    forget_plans()
    assert selected().chosen_by == str(tmp_path / "shared" / "tuned.json")


def test_the_problems_of_ptxrts_own_tables_are_classes_of_their_own_with_a_choice_to_make() -> None:
    problems = [problem_of(words) for words in json.loads((ROOT / "tools" / "tuned_problems.json").read_text())]
    assert len({tuned.Key.of(Device("sim:0"), problem.op, problem, "ptx") for problem in problems}) == len(problems)
    assert all(len(tuning._candidates(tuning.heuristic("sim:0", problem, "ptx"))) > 1 for problem in problems)


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.json")), ids=lambda path: path.stem)
def test_a_table_that_comes_with_ptxrt_has_choices_for_its_device_that_can_be_made(path: Path) -> None:
    chosen = tuned.read(path)
    assert chosen
    for key, choice in chosen.items():
        variants = next(plan.variants for plan in ops.plans() if plan.op == key.op)
        problem = problem_of(choice.measured["problem"])
        assert SHIPPED / tuned.shipped_file(key.device).name == path
        assert tuned.problem_class(problem) == key.problem
        limits = Limits.of(Device("sim:0").properties)._replace(target=90)
        assert not choice.is_current(variants, problem, limits) or choice.selected(variants, problem)


def test_the_wheel_has_the_tables() -> None:
    assert SHIPPED == ROOT / "ptxrt" / "ops" / "tables"
    assert '"ptxrt.ops" = ["tables/*.json"]' in (ROOT / "pyproject.toml").read_text()


def test_a_digest_is_of_a_file_of_kernels_and_of_all_that_it_includes(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(texts, "_folder", lambda name: tmp_path / name)
    folder = tmp_path / "kernels_ptx"
    folder.mkdir()
    files = {"k.ptx": '//% include "a.jinja"', "a.jinja": '//% from "b.jinja" import b', "b.jinja": "b", "c.jinja": ""}
    for name, text in files.items():
        (folder / name).write_text(text)
    seen = [texts.text_digest.__wrapped__("k.ptx")]
    for name, text in files.items():
        (folder / name).write_text(text + " ")
        seen.append(texts.text_digest.__wrapped__("k.ptx"))
    assert [one == two for one, two in itertools.pairwise(seen)] == [False, False, False, True]
    assert tuned.texts(["none.ptx"]) == {"none.ptx": None}


def test_a_digest_is_of_no_comment(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(texts, "_folder", lambda name: tmp_path / name)
    (tmp_path / "kernels_ptx").mkdir()

    def digest(text: str) -> str | None:
        (tmp_path / "kernels_ptx" / "k.ptx").write_text(text)
        return texts.text_digest.__wrapped__("k.ptx")

    assert digest("a\n// b\n  // c\n/*#- d\n// e #*/f") == digest("a\nf")
    assert digest("//% set a = 8 // 4\na") != digest("//% set a = 8 // 2\na")
    assert digest("a\n//% b\n") != digest("a\n")


@pytest.mark.parametrize(
    "damage",
    [lambda text: text[:-20], lambda text: text.replace("512", "128"), lambda text: "[]", lambda text: "{}",
     lambda text: text.replace('"schema": 1', '"schema": 2'), lambda text: "\xff"],
)  # fmt: skip
def test_a_damaged_table_is_ignored_with_one_warning(
    file: Path, damage: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    tuned.update(file, [choice()])
    file.write_text(damage(file.read_text()), "latin-1")
    with caplog.at_level(logging.WARNING, "ptxrt"):
        assert [selected().chosen_by, selected().chosen_by] == ["heuristic"] * 2
    assert [str(file) in record.message for record in caplog.records] == [True]
    before = file.read_bytes()
    with refused(ptxrt.InvalidArgument, "tune", str(file)):
        tuned.update(file, [choice()])
    assert file.read_bytes() == before


def test_a_process_looks_for_tables_once_and_without_one_a_selection_asks_nothing(
    file: Path, monkeypatch: Patch
) -> None:
    read: list[Path] = []

    def nothing(path: Path) -> dict[tuned.Key, tuned.Choice]:
        read.append(path)
        return {}

    monkeypatch.setattr(tuned, "read", nothing)
    monkeypatch.setattr(tuned.Key, "of", lambda *_: pytest.fail("looked up"))
    for _ in range(3):
        selected()
    assert read == [file, tuned.shipped_file("PTX machine")]


def test_an_update_keeps_the_other_choices_and_leaves_nothing_else(file: Path) -> None:
    other = choice(replace(SMALL, dtype=BY_NAME["f16"]))
    tuned.update(file, [choice(), other])
    newer = choice(config={"threads": 128})
    tuned.update(file, [newer])
    assert tuned.read(file) == {newer.key: newer, other.key: other}
    assert [path.name for path in file.parent.iterdir()] == ["tuned.json"]
    assert json.loads(file.read_text())["schema"] == tuned.SCHEMA


def test_a_folder_that_cannot_be_written_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    long = tmp_path / ("n" * 250)  # and a file that is not whole yet has a longer name still
    for path in (tmp_path / "file" / "tuned.json", tmp_path, long):
        with refused(ptxrt.InvalidArgument, "tune", str(path)):
            tuned.writable(path)
    tuned.writable(tmp_path / "new" / "tuned.json")
    assert list((tmp_path / "new").iterdir()) == []


# Classes and words ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "layout", "expected"),
    [({"op": "group_norm", "shape": [8, 320, 60, 64], "groups": 20}, "contiguous", "8x512x4096/4 groups=32"),
     ({"op": "group_norm", "shape": [8, 320, 3840], "groups": 32, "eps": 0.1}, "contiguous", "8x512x4096/4 groups=32"),
     ({"op": "softmax2d", "shape": [1, 21, 7, 7]}, "contiguous", "1x32x64/1"),
     ({"op": "softmax2d", "shape": [1, 21, 7, 2], "dtype": "f64"}, "contiguous", "1x32x16/2"),
     ({"op": "softmax2d", "shape": [2, 12, 5, 7], "dtype": "f16", "layout": "channels-last"}, "channels-last",
      "2x64x16/4"),
     ({"op": "layer_norm", "shape": [2, 16, 1024], "normalized_shape": [1024]}, "contiguous", "32x1024/4"),
     ({"op": "upsample_nearest2d", "shape": [2, 3, 4, 5], "dtype": "u8", "out_h": 8, "out_w": 9}, "contiguous",
      "2x3x4x8/1 out_h=8 out_w=16"),
     ({"op": "upsample_nearest2d", "shape": [2, 3, 4, 8], "strides": [0, 32, 8, 1], "out_h": 8, "out_w": 9}, "strided",
      "2x3x4x8/4 out_h=8 out_w=16"),
     ({"op": "upsample_nearest2d", "shape": [2, 4, 5, 8], "out_h": 3, "out_w": 5}, "contiguous",
      "2x4x8x8/4 out_h=3 out_w=8"),
     ({"op": "grid_sample", "shape": [1, 3, 9, 8], "grid_shape": [1, 4, 4, 2], "mode": "nearest"}, "contiguous",
      "1x3x16x8/4 1x4x4x2/2 mode=nearest padding_mode=zeros align_corners=False"),
     ({"op": "batch_norm", "shape": [2, 3, 4], "training": True}, "contiguous",
      "2x3x4/4 training=True running=True save=variance counted=False")],
    ids=str,
)  # fmt: skip
def test_the_class_of_a_problem(words: Any, layout: str, expected: str) -> None:
    problem = problem_of(words)
    assert (tuned.layout_of(problem), tuned.problem_class(problem)) == (layout, expected)


def test_a_problem_in_words_is_the_same_problem_again() -> None:
    for case in CASES:
        words = json.loads(json.dumps(tuning._words_of(case.problem)))
        assert problem_of(words) == case.problem, words
    assert problem_of({"op": "softmax2d", "shape": [2, 3, 4, 5], "layout": "channels-last"}).strides == channels_last(
        (2, 3, 4, 5)
    )


@pytest.mark.parametrize(
    ("words", "kind", "op", "argument", "hint"),
    [({"op": "group_nrm", "shape": [2, 3]}, "InvalidArgument", "tune", "op", "Did you mean group_norm"),
     ({"shape": [2, 3]}, "InvalidArgument", "tune", "op", "None"),
     ({"op": ["softmax2d"]}, "InvalidArgument", "tune", "op", "softmax2d"),
     ({"op": "softmax2d"}, "InvalidArgument", "softmax2d", "shape", "none"),
     ({"op": "softmax2d", "shape": [2]}, "ShapeMismatch", "softmax2d", "x", "two axes"),
     ({"op": "softmax2d", "shape": "2x3"}, "InvalidArgument", "softmax2d", "shape", "2x3"),
     ({"op": "softmax2d", "shape": [2, 0]}, "InvalidArgument", "softmax2d", "shape", "elements"),
     ({"op": "softmax2d", "shape": [2, 3], "dtype": "u8"}, "DTypeMismatch", "softmax2d", "x", "u8"),
     ({"op": "softmax2d", "shape": [2, 3], "dtype": "float"}, "InvalidArgument", "softmax2d", "dtype", "f16"),
     ({"op": "softmax2d", "shape": [2, 3], "layout": "NHWC"}, "InvalidArgument", "softmax2d", "layout", "or channels"),
     ({"op": "layer_norm", "shape": [2, 3], "normalized_shape": 3, "layout": "contiguous"}, "InvalidArgument",
      "layer_norm", "'layout'", "normalized_shape"),
     ({"op": "group_norm", "shape": [2, 4]}, "InvalidArgument", "group_norm", "groups", "none"),
     ({"op": "group_norm", "shape": [2, 4], "group": 2}, "InvalidArgument", "group_norm", "'group'", "groups"),
     ({"op": "group_norm", "shape": [2, 4], "groups": 3}, "ShapeMismatch", "group_norm", "groups", "divisor")],
    ids=str,
)  # fmt: skip
def test_a_problem_that_is_none_is_refused(words: Any, kind: str, op: str, argument: str, hint: str) -> None:
    with refused(getattr(ptxrt, kind), op, argument, hint):
        problem_of(words)
