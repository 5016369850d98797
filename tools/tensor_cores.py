"""Compares sim's tensor cores with a GPU's: drawn tiles for every form of mma.sync, bit for bit.

Writes ``tensor-cores-<device>.json`` and ``.md`` into --out. Exit status 1 if a value differs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "fidelity"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from tiles import DISTRIBUTIONS, FORMS, Comparison, TileForm, compare, digest

import ptxrt

_AT_ONCE = 4096
_ORDINARY = ("narrow", "mixed", "cancelling")
_EXTREMES = 600
"""Tiles of float64 for each other distribution: there sim adds numbers one by one."""


class Task(NamedTuple):
    """One launch on both devices."""

    form: int
    distribution: str
    tiles: int
    seed: int


def tasks(form: int, tiles: int) -> Iterator[Task]:
    """Yield launches that come to so many tiles of a form."""
    names = FORMS[form].distributions
    shares = dict.fromkeys(names, -(-tiles // len(names)))
    if FORMS[form].a == "f64":
        rare = [name for name in names if name not in _ORDINARY]
        shares = {name: min(_EXTREMES, shares[name]) for name in rare}
        shares |= dict.fromkeys(_ORDINARY, -(-(tiles - sum(shares.values())) // len(_ORDINARY)))
    for name, count in shares.items():
        for seed, first in enumerate(range(0, count, _AT_ONCE)):
            yield Task(form, name, min(_AT_ONCE, count - first), seed)


@cache
def _devices(name: str) -> tuple[ptxrt.Device, ptxrt.Device]:
    os.environ["PTXRT_SIM_CHECKS"] = "none"
    return ptxrt.Device(name), ptxrt.Device("sim:0")


def _compared(name: str, task: Task) -> tuple[Task, Comparison]:
    form = FORMS[task.form]
    return task, compare(form, task.distribution, task.tiles, task.seed, *_devices(name))


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, write both files, and return 1 if a value differs."""
    parser = argparse.ArgumentParser(prog="tensor_cores.py", description=(__doc__ or "").splitlines()[0])
    report.add_out(parser)
    parser.add_argument("--device", default="cuda:0", help="what to compare sim with (cuda:0)")
    parser.add_argument("--tiles", type=int, default=1_000_000, metavar="N", help="of each form, at least (1000000)")
    parser.add_argument("--forms", default="", metavar="PATTERN", help="only forms whose opcode this matches")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    given = parser.parse_args(arguments)
    try:
        device = ptxrt.Device(given.device)
        measurement = report.Measurement(given.out, ["ptxrt/sim", "tests/fidelity/tiles.py"])
    except (ptxrt.PtxrtError, report.NotStorable) as error:
        print(error, file=sys.stderr)
        return 2
    started = time.perf_counter()
    chosen = [i for i, form in enumerate(FORMS) if re.search(given.forms, form.name)]
    found: dict[int, list[tuple[Task, Comparison]]] = {i: [] for i in chosen}
    with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn")) as pool:
        every = [task for i in chosen for task in tasks(i, given.tiles)]
        for task, comparison in pool.map(_compared, [given.device] * len(every), every):
            found[task.form].append((task, comparison))
    forms = [_form(FORMS[i], device, found[i]) for i in chosen]
    record = {"seconds": round(time.perf_counter() - started, 1), "forms": forms}
    for path in measurement.save(KIND, f"tensor-cores-{report.slug(device.name)}", device, record):
        print(path)
    wrong = [one for one in forms if one["different"]]
    print(f"{len(chosen)} forms, {len(wrong)} differ")
    for one in wrong:
        print(f"  {one['name']}: {one['different']} of {one['values']}, {one['example']}")
    return 1 if wrong else 0


def _form(form: TileForm, device: ptxrt.Device, found: list[tuple[Task, Comparison]]) -> report.Record:
    tiles = {name: sum(task.tiles for task, _ in found if task.distribution == name) for name in DISTRIBUTIONS}
    return {
        "name": form.name,
        "tiles": {name: count for name, count in tiles.items() if count},
        "values": sum(one.values for _, one in found),
        "different": sum(one.different for _, one in found),
        "example": next((one.example for _, one in found if one.example), ""),
        # What tests/fidelity holds sim to where there is no GPU.
        "digest": digest(form, device),
    }


def _body(record: report.Record) -> str:
    forms = record["forms"]
    wrong = sum(bool(one["different"]) for one in forms)
    head = ("form", "tiles", "values", "differ", "the first that does")
    rows = [
        (one["name"], str(sum(one["tiles"].values())), str(one["values"]), str(one["different"]), one["example"])
        for one in forms
    ]
    least = min(sum(one["tiles"].values()) for one in forms)
    words = (
        f"{len(forms)} forms of mma.sync, at least {least} drawn tiles each: {wrong} differ. tests/fidelity/tiles.py "
        "says how tiles are drawn, the .json file how many by each distribution."
    )
    return "\n".join([words, "", report.markdown_table(head, rows)])


KIND = report.Kind("tensor-cores", lambda record: f"Tensor cores: sim beside {record['environment']['device']}", _body)

if __name__ == "__main__":
    sys.exit(main())
