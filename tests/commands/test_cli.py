"""The command ptxrt: what it prints, its exit codes, and no traceback for a user's mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import ROOT, Capture, Patch, need_nvrtc

import ptxrt
from ptxrt import ops
from ptxrt.backends import hip
from ptxrt.commands import _demo_cases as demo_cases
from ptxrt.commands import _demo_race as demo_race
from ptxrt.commands import cli, tables
from ptxrt.commands._demo_cases import SAXPY
from ptxrt.commands.cli import main
from ptxrt.compilers import nvjitlink, nvrtc
from ptxrt.ops import references
from ptxrt.ops.served import served

ENTRY = "group_norm_kernel"

needs_compiler = pytest.mark.skipif(nvjitlink.available() is not None, reason="nvJitLink is not installed")


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
    """A snapshot with at least one module of sim:1."""
    device = ptxrt.Device("sim:1")
    kernel = ptxrt.load(ptxrt.KernelSource.ptx(SAXPY), "saxpy", "const f32* x, f32* y, u32 n, f32 a", device)
    path = tmp_path / "snapshot.json"
    device.modules.snapshot(path)
    assert kernel.device is device
    return str(path)


def run_command(*command: str, **how: Any) -> subprocess.CompletedProcess[str]:
    """Run a command of this interpreter in a process of its own, with the checkout to import from."""
    how = {"text": True, "env": {**os.environ, "PYTHONPATH": str(ROOT)}, "timeout": 60, **how}
    return subprocess.run([sys.executable, *command], check=False, **how)


def usage_error(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert isinstance(left.value.code, int)
    return left.value.code


# The whole command ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [(), ("frobnicate",), ("show",), ("cache",), ("devices", "extra")])
def test_wrong_usage_exits_with_2(arguments: Any, capsys: Capture) -> None:
    assert usage_error(*arguments) == 2
    assert "usage:" in capsys.readouterr().err


def test_the_version_is_printed(capsys: Capture) -> None:
    assert usage_error("--version") == 0
    assert capsys.readouterr().out == f"ptxrt {ptxrt.__version__}\n"


def test_python_m_ptxrt_is_the_command() -> None:
    done = run_command("-m", "ptxrt", "devices", capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "sim:0" in done.stdout


def test_a_driver_error_exits_with_1_and_one_message(monkeypatch: Patch, capsys: Capture) -> None:
    def fail(_: object) -> int:
        raise ptxrt.DriverError("cuInit: nothing works")

    monkeypatch.setattr(cli, "_devices", fail)
    assert main(["devices"]) == 1
    assert capsys.readouterr() == ("", "ptxrt: cuInit: nothing works\n")


def test_ctrl_c_exits_as_a_shell_has_it(monkeypatch: Patch, capsys: Capture) -> None:
    def interrupt(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_devices", interrupt)
    assert main(["devices"]) == 130
    assert capsys.readouterr().err == "ptxrt: interrupted\n"


def test_what_cannot_be_read_is_not_called_an_output(monkeypatch: Patch, capsys: Capture) -> None:
    def fail(_: object) -> int:
        raise PermissionError(13, "Permission denied", "/a/folder")

    monkeypatch.setattr(cli, "_devices", fail)
    assert main(["devices"]) == 1
    assert capsys.readouterr() == ("", "ptxrt: [Errno 13] Permission denied: '/a/folder'\n")


def test_complaints_go_nowhere_where_standard_error_is_closed(monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["kernels", "frob"]) == 1
    assert capsys.readouterr().out == ""


# devices ----------------------------------------------------------------------------------------------------------


def test_devices_tells_of_each_device_and_of_what_is_missing(capsys: Capture) -> None:
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    for device in ptxrt.devices():
        assert f"{device}  " in out
        assert device.name in out
    kinds = {device.kind for device in ptxrt.devices()}
    for kind in ("cuda", "hip", "sim"):
        assert (f"\n{kind}: " in out) is (kind not in kinds)
    assert f"default device: {ptxrt.default_device()}" in out


def test_devices_tells_why_a_compiler_is_missing(monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr(nvjitlink, "available", lambda: "it was left at home")
    assert main(["devices"]) == 0
    assert "no nvJitLink: it was left at home\n" in capsys.readouterr().out


def test_a_default_device_that_is_not_there_is_said_behind_the_list(monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setenv("PTXRT_DEVICE", "sim:99")
    assert main(["devices"]) == 2
    shown = capsys.readouterr()
    assert "sim:0" in shown.out
    assert "sim:99" in shown.err


# kernels ----------------------------------------------------------------------------------------------------------


def test_kernels_lists_every_entry_with_its_plan(capsys: Capture) -> None:
    assert main(["kernels"]) == 0
    head, *rows = [line.split(maxsplit=4) for line in capsys.readouterr().out.splitlines()]
    assert head == ["entry", "language", "dtype", "plan", "signature"]
    rows = [row for row in rows if not set("".join(row)) <= set("- ")]
    assert {row[0] for row in rows} == {spec.entry for spec in ops.kernels()}
    baselines = [row for row in rows if row[0] == ENTRY]
    assert [row[1:4] for row in baselines] == [[language, "f32", "GroupNormPlan"] for language in ("ptx", "hip")]
    assert all(row[4].startswith("const f32* in_ptr, f32* out_ptr, ") for row in baselines)


def test_kernels_may_be_asked_for_by_a_word(capsys: Capture) -> None:
    assert main(["kernels", "UpsampleNearest2dPlan"]) == 0
    assert all("upsample" in line for line in capsys.readouterr().out.splitlines()[2:])
    assert main(["kernels", "frob"]) == 1
    assert "frob" in capsys.readouterr().err


def test_kernels_and_devices_are_there_for_programs(capsys: Capture) -> None:
    assert main(["kernels", "GroupNormPlan", "--json"]) == 0
    first, *_ = json.loads(capsys.readouterr().out)
    assert list(first) == ["entry", "language", "dtype", "plan", "signature"]
    assert first["plan"] == "GroupNormPlan"
    assert main(["devices", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [each["device"] for each in record["devices"]] == [str(device) for device in ptxrt.devices()]
    assert record["devices"][-1]["max_block"] == [1024, 1024, 64]
    assert record["default"] == str(ptxrt.default_device())
    assert set(record["missing"]) | {device.kind for device in ptxrt.devices()} == {"cuda", "hip", "sim"}
    for compiler in record["compilers"].values():
        assert (compiler["version"] is None) is (compiler["missing"] is not None)


def test_kernels_tells_which_variants_serve_an_op(capsys: Capture) -> None:
    assert main(["kernels", "group_norm", "--variants", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["op"] for row in rows} == {"group_norm", "group_norm_backward"}
    found = {(row["op"], *row["layouts"], dtype): (row["ptx"], row["hip"]) for row in rows for dtype in row["dtypes"]}
    in_hip = ["few", "cached", "tickets", "baseline"]  # of f64, which neither `teams` nor `held` has
    in_ptx = ["few", "grid", "cluster", "ring", "teams", "split", "baseline"]
    last = ["channels_last_split", "channels_last"]
    assert found["group_norm", "contiguous", "f32"] == (in_ptx, ["few", "teams", "held", *in_hip[1:]])
    of_f64 = [name for name in in_ptx if name not in ("grid", "teams")]
    assert found["group_norm", "contiguous", "f64"] == (of_f64, in_hip)
    clusters, tickets = ["channels_last_cluster", "channels_last_held", *last], ["channels_last_tickets", *last]
    assert found["group_norm", "channels-last", "f16"] == (clusters, tickets)
    assert main(["kernels", "frob", "--variants"]) == 1
    assert "layouts, ptx or hip" in capsys.readouterr().err


def test_each_op_and_each_of_its_variants_and_types_serves_something() -> None:
    rows = served()
    for plan in ops.plans():
        own = [row for row in rows if row.op == plan.op]
        for language in ("ptx", "hip"):
            names = {variant.name for variant in plan.variants if variant.language == language}
            assert {name for row in own for name in getattr(row, language)} == names, (plan.op, language)
        types = {spec.dtype for spec in ops.kernels() if spec.op == plan.op}
        assert types <= {dtype for row in own for dtype in row.dtypes}


def test_a_word_like_a_plan_is_answered_with_it(capsys: Capture) -> None:
    assert main(["kernels", "GroupNormPlann"]) == 1
    assert "Did you mean GroupNormPlan" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "meant"), [("cuba:1", "cuda:1"), ("gpu", "cuda:0"), ("SIM:1", "sim:1"), ("hpi", "hip:0")]
)
def test_a_device_that_is_almost_one_is_answered_with_it(name: str, meant: str, capsys: Capture) -> None:
    assert main(["demo", "--device", name]) == 2
    assert f"Did you mean {meant}?" in capsys.readouterr().err


# On a terminal ----------------------------------------------------------------------------------------------------


@pytest.fixture
def terminal(monkeypatch: Patch, capsys: Capture) -> Any:
    """Let standard output and standard error be a terminal of 80 columns."""
    monkeypatch.setattr(tables, "_is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return capsys


def test_tables_fit_a_terminal_and_lose_nothing(terminal: Capture) -> None:
    for command in (["kernels"], ["devices"]):
        assert main(command) == 0
        out = terminal.readouterr().out
        lines = out.splitlines()
        table = lines[: lines.index("")] if "" in lines else lines
        kinds = ("cuda: ", "hip: ", "sim: ")
        assert max(len(line) for line in table if not line.startswith(kinds)) <= 80
    assert main(["kernels", "group_norm_kernel"]) == 0
    (spec,) = (spec for spec in ops.kernels() if (spec.entry, spec.language) == (ENTRY, "ptx"))
    shown = "".join(terminal.readouterr().out.split())
    assert set(str(spec.signature).replace(" ", "")) <= set(shown)


def test_a_table_that_fits_is_the_same_on_a_terminal(terminal: Capture) -> None:
    rows = [("a", "1"), ("bc", "10")]
    assert tables.fitted(("x", "n"), rows, (1,)) == tables.table(("x", "n"), rows, (1,))
    assert tables.fitted(("name", "n"), [("x" * 100, "1")], (1,)).count("x") == 100


def test_the_widest_column_alone_is_broken_where_that_is_enough(terminal: Capture) -> None:
    rows = [("e" * 40, "a few words " * 8, "1")]
    head, first, *rest = tables.fitted(("entry", "words", "n"), rows, (2,)).splitlines()
    assert head.split() == ["entry", "words", "n"]
    assert first.startswith("e" * 40 + "  a few")
    assert first.endswith(" 1")
    assert all(line.startswith(" " * 42) for line in rest)
    wide = tables.fitted(("entry", "words", "n"), [("e" * 70, "w" * 90, "1")], (2,))
    assert (wide.count("e"), wide.count("w")) == (71, 91)
    assert max(map(len, wide.splitlines())) <= 80


def test_colour_is_for_terminals_without_no_color(terminal: Capture, monkeypatch: Patch) -> None:
    assert main(["show", "xyzzy"]) == 2
    assert "\x1b[" in terminal.readouterr().err
    assert tables.coloured("a row  pass\n[b] pass by\nFAIL: b", sys.stdout) == (
        "a row  \x1b[32mpass\x1b[0m\n[b] pass by\n\x1b[1;31mFAIL\x1b[0m: b"
    )
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["show", "xyzzy"]) == 2
    assert "\x1b[31m" not in terminal.readouterr().err
    monkeypatch.undo()
    assert tables.coloured("FAIL", sys.stdout) == "FAIL"


# show -------------------------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_100"])
def test_show_prints_the_text_as_compiled_then_abi_and_resources(arch: str, capsys: Capture) -> None:
    assert main(["show", ENTRY, "--arch", arch]) == 0
    out = capsys.readouterr().out
    (text,) = (spec.source.text for spec in ops.kernels() if (spec.entry, spec.language) == (ENTRY, "ptx"))
    assert out.startswith(text.rstrip("\n"))
    behind = out[len(text) :]
    assert "//   8  f32 eps" in behind
    assert f" for {arch}\n" in behind
    assert "//   spilled bytes stored, loaded  0, 0\n" in behind


@needs_compiler
def test_what_show_prints_is_ptx_still(capsys: Capture) -> None:
    main(["show", ENTRY, "--arch", "sm_90"])
    binary = nvjitlink.compile_ptx(capsys.readouterr().out, "sm_90", entry=ENTRY)
    assert list(binary.entries) == [ENTRY]


@needs_compiler
def test_show_on_a_device_tells_its_own_resources_too(capsys: Capture) -> None:
    assert main(["show", ENTRY, "--device", "sim:0"]) == 0
    assert "as sim:0 (PTX machine) has it loaded" in capsys.readouterr().out


def test_show_without_a_compiler_prints_the_rest_and_exits_with_0(monkeypatch: Patch, capsys: Capture) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ptxrt.BackendUnavailable("nvJitLink: it was left at home")

    monkeypatch.setattr(nvjitlink, "compile_ptx", missing)
    assert main(["show", ENTRY, "--arch", "sm_90"]) == 0
    shown = capsys.readouterr()
    assert "f32 eps" in shown.out
    assert shown.err == "ptxrt: no resources for sm_90: nvJitLink: it was left at home\n"


def test_an_unknown_entry_exits_with_2_and_the_close_names(capsys: Capture) -> None:
    assert main(["show", "group_norm"]) == 2
    assert f"Did you mean {ENTRY} or" in capsys.readouterr().err


def test_an_entry_like_none_is_answered_with_where_to_look(capsys: Capture) -> None:
    assert main(["show", "xyzzy"]) == 2
    err = capsys.readouterr().err
    assert "ptxrt kernels lists them" in err
    assert len(err) < 200


@needs_compiler
@pytest.mark.parametrize("arch", ["90", "sm_90x", "gfx90", "gfx90a:xnack"])
def test_an_arch_that_is_none_exits_with_2(arch: str, capsys: Capture) -> None:
    assert main(["show", ENTRY, "--arch", arch]) == 2
    assert arch in capsys.readouterr().err


@needs_compiler
def test_an_arch_that_the_compiler_does_not_know_exits_with_1(capsys: Capture) -> None:
    assert main(["show", ENTRY, "--arch", "sm_52"]) == 1
    assert "sm_52" in capsys.readouterr().err


def test_show_takes_an_arch_or_a_device(capsys: Capture) -> None:
    assert usage_error("show", ENTRY, "--arch", "sm_90", "--device", "sim:0") == 2
    assert "not allowed with" in capsys.readouterr().err


# demo -------------------------------------------------------------------------------------------------------------


def few(monkeypatch: Patch, *names: str) -> None:
    """Let the demo have the first row of each of these ops alone, small."""
    rows = {row[0].__name__: row for row in reversed(demo_cases._ROWS)}
    shapes = {"_saxpy": (16384,), "_group_norm": (2, 96, 8, 8)}
    chosen = [(*rows[name][:2], shapes[name], shapes[name]) for name in names]
    monkeypatch.setattr(demo_cases, "_ROWS", chosen)


def test_the_demo_ends_in_a_parity_table(monkeypatch: Patch, capsys: Capture) -> None:
    few(monkeypatch, "_saxpy", "_group_norm")
    assert main(["demo", "--device", "sim:1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"ptxrt {ptxrt.__version__} on sim:1: PTX machine")
    assert "No GPU is used" in out
    rows = [line.split("  ") for line in out.splitlines() if line.endswith("pass")]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert [row[0] for row in cells] == ["saxpy", "group_norm"]
    assert [row[2] for row in cells] == ["16384", "2x96x8x8"]
    assert all(row[4] == "hit" and float(row[5]) <= float(row[6]) for row in cells)
    assert "parity: 2 of 2 agree with the float64 reference" in out.splitlines()


def test_the_demo_runs_where_standard_error_is_closed(monkeypatch: Patch, capsys: Capture) -> None:
    few(monkeypatch, "_saxpy")
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["demo", "--device", "sim:1"]) == 0
    assert "parity: 1 of 1" in capsys.readouterr().out


def test_the_demo_has_every_op() -> None:
    named = {row[0].__name__[1:].removesuffix("_eval") for row in demo_cases._ROWS} - {"saxpy"}
    assert named == {plan.op for plan in ops.plans()}


def test_the_demo_ends_with_a_race_that_sim_finds(monkeypatch: Patch, capsys: Capture) -> None:
    few(monkeypatch, "_saxpy")
    assert main(["demo", "--device", "sim:1"]) == 0
    behind = capsys.readouterr().out.partition("parity: 1 of 1")[2]
    if nvrtc.available() is not None:
        assert "is not run: NVRTC" in behind
        return
    assert demo_race.TEXT in behind
    assert "DataRace: reverse, reverse.cu:7" in behind.partition(demo_race.TEXT)[2]


def test_a_race_that_is_not_found_is_a_fail(monkeypatch: Patch, capsys: Capture) -> None:
    need_nvrtc()
    few(monkeypatch, "_saxpy")
    barrier = demo_race.TEXT.replace("// Here __syncthreads() is missing.", "__syncthreads();")
    monkeypatch.setattr(demo_race, "TEXT", barrier)
    assert main(["demo", "--device", "sim:1"]) == 1
    assert capsys.readouterr().out.endswith("no race was found: FAIL\n")


def test_the_demo_without_nvrtc_says_what_is_missing(monkeypatch: Patch, capsys: Capture) -> None:
    def missing(*_: object) -> None:
        raise ptxrt.BackendUnavailable("NVRTC: it was left at home")

    few(monkeypatch, "_saxpy")
    monkeypatch.setattr(demo_race, "load", missing)
    assert main(["demo", "--device", "sim:1"]) == 0
    assert capsys.readouterr().out.endswith("is not run: NVRTC: it was left at home\n")


def test_the_demo_is_there_for_programs(monkeypatch: Patch, capsys: Capture) -> None:
    few(monkeypatch, "_saxpy", "_group_norm")
    right = references.group_norm
    monkeypatch.setattr(references, "group_norm", lambda *arrays: right(*arrays) * (1 + 1e-6))
    assert main(["demo", "--device", "sim:1", "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert (record["device"], record["unit"]) == ("sim:1", "ms")
    assert [(row["op"], row["passed"]) for row in record["rows"]] == [("saxpy", True), ("group_norm", False)]
    assert record["rows"][0]["shape"] == [16384]
    assert record["race"]


def test_the_demo_fits_a_terminal(monkeypatch: Patch, terminal: Capture) -> None:
    few(monkeypatch, "_saxpy")
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["demo", "--device", "sim:1"]) == 0
    rows = terminal.readouterr().out.partition("\nop ")[2].partition("parity:")[0]
    assert max(map(len, rows.splitlines())) <= 80
    assert "pass" in rows


def test_a_disagreement_is_a_fail_and_exit_code_1(monkeypatch: Patch, capsys: Capture) -> None:
    few(monkeypatch, "_saxpy", "_group_norm")
    right = references.group_norm
    monkeypatch.setattr(references, "group_norm", lambda *arrays: right(*arrays) * (1 + 1e-6))
    assert main(["demo", "--device", "sim:1"]) == 1
    out = capsys.readouterr().out
    assert len([line for line in out.splitlines() if line.endswith("FAIL") and line.startswith("group_norm")]) == 1
    assert "parity: 1 of 2 agree with the float64 reference: FAIL" in out.splitlines()


def test_a_result_with_a_nan_is_a_fail(monkeypatch: Patch, capsys: Capture) -> None:
    few(monkeypatch, "_group_norm")
    monkeypatch.setattr(references, "group_norm", lambda x, *_: np.where(x > 0, np.nan, x))
    assert main(["demo", "--device", "sim:1"]) == 1
    assert "inf" in capsys.readouterr().out


def test_a_second_call_that_compiles_again_is_a_fail(monkeypatch: Patch, capsys: Capture) -> None:
    few(monkeypatch, "_saxpy")
    load, device = ptxrt.load, ptxrt.Device("sim:1")

    def forgetful(*arguments: Any) -> ptxrt.Kernel:
        device.modules.clear()
        return load(*arguments)

    monkeypatch.setattr(demo_cases, "load", forgetful)
    assert main(["demo", "--device", "sim:1"]) == 1
    assert "MISS" in capsys.readouterr().out


def test_an_error_in_one_row_is_a_fail_and_the_other_rows_run(monkeypatch: Patch, capsys: Capture) -> None:
    few(monkeypatch, "_saxpy", "_group_norm")
    monkeypatch.setattr(demo_cases, "SAXPY", SAXPY.replace("fma.rn.f32", "fma.frob.f32"))
    assert main(["demo", "--device", "sim:1"]) == 1
    out = capsys.readouterr().out
    assert "FAIL: saxpy: " in out
    assert out.count("pass\n") == 1


def test_a_device_that_is_none_exits_with_2(capsys: Capture) -> None:
    assert main(["demo", "--device", "tpu:0"]) == 2
    assert "tpu:0" in capsys.readouterr().err


def test_a_device_that_is_missing_exits_with_1(monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr(hip.BACKEND, "unavailable", lambda: "it was left at home")
    assert main(["demo", "--device", "hip:7"]) == 1
    assert "hip:7 cannot be used: it was left at home" in capsys.readouterr().err


def test_the_demo_runs_in_hip(device: ptxrt.Device, monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setenv("PTXRT_LANGUAGE", "hip")
    few(monkeypatch, "_saxpy", "_group_norm")
    assert main(["demo", "--device", str(device)]) == 0
    out = capsys.readouterr().out
    compiler = device.backend.compiler("hip")
    assert compiler.startswith("hipRTC" if device.kind == "hip" else "NVRTC")
    assert f"\nkernels in HIP, compiled by {compiler}\n" in out
    assert "parity: 2 of 2 agree with the float64 reference" in out.splitlines()


@pytest.mark.cuda
def test_the_demo_agrees_on_the_gpu(cuda: ptxrt.Device, monkeypatch: Patch, capsys: Capture) -> None:
    few(monkeypatch, "_saxpy", "_group_norm")
    assert main(["demo", "--device", str(cuda)]) == 0
    out = capsys.readouterr().out
    assert "No GPU is used" not in out
    assert "warm us" in out


# cache ------------------------------------------------------------------------------------------------------------


def test_cache_prints_a_table(snapshot: str, capsys: Capture) -> None:
    assert main(["cache", snapshot]) == 0
    assert "saxpy" in capsys.readouterr().out


def test_cache_exits_with_1_where_nothing_matches(snapshot: str, capsys: Capture) -> None:
    assert main(["cache", snapshot, "--filter", "arch=sm_1"]) == 1
    assert "no entry matches" in capsys.readouterr().out
    assert main(["cache", snapshot, "--json", "--filter", "arch=sm_1"]) == 1
    assert capsys.readouterr().out == "[]\n"
    assert main(["cache", snapshot, "--entry", "xyz"]) == 1
    assert "no entry's digest begins with xyz" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [("--sort", "size_"), ("--filter", "arch"), ("--filter", "uses=x")])
def test_cache_exits_with_2_for_what_it_does_not_know(snapshot: str, wrong: Any, capsys: Capture) -> None:
    assert main(["cache", snapshot, *wrong]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"ptxrt: cache: {wrong[0]}: expected ")


def test_cache_exits_with_2_for_a_file_that_is_none(tmp_path: Path, capsys: Capture) -> None:
    assert main(["cache", str(tmp_path / "nothing")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_cache_passes_every_option_on(snapshot: str, capsys: Capture) -> None:
    assert main(["cache", snapshot, "--json", "--filter", "entry=saxpy", "--sort", "age", "--reverse"]) == 0
    assert '"entry_names": [\n' in capsys.readouterr().out


def test_the_tool_in_the_checkout_is_the_same_command(snapshot: str, capsys: Capture, tmp_path: Path) -> None:
    main(["cache", snapshot])
    tool = str(ROOT / "tools" / "inspect_cache.py")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, tool, snapshot], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, capsys.readouterr().out, "")


def test_a_reader_that_has_gone_is_no_traceback(snapshot: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = run_command("-m", "ptxrt", "cache", snapshot, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_an_output_that_is_full_is_no_traceback(snapshot: str) -> None:
    with open("/dev/full", "w") as full:
        done = run_command("-m", "ptxrt", "cache", snapshot, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.startswith("ptxrt: cannot write: ")
    assert len(done.stderr.splitlines()) == 1


def test_an_output_in_ascii_gets_what_it_can_print(snapshot: str, tmp_path: Path) -> None:
    text = Path(snapshot).read_text().replace("saxpy", "sax\\u00fcpy")
    other = tmp_path / "other.json"
    other.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "ptxrt", "cache", str(other)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"sax\xfcpy" in done.stdout
