"""Lanes that wait in a loop for what others do let them go first."""

from __future__ import annotations

import numpy as np
import pytest
from machine import kernel, run

from ptxrt import Deadlock

# One lane a block; `way` is what it does while it has the lock, or before it raises its flag.
LOCK = """
.reg .b64 %out; .reg .b32 %old, %n; .reg .pred %p;
ld.param.u64 %out, [out];
again:
atom.global.cas.b32 %old, [%out], 0, 1;
setp.ne.u32 %p, %old, 0;
@%p bra again;
membar.gl;
ld.global.u32 %n, [%out+4];
add.u32 %n, %n, 1;
st.global.u32 [%out+4], %n;
membar.gl;
atom.global.exch.b32 %old, [%out], 0;
"""

# Block 0 waits for block 1, which waits for block 2, which counts to 1000 first; with a pause in the loop of block 1.
CHAIN = """
.reg .b64 %out; .reg .b32 %b, %i; .reg .pred %p;
ld.param.u64 %out, [out];
mov.u32 %b, %ctaid.x;
mov.u32 %i, 0;
setp.eq.u32 %p, %b, 1;
@%p bra one;
setp.eq.u32 %p, %b, 2;
@%p bra two;
zero:
ld.acquire.gpu.global.u32 %b, [%out];
setp.eq.u32 %p, %b, 0;
@%p bra zero;
st.global.u32 [%out+8], 7;
ret;
one:
ld.acquire.gpu.global.u32 %b, [%out+4];
setp.ne.u32 %p, %b, 0;
@%p bra on;
nanosleep.u32 100;
bra one;
on:
st.release.gpu.global.u32 [%out], 1;
ret;
two:
add.u32 %i, %i, 1;
setp.lt.u32 %p, %i, 1000;
@%p bra two;
st.release.gpu.global.u32 [%out+4], 1;
"""


@pytest.mark.parametrize("checks", [(), ("all",)])
def test_a_lock_costs_no_turns_of_those_that_wait(checks: tuple[str, ...]) -> None:
    out = np.zeros(2, np.uint32)
    report = run(kernel(LOCK), out, grid=(100, 1, 1), block=(1, 1, 1), checks=checks, races=False)
    assert out[1] == 100
    # A turn of the winner has 7 instructions, and one of the losers, every 64th, 3.
    assert report.instructions < 100 * 64


def test_those_who_wait_for_each_other_go_in_turn() -> None:
    out = np.zeros(3, np.uint32)
    report = run(kernel(CHAIN), out, grid=(3, 1, 1), block=(1, 1, 1), checks=("all",))
    assert out[2] == 7
    assert report.instructions < 2 * 3 * 1000


def test_a_loop_that_counts_is_not_one_that_waits() -> None:
    """Its lanes meet again behind it, as those of a loop that waits need not."""
    text = kernel("""
.reg .b64 %out, %at; .reg .b32 %t, %i, %v; .reg .pred %p;
ld.param.u64 %out, [out];
mov.u32 %t, %tid.x;
mul.wide.u32 %at, %t, 4;
add.u64 %at, %out, %at;
mov.u32 %i, 0;
count:
ld.global.u32 %v, [%at];
add.u32 %i, %i, 1;
setp.le.u32 %p, %i, %t;
@%p bra count;
st.global.u32 [%at], %i;
""")
    out = np.zeros(32, np.uint32)
    report = run(text, out)
    np.testing.assert_array_equal(out, np.arange(1, 33))
    assert report.instructions == 5 + 32 * 4 + 2


def test_a_wait_for_nobody_ends() -> None:
    text = kernel("""
.reg .b64 %out; .reg .b32 %v; .reg .pred %p;
ld.param.u64 %out, [out];
again:
ld.volatile.global.u32 %v, [%out];
setp.eq.u32 %p, %v, 0;
@%p bra again;
""")
    with pytest.raises(Deadlock, match="an endless loop"):
        run(text, np.zeros(1, np.uint32), budget=5000)
