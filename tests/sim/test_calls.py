"""Calls: recursion, pointers to functions, parameters in memory."""

from __future__ import annotations

import re

import numpy as np
import pytest
from machine import HEAD, kernel, run

from ptxrt import sim
from ptxrt.errors import CompileError, LaunchError, MemoryFault, Unsupported

START = """.reg .u32 t, v; .reg .u64 p, o; .reg .pred q;
mov.u32 t, %tid.x; ld.param.u64 p, [out]; mul.wide.u32 o, t, 4; add.u64 p, p, o;
"""
FIBONACCI = """.func (.param .b32 r) fib(.param .b32 n)
{ .reg .u32 a, b, c; .reg .pred q;
  ld.param.u32 a, [n]; setp.lt.u32 q, a, 2; @q bra LEAF;
  { .param .b32 x; .param .b32 y; sub.u32 c, a, 1; st.param.b32 [x], c; call (y), fib, (x); ld.param.b32 b, [y]; }
  { .param .b32 x; .param .b32 y; sub.u32 c, a, 2; st.param.b32 [x], c; call (y), fib, (x); ld.param.b32 c, [y]; }
  add.u32 a, b, c;
  LEAF: st.param.b32 [r], a; ret; }
"""


def test_recursion_keeps_the_registers_of_each_activation() -> None:
    out = np.zeros(64, np.uint32)
    body = START + "{ .param .b32 x; .param .b32 y; and.b32 v, t, 15; st.param.b32 [x], v; call (y), fib, (x);" \
        "ld.param.b32 v, [y]; } st.global.u32 [p], v;"  # fmt: skip
    run(kernel(body, module=FIBONACCI), out, grid=(1, 1, 1), block=(64, 1, 1))
    numbers = [0, 1]
    while len(numbers) < 16:
        numbers.append(numbers[-1] + numbers[-2])
    assert out.tolist() == numbers * 4


def test_mutual_recursion_and_register_parameters() -> None:
    module = """.func (.reg .u32 y) odd(.reg .u32 n);
    .func (.reg .u32 y) even(.reg .u32 n) { .reg .pred q; setp.eq.u32 q, n, 0; @q bra YES;
      sub.u32 n, n, 1; call (y), odd, (n); ret; YES: mov.u32 y, 1; }
    .func (.reg .u32 y) odd(.reg .u32 n) { .reg .pred q; mov.u32 y, 0; setp.eq.u32 q, n, 0; @q ret;
      sub.u32 n, n, 1; call (y), even, (n); }"""
    out = np.zeros(32, np.uint32)
    run(kernel(START + "call (v), even, (t); st.global.u32 [p], v;", module=module), out)
    assert out.tolist() == [1, 0] * 16


VECTORS = """.func (.reg .v2 .u32 r, .reg .u32 s) f(.reg .u32 k, .reg .v4 .u32 a)
{ .reg .pred q; .reg .v2 .u32 x<2>; setp.eq.u32 q, k, 0; add.u32 r.x, a.x, a.y; mov.u32 r.y, a.z; mov.u32 s, a.w;
  @q ret; @@ }
"""


@pytest.mark.parametrize(
    "inside", ["", "sub.u32 k, k, 1; add.u32 a.x, a.x, 10; call (x1, s), f, (k, a); mov.v2.u32 r, x1;"]
)
def test_vectors_of_registers_as_parameters(inside: str) -> None:
    """Of a function decoded in place, and of one that calls itself."""
    out = np.zeros(32, np.uint32)
    body = ".reg .v4 .u32 a; .reg .v2 .u32 b<3>; mov.v4.u32 a, {t, 1000, 2000, 3000}; call (b2, v), f, (t, a);" \
        "add.u32 v, v, b2.x; add.u32 v, v, b2.y; st.global.u32 [p], v;"  # fmt: skip
    run(kernel(START + body, module=VECTORS.replace("@@", inside)), out)
    assert out.tolist() == [6000 + t + (10 * t if inside else 0) for t in range(32)]


