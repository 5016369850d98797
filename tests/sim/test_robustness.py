# ruff: noqa: E501
"""Texts with something wrong at random: an error of ours or a run, never another exception, never a hang."""

from __future__ import annotations

import random
import re
import time

import pytest
from helpers import EVERYTHING
from machine import HEAD, kernel

from ptxrt import ops, sim
from ptxrt.errors import CompileError, LaunchError, OutOfDeviceMemory, SimFault, Unsupported

TEXTS = 400 if EVERYTHING else 300
_TOKEN = re.compile(r"\s+|//[^\n]*|[%$\w]+|\.[\w:]+|.", re.DOTALL)
_STRANGE = ["", ";", "{", "}", "(", ")", "[", "]", ",", ".", "%", "@", "!", "|", "_", "-", "0", "-1", "4294967296",
            "0x7fffffffffffffff",
            "0f7f800000", "0d7ff0000000000000", "1.5", ".b8", ".f16x2", ".pred", ".u64", ".v4", ".sat", ".ftz", ".rz",
            ".shared", ".local", ".param", ".global", ".const", "ret", "exit", "bra", "call", "bar.sync", "shfl.sync",
            "%tid.x", "%clock64", "WARP_SZ", ".reg", ".align", ".func", ".entry", ".section", ".loc", "/*", "//", '"', "\\", "\x00",
            "é", "99999999999999999999999999", "9" * 5000, "1e999", "0x", ".reqntid 0"]  # fmt: skip
_MIXTURE = """.reg .u32 t, v, w; .reg .u64 p, o; .reg .f32 f; .reg .f64 g; .reg .b16 h; .reg .pred q, e;
.local .u32 l[4]; .shared .align 16 .u32 s[64]; ld.param.u64 p, [out]; mov.u32 t, %tid.x; mul.wide.u32 o, t, 4; add.u64 p, p, o;
setp.lt.u32 q|e, t, 20; @q bra L; { .reg .u32 t; mov.u32 t, 5; add.cc.u32 w, t, t; addc.u32 v, w, 1; } L:
shfl.sync.bfly.b32 v|q, t, 1, 31, -1; vote.sync.ballot.b32 w, q, -1; cvt.rn.f32.u32 f, v; sin.approx.f32 f, f;
cvt.rn.f16.f32 h, f; fma.rn.f32 f, f, 0f40000000, f; cvt.f64.f32 g, f; sqrt.rn.f64 g, g; mov.u32 w, s;
mad.lo.u32 w, t, 4, w; st.shared.u32 [w], v; bar.sync 0; ld.shared.u32 v, [w]; atom.shared.add.u32 v, [s+8], 1;
and.b32 v, t, 1; T: .branchtargets A, B; brx.idx v, T; A: prmt.b32 v, v, w, 0x5410; B: bfe.u32 v, v, 3, 7;
st.local.u32 [l+4], v; { .param .b32 x; .param .b32 y; st.param.b32 [x], v; call (y), fun, (x); ld.param.b32 v, [y]; }
cp.async.ca.shared.global [s], [p], 4; cp.async.wait_all; st.global.u32 [p], v; st.global.v2.f32 [p], {f, f};"""
_FUNCTION = """.const .align 4 .f32 table[4] = {1.5, 2.5, 0f40600000, 4.5}; .global .u64 where = fun;
.func (.param .b32 r) fun(.param .b32 n) { .reg .u32 a; .reg .pred q; ld.param.u32 a, [n]; setp.lt.u32 q, a, 2;
@q bra LEAF; { .param .b32 x; .param .b32 y; sub.u32 a, a, 1; st.param.b32 [x], a; call (y), fun, (x);
ld.param.b32 a, [y]; } LEAF: st.param.b32 [r], a; ret; }
"""


