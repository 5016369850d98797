"""pytest's plugin: which tests run under checks, and what that costs a run that has none."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest
from helpers import ROOT
from kernels import PTX, TEST

from ptxrt.check.shadowing import Shadow, shadow
from ptxrt.testing import checking

MODULE = "ptxrt.testing.pytest_plugin"
UNWRITTEN = """
    def read_what_nobody_wrote():
        launch("scale.ptx", ptxrt.empty(4, np.float32, SIM))
"""


@pytest.fixture
def tests(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with a kernel, for tests that start with `TEST`."""
    monkeypatch.setenv("PTXRT_SIM_CHECKS", "none")  # not set, it would make some of them
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))))
    (pytester.path / "scale.ptx").write_text(PTX)
    return pytester


def ran(pytester: pytest.Pytester, body: str, *options: str) -> pytest.RunResult:
    """Run tests that begin with `TEST`."""
    text = textwrap.dedent(TEST) + textwrap.dedent(UNWRITTEN) + textwrap.dedent(body)
    (pytester.path / "test_within.py").write_text(text)
    return pytester.runpytest_inprocess("-p", MODULE, "-p", "no:cacheprovider", "--strict-markers", *options)


PLAIN = """
    def test_plain():
        read_what_nobody_wrote()
"""
MARKED = """
    @pytest.mark.ptxrt_checks
    def test_marked():
        read_what_nobody_wrote()

    def test_after_it():
        read_what_nobody_wrote()
"""


def test_a_mark_turns_every_check_on_for_its_test_alone(tests: pytest.Pytester) -> None:
    result = ran(tests, MARKED)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*MemoryFault*", "ptxrt: 1 tests under checks", "FAILED*test_marked*"])


def test_a_mark_names_checks(tests: pytest.Pytester) -> None:
    body = """
        @pytest.mark.ptxrt_checks("shuffles", "global-races")
        def test_without_the_check():
            read_what_nobody_wrote()

        @pytest.mark.ptxrt_checks("uninitialised")
        def test_with_the_check():
            read_what_nobody_wrote()
    """
    ran(tests, body).assert_outcomes(passed=1, failed=1)


def test_a_launch_in_a_fixture_of_a_marked_test_is_checked(tests: pytest.Pytester) -> None:
    body = """
        @pytest.fixture
        def launched():
            read_what_nobody_wrote()

        @pytest.fixture
        def launched_at_the_end():
            yield
            read_what_nobody_wrote()

        @pytest.mark.ptxrt_checks
        def test_with_it(launched): ...

        @pytest.mark.ptxrt_checks
        def test_with_the_other(launched_at_the_end): ...
    """
    ran(tests, body).assert_outcomes(passed=1, errors=2)


@pytest.mark.parametrize("option", [["--ptxrt-checks"], ["--ptxrt-checks=uninitialised"], ["-o", "ptxrt_checks=all"]])
def test_an_option_turns_them_on_for_the_whole_run(tests: pytest.Pytester, option: list[str]) -> None:
    result = ran(tests, PLAIN, *option)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["ptxrt: 1 tests under checks*"])


@pytest.mark.parametrize("option", [[], ["--ptxrt-checks=shuffles"], ["--ptxrt-checks=none"]])
def test_without_the_check_the_test_passes(tests: pytest.Pytester, option: list[str]) -> None:
    ran(tests, PLAIN, *option).assert_outcomes(passed=1)


def test_a_mark_is_stronger_than_the_option(tests: pytest.Pytester) -> None:
    body = """
        @pytest.mark.ptxrt_checks("none")
        def test_of_what_is_unwritten():
            read_what_nobody_wrote()
    """
    result = ran(tests, body, "--ptxrt-checks")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("ptxrt:*")


