"""Draw a result of bench.py ops into docs/pictures/: ``python tools/pictures.py docs/results/ops-nvidia-h200.json``.

Two pictures, each for light and for dark pages: bytes a second of each row under the floor's line, and how many times
as fast as torch each op is. Of bench.py distributed one: what more ranks cost. Each has in its metadata which result it
was drawn from. matplotlib is in the extra docs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.distributed_model import GPUS_A_HOST, MOST_RANKS, Fit, exact_bytes, gathered_bytes
from benchmarks.ops_bounds import rows_of, torch_best
from benchmarks.report import ROOT, Record

__all__ = ["FOLDER", "NAMES", "THEMES", "digest", "draw", "drawn_from", "main"]

FOLDER = ROOT / "docs" / "pictures"


class Theme(NamedTuple):
    """The colours of a picture, whose background is the page's."""

    text: str
    grid: str
    torch: str
    ptx: str
    hip: str


THEMES = {
    "light": Theme("#24292f", "#d0d7de", "#8c959f", "#2a78d6", "#d95926"),
    "dark": Theme("#e6edf3", "#3d444d", "#7d8590", "#58a6ff", "#f0883e"),
}
_LANGUAGES = {"ptx": "ptxrt, PTX", "hip": "ptxrt, HIP"}
_MARKERS = {"torch": "s", "hip": "^", "ptx": "o"}


def draw(result: Path, folder: Path) -> list[Path]:
    """Draw the pictures of a stored result into a folder, and return their paths."""
    import matplotlib as mpl  # noqa: PLC0415 (as below: for who draws alone)

    mpl.use("svg")
    from matplotlib import pyplot  # noqa: PLC0415

    record = json.loads(result.read_text())
    paths = []
    for theme_name, theme in THEMES.items():
        settings = {
            "svg.hashsalt": "ptxrt",  # else ids are random
            "svg.fonttype": "none",
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": theme.text,
            "axes.axisbelow": True,
            **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), theme.text),
            "grid.color": theme.grid,
            "legend.frameon": False,
        }
        for name, (title, picture) in _PICTURES[record.get("kind", "ops")].items():
            with mpl.rc_context(settings):
                figure, axes = pyplot.subplots(figsize=(8, 4.8), layout="constrained")
                picture(axes, record, theme)
                axes.set_title(f"{title}, {record['environment']['device_name']}", loc="left", fontsize=10)
                path = folder / f"{result.stem}-{name}-{theme_name}.svg"
                # No date and no version, so that the same result gives the same file.
                said = {"Title": title, "Description": _source(result), "Date": None, "Creator": None}
                figure.savefig(path, transparent=True, metadata=said)
                pyplot.close(figure)
            paths.append(path)
    return paths


def digest(result: Path) -> str:
    """Return what a picture of a result has in its metadata."""
    return hashlib.sha256(result.read_bytes()).hexdigest()


