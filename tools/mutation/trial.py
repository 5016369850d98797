"""A trial of a mutant: a copy of the checkout, the changed text in it, and the tests of its family."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from mutation import hip_text, ptx_text
from mutation.mutants import Mutant, files, users

__all__ = ["Checkout", "Outcome", "measured"]

ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 600
# No test issues as many instructions in a chunk of blocks: a loop that a mutant made endless ends here.
_BUDGET = str(2_000_000)
_SELECTION = {ptx_text: "not hip:0", hip_text: "not hip:0 and (hip or drawn or tickets)"}


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant.

    Attributes
    ----------
    result
        ``"noticed"``, ``"survived"``; later ``"equivalent"`` or ``"SURVIVED"``.
    by
        The test that noticed it, or the compiler, or why it is equivalent.
    """

    result: str
    by: str | None = None

    def facts(self) -> dict[str, str | None]:
        """Return what a record holds of it."""
        return dict(vars(self))


def measured(family: str) -> list[str]:
    """Return what a table of a family's mutants was made of, as :mod:`benchmarks.measured` names it."""
    return [path.as_posix() for path in (*files(family), *_tests(family))]


def _own(stem: str) -> str:
    """Return the name of the tests of a file of kernels, or of what it is a part of."""
    parts = stem.split("_")
    names = ("_".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((name for name in names if any((ROOT / "tests").rglob(f"test_{name}*.py"))), stem)


def _tests(family: str) -> list[Path]:
    names = [
        _own(Path(files(family)[0]).stem),
        *users(family),
        "every_plan",
        "every_variant",
        "launch_shapes",
        "channels_last",
    ]
    found = [path for name in names for path in sorted((ROOT / "tests").rglob(f"test_{name}*.py"))]
    return [path.relative_to(ROOT) for path in dict.fromkeys(found)]


class Checkout:
    """A copy of what the tests need, in a folder of its own; one trial at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        leave = shutil.ignore_patterns("__pycache__", "*.egg-info", "results")
        for name in ("ptxrt", "kernels_ptx", "kernels_hip", "tests", "docs"):
            shutil.copytree(ROOT / name, folder / name, ignore=leave)
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, folder / name)

    def attempt(self, mutant: Mutant) -> Outcome:
        """Run the tests of the mutant's family with its text, and put back what was."""
        path = self.folder / mutant.path
        text = path.read_text("ascii")
        path.write_text(mutant.applied(text), "ascii")
        try:
            return self._run(mutant)
        finally:
            path.write_text(text, "ascii")

    def _run(self, mutant: Mutant) -> Outcome:
        # Of the tests of every plan those of its ops alone.
        chosen = f"({_SELECTION[mutant.language]}) and (not every_plan or {' or '.join(users(mutant.family))})"
        options = ["-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not cuda", "-k", chosen]
        command = [sys.executable, "-m", "pytest", *options, *map(str, _tests(mutant.family))]
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "PTXRT_SIM_BUDGET": _BUDGET}
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome("noticed", f"no end within {_SECONDS} s")
        if done.returncode == 0:
            return Outcome("survived", re.search(r"\d+ passed", done.stdout)[0])  # type: ignore[index]
        if done.returncode != 1:
            raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout[-3000:]}")
        found = re.search(r"^(?:FAILED|ERROR) \S*?([\w.]+::\S+)", done.stdout, re.MULTILINE)
        return Outcome("noticed", found[1] if found else "a test")