def test_each_activation_has_its_own_local_variables() -> None:
    """Sums an array of the activation's own, after the recursion has used its own ones, through a generic address."""
    module = """.func (.param .b32 r) f(.param .b32 n)
    { .local .align 8 .b32 a[3]; .reg .u32 n0, m, w; .reg .u64 g; .reg .pred q;
      ld.param.u32 n0, [n]; mov.u64 g, a; cvta.local.u64 g, g; st.u32 [g+4], n0; mov.u32 w, 0;
      setp.eq.u32 q, n0, 0; @q bra END; sub.u32 m, n0, 1;
      { .param .b32 x; .param .b32 y; st.param.b32 [x], m; call (y), f, (x); ld.param.b32 w, [y]; }
      END: ld.local.u32 m, [a+4]; add.u32 w, w, m; st.param.b32 [r], w; ret; }"""
    body = START + "{ .param .b32 x; .param .b32 y; st.param.b32 [x], t; call (y), f, (x); ld.param.b32 v, [y]; }" \
        "st.global.u32 [p], v;"  # fmt: skip
    out = np.zeros(32, np.uint32)
    run(kernel(body, module=module), out)
    assert out.tolist() == [n * (n + 1) // 2 for n in range(32)]


def test_endless_recursion_spends_the_stack() -> None:
    module = ".func f(.reg .u32 n) { add.u32 n, n, 1;\ncall f, (n); // FAULT\n}"
    with pytest.raises(MemoryFault, match="stack") as caught:
        run(kernel(START + "call f, (t);", module=module), 0)
    assert "FAULT" in caught.value.text


POINTERS = """.func (.param .b32 r) add1(.param .b32 x) { .reg .u32 a; ld.param.u32 a, [x]; add.u32 a, a, 1;
  st.param.b32 [r], a; ret; }
.func (.param .b32 r) times3(.param .b32 x) { .reg .u32 a; ld.param.u32 a, [x]; mul.lo.u32 a, a, 3;
  st.param.b32 [r], a; ret; }
.func (.param .b64 r) other(.param .b64 x) { ret; }
.global .align 8 .u64 table[3] = {add1, times3, other};
"""
BY_POINTER = """.reg .u64 f; and.b32 v, t, 1; mul.wide.u32 o, v, 8; mov.u64 f, table; add.u64 f, f, o;
ld.global.u64 f, [f];
{ .param .b32 x; .param .b32 y; st.param.b32 [x+0], t;
PROTO: .callprototype (.param .b32 _) _ (.param .b32 _);
call (y), f, (x), PROTO; // CALL
ld.param.b32 v, [y+0]; } st.global.u32 [p], v;"""


def test_calls_by_pointers_in_a_table() -> None:
    out = np.zeros(32, np.uint32)
    run(kernel(START + BY_POINTER, module=POINTERS), out)
    assert out.tolist() == [3 * t if t % 2 else t + 1 for t in range(32)]


def test_calls_by_moved_pointers_under_a_guard_with_targets() -> None:
    body = (
        START
        + """.reg .u64 f; mov.u64 f, add1; setp.gt.u32 q, t, 7; @q mov.u64 f, times3; mov.u32 v, 5;
    setp.ne.u32 q, t, 3; T: .calltargets add1, times3; @q call (v), f, (t), T; st.global.u32 [p], v;"""
    )
    out = np.zeros(32, np.uint32)
    run(kernel(body, module=POINTERS.replace(".global", "//")), out)
    assert out.tolist() == [5 if t == 3 else t + 1 if t <= 7 else 3 * t for t in range(32)]


@pytest.mark.parametrize("pointer", ["mov.u64 f, 0;", "mov.u64 f, other;", "mov.u64 f, p;"])
def test_pointers_that_hold_no_such_function(pointer: str) -> None:
    with pytest.raises(MemoryFault, match="no function") as caught:
        run(kernel(START + BY_POINTER.replace("{ .param", f"{pointer} {{ .param", 1), module=POINTERS),
            np.zeros(32, np.uint32))  # fmt: skip
    assert "CALL" in caught.value.text


def test_functions_cannot_be_read() -> None:
    with pytest.raises(MemoryFault, match="outside every"):
        run(kernel(START + "mov.u64 p, add1; ld.u32 v, [p];", module=POINTERS), 0)


def test_parameters_may_be_read_in_other_pieces_than_they_were_written() -> None:
    module = """.func (.param .align 8 .b8 r[12]) f(.param .align 8 .b8 s[12]) { .reg .b32 a, b, c;
      ld.param.b32 a, [s]; ld.param.b32 b, [s+4]; ld.param.b32 c, [s+8];
      st.param.b32 [r], c; st.param.b32 [r+4], a; st.param.b32 [r+8], b; ret; }"""
    body = (
        START
        + """.reg .u64 w; .reg .u32 x, y, z; mov.u64 w, 0x200000001; { .param .align 8 .b8 s[12];
      .param .align 8 .b8 r[12]; st.param.b64 [s], w; st.param.b32 [s+8], t; call (r), f, (s);
      ld.param.b32 x, [r]; ld.param.b32 y, [r+4]; ld.param.b32 z, [r+8]; }
      mad.lo.u32 x, y, 100, x; mad.lo.u32 x, z, 10000, x; st.global.u32 [p], x;"""
    )
    out = np.zeros(32, np.uint32)
    run(kernel(body, module=module), out)
    assert out.tolist() == [20100 + t for t in range(32)]


@pytest.mark.parametrize(("code", "kind", "words"), [
    ("call g, (t);", CompileError, "unknown function"), ("call (v), fib, (t, t);", CompileError, "1 arguments"),
    ("call (v), p, (t);", CompileError, "names a .callprototype"), ("call (v), f, ({t, t});", CompileError, "vector"),
    ("call k, (p);", CompileError, "entry"),
    ("call (v), vprintf, (p);", CompileError, "takes 2 arguments"), ("call (v), fib, (p);", CompileError, ".u64"),
    ("call (v), calloc, (p);", Unsupported, "calloc"), ("call (v), __assertfail, (p);", CompileError, "8, 8, 4, 8, 8"),
])  # fmt: skip
def test_calls_that_cannot_be(code: str, kind: type[Exception], words: str) -> None:
    module = """.extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);
      .extern .func (.param .b32 r) calloc(.param .b64 a); .extern .func (.param .b32 r) __assertfail(.param .b64 a);"""
    with pytest.raises(kind, match=re.escape(words)):
        sim.parse(kernel(START + code, module=FIBONACCI + module))


def test_a_failing_assert_is_a_launch_error() -> None:
    module = """.extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
      .global .b8 what[4] = {116, 60, 57, 0};"""
    body = START + "mov.u64 p, what; setp.eq.u32 q, t, 9; @!q bra OK; call __assertfail, (p, p, t, p, p); OK:"
    with pytest.raises(LaunchError, match=r"assertion `t<9` failed: t<9:9, in t<9\n.*\n  thread \(9, 0, 0\)"):
        run(kernel(body, module=module), 0)


def test_printf_may_be_called_with_registers_and_its_result_left(capsys: pytest.CaptureFixture[str]) -> None:
    module = """.extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);
      .global .b8 what[6] = {37, 100, 32, 37, 100, 0};"""
    body = """.reg .u64 p, f; .reg .u32 t; .reg .pred q; .local .align 8 .b8 numbers[8]; mov.u32 t, %tid.x;
      setp.lt.u32 q, t, 2; mov.u64 f, what; st.local.u32 [numbers], t; st.local.u32 [numbers+4], -1;
      mov.u64 p, numbers; cvta.local.u64 p, p; @q call (_), vprintf, (f, p);"""
    run(kernel(body, module=module), 0)
    assert capsys.readouterr().out == "0 -11 -1"


def test_a_format_in_local_memory_is_each_threads_own(capsys: pytest.CaptureFixture[str]) -> None:
    module = ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);"
    body = """.reg .u64 f; .reg .u32 t; .local .b8 own[2]; mov.u32 t, %tid.x; add.u32 t, t, 65; st.local.u8 [own], t;
      mov.u32 t, 0; st.local.u8 [own+1], t; mov.u64 f, own; cvta.local.u64 f, f; call (_), vprintf, (f, 0);"""
    run(kernel(body, module=module), 0, block=(5, 1, 1))
    assert capsys.readouterr().out == "ABCDE"


def test_calls_that_would_inline_without_end() -> None:
    chain = "".join(
        f".func (.reg .u32 y) f{n}(.reg .u32 x) {{ .reg .u32 z; call (z), f{n - 1}, (x); call (y), f{n - 1}, (z); }}\n"
        for n in range(1, 25)
    )
    module = ".func (.reg .u32 y) f0(.reg .u32 x) { add.u32 y, x, 1; }\n" + chain
    assert sim.parse(kernel(START + "call (v), f24, (t);", module=module, head=HEAD)).entries
