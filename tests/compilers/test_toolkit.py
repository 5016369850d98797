"""Checks of arch and options, and machines on which a package or a library is not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import Patch

from ptxrt.compilers.toolkit import check_arch, cuda_extra, current_folder, standard_header_fix
from ptxrt.errors import InvalidArgument

MODULES = "nvjitlink, nvrtc, ptx_text, _logs, toolkit, _cuda_headers"


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_compilers_loads_no_cuda_package() -> None:
    # What a .pth file of site-packages loads (a namespace `cuda`) is there before us.
    out = python(
        "import sys; before = set(sys.modules)\n"
        f"from ptxrt.compilers import {MODULES}\n"
        "print([name for name in set(sys.modules) - before if name.split('.')[0] == 'cuda'])"
    )
    assert out.strip() == "[]"


@pytest.mark.parametrize("compiler", ["nvjitlink", "nvrtc"])
def test_without_the_python_package_the_compilers_import_and_say_what_to_install(compiler: str) -> None:
    out = python(
        "import sys; sys.modules['cuda'] = None\n"
        f"from ptxrt.compilers import {MODULES}\n"
        f"print({compiler}.available())\n"
        "from ptxrt.errors import BackendUnavailable\n"
        "text = '.version 7.0\\n.target sm_75\\n'\n"
        "try: (nvjitlink.compile_ptx if " + repr(compiler == "nvjitlink") + " else nvrtc.compile_cuda)(text, 'sm_90')\n"
        "except BackendUnavailable as error: print('raised', error.fix)\n"
    )
    assert "the package cuda-bindings cannot be loaded" in out
    assert f'pip install "ptxrt[{cuda_extra()}]"' in out.partition("raised")[0]
    assert f'raised pip install "ptxrt[{cuda_extra()}]"' in out


@pytest.mark.parametrize(("compiler", "library"), [("nvjitlink", "nvJitLink"), ("nvrtc", "NVRTC")])
def test_without_the_library_the_answer_names_it_and_what_to_install(compiler: str, library: str) -> None:
    pytest.importorskip("cuda.pathfinder")
    pytest.importorskip("cuda.bindings.nvjitlink")
    out = python(
        "import cuda.pathfinder as p\n"
        "def missing(name): raise p.DynamicLibNotFoundError(f'Failure finding lib{name}.so')\n"
        "p.load_nvidia_dynamic_lib = missing\n"
        f"from ptxrt.compilers import {compiler}\n"
        f"print({compiler}.available())\n"
    )
    assert f"the library {library} cannot be loaded (Failure finding lib" in out
    assert f'pip install "ptxrt[{cuda_extra()}]"' in out


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_90a", "sm_100f", "sm_121"])
def test_a_real_architecture_passes(arch: str) -> None:
    check_arch(arch)


@pytest.mark.parametrize("arch", ["", "90", "compute_90", "sm_90b", "sm_", "gfx942", "sm_90 -o x", "sm_90\n", None, 90])
def test_anything_else_is_no_architecture(arch: Any) -> None:
    with pytest.raises(InvalidArgument, match="arch"):
        check_arch(arch)


@pytest.mark.parametrize("header", ["stdint.h", "cstdint", "math.h", "cmath", "float.h", "vector", "type_traits"])
def test_a_standard_header_is_to_be_left_out(header: str) -> None:
    assert f"Leave {header} out" in str(standard_header_fix(header))


@pytest.mark.parametrize("header", ["mine", "mine.h", "vector.h", "mine/vector", "cuda_fp16.h", "vector_types.h", "c"])
def test_any_other_header_is_no_standard_one(header: str) -> None:
    assert standard_header_fix(header) is None


def test_a_current_folder_that_was_removed_is_none(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    assert current_folder() == str(tmp_path)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert current_folder() is None
