"""sim's tensor cores beside a GPU's, and beside the digests of what one once gave."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import tensor_cores
import tiles
from tiles import FORMS, TileForm, compare, digest

import ptxrt

RECORDED = Path(__file__).resolve().parents[2] / "docs" / "results" / "tensor-cores-nvidia-h200.json"


def _id(form: TileForm) -> str:
    return form.name.removeprefix("mma.")


@pytest.mark.parametrize("form", FORMS, ids=_id)
def test_every_form_gives_what_an_h200_once_gave(sim: ptxrt.Device, form: TileForm) -> None:
    recorded = {one["name"]: one["digest"] for one in json.loads(RECORDED.read_text())["forms"]}
    assert digest(form, sim) == recorded[form.name]


@pytest.mark.parametrize("form", FORMS, ids=_id)
def test_every_form_is_the_same_on_a_gpu(cuda: ptxrt.Device, sim: ptxrt.Device, form: TileForm) -> None:
    found = [compare(form, name, 8 if form.a == "f64" else 64, 77, sim, cuda) for name in form.distributions]
    assert not any(one.different for one in found), next(one.example for one in found if one.example)


def test_every_tile_asked_for_is_drawn() -> None:
    for i, form in enumerate(FORMS):
        tasks = list(tensor_cores.tasks(i, 10_000))
        assert sum(task.tiles for task in tasks) >= 10_000, form.name
        assert len({(task.distribution, task.seed) for task in tasks}) == len(tasks)


def test_a_difference_is_told(sim: ptxrt.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    form = next(form for form in FORMS if form.a == "bf16")
    assert compare(form, "narrow", 4, 0, sim, sim).different == 0
    given = iter((0, 1))
    honest = tiles.results

    def off_by_one(form: TileForm, device: ptxrt.Device, operands: list) -> object:  # type: ignore[type-arg]
        return honest(form, device, operands) + next(given)

    monkeypatch.setattr(tiles, "results", off_by_one)
    found = compare(form, "narrow", 4, 0, sim, sim)
    assert found.different == found.values
    assert "narrow, seed 0, at (0, 0, 0): " in found.example
