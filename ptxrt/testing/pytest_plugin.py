"""pytest's plugin of ptxrt: tests whose launches run under all checks. docs/testing.md says how it is used.

pytest loads it in each run where ptxrt is installed, and people who test no kernels are to pay nothing: it imports the
machine and NumPy for a test that asks for checks alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ptxrt.check.shadowing import Shadow

_MARK = "ptxrt_checks"
_HELP = (
    "run the launches of tests under these checks of the PTX machine, separated by commas, or under all; on sim "
    "directly, on GPUs in shadow mode"
)
_OPEN: pytest.StashKey[ExitStack] = pytest.StashKey()
_COUNTS: pytest.StashKey[Counter[str]] = pytest.StashKey()
_TESTS, _COMPARED = "tests", "compared"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --ptxrt-checks, and the same in pytest's configuration."""
    group = parser.getgroup("ptxrt")
    group.addoption("--ptxrt-checks", nargs="?", const="all", metavar="NAMES", help=_HELP)
    parser.addini(_MARK, _HELP)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark, and refuse names of checks that there are not."""
    config.addinivalue_line("markers", f"{_MARK}(*names): {_HELP}; ptxrt_checks('none') is none")
    config.stash[_COUNTS] = Counter()
    if names := _of_the_run(config):
        checking = _checking()
        try:
            checking.chosen(names)
        except checking.InvalidArgument as error:
            raise pytest.UsageError(
                f"--ptxrt-checks or the option {_MARK}: {error}. Before the name of a file write --ptxrt-checks=all"
            ) from None


def _checking() -> ModuleType:
    return import_module("ptxrt.testing.checking")


def _of_the_run(config: pytest.Config) -> list[str]:
    text = config.getoption("--ptxrt-checks") or config.getini(_MARK)
    return [name.strip() for name in text.split(",")] if text else []


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Turn the checks on before the test's fixtures, which may launch too."""
    mark = item.get_closest_marker(_MARK)
    # A keyword is no name of a check either, and is refused as one.
    names = _of_the_run(item.config) if mark is None else [*mark.args, *mark.kwargs] or ["all"]
    if not names:
        return
    counts = item.config.stash[_COUNTS]
    with ExitStack() as stack:
        shadow = stack.enter_context(_checking().checked(names))
        if shadow is not None:
            counts[_TESTS] += 1
            stack.callback(_count, counts, shadow)
        item.stash[_OPEN] = stack.pop_all()


def _count(counts: Counter[str], shadow: Shadow) -> None:
    counts[_COMPARED] += shadow.compared
    counts.update(shadow.skipped)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Turn the checks off behind the test's fixtures."""
    try:
        return (yield)
    finally:
        if stack := item.stash.get(_OPEN, None):
            del item.stash[_OPEN]
            stack.close()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand the counts to pytest-xdist's first process, where this is one of the others."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        counts = session.config.stash[_COUNTS]
        output[_MARK] = dict(counts)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take in what one of pytest-xdist's processes has counted."""
    counts: Counter[str] = node.config.stash[_COUNTS]
    counts.update(getattr(node, "workeroutput", {}).get(_MARK, {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how many tests ran under checks, and which launches on GPUs did not."""
    counts = config.stash[_COUNTS]
    if tests := counts[_TESTS]:
        compared = counts[_COMPARED]
        skipped = {reason: count for reason, count in counts.items() if reason not in (_TESTS, _COMPARED)}
        parts = [f"ptxrt: {tests} tests under checks"]
        if compared or skipped:
            parts.append(f"{compared} launches on GPUs compared with the PTX machine")
        parts += [f"{count} not: {reason}" for reason, count in skipped.items()]
        terminalreporter.write_line("; ".join(parts))
