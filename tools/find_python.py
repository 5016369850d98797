"""``python tools/find_python.py oldest`` (or ``newest``): the path of such a Python of this machine, for ptxrt's tests.

It is looked for on the PATH and where pyenv keeps its versions. What ptxrt does not run on, and what is not released
yet, does not count. The version is told on standard error.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ASK = "import sys; print(*sys.version_info[:3], sys.version_info.releaselevel)"

Version = tuple[int, ...]


def folders() -> list[Path]:
    """Return where Pythons may lie."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = [Path(folder) for folder in os.get_exec_path() if folder]
    return [*found, *sorted(pyenv.glob("versions/*/bin")), Path(sys.executable).parent]


def pythons(places: Iterable[Path], least: Version) -> dict[Version, Path]:
    """Return the released Pythons from `least` on, the first of each version in the order of `places`."""
    found: dict[Version, Path] = {}
    for place in dict.fromkeys(places):
        for path in sorted(place.glob("python3.*")):
            if re.fullmatch(r"python3\.\d+", path.name) and (version := version_of(path)) and version >= least:
                found.setdefault(version, path)
    return found


def version_of(path: Path) -> Version | None:
    """Return a Python's version; None for a pre-release, and for what does not run, as a shim of pyenv may not."""
    try:
        done = subprocess.run([path, "-c", ASK], capture_output=True, text=True, timeout=30, check=True)
        *numbers, level = done.stdout.split()
        return tuple(map(int, numbers)) if level == "final" else None
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def required() -> Version:
    """Return the version that pyproject.toml asks for at least."""
    (text,) = re.findall(r'^requires-python = ">=([\d.]+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    return tuple(map(int, text.split(".")))


def main() -> int:
    """Print the path and return the exit code, 1 where there is no Python at all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("which", choices=("oldest", "newest"))
    which = parser.parse_args().which
    found = pythons(folders(), required())
    if not found:
        print(f"no Python from {'.'.join(map(str, required()))} on", file=sys.stderr)
        return 1
    version = min(found) if which == "oldest" else max(found)
    name = ".".join(map(str, version))
    print(f"Python {name} is the {which} here, of {len(found)} that ptxrt runs on", file=sys.stderr)
    print(found[version])
    return 0


if __name__ == "__main__":
    sys.exit(main())