def texts() -> list[str]:
    """Return what is mutated: texts of many kinds of statements, and the kernels that come with ptxrt."""
    found = [
        kernel(_MIXTURE, module=_FUNCTION),
        kernel(_MIXTURE, module=_FUNCTION, head=HEAD.replace("sm_80", "sm_90")),
    ]
    found += sorted({spec.source.text for spec in ops.kernels() if spec.language == "ptx"})
    return found


def mutated(text: str, rng: random.Random) -> str:
    """Return the text with one to three small changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        tokens = _TOKEN.findall(text) or [""]
        at = rng.randrange(len(tokens))
        second = rng.randrange(len(tokens))
        what = rng.randrange(8)
        if what == 0:
            del tokens[at]
        elif what == 1:
            tokens.insert(at, tokens[second])
        elif what == 2:
            tokens[at], tokens[second] = tokens[second], tokens[at]
        elif what in (3, 4):
            tokens[at] = tokens[second]
        elif what == 5:
            tokens[at] = rng.choice(_STRANGE)
        elif what == 6:
            tokens = tokens[:at] if rng.random() < 0.2 else tokens[: at - 9] + tokens[at:]
        else:
            character = rng.choice("0123456789abcdefx%.;,{}[]()@!_ \n")
            place = rng.randrange(len(text) + 1)
            text = text[:place] + character + text[place + 1 :]
            continue
        text = "".join(tokens)
    return text


def attempt(text: str) -> str:
    """Parse, load and launch; return how it ended."""
    memory = sim.GlobalMemory(limit_bytes=1 << 24)
    try:
        program = sim.parse(text)
        out = memory.allocate(4096)
        loaded = sim.load(program, memory)
        for name, entry in program.entries.items():
            if entry.shared_bytes > 48 << 10:
                continue
            params = (out.to_bytes(8, "little") * (entry.params_bytes // 8 + 1))[: entry.params_bytes]
            blocks = entry.cluster or (1, 1, 1)
            sim.launch(loaded, name, blocks, entry.required_block or (32, 1, 1), params, budget=2000, checks="all")
    except (CompileError, Unsupported, SimFault, LaunchError, OutOfDeviceMemory) as error:
        str(error)
        return type(error).__name__
    return "ran"


@pytest.mark.parametrize("seed", [1])
def test_mutated_texts(seed: int) -> None:
    rng = random.Random(seed)
    originals = texts()
    ends: dict[str, int] = {}
    for _ in range(TEXTS):
        text = mutated(rng.choice(originals), rng)
        started = time.monotonic()
        try:
            end = attempt(text)
        except Exception as error:
            raise AssertionError(text) from error
        assert time.monotonic() - started < 20, text
        ends[end] = ends.get(end, 0) + 1
    assert ends["CompileError"] > 10
    assert ends["ran"] > 5  # of 300 some ten do, as the kernels' texts have it that are drawn from


@pytest.mark.parametrize("text", [
    "(" * 5000, HEAD + ".global .u32 a = " + "(" * 5000, HEAD + ".global .u32 a = " + "-" * 5000 + "1;",
    HEAD + ".global .u32 a = " + "{" * 5000, kernel("{" * 3000 + "}" * 3000), kernel("mov.u32 a, " + "!" * 4000 + "1;"),
    kernel(".reg .u32 r<2000000000>; mov.u32 r1999999999, 1;"), HEAD + ".global .b8 a[99999999999][99999999999];",
    kernel(".local .b8 l[999999999]; st.local.u32 [l], 1;"), kernel("", ".param .align 8 .b8 a[999999999]"),
    kernel(".reg .f32 f; mov.f32 f, 1e999;"), kernel(".local .align 1073741824 .b8 l[4]; st.local.u32 [l], 1;"),
    "\x00", HEAD + "\x00", ".version 8.0", ".version 8.0 .target", HEAD + ".entry", HEAD + ".entry k(", "é",
])  # fmt: skip
def test_texts_made_to_break_it(text: str) -> None:
    started = time.monotonic()
    assert attempt(text)
    assert time.monotonic() - started < 10
