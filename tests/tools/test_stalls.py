"""python tools/stalls.py: what it says of a page of Nsight Compute."""

from __future__ import annotations

from pathlib import Path

import pytest
import stalls
from helpers import Capture

COLUMNS = (
    "Address,Source,# Samples,Instructions Executed,Predicated-On Thread Instructions Executed,L1 Wavefronts Shared,"
    "L1 Wavefronts Shared Ideal,stall_long_sb,stall_selected,stall_wait,stall_wait (Not Issued)"
)
PAGE = f"""\
"Kernel Name","scale",
{COLUMNS}
"0x0","      LDC R1, c[0x0][0x28]","10","100","3,200","0","0","0","6","4","4"
"0x10","@!P1  LDS.128 R4, [R2]","20","100","0","-","-","15","5","0","0"
"0x20","      LDS R4, [R2]","60","100","3,200","300","100","50","9","1","1"
"0x30","@P0   EXIT","10","100","0","0","0","0","10","0","0"

"Kernel Name","idle",
{COLUMNS}
"0x0","      EXIT","0","0","0","0","0","0","0","0","0"
"""


def said(capsys: Capture, path: Path, text: str, *more: str) -> tuple[int, str, str]:
    path.write_text(text)
    code = stalls.main([str(path), *more])
    out, err = capsys.readouterr()
    return code, out, err


def test_what_is_said_of_a_launch(capsys: Capture, tmp_path: Path) -> None:
    assert said(capsys, tmp_path / "page.csv", PAGE, "--top", "2") == (
        0,
        """\
scale: 100 samples, 400 instructions of warps
  issued 30%; waited: long_sb 65%, wait 5%
  shared memory: 3.00 times the turns without conflicts
  accesses switched off: 25% of the instructions
       1  20%  long_sb          @!P1  LDS.128 R4, [R2]
       2  60%  long_sb          LDS R4, [R2]
idle: 0 samples, 0 instructions of warps
  nothing was sampled
""",
        "",
    )


def test_of_a_column_that_is_not_there_nothing_is_said(capsys: Capture, tmp_path: Path) -> None:
    code, out, _ = said(capsys, tmp_path / "page.csv", PAGE.replace("Predicated-On", "Other"))
    assert code == 0
    assert "switched off" not in out


def test_launches_are_chosen_by_name(capsys: Capture, tmp_path: Path) -> None:
    code, out, _ = said(capsys, tmp_path / "page.csv", PAGE, "--only", "idl")
    assert (code, out.splitlines()[0]) == (0, "idle: 0 samples, 0 instructions of warps")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("==ERROR== no report\n", "line 1 is none of ncu --page source --csv: ==ERROR== no report"),
        (f'"Kernel Name","k",\n{COLUMNS}\n"0x0","EXIT"\n', "line 3 is none of ncu"),
        ('"Kernel Name","k",\n"0x0","EXIT"\n', "line 2 is none of ncu"),
        ('"Kernel Name"\n', "line 1 is none of ncu"),
        ('"Kernel Name","k",\nAddress,# Samples\n"0x0","1"\n', "line 2 has no column Source"),
        (f'"Kernel Name","k",\n{COLUMNS}\n"{"x" * (1 << 18)}"\n', "field larger than field limit"),
        ("", "no kernels"),
    ],
)
def test_another_file_is_refused(capsys: Capture, tmp_path: Path, text: str, words: str) -> None:
    code, out, err = said(capsys, tmp_path / "page.csv", text)
    assert (code, out) == (2, "")
    assert words in err
    assert "Make the file by ncu" in err


def test_a_file_of_bytes_is_refused(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "report.ncu-rep").write_bytes(bytes(range(256)))
    assert stalls.main([str(tmp_path / "report.ncu-rep")]) == 2
    assert "Make the file by ncu" in capsys.readouterr().err


def test_a_name_that_no_kernel_has_is_refused(capsys: Capture, tmp_path: Path) -> None:
    code, out, err = said(capsys, tmp_path / "page.csv", PAGE, "--only", "none")
    assert (code, out) == (2, "")
    assert "no kernel has 'none' in its name; it has scale, idle" in err


@pytest.mark.parametrize("count", ["-1", "x"])
def test_how_many_instructions_are_told_is_a_number(capsys: Capture, tmp_path: Path, count: str) -> None:
    with pytest.raises(SystemExit):
        said(capsys, tmp_path / "page.csv", PAGE, "--top", count)
    assert "--top: 0 or more, not" in capsys.readouterr().err


def test_a_file_that_is_not_there(capsys: Capture, tmp_path: Path) -> None:
    assert stalls.main([str(tmp_path / "none.csv")]) == 2
    assert "none.csv" in capsys.readouterr().err
