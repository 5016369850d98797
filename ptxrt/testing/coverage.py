"""Coverage of kernels, in coverage.py's own data: a plugin of coverage.py.

::

    [tool.coverage.run]
    plugins = ["ptxrt.testing.coverage"]

Where it is on, each launch on the PTX machine puts the lines and the ways of branches that ran into the data of the
run, and ``coverage report``, ``html``, ``xml`` and ``lcov`` show the files of kernels beside Python's. Which lines
could have run is in the data too (`_record` says how), so that reports need neither the compiler nor its options, and
``coverage combine`` needs no help.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from coverage import CoverageData, CoveragePlugin, FileReporter
from coverage.exceptions import NoSource

from ptxrt.testing._collect import install
from ptxrt.testing._record import could_run, ran

__all__ = ["KernelCoverage", "KernelFile", "coverage_init"]

_EXCLUDED = re.compile(r"(//|/\*).*\bpragma:\s*no cover\b")


def coverage_init(registry: Any, options: object) -> None:
    """Register the plugin; coverage.py calls this.

    Files of kernels come from launches, not from Python's files. So it is registered as what coverage.py calls a
    configurer: a file tracer would be asked about each Python file, and rules out coverage.py's faster ways to measure.
    """
    registry.add_configurer(KernelCoverage())
    install()


class KernelCoverage(CoveragePlugin):
    """Tells coverage.py of files of kernels."""

    def configure(self, config: Any) -> None:
        """Take the configuration in which the data file is named."""
        self._config = config

    def file_reporter(self, filename: str) -> FileReporter:
        """Return what coverage.py asks about a file of kernels that it has in its data."""
        path = str(self._config.get_option("run:data_file"))
        data = CoverageData(path)
        data.read()
        if filename not in data.measured_files():
            raise NoSource(f"ptxrt.testing.coverage: {path} does not know which lines of {filename} could have run")
        lines, ways = could_run(data.lines(filename) or (), data.arcs(filename) or ())
        return KernelFile(filename, lines, ways)


class KernelFile(FileReporter):
    """A file of kernels in a report.

    Parameters
    ----------
    filename
        As the data has it.
    lines
        The lines that could have run.
    ways
        Pairs of lines: a branch, and where a way of it leads, negative out of its function.
    """

    def __init__(self, filename: str, lines: set[int], ways: set[tuple[int, int]]) -> None:
        super().__init__(filename)
        self._lines, self._ways = lines, ways

    def lines(self) -> set[int]:
        """Return the lines that could have run, less those that are excluded."""
        return self._lines - self.excluded_lines()

    def excluded_lines(self) -> set[int]:
        """Return the lines with ``// pragma: no cover``."""
        return {number for number, line in enumerate(self.source().splitlines(), 1) if _EXCLUDED.search(line)}

    def translate_lines(self, lines: Iterable[int]) -> set[int]:
        """Return which lines ran, of what the data has."""
        return ran(lines, ())[0]

    def arcs(self) -> set[tuple[int, int]]:
        """Return the ways of branches that are not excluded."""
        excluded = self.excluded_lines()
        return {(line, to) for line, to in self._ways if line not in excluded and to not in excluded}

    def translate_arcs(self, arcs: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
        """Return which ways lanes went, of what the data has."""
        return ran((), arcs)[1]

    def exit_counts(self) -> dict[int, int]:
        """Return how many ways each branch has."""
        return dict(Counter(line for line, _ in self.arcs()))

    def missing_arc_description(self, start: int, end: int, executed_arcs: Any = None) -> str:
        """Say in words which way no lane went."""
        return f"no thread went from line {start} {_whither(end)}"

    def arc_description(self, start: int, end: int) -> str:
        """Say in words where a way leads."""
        return _whither(end)


def _whither(end: int) -> str:
    return f"to line {end}" if end > 0 else "out of the function"
