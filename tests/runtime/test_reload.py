"""A kernel that follows its file, and what a kernel tells of its text."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import need_nvrtc, refused

import ptxrt
from ptxrt import KernelSource, ReloadWarning

PTX = """.version 7.0
.target sm_70
.address_size 64
.visible .entry put(.param .u64 x) {
    .reg .b64 %x;
    ld.param.u64 %x, [x];
    st.global.u32 [%x], VALUE;
    ret;
}
"""
CXX = 'extern "C" __global__ void put(unsigned int* x) { *x = VALUE; }\n'
TEXTS = {"ptx": PTX, "cu": CXX, "hip": CXX}


@pytest.fixture(params=["ptx", "cu", "hip"])
def suffix(request: pytest.FixtureRequest, device: ptxrt.Device) -> str:
    """How a file ends whose language `device` takes and has a compiler for."""
    found: str = request.param
    if {"cu": "cuda"}.get(found, found) not in device.backend.languages:
        pytest.skip(f"no {found} on {device}")
    if found != "ptx" and device.kind != "hip":
        need_nvrtc()
    return found


@pytest.fixture
def path(tmp_path: Path, suffix: str) -> Path:
    return tmp_path / f"put.{suffix}"


@pytest.fixture
def write(path: Path, suffix: str) -> Callable[[object], None]:
    """Write the text that puts a value into x."""
    return lambda value: void(path.write_text(TEXTS[suffix].replace("VALUE", str(value))))


def void(_: object) -> None: ...


def loaded(path: Path, device: ptxrt.Device, **how: Any) -> ptxrt.Kernel:
    return ptxrt.load(KernelSource.from_file(path, **how), "put", "u32* x", device, reload=True)


def put_by(kernel: ptxrt.Kernel) -> int:
    x = ptxrt.zeros(1, np.uint32, kernel.device)
    kernel.launch(1, 1, x)
    return int(x.to_host()[0])


@pytest.fixture(autouse=True)
def _no_warning_unseen() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReloadWarning)
        yield


def test_the_launch_after_a_change_runs_the_new_text(device: ptxrt.Device, path: Path, write: Any) -> None:
    write(1)
    kernel = loaded(path, device)
    assert (put_by(kernel), put_by(kernel)) == (1, 1)
    write(2)
    assert (put_by(kernel), put_by(kernel)) == (2, 2)
    assert kernel.source.text == path.read_text()
    assert kernel.source.name == str(path)
    write(1)
    assert put_by(kernel) == 1


def test_a_change_before_the_first_launch_is_seen(device: ptxrt.Device, path: Path, write: Any) -> None:
    write(1)
    source = KernelSource.from_file(path)
    write(2)
    kernel = ptxrt.load(source, "put", "u32* x", device, reload=True)
    write(3)
    assert put_by(kernel) == 3


def test_without_reload_a_kernel_stays_as_it_was(device: ptxrt.Device, path: Path, write: Any) -> None:
    write(1)
    kernel = ptxrt.load(KernelSource.from_file(path), "put", "u32* x", device)
    assert type(kernel) is ptxrt.Kernel
    write(2)
    assert put_by(kernel) == 1


def test_a_text_that_does_not_compile_is_said_once_and_the_old_one_runs(
    device: ptxrt.Device, path: Path, write: Any
) -> None:
    write(1)
    kernel = loaded(path, device)
    assert put_by(kernel) == 1
    write("oops")
    with pytest.warns(
        ReloadWarning, match="the kernel as it was before is launched. CompileError: (.|\n)*oops"
    ) as said:
        assert put_by(kernel) == 1
    assert said[0].filename == __file__
    assert put_by(kernel) == 1
    assert kernel.source.text != path.read_text()
    write(2)
    assert put_by(kernel) == 2


def test_a_signature_that_does_not_fit_is_said_and_the_old_one_runs(
    device: ptxrt.Device, path: Path, write: Any, suffix: str
) -> None:
    write(1)
    kernel = loaded(path, device)
    more = (".u64 x", ".u64 x, .param .u32 n") if suffix == "ptx" else ("int* x", "int* x, unsigned int n")
    path.write_text(path.read_text().replace(*more))
    with pytest.warns(ReloadWarning, match="SignatureMismatch: put"):
        assert put_by(kernel) == 1
    assert put_by(kernel) == 1


def test_a_file_that_is_gone_is_said_once_and_may_come_back(device: ptxrt.Device, path: Path, write: Any) -> None:
    write(1)
    kernel = loaded(path, device)
    path.unlink()
    with pytest.warns(ReloadWarning, match="No such file"):
        assert put_by(kernel) == 1
    assert put_by(kernel) == 1
    write(2)
    assert put_by(kernel) == 2


@pytest.mark.parametrize("suffix", ["cu"], indirect=True)
def test_a_header_that_changes_is_followed_too(device: ptxrt.Device, path: Path, tmp_path: Path) -> None:
    header, deeper = tmp_path / "value.h", tmp_path / "deeper.h"
    header.write_text("#define VALUE 1\n")
    path.write_text('#include "value.h"\n' + CXX)
    kernel = loaded(path, device)
    assert put_by(kernel) == 1
    header.write_text('#include "deeper.h"\n')
    with pytest.warns(ReloadWarning, match=r"deeper\.h"):
        assert put_by(kernel) == 1
    deeper.write_text("#define VALUE 2\n")
    assert put_by(kernel) == 2
    deeper.write_text("#define VALUE 3\n")
    assert put_by(kernel) == 3
    (tmp_path / "other.h").write_text("#define VALUE 4\n")
    header.write_text('#include "other.h"\n')
    assert put_by(kernel) == 4
    (tmp_path / "other.h").write_text("#define VALUE 5\n")
    assert put_by(kernel) == 5


@pytest.mark.parametrize("suffix", ["cu"], indirect=True)
def test_a_header_whose_instructions_nothing_knows_is_followed_too(
    device: ptxrt.Device, path: Path, tmp_path: Path
) -> None:
    header = tmp_path / "value.h"
    header.write_text("#define VALUE 1\n")
    path.write_text('#include "value.h"\n' + CXX + 'extern "C" __global__ void sibling() {}\n')
    kernel = loaded(path, device)
    header.write_text('#define VALUE 2; asm("frob;")\n')
    with pytest.warns(ReloadWarning, match="frob"):
        assert put_by(kernel) == 1
    header.write_text("#define VALUE 3\n")
    assert put_by(kernel) == 3


@pytest.mark.parametrize("suffix", ["cu"], indirect=True)
def test_defines_options_and_a_relative_name_stay(
    device: ptxrt.Device, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text(CXX.replace("VALUE", "A + B"))
    monkeypatch.chdir(tmp_path)
    source = KernelSource.from_file("put.cu", {"A": 1})
    kernel = ptxrt.load(source, "put", "u32* x", device, ["-DB=10"], reload=True)
    assert put_by(kernel) == 11
    path.write_text(CXX.replace("VALUE", "A + B + 100"))
    monkeypatch.chdir("/")
    assert put_by(kernel) == 111
    assert kernel.source.name == "put.cu"


def test_a_warning_made_an_error_leaves_the_kernel_as_it_was(device: ptxrt.Device, path: Path, write: Any) -> None:
    write(1)
    kernel = loaded(path, device)
    write("oops")
    with pytest.raises(ReloadWarning):
        put_by(kernel)
    assert put_by(kernel) == 1


def test_an_interrupted_compile_is_tried_again(
    device: ptxrt.Device, path: Path, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(1)
    kernel = loaded(path, device)
    write(2)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(device.modules, "module", interrupt)
        with pytest.raises(KeyboardInterrupt):
            put_by(kernel)
    assert put_by(kernel) == 2


def test_a_followed_kernel_holds_the_module_that_it_launches(device: ptxrt.Device, path: Path, write: Any) -> None:
    write(1711)
    kernel = loaded(path, device)
    write(1712)  # of no other test: a kernel of theirs may live until the next collection
    put_by(kernel)
    live = {entry.source: entry.live_kernels for entry in device.modules.entries()}
    assert live[path.read_text()] == 1


def test_a_text_that_is_in_no_file_cannot_be_followed(device: ptxrt.Device) -> None:
    before = device.modules.stats()
    with refused(ptxrt.InvalidArgument, "load", "reload", "KernelSource.from_file(path)"):
        ptxrt.load(KernelSource.ptx(PTX.replace("VALUE", "12345")), "put", "u32* x", device, reload=True)
    assert device.modules.stats() == before


def test_a_kernel_has_its_source_and_its_ptx(device: ptxrt.Device, path: Path, write: Any, suffix: str) -> None:
    write(4711)
    source = KernelSource.from_file(path)
    kernel = ptxrt.load(source, "put", "u32* x", device)
    assert kernel.source is source
    if device.kind == "hip":
        assert kernel.ptx is None
    elif suffix == "ptx":
        assert kernel.ptx == source.text
    else:
        assert kernel.ptx is not None
        assert ".visible .entry put(" in kernel.ptx
        assert "4711" in kernel.ptx