@pytest.mark.parametrize("environment", ["", "all"])
def test_none_are_none_whatever_a_launch_makes_by_itself(
    tests: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, environment: str
) -> None:
    monkeypatch.setenv("PTXRT_SIM_CHECKS", environment)
    ran(tests, PLAIN).assert_outcomes(failed=1)
    result = ran(tests, "@pytest.mark.ptxrt_checks('none')\n" + textwrap.dedent(PLAIN))
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("ptxrt:*")
    ran(tests, PLAIN, "--ptxrt-checks=none").assert_outcomes(passed=1)


def test_what_the_environment_said_before_is_there_again(
    tests: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTXRT_SIM_CHECKS", "shuffles")
    body = """
        import os

        @pytest.mark.ptxrt_checks("global-races", "uninitialised")
        def test_marked():
            assert os.environ["PTXRT_SIM_CHECKS"] == "global-races,uninitialised"

        def test_after_it():
            assert os.environ["PTXRT_SIM_CHECKS"] == "shuffles"
    """
    ran(tests, body).assert_outcomes(passed=2)


def test_a_name_that_there_is_not_is_refused(tests: pytest.Pytester) -> None:
    result = ran(tests, PLAIN, "--ptxrt-checks", "test_within.py")
    result.stderr.fnmatch_lines(["ERROR: --ptxrt-checks*uninitialised*given 'test_within.py'*--ptxrt-checks=all*"])
    result = ran(tests, '@pytest.mark.ptxrt_checks("shuffle")\ndef test_it(): ...')
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*InvalidArgument*given 'shuffle'*"])


@pytest.mark.parametrize(
    ("mark", "given"),
    [("checks='none'", "given 'checks'"), ("['shuffles']", "given*shuffles*"), ("None", "given None")],
)
def test_a_mark_takes_names_one_by_one(tests: pytest.Pytester, mark: str, given: str) -> None:
    result = ran(tests, f"@pytest.mark.ptxrt_checks({mark})\ndef test_it(): ...")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*InvalidArgument*checks: expected names out of*{given}*"])


def test_launches_on_gpus_are_compared_and_those_that_are_not_are_counted(
    tests: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "shadow", partial(shadow, ["sim:0"], max_threads=64))  # as if sim were a GPU
    body = """
        @pytest.mark.parametrize("threads", [32, 64, 96])
        def test_sizes(threads):
            launch("scale.ptx", [1.0, 2.0], threads=threads)
    """
    result = ran(tests, body, "--ptxrt-checks")
    result.assert_outcomes(passed=3)
    said = "ptxrt: 3 tests under checks; 2 launches on GPUs compared with the PTX machine; 1 not: more than 64 threads"
    result.stdout.fnmatch_lines([said])


def test_the_checks_of_a_mark_are_those_of_the_shadow(tests: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Iterable[str]] = []

    def shadow_of(checks: Iterable[str]) -> Shadow:
        seen.append(checks)
        return shadow(checks=checks)

    monkeypatch.setattr(checking, "shadow", shadow_of)
    ran(tests, '@pytest.mark.ptxrt_checks("shuffles")\ndef test_it(): ...').assert_outcomes(passed=1)
    assert seen == [{"shuffles"}]


def test_processes_of_xdist_add_up(tests: pytest.Pytester) -> None:
    body = """
        @pytest.mark.parametrize("x", range(4))
        def test_it(x): ...
    """
    (tests.path / "test_many.py").write_text("import pytest\n" + textwrap.dedent(body))
    result = tests.runpytest_subprocess("-p", MODULE, "-n", "2", "--ptxrt-checks")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["ptxrt: 4 tests under checks"])


def test_a_run_without_checks_imports_nothing_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "test_of_others.py").write_text("def test_it(): ...")
    program = (
        f"import sys, pytest; assert pytest.main(['-p', '{MODULE}', '-p', 'no:cacheprovider', sys.argv[1]]) == 0; "
        "late = {'ptxrt.runtime', 'ptxrt.errors', 'numpy', 'coverage', 'hypothesis'} & set(sys.modules); "
        "assert not late, late"
    )
    environment = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