def drawn_from(picture: Path) -> tuple[str, str]:
    """Return the name and the digest of the result that a picture was drawn from."""
    found = re.search(r"<dc:description>(\S+), SHA-256 ([0-9a-f]{64})</dc:description>", picture.read_text())
    if not found:
        raise ValueError(f"{picture} does not say what it was drawn from")
    return found[1], found[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, and print the paths."""
    parser = argparse.ArgumentParser(prog="pictures.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("result", type=Path, help="a .json of bench.py ops or distributed")
    parser.add_argument(
        "--out", type=Path, default=FOLDER, metavar="DIR", help="folder for the pictures (docs/pictures/)"
    )
    given = parser.parse_args(arguments)
    for path in draw(given.result, given.out):
        print(path)
    return 0


def _source(result: Path) -> str:
    return f"{result.name}, SHA-256 {digest(result)}"


def _times(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[Mapping[str, Any], float]]:
    """Return the rows that have this time, with it."""
    times = [(row, torch_best(row) if name == "torch" else row["times"].get(name)) for row in rows]
    return [(row, us) for row, us in times if us and row["floor"]]


def _roofline(axes: Any, record: Record, theme: Theme) -> None:
    rows, speed, launch = rows_of(record), record["copy_bytes_per_second"], record.get("launch_us", 0.0)
    for name, marker in _MARKERS.items():
        if found := _times(rows, name):
            moved = [row["bytes"] for row, _ in found]
            rates = [row["bytes"] / us / 1e3 for row, us in found]  # GB/s
            label = _LANGUAGES.get(name, "the better of torch eager and torch.compile")
            axes.scatter(moved, rates, s=14, marker=marker, color=getattr(theme, name), label=label, linewidths=0)
    ends = [row["bytes"] for row in rows if row["floor"]]
    sizes = np.geomspace(min(ends), max(ends), 60)
    floor = sizes / (sizes / speed * 1e6 + launch) / 1e3
    label = f"floor: a copy's {speed / 1e9:.0f} GB/s" + (f" and an empty kernel's {launch:.1f} us" if launch else "")
    axes.plot(sizes, floor, color=theme.text, linewidth=1.2, label=label)
    axes.set(xscale="log", yscale="log", xlabel="bytes that must move", ylabel="GB/s")
    axes.grid(linewidth=0.6)
    axes.legend(loc="lower right")


def _ratios(axes: Any, record: Record, theme: Theme) -> None:
    rows = rows_of(record)
    ops = list(dict.fromkeys(row["op"] for row in rows))
    languages = [name for name in _LANGUAGES if _times(rows, name)]
    height = 0.8 / len(languages)
    for place, name in enumerate(languages):
        found = [(row["op"], best / us) for row, us in _times(rows, name) if (best := torch_best(row))]
        ys, means = [], []
        for op in ops:
            if ratios := [ratio for one, ratio in found if one == op]:
                ys.append(ops.index(op) + (place + 0.5) * height - 0.4)
                means.append(float(np.exp(np.mean(np.log(ratios)))))
                axes.scatter(ratios, [ys[-1]] * len(ratios), s=5, color=theme.text, linewidths=0, zorder=3)
        # From 1 on, since the scale is logarithmic: to the left what is slower.
        lengths = np.subtract(means, 1)
        axes.barh(
            ys, lengths, height * 0.9, left=1, color=getattr(theme, name), label=f"{_LANGUAGES[name]}, geometric mean"
        )
    axes.axvline(1, color=theme.text, linewidth=1.2)
    axes.set(
        xscale="log", xlabel="times as fast as the better of torch eager and torch.compile; a dot is a shape and a type"
    )
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20) if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(ops)), ops)
    axes.invert_yaxis()
    axes.grid(axis="x", linewidth=0.6)
    axes.figure.legend(loc="outside lower center", ncols=len(languages))


def _ranks(axes: Any, record: Record, theme: Theme) -> None:
    fit, ranks = Fit.of(record["all_reduce"]), [1 << power for power in range(1, MOST_RANKS.bit_length())]
    for channels, style in ((64, ":"), (256, "--"), (2048, "-")):
        exact = [fit.all_reduce_us(exact_bytes(channels), n) for n in ranks]
        gathered = [fit.all_gather_us(gathered_bytes(channels, n), n) for n in ranks]
        label = f"{channels} channels"
        axes.plot(ranks, exact, style, color=theme.ptx, linewidth=1.4, label=f"ptxrt, {label}")
        axes.plot(ranks, gathered, style, color=theme.torch, linewidth=1.4, label=f"torch's all-gather, {label}")
    measured = sorted({(row["bytes"], row["us"]["all-reduce"]) for row in record["rows"]})
    points = [us for _, us in measured]
    axes.scatter([record["ranks"]] * len(points), points, s=16, color=theme.ptx, linewidths=0, label="measured")
    axes.set(xscale="log", yscale="log", xlabel=f"ranks, {GPUS_A_HOST} of them a host", ylabel="microseconds")
    axes.set_xticks(ranks[::2] + ranks[-1:], [str(n) for n in ranks[::2] + ranks[-1:]])
    axes.set_xticks([], minor=True)
    axes.grid(linewidth=0.6)
    axes.legend(loc="upper left", ncols=2)


_PICTURES: dict[str, dict[str, tuple[str, Callable[[Any, Record, Theme], None]]]] = {
    "ops": {"roofline": ("Memory traffic of the ops", _roofline), "ratios": ("The ops beside torch", _ratios)},
    "distributed": {"ranks": ("What the ranks' exchange of a forward costs by the model", _ranks)},
}
NAMES = tuple(_PICTURES["ops"])

if __name__ == "__main__":
    sys.exit(main())
