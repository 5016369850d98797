"""What every benchmark writes down beside its numbers, and where."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import ptxrt
from ptxrt.compilers import nvjitlink, nvrtc

__all__ = ["environment", "markdown_table", "save", "slug"]

ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = re.compile(r"cuda-core|cuda-bindings|cuda-python|cupy(-.*)?|torch|triton|ml[-_]dtypes")


def environment(device: ptxrt.Device) -> dict[str, Any]:
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
        "commit": _commit(),
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
    # --no-optional-locks: a benchmark must not write to the repository that it measures.
    describe = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


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


def save(folder: Path, name: str, title: str, record: Mapping[str, Any], body: str) -> list[Path]:
    """Write ``NAME.json`` and ``NAME.md`` into `folder`, which is made, and return their paths.

    `record` has the environment under ``"environment"``; the .md file is the title, the environment and `body`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data, text = folder / f"{name}.json", folder / f"{name}.md"
    data.write_text(json.dumps(record, indent=1) + "\n")
    facts = dict(record["environment"])
    facts["packages"] = ", ".join(f"{package} {version}" for package, version in facts["packages"].items())
    lines = [f"# {title}", "", *(f"- {key}: {value}" for key, value in facts.items()), "", body, ""]
    text.write_text("\n".join(lines))
    return [data, text]
