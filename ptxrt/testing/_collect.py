"""Launches on the PTX machine, into the data of the run of coverage.py that is on."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from coverage import Coverage, files

from ptxrt import sim
from ptxrt.backends.sim import COLLECTORS
from ptxrt.testing._record import record
from ptxrt.testing._written import Written

__all__ = ["install"]


def install() -> None:
    """Let launches on the PTX machine collect wherever coverage.py measures."""
    if _run not in COLLECTORS:
        COLLECTORS.append(_run)


def _run(loaded: sim.Loaded, *args: Any, **how: Any) -> sim.LaunchReport:
    measuring = Coverage.current()
    if measuring is None:
        return sim.launch(loaded, *args, **how)
    if not _LATEST or _LATEST[0].measuring is not measuring:
        _LATEST[:] = [_Run(measuring)]
    run = _LATEST[0]
    visits = sim.Visits()
    try:
        return sim.launch(loaded, *args, visits=visits, **how)
    finally:
        run.add(loaded.program, visits)


class _Run:
    """The data of one run of coverage.py."""

    def __init__(self, measuring: Coverage) -> None:
        self.measuring = measuring
        self._data = measuring.get_data()
        self._branch = bool(measuring.get_option("run:branch"))
        self._relative = bool(measuring.get_option("run:relative_files"))
        wanted = [*_list(measuring, "run:source"), *_list(measuring, "run:source_pkgs")]
        self._wanted = [folder for name in wanted for folder in _folders(name)] if wanted else None
        self._known: WeakSet[sim.Program] = WeakSet()

    def add(self, program: sim.Program, visits: sim.Visits) -> None:
        """Add what ran in a launch; with a program's first launch, what could run."""
        written = _WRITTEN.get(program)
        if written is None:
            written = _WRITTEN[program] = Written(program)
        first = program not in self._known
        self._known.add(program)
        for path in filter(self._is_wanted, written.paths):
            numbers, pairs = record(
                *written.of(path, visits.lines, visits.ways), *(written.all_of(path) if first else ((), ()))
            )
            name = files.relative_filename(path) if self._relative else path
            if self._branch:
                self._data.add_arcs({name: pairs})
            else:
                self._data.add_lines({name: numbers})
            if first:
                self._data.add_file_tracers({name: "ptxrt.testing.coverage.KernelCoverage"})

    def _is_wanted(self, path: str) -> bool:
        if self._wanted is None:
            return not any(Path(path).is_relative_to(folder) for folder in _NOT_OURS)
        return any(Path(path).is_relative_to(folder) for folder in self._wanted)


_LATEST: list[_Run] = []
_WRITTEN: WeakKeyDictionary[sim.Program, Written] = WeakKeyDictionary()


def _list(measuring: Coverage, option: str) -> list[str]:
    found = measuring.get_option(option)
    return [str(name) for name in found] if isinstance(found, list) else []


def _folders(name: str) -> Iterable[str]:
    """Return the folders of what coverage.py is to measure: a folder's path, or a package's name."""
    folder = os.path.join(files.relative_directory(), name)
    if os.path.isdir(folder):
        return (os.path.realpath(folder),)
    spec = importlib.util.find_spec(name)
    return [os.path.realpath(folder) for folder in (spec and spec.submodule_search_locations) or ()]


# Where nothing says what to measure, coverage.py leaves out what is installed.
_NOT_OURS = [os.path.realpath(sysconfig.get_path(name)) for name in ("purelib", "platlib")]
