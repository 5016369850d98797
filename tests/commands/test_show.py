"""``ptxrt show`` of kernels in HIP; tests/commands/test_cli.py has those in PTX."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import REQUIRED, Capture, Patch

from ptxrt import BackendUnavailable, ops
from ptxrt.commands import _sections
from ptxrt.commands.cli import main
from ptxrt.compilers import disassembly, hiprtc

ENTRY = "group_norm_kernel"


@pytest.fixture
def _amd() -> None:
    if reason := hiprtc.available():
        if "hiprtc" in REQUIRED:
            pytest.fail(f"PTXRT_REQUIRE=hiprtc, but {reason}")
        pytest.skip(reason)


@pytest.fixture
def text() -> str:
    (spec,) = (spec for spec in ops.kernels() if (spec.entry, spec.language) == (ENTRY, "hip"))
    return spec.source.text.rstrip("\n")


@pytest.mark.usefixtures("_amd")
@pytest.mark.parametrize(("arch", "lanes"), [("gfx1100", 32), ("gfx90a:sramecc+:xnack-", 64)])
def test_show_prints_the_hip_text_then_abi_resources_and_machine_code(
    arch: str, lanes: int, text: str, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(_sections, "disassemble", lambda code, symbol: f"00000000  s_nop {symbol}")
    assert main(["show", ENTRY, "--arch", arch]) == 0
    out = capsys.readouterr().out
    assert out.startswith(text)
    behind = out[len(text) :]
    assert f"{ENTRY}, of kernels_hip/group_norm.hip" in behind
    assert "//   8  f32 eps                         float        4      48" in behind
    assert f"Resources, hipRTC {hiprtc.version()} for {arch}\n" in behind
    for fact in ("VGPRs a thread  ", "SGPRs a wave  ", "LDS bytes a block  "):
        assert int(behind.partition(fact)[2].split()[0]) > 0
    assert "//   scratch bytes a thread        0\n" in behind
    assert "//   spilled VGPRs, SGPRs          0, 0\n" in behind
    assert f"//   lanes a wave                  {lanes}\n" in behind
    assert f"//   00000000  s_nop {ENTRY}\n" in behind


@pytest.mark.usefixtures("_amd")
def test_what_show_prints_is_hip_still(capsys: Capture) -> None:
    main(["show", ENTRY, "--arch", "gfx1100"])
    assert ENTRY in hiprtc.compile_hip(capsys.readouterr().out, "gfx1100", entry=ENTRY).entries


def test_without_hiprtc_text_and_abi_are_shown(text: str, capsys: Capture, monkeypatch: Patch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise BackendUnavailable("hipRTC: it was left at home")

    monkeypatch.setattr(hiprtc, "compile_hip", missing)
    assert main(["show", ENTRY, "--arch", "gfx1100"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(text)
    assert "f32 eps" in shown.out[len(text) :]
    assert shown.err == "ptxrt: no resources for gfx1100: hipRTC: it was left at home\n"


@pytest.mark.usefixtures("_amd")
def test_without_the_disassembler_it_shows_what_to_install(capsys: Capture, monkeypatch: Patch, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text("import rocm_that_nobody_has")
    monkeypatch.setattr(disassembly, "_SCRIPT", script)
    assert main(["show", ENTRY, "--arch", "gfx1100"]) == 0
    shown = capsys.readouterr()
    assert "VGPRs a thread" in shown.out
    assert 'pip install "hip-python[compiler]>=10"' in shown.err


@pytest.mark.usefixtures("_amd")
def test_a_disassembler_that_ends_over_a_processor_is_said_with_its_words(monkeypatch: Patch, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text("import os, sys\nprint('LLVM ERROR: not yet', file=sys.stderr, flush=True)\nos.abort()")
    monkeypatch.setattr(disassembly, "_SCRIPT", script)
    binary = hiprtc.compile_hip('extern "C" __global__ void k() {}', "gfx1100")
    with pytest.raises(BackendUnavailable, match=r"LLVM ERROR: not yet.*may not know gfx1100"):
        disassembly.disassemble(binary.code, "k")
