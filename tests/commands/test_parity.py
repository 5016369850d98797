"""``ptxrt parity``: the entries of two vendors have the parameters that are declared; a difference is marked."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import EVERYTHING, Capture, Patch, amd_targets, compiled_for_amd, covering

from ptxrt import ops
from ptxrt.commands import parity
from ptxrt.commands.cli import main
from ptxrt.compilers import ParamInfo, nvrtc
from ptxrt.ops.framework.texts import read_kernel
from ptxrt.runtime.signature import Signature

SIGNATURE = Signature.parse("const f32* x, u32 n, f32 a")
GOOD = [ParamInfo(0, 8, "int"), ParamInfo(8, 4, "int"), ParamInfo(12, 4, "float")]


def test_tables_that_agree_stand_side_by_side() -> None:
    unsaid = [replace(info, kind="bits") for info in GOOD]
    lines, agree = parity.compare(SIGNATURE, {"PTX": GOOD, "gfx90a": unsaid})
    assert agree
    assert [line.split()[:1] for line in lines] == [["#"], ["0"], ["1"], ["2"]]
    assert " ".join(lines[3].split()) == "2 f32 a: float, 4 bytes at 12 float, 4 bytes at 12 bits, 4 bytes at 12"


@pytest.mark.parametrize(
    ("place", "info"),
    [
        (1, ParamInfo(8, 8, "int")),
        (1, ParamInfo(16, 4, "int")),
        (1, ParamInfo(8, 4, "float")),
        (2, ParamInfo(12, 4, "int")),
    ],
    ids=["size", "offset", "class", "class of a float"],
)
def test_a_difference_is_marked(place: int, info: Any) -> None:
    other = [info if i == place else good for i, good in enumerate(GOOD)]
    for one, another in ((GOOD, other), (other, GOOD)):
        lines, agree = parity.compare(SIGNATURE, {"PTX": one, "gfx90a": another})
        assert not agree
        assert [line.startswith("!") for line in lines[1:]] == [i == place for i in range(3)]


@pytest.mark.parametrize("other", [GOOD[:2], [*GOOD, ParamInfo(16, 4, "int")], None], ids=["fewer", "more", "unknown"])
def test_another_number_of_parameters_is_a_difference(other: Any) -> None:
    lines, agree = parity.compare(SIGNATURE, {"PTX": GOOD, "gfx90a": other})
    assert not agree
    assert any(line.startswith("!") and " -" in line for line in lines)


def compiled_once(source: Any, compiler: str, compiled: Any = parity._binary) -> Any:
    """What other tests of the run compile too, for AMD."""
    if compiler == "NVRTC":
        return compiled(source, compiler)
    return compiled_for_amd(source.text, compiler, Path(source.name).stem)


def compiled_as_family(source: Any, compiler: str) -> Any:
    """For AMD the whole text of the family, in f32, as other tests of the run compile it."""
    text = source if compiler == "NVRTC" else read_kernel(Path(source.name).stem, language="hip")
    return compiled_once(text, compiler)


@pytest.mark.amd
@pytest.mark.usefixtures("hiprtc_there")
def test_every_entry_is_the_same_in_both_languages(monkeypatch: Patch, capsys: Capture) -> None:
    # Other types have the same text. Of the modes of grid_sample, each compiled by itself, one has all parameters.
    specs = [spec for spec in ops.kernels() if spec.dtype == "f32"]
    specs = [spec for spec in specs if spec.family != "grid_sample_modes" or "bilinear" in spec.entry]
    # Entries of one template that differ in numbers alone have one declaration.
    chosen = covering([s for s in specs if s.language == "hip"], lambda s: [(s.family, re.sub(r"\d+", "", s.entry))])
    specs = [spec for spec in specs if spec.entry in {one.entry for one in chosen}]
    targets = parity.ARCHITECTURES if EVERYTHING else amd_targets("f32")[:1]
    monkeypatch.setattr(ops, "kernels", lambda: specs)
    monkeypatch.setattr(parity, "_binary", compiled_as_family)
    assert main(["parity", *([] if EVERYTHING else ["--arch", *targets])]) == 0
    out = capsys.readouterr().out
    in_hip = [spec.entry for spec in ops.kernels() if spec.language == "hip"]
    assert [line for line in out.splitlines() if line.endswith(": the same")] == [
        f"{name}: the same" for name in in_hip
    ]
    assert f"parity: {len(in_hip)} of {len(in_hip)} entries are the same" in out
    assert "PTX  " in out
    assert all(arch in out for arch in ("NVRTC" if nvrtc.available() is None else "PTX", *targets))


@pytest.mark.usefixtures("hiprtc_there")
def test_a_difference_ends_in_exit_code_1(monkeypatch: Patch, capsys: Capture) -> None:
    specs = [spec for spec in ops.kernels() if spec.entry == "softmax2d_kernel"]
    swapped = Signature.parse("const f32* in_ptr, f32* out_ptr, u32 total, u32 channels, f32 hw")
    monkeypatch.setattr(ops, "kernels", lambda: [replace(spec, signature=swapped) for spec in specs])
    monkeypatch.setattr(parity, "_binary", compiled_once)
    assert main(["parity", "softmax2d_kernel", "--arch", "gfx1100"]) == 1
    out = capsys.readouterr().out
    assert "softmax2d_kernel: DIFFERENT" in out
    assert "parity: 0 of 1 entries" in out


def test_without_nvrtc_it_says_what_is_not_compared(monkeypatch: Patch, capsys: Capture, hiprtc_there: None) -> None:
    monkeypatch.setattr(nvrtc, "available", lambda: "it was left at home")
    monkeypatch.setattr(parity, "_binary", compiled_once)
    assert main(["parity", "softmax2d_kernel", "--arch", "gfx1100"]) == 0
    out = capsys.readouterr().out
    assert "is not compared: it was left at home" in out
    assert "NVRTC" not in out


@pytest.mark.usefixtures("hiprtc_there")
def test_without_hiprtc_it_exits_with_1_whatever_was_compiled_before(monkeypatch: Patch, capsys: Capture) -> None:
    assert main(["parity", "lrn_forward_kernel", "--arch", "gfx90a"]) == 0
    monkeypatch.setenv("PTXRT_HIPRTC_PYTHON", "/no/such/python")
    assert main(["parity", "lrn_forward_kernel", "--arch", "gfx90a"]) == 1
    assert "/no/such/python" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["frob"], ["--arch", "sm_90"]], ids=str)
def test_a_word_or_an_arch_that_is_none_exits_with_2(capsys: Capture, arguments: Any) -> None:
    assert main(["parity", *arguments]) == 2
    assert arguments[-1] in capsys.readouterr().err
