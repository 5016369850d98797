"""Random PTX assembles and runs on sim, and gives there what a GPU gives, bit for bit."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import sequences
from comparison import compare_sequences
from forms import FORMS, Form
from hypothesis import given, settings
from hypothesis import strategies as st
from sequences import Drawing

import ptxrt
from ptxrt.compilers import nvjitlink

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
COVER = tuple(sequences.cover())

Digests = list[dict[str, str]]


def _each_form_once() -> set[str]:
    return {one.form.name for drawing in COVER for one in drawing.drawn}


def test_every_form_comes_up_and_each_equally_often() -> None:
    assert _each_form_once() == {form.name for form in FORMS}
    assert len(FORMS) > 1500
    assert sum(drawing.instructions for drawing in COVER) >= len(FORMS)


@pytest.mark.parametrize("drawing", COVER, ids=range(len(COVER)))
def test_sim_and_ptxas_take_every_form(sim: ptxrt.Device, drawing: Drawing) -> None:
    assert sequences.results(drawing, sim).shape == (drawing.slots, sequences.THREADS)
    if nvjitlink.available() is None:
        nvjitlink.compile_ptx(drawing.text, "sm_90", ("-O0",))


@settings(max_examples=10)
@given(st.integers(0, 10_000), st.lists(st.sampled_from(FORMS), min_size=1, max_size=20))
def test_any_sequence_runs_and_gives_the_same_again(seed: int, forms: list[Form]) -> None:
    drawing = sequences.sequence(forms, seed)
    sim = ptxrt.Device("sim:0")
    first = sequences.results(drawing, sim)
    assert drawing.text == sequences.sequence(forms, seed).text
    assert (first == sequences.results(drawing, sim)).all()


@pytest.mark.cuda
def test_twenty_thousand_instructions_on_a_gpu(sim: ptxrt.Device, cuda: ptxrt.Device) -> None:
    report = compare_sequences(sequences.draw(20_000), sim, cuda)
    assert report.instructions >= 20_000
    assert not report.differences, "\n".join(map(str, report.differences[:5]))


@pytest.mark.cuda
def test_edges_on_a_gpu(sim: ptxrt.Device, cuda: ptxrt.Device) -> None:
    report = compare_sequences(sequences.edges(), sim, cuda)
    assert not report.differences, "\n".join(map(str, report.differences[:5]))


def _drifted(recorded: Digests, found: Digests) -> list[str]:
    """Name what differs from a GPU's record, or is in one of the two alone."""
    # A copy on sim and to ptxas's optimiser; with -O0, as recorded, a NaN becomes the canonical one.
    theirs, mine = ({one["drawn"]: {**one, "cvt.f32.f32": ""} for one in digests} for digests in (recorded, found))
    uncompared = [f"{drawn}: not compared" for drawn in sorted(theirs.keys() ^ mine.keys())]
    shared = [(theirs[drawn], mine[drawn]) for drawn in mine if drawn in theirs]
    return uncompared + [name for a, b in shared for name in sorted(a.keys() | b.keys()) if a.get(name) != b.get(name)]


@pytest.mark.parametrize("name", ["nvidia-h200"])
def test_every_form_gives_what_a_gpu_once_gave(sim: ptxrt.Device, name: str) -> None:
    recorded = json.loads((RESULTS / f"fidelity-{name}.json").read_text())["digests"]
    drifted = _drifted(recorded, sequences.digests(sim))
    # A form, or a NumPy that draws other operands, changes what is drawn: then a GPU's answers are needed anew.
    assert not drifted, f"{drifted}: mend sim, or record again on a GPU with tools/fidelity.py"


