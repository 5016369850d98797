"""What every benchmark writes down beside its numbers, and where."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import ptxrt
from benchmarks.measured import ROOT, changed, digests
from ptxrt import files
from ptxrt.compilers import nvjitlink, nvrtc

__all__ = [
    "RESULTS",
    "ROOT",
    "Kind",
    "Measurement",
    "NotStorable",
    "Record",
    "Refused",
    "add_out",
    "add_usual",
    "heading",
    "markdown_table",
    "opened",
    "slug",
]

RESULTS = ROOT / "docs" / "results"
Record = Mapping[str, Any]
_PACKAGES = re.compile(r"cuda-core|cuda-bindings|cuda-python|cupy(-.*)?|torch|triton|ml[-_]dtypes")


class Refused(Exception):
    """Nothing is measured, or stored; the argument says why."""


class NotStorable(Refused):
    """Nothing may be stored where it was asked for."""


@dataclass(frozen=True)
class Kind:
    """A kind of result.

    Attributes
    ----------
    name
        Of the kind, as records have it under ``"kind"``.
    title, body
        The heading and the tables of the .md file, from the record alone.
    """

    name: str
    title: Callable[[Record], str]
    body: Callable[[Record], str]

    def text(self, record: Record) -> str:
        """Return the .md file of a record: the title, the environment, the body."""
        facts = dict(record["environment"])
        facts["packages"] = ", ".join(f"{package} {version}" for package, version in facts["packages"].items())
        lines = [f"# {self.title(record)}", "", *(f"- {key}: {value}" for key, value in facts.items())]
        return "\n".join([*lines, "", self.body(record).rstrip("\n"), ""])


class Measurement:
    """A result in the making: where it will be stored, and what it measures. Made before anything is measured.

    Parameters
    ----------
    folder
        For the .json and the .md; made when they are stored.
    keys
        What is measured, as :mod:`benchmarks.measured` names it.

    Raises
    ------
    NotStorable
        If the folder is docs/results/ and the checkout is of no commit, or has changed since; or cannot be written to.
    """

    def __init__(self, folder: Path, keys: Iterable[str]) -> None:
        self.folder, self.commit = folder.resolve(), _commit()
        # Elsewhere the commit's "-dirty" marks what is stored.
        if self.folder.is_relative_to(RESULTS) and re.search("-dirty$|^unknown$", self.commit):
            raise NotStorable(
                f"docs/results/ has results of commits alone, and this checkout's is {self.commit}. Commit first, set "
                "PTXRT_COMMIT on a machine without git, or name another folder with --out"
            )
        above = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        try:
            files.writable(above / ".result")
        except OSError as error:
            raise NotStorable(f"cannot write to {folder}: {error.strerror}. Name another folder with --out") from error
        self.measured = digests(keys)

    def save(self, kind: Kind, name: str, device: ptxrt.Device, record: Record) -> list[Path]:
        """Write ``NAME.json`` and ``NAME.md`` and return their paths.

        Raises
        ------
        NotStorable
            If what was measured has changed meanwhile.
        """
        if others := changed(self.measured):
            raise NotStorable(f"{', '.join(others)} changed while it was measured: nothing is stored")
        facts = {"environment": _environment(device, self.commit), "measured": self.measured}
        record = {"kind": kind.name, **facts, **record}
        self.folder.mkdir(parents=True, exist_ok=True)
        data, text = self.folder / f"{name}.json", self.folder / f"{name}.md"
        whole = json.dumps(record, indent=1) + "\n"
        rendered = kind.text(json.loads(whole))
        files.replace(data, whole.encode(), mode=0o666)
        files.replace(text, rendered.encode(), mode=0o666)
        return [data, text]

    def store(self, kind: Kind, device: ptxrt.Device, record: Record) -> None:
        """Save it under the names of its kind and of the device, and say where."""
        for path in self.save(kind, f"{kind.name}-{slug(device.name)}", device, record):
            print(f"stored {path}")


def add_usual(parser: argparse.ArgumentParser, device: str, check: str) -> None:
    """Add ``--device``, ``--out`` and ``--check``, with what help says of the first and of the last."""
    parser.add_argument("--device", help=f"{device}; the default device if left out")
    add_out(parser)
    parser.add_argument("--check", action="store_true", help=f"exit with 1 if {check}")


def opened(name: str | None) -> ptxrt.Device:
    """Return the device of that name, or the default one; raise :class:`Refused` where there is none."""
    try:
        return ptxrt.Device(name) if name else ptxrt.default_device()
    except ptxrt.PtxrtError as error:
        raise Refused(str(error)) from error


def heading(device: ptxrt.Device) -> str:
    """Return the line that stands above what is printed of a device."""
    return f"{device}: {device.name}, {device.arch}, driver {device.properties.driver}"


def add_out(parser: argparse.ArgumentParser) -> None:
    """Add ``--out``."""
    words = "folder for the .json and the .md (docs/results/, for results of a commit alone)"
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help=words)


def _environment(device: ptxrt.Device, commit: str) -> dict[str, Any]:
    """Return what the numbers depend on: device, driver, processor, versions, commit, date."""
    packages = {"numpy": np.__version__}
    for package in metadata.distributions():
        name = package.metadata["Name"] or ""
        if _PACKAGES.fullmatch(name.lower()):
            packages[name.lower()] = package.version
    for name, compiler in (("nvJitLink", nvjitlink), ("NVRTC", nvrtc)):
        packages[name] = "not there" if compiler.available() else compiler.version()
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit,
        "device": str(device),
        "device_name": device.name,
        "arch": device.arch,
        "driver": device.properties.driver,
        "processor": _processor(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "ptxrt": ptxrt.__version__,
        "packages": dict(sorted(packages.items())),
    }


def _commit() -> str:
    """Return what PTXRT_COMMIT says, else the checkout's commit, with "-dirty" for one that was changed."""
    if named := os.environ.get("PTXRT_COMMIT"):
        return named  # a copy may have come with the history of an older one
    try:
        head = _git("rev-parse", "HEAD")
        # A result just stored is no change.
        changes = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/results")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("-dirty" if changes else "")


def _git(*command: str) -> str:
    # --no-optional-locks: a benchmark must not write to the repository that it measures.
    whole = ["git", "--no-optional-locks", *command]
    return subprocess.run(whole, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return f"{found[1] if found else platform.processor()}, {os.cpu_count()} cores"


def slug(text: str) -> str:
    """Return a device's name as part of a file's: "NVIDIA H200" is "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table that reads well as text too."""
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)
