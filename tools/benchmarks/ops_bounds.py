"""What the times of the ops are held to, as data, and which rows miss it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["geometric_means", "missed", "rows_of", "torch_best"]

Rows = Sequence[Mapping[str, Any]]

_NORMS = ("group_norm", "batch_norm", "layer_norm", "rms_norm", "local_response_norm")
_HALVES = ("f16", "bf16")
_MORE_OF_HALVES = 0.15

# Times the floor, of the PTX: op, a part of the case, element types, bound. The first that fits a row is its.
_OF_THE_FLOOR: tuple[tuple[str, str, tuple[str, ...], float], ...] = (
    ("upsample_nearest2d", "", ("f64", "u8"), 1.3),
    ("upsample_nearest2d", "", ("f32",), 1.15),
    ("batch_norm", " eval", ("f32",), 1.15),
    ("softmax2d", "", ("f32",), 1.3),
    ("group_norm", "1x128x512x512", ("f32",), 1.5),  # groups of 4 MB, which no block's memory holds
    *((op, "", ("f32",), 1.35) for op in _NORMS),
    *((f"{op}_backward", "", ("f32",), 1.6) for op in _NORMS),
    ("grid_sample", "", ("f32",), 2.0),
)
# How many times as fast as torch the PTX must be, in f32 and in halves.
_FASTER = {"grid_sample_backward": 3.0}
_LEAST_MEAN = 1.8  # of torch's time to the PTX's
_SLOWER = 1.03  # times torch: what counts as slower
_HIP_MEAN, _HIP_ROW = 1.25, 2.0  # times the PTX


def rows_of(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a record; of one with a language alone, which have no times by name, as those have them."""
    if "language" not in record:
        return list(record["rows"])
    return [
        {
            "op": row["op"],
            "case": row["case"],
            "dtype": row["case"].split()[1],
            "bytes": round(row["floor"] * record["copy_bytes_per_second"] / 1e6),
            "floor": row["floor"],
            "times": {record["language"]: row["ptxrt"], "eager": row["eager"]},
            "failed": {},
        }
        for row in record["rows"]
    ]


def torch_best(row: Mapping[str, Any]) -> float | None:
    """Return the better time of torch eager and torch.compile; None where there is neither, or torch.compile failed.

    Eager alone would be another measure in that row than in the others.
    """
    if "compile" in row["failed"]:
        return None
    return min((row["times"][name] for name in ("eager", "compile") if name in row["times"]), default=None)


def geometric_means(rows: Rows) -> dict[str, float]:
    """Return the geometric means of the ratios, by what they are, over the rows that have both times.

    That of the copy is what kernels of ours would reach that take as long as a copy of as many bytes in every row.
    """
    ratios: dict[str, list[float]] = {}
    for row in rows:
        for language in ("ptx", "hip"):
            if (ours := row["times"].get(language)) is None:
                continue
            if (best := torch_best(row)) is not None:
                ratios.setdefault(f"torch's better / {language}", []).append(best / ours)
            ratios.setdefault(f"{language} / floor", []).append(ours / row["floor"])
        if {"ptx", "hip"} <= row["times"].keys():
            ratios.setdefault("hip / ptx", []).append(row["times"]["hip"] / row["times"]["ptx"])
        if (copy := row["times"].get("copy")) and (best := torch_best(row)):
            ratios.setdefault("torch's better / copy", []).append(best / copy)
    return {name: float(np.exp(np.mean(np.log(values)))) for name, values in ratios.items()}


def missed(rows: Rows, languages: Sequence[str] = ("ptx", "hip")) -> list[str]:
    """Return a line for each bound that is missed, and for each of our results that is wrong or not there."""
    lines = [f"{row['op']} {row['case']}: {why}" for row in rows for why in _missed(row, languages)]
    means = geometric_means(rows)
    if (mean := means.get("torch's better / ptx", _LEAST_MEAN)) < _LEAST_MEAN:
        lines.append(f"geometric mean of torch's better / ptx: {mean:.2f}, expected at least {_LEAST_MEAN}")
    if (mean := means.get("hip / ptx", _HIP_MEAN)) > _HIP_MEAN:
        lines.append(f"geometric mean of hip / ptx: {mean:.2f}, expected at most {_HIP_MEAN}")
    return lines


def behind(rows: Rows) -> list[str]:
    """Return a line for each of ours that is slower than torch beyond noise, the slowest first."""
    found = []
    for row in rows:
        for ours, (ratio, whose) in _slower(row).items():
            us = row["times"][ours]
            times = f"{us:.1f} us, torch {us / ratio:.1f}, the floor {row['floor']:.1f}"
            found.append((ratio, f"{row['op']} {row['case']}: {ours} {ratio:.2f} x {whose}: {times}"))
    return [line for _, line in sorted(found, reverse=True)]


def _slower(row: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    """Return which of ours are slower than torch beyond noise: how many times as long each takes, and as whose."""
    times = row["times"]
    eager = times.get("eager")
    peers = {"ptx": (torch_best(row) or eager, "the better of torch"), "hip": (eager, "torch eager")}
    return {
        ours: (times[ours] / theirs, whose)
        for ours, (theirs, whose) in peers.items()
        if ours in times and theirs and times[ours] > _SLOWER * theirs
    }


def _missed(row: Mapping[str, Any], languages: Sequence[str]) -> Iterator[str]:
    times, slower = row["times"], _slower(row)
    best = torch_best(row) or times.get("eager")
    for name in languages:
        if name not in times:
            yield f"{name} not measured: {row['failed'].get(name, row['failed'].get('row'))}"
    if ptx := times.get("ptx"):
        if (bound := _of_the_floor(row)) and ptx > bound * row["floor"]:
            copy = f", a copy {times['copy'] / row['floor']:.2f}" if "copy" in times else ""
            yield f"ptx {ptx / row['floor']:.2f} x the floor{copy}, expected at most {bound:g}"
        faster = _FASTER.get(row["op"], 0) if row["dtype"] in ("f32", *_HALVES) else 0
        if best and best < faster * ptx:
            yield f"ptx {best / ptx:.2f} x as fast as torch, expected at least {faster:g}"
        elif "ptx" in slower:
            yield "ptx {:.2f} x {}".format(*slower["ptx"])
    if hip := times.get("hip"):
        if ptx and hip > _HIP_ROW * ptx:
            yield f"hip {hip / ptx:.2f} x ptx, expected at most {_HIP_ROW:g}"
        if "hip" in slower:
            yield "hip {:.2f} x {}".format(*slower["hip"])


def _of_the_floor(row: Mapping[str, Any]) -> float | None:
    more = _MORE_OF_HALVES if row["dtype"] in _HALVES else 0.0
    dtype = "f32" if more else row["dtype"]
    for op, part, types, bound in _OF_THE_FLOOR:
        if op == row["op"] and part in row["case"] and dtype in types:
            return bound + more
    return None
