"""What the compiler tests share."""

from __future__ import annotations

from types import ModuleType

import pytest
from helpers import REQUIRED

from ptxrt.compilers import hiprtc, nvjitlink, nvrtc

HEAD = ".version 7.0\n.target sm_75\n.address_size 64\n"
STORE = (
    HEAD
    + """\
.visible .entry store(.param .u64 x, .param .f32 a)
{
  .reg .b32 %r<4>;
  .reg .f32 %f<4>;
  .reg .b64 %d<4>;
  ld.param.u64 %d1, [x];
  cvta.to.global.u64 %d2, %d1;
  ld.param.f32 %f1, [a];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %d3, %r1, 4;
  add.s64 %d2, %d2, %d3;
  st.global.f32 [%d2], %f1;
  ret;
}
"""
)


@pytest.fixture
def head() -> str:
    """The directives that a PTX text begins with, three lines."""
    return HEAD


@pytest.fixture
def store() -> str:
    """A PTX text of one entry, ``store(u64 x, f32 a)``, that compiles."""
    return STORE


@pytest.fixture
def jitlink() -> ModuleType:
    """The module nvjitlink; skips, with the reason, where the library is not installed."""
    return _usable(nvjitlink)


@pytest.fixture
def rtc() -> ModuleType:
    """The module nvrtc; skips, with the reason, where the library is not installed."""
    return _usable(nvrtc)


@pytest.fixture
def amd() -> ModuleType:
    """The module hiprtc; skips where it cannot be used, or fails if PTXRT_REQUIRE names hiprtc."""
    return _usable(hiprtc)


def _usable(compiler: ModuleType) -> ModuleType:
    if reason := compiler.available():
        name = compiler.__name__.rpartition(".")[2]
        if name in REQUIRED:
            pytest.fail(f"PTXRT_REQUIRE={name}, but {reason}")
        pytest.skip(reason)
    return compiler