def test_a_record_that_drifts_or_is_not_compared_is_named() -> None:
    one, two = {"drawn": "1", "add": "a", "sub": "b", "cvt.f32.f32": "c"}, {"drawn": "2", "mul": "d"}
    assert _drifted([one, two], [two, {**one, "cvt.f32.f32": "e"}]) == []
    assert _drifted([one, two], [{**one, "sub": "e"}, two]) == ["sub"]
    assert _drifted([one, two], [{"drawn": "1", "add": "a"}, two]) == ["sub"]
    assert _drifted([one, two], [one]) == ["2: not compared"]
    assert _drifted([one], [one, two]) == ["2: not compared"]


# The comparison itself ----------------------------------------------------------------------------------------------


def _drawing(name: str) -> Drawing:
    return sequences.sequence([form for form in FORMS if form.name == name], 3)


@pytest.mark.parametrize("name", ["add.rn.f32", "mul.wide.s32", "setp.lt.f64", "cvt.rn.f16.f32", "add.rn.f64"])
def test_one_other_bit_is_a_difference(sim: ptxrt.Device, name: str) -> None:
    drawing = _drawing(name)
    mine = sequences.results(drawing, sim)
    assert not sequences.compare(drawing, mine, mine).differences
    other = np.copy(mine)
    other[0, 17] ^= np.uint64(1)
    (found,) = sequences.compare(drawing, mine, other).differences
    assert (found.drawn.form.name, found.threads) == (name, 1)
    assert found.sim != found.other


def test_a_bound_is_held_to_and_its_worst_recorded(sim: ptxrt.Device) -> None:
    drawing = _drawing("tanh.approx.f32")
    mine = sequences.results(drawing, sim)
    at = int((mine[0] == 0x3F800000).nonzero()[0][0])
    for step, wrong in ((2**13, 0), (2**13 + 1, 1)):
        other = np.copy(mine)
        other[0, at] += np.uint64(step)
        compared = sequences.compare(drawing, mine, other)
        assert len(compared.differences) == wrong
        assert compared.worst == {"tanh.approx.f32": 0.0 if wrong else 2.0**13}


def test_what_follows_from_a_difference_is_none(sim: ptxrt.Device) -> None:
    forms = [form for form in FORMS if form.name in ("add.u32", "xor.b32")]
    drawing = next(
        one
        for one in (sequences.sequence([forms[0], *forms[1:] * 3], seed) for seed in range(100))
        if 0 in one.drawn[1].sources
    )
    mine = sequences.results(drawing, sim)
    other = np.copy(mine)
    other[:2, 5] ^= np.uint64(8)
    (found,) = sequences.compare(drawing, mine, other).differences
    assert found.drawn.form.name == forms[0].name


def test_which_of_two_nan_goes_on_is_free(sim: ptxrt.Device) -> None:
    drawing = next(one for one in sequences.edges() if one.drawn[0].form.name == "add.rn.f64")
    mine = sequences.results(drawing, sim)
    other = np.copy(mine)
    other[0, 0] = 0xFFF8000000000042
    compared = sequences.compare(drawing, mine, other)
    assert (compared.differences, compared.free) == ([], 1)
    other[0, 0] = 0x3FF0000000000000
    assert sequences.compare(drawing, mine, other).differences


def test_distance_counts_steps_of_the_type() -> None:
    one, other = np.array([[0x3F800000, 0x80000000, 0x7FC00000], [0x3F800002, 0, 0xFFFFFFFF]], np.uint64)
    assert sequences.distance(one, other, "f32")[0].tolist() == [2.0, 0.0, 0.0]
    assert sequences.distance(np.array([0x3C003C00], np.uint64), np.array([0x3C053C01], np.uint64), "f16x2")[0] == 5
    assert sequences.distance(np.array([0x7F800000], np.uint64), np.array([0x7F7FFFFF], np.uint64), "f32")[0] == np.inf


def test_drawing_twice_gives_the_same_texts() -> None:
    first, second = (list(islice(sequences.draw(10_000, seed=4), 3)) for _ in range(2))
    assert [one.text for one in first] == [one.text for one in second]
    assert len({one.text for one in first}) == 3
