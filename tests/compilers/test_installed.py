"""What is known of the compilers without opening them: when a memo is believed, and when the library is asked."""

from __future__ import annotations

import json
import os
import site
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import Patch, need_hip_compilers, need_nvrtc, printed_by

from ptxrt import memos
from ptxrt.compilers import installed, nvrtc


@pytest.fixture
def library(tmp_path: Path, monkeypatch: Patch) -> Iterator[Path]:
    """A library that is NVRTC, as far as a memo knows; in the process there is none."""
    memos.use(tmp_path / "memos")
    monkeypatch.setattr(installed, "_known", {})
    monkeypatch.setattr(installed, "_loaded", lambda fact: False)
    path = tmp_path / "libnvrtc.so.13"
    path.write_bytes(b"\x7fELF")
    installed.found("NVRTC", "13.5.37", [str(path)])
    yield path
    memos.use(None)


def test_it_is_believed_where_nothing_has_changed(library: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(installed, "_known", {})
    monkeypatch.setattr(nvrtc, "version", lambda: pytest.fail(f"{library} was opened"))
    assert installed.version("NVRTC") == "13.5.37"


def test_the_folder_of_the_program_does_not_matter(library: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(sys, "path", [str(library.parent), "", *sys.path])
    assert installed.recall("NVRTC") == "13.5.37"


def _replaced(library: Path) -> None:
    new = library.with_name("new")
    new.write_bytes(library.read_bytes())
    os.utime(new, ns=(0, library.stat().st_mtime_ns))
    new.replace(library)


@pytest.mark.parametrize(
    "change",
    [
        Path.unlink,
        _replaced,
        lambda library: library.write_bytes(b"\x7fELF2"),
        lambda library: os.utime(library, ns=(0, library.stat().st_mtime_ns + 1)),
    ],
    ids=["removed", "replaced", "longer", "later"],
)
def test_a_library_that_is_another_file_is_asked(library: Path, change: Any, monkeypatch: Patch) -> None:
    monkeypatch.setattr(installed, "_known", {})
    monkeypatch.setattr(nvrtc, "version", lambda: "13.6.1")
    change(library)
    assert installed.recall("NVRTC") is None
    assert installed.version("NVRTC") == "13.6.1"


@pytest.mark.parametrize(
    "variable", ["LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX", "ROCM_PATH", "PYTHONPATH"]
)
def test_in_another_environment_nothing_is_known_and_in_the_old_one_it_still_is(
    library: Path, variable: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setenv(variable, str(tmp_path))
    assert installed.recall("NVRTC") is None
    installed.found("NVRTC", "12.9.86", [str(library)])
    assert installed.recall("NVRTC") == "12.9.86"
    monkeypatch.undo()
    monkeypatch.setattr(installed, "_loaded", lambda fact: False)
    assert installed.recall("NVRTC") == "13.5.37"


def test_what_is_installed_later_at_an_earlier_place_is_found(
    library: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    """In a folder of packages, of LD_LIBRARY_PATH, or the package that searches."""
    assert library
    packages, libraries = tmp_path / "packages", tmp_path / "libraries"
    packages.mkdir()
    libraries.mkdir()
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(packages)])
    monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    new = [packages / "nvidia", libraries / "libnvrtc.so.13", tmp_path / "cuda" / "pathfinder"]
    for path in new:
        installed.found("NVRTC", "13.5.37", [])
        assert installed.recall("NVRTC") == "13.5.37"
        path.mkdir(parents=True)
        assert installed.recall("NVRTC") is None, path


def test_a_library_that_the_process_has_is_asked_itself(library: Path, monkeypatch: Patch) -> None:
    assert library
    monkeypatch.undo()
    assert not installed._loaded("hipRTC")
    monkeypatch.setattr(installed, "_SONAMES", {"NVRTC": ("libabsent.so.1", "libc.so.6")})
    assert installed._loaded("NVRTC")
    assert installed.recall("NVRTC") is None
    monkeypatch.setattr(installed, "_SONAMES", {"NVRTC": ("libabsent.so.1",)})
    assert not installed._loaded("NVRTC")


def test_what_the_library_says_counts_from_then_on(library: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(installed, "_known", {})
    assert installed.version("NVRTC") == "13.5.37"
    installed.found("NVRTC", "13.6.1", [str(library)])
    assert installed.version("NVRTC") == "13.6.1"
    monkeypatch.setattr(installed, "_known", {})
    assert installed.version("NVRTC") == "13.6.1"


@pytest.mark.parametrize(
    "entries", [None, 3, [], {"environment": 1}, "no files", "no value", "files", "file", "state"], ids=str
)
def test_a_memo_of_another_form_is_none(library: Path, entries: Any) -> None:
    here = installed._environment()
    forms = {
        "no files": {"value": "13.5.37"},
        "no value": {"files": {}},
        "files": {"files": [1], "value": "13.5.37"},
        "file": {"files": {"\0": [1]}, "value": "13.5.37"},
        "state": {"files": {str(library): "old"}, "value": "13.5.37"},
    }
    memos.write("installed-NVRTC", {here: forms[entries]} if isinstance(entries, str) else entries)
    assert installed.recall("NVRTC") is None
    installed.found("NVRTC", "13.5.37", [str(library)])
    assert installed.recall("NVRTC") == "13.5.37"


def test_a_value_of_another_type_is_no_version(library: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(nvrtc, "version", lambda: "13.6.1")
    installed.found("NVRTC", [1], [str(library)])
    monkeypatch.setattr(installed, "_known", {})
    assert installed.version("NVRTC") == "13.6.1"


def test_the_latest_environments_alone_are_remembered(library: Path, monkeypatch: Patch) -> None:
    for number in range(20):
        monkeypatch.setenv("CUDA_HOME", str(number))
        installed.found("NVRTC", str(number), [str(library)])
    record = json.loads((memos._folder / "installed-NVRTC.json").read_text())  # type: ignore[operator]
    assert [entry["value"] for entry in record["memo"][1].values()] == [str(number) for number in range(19, 3, -1)]


def test_a_launcher_is_a_file_and_a_command_of_several_words_may_be_anything(library: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("PTXRT_HIPRTC_PYTHON", f"'{library}'")
    installed.found("hipRTC", "7.2.1", [str(library)])
    assert installed.recall("hipRTC") == "7.2.1"
    monkeypatch.setenv("PTXRT_HIPRTC_PYTHON", str(library))
    installed.found("hipRTC", "7.2.1", [str(library)])
    assert installed.recall("hipRTC") == "7.2.1"
    _replaced(library)
    assert installed.recall("hipRTC") is None
    monkeypatch.setenv("PTXRT_HIPRTC_PYTHON", f"env A=1 {library}")
    installed.found("hipRTC", "7.2.1", [str(library)])
    assert installed.recall("hipRTC") is None
    assert installed.version("hipRTC") == "7.2.1"  # of this process's own worker


ASKED = """
    import sys
    from pathlib import Path
    from ptxrt import memos
    memos.use(Path({folder!r}))
    from ptxrt.compilers import installed
    print([installed.version(compiler) for compiler in {compilers}])
    from ptxrt.compilers import _cuda_headers
    print(_cuda_headers.include_directories())
    opened = [line.split()[-1] for line in open("/proc/self/maps") if "libnv" in line or "hiprtc" in line]
    import ptxrt.compilers.hiprtc
    print(bool(opened or ptxrt.compilers.hiprtc._worker or "cuda.pathfinder" in sys.modules))
"""


def test_a_second_process_tells_the_same_and_opens_nothing(tmp_path: Path) -> None:
    need_nvrtc()
    need_hip_compilers()
    script = ASKED.format(folder=str(tmp_path / "memos"), compilers=["nvJitLink", "NVRTC", "hipRTC"])
    *first, opened = printed_by(script).splitlines()
    assert opened == "True"
    assert printed_by(script).splitlines() == [*first, "False"]


def test_the_names_are_those_that_the_search_knows() -> None:
    catalog = pytest.importorskip("cuda.pathfinder._dynamic_libs.lib_descriptor")
    names = {"nvJitLink": "nvJitLink", "NVRTC": "nvrtc"}
    for fact, name in names.items():
        assert set(catalog.LIB_DESCRIPTORS[name].linux_sonames) <= set(installed._SONAMES[fact])
