"""Which lines of a text ran, and which ways of its branches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from machine import kernel, run

from ptxrt import sim
from ptxrt.errors import MemoryFault

REGS = ".reg .u32 t, u; .reg .u64 p; .reg .pred q;\nmov.u32 t, %tid.x; ld.param.u64 p, [out]; mov.u32 u, 0;\n"
# Lines 1 to 3 are the head, 5 the entry, 7 and 8 those of REGS.
FIRST = 8


def visited(body: str, *, threads: int = 32, module: str = "", **how: Any) -> tuple[set[int], set[tuple[int, bool]]]:
    """Return the lines of `body`, from 1, that ran, and the ways of its branches."""
    visits = sim.Visits()
    text = kernel(REGS + body, module=module)
    run(text, np.zeros(256, np.uint8), block=(threads, 1, 1), visits=visits, **how)
    first = FIRST + module.count("\n")
    return {line - first for line in visits.lines if line > first}, {
        (way.line - first, way.held) for way in visits.ways
    }


def possible(body: str, module: str = "") -> tuple[set[int], dict[tuple[int, bool], set[int | None]]]:
    """Return the lines of `body`, from 1, that could run, and where the ways of its branches lead."""
    program = sim.parse(kernel(REGS + body, module=module))
    lines, ways = sim.lines_and_ways(program.entries["k"].code)
    first = FIRST + module.count("\n")
    return {line - first for line in lines if line > first}, {
        (way.line - first, way.held): {None if to is None else to - first for to in leads}
        for way, leads in ways.items()
    }


BRANCH = "setp.lt.u32 q, t, {};\n@{}q bra THERE;\nadd.u32 u, u, 1;\nTHERE:\nadd.u32 u, u, 2;\nadd.u32 u, u, 3;"


@pytest.mark.parametrize(
    ("below", "negated", "held", "failed"),
    [
        (16, "", True, True),
        (32, "", True, False),
        (0, "", False, True),
        (16, "!", True, True),
        (32, "!", False, True),
        (0, "!", True, False),
    ],
)
def test_both_ways_of_a_branch(below: int, negated: str, held: bool, failed: bool) -> None:
    lines, ways = visited(BRANCH.format(below, negated))
    assert lines == {1, 2, 5, 6, 7} | ({3} if failed else set())
    assert ways == ({(2, True)} if held else set()) | ({(2, False)} if failed else set())


def test_a_guard_that_is_the_same_in_every_lane() -> None:
    body = "setp.eq.u32 q, u, 0;\n@q bra THERE;\nadd.u32 u, u, 1;\nTHERE:\nadd.u32 u, u, 2;"
    assert visited(body) == ({1, 2, 5, 6}, {(2, True)})


@pytest.mark.parametrize("negated", ["", "!"])
def test_where_the_ways_lead(negated: str) -> None:
    lines, ways = possible(BRANCH.format(3, negated))
    assert lines == {1, 2, 3, 5, 6, 7}
    assert ways == {(2, True): {5}, (2, False): {3}}


@pytest.mark.parametrize("name", ["ret", "exit"])
def test_leaving_under_a_guard(name: str) -> None:
    body = f"setp.lt.u32 q, t, 16;\n@q {name};\nadd.u32 u, u, 1;"
    assert visited(body) == ({1, 2, 3, 4}, {(2, True), (2, False)})
    assert possible(body) == ({1, 2, 3, 4}, {(2, True): {None}, (2, False): {3}})
    everyone = body.replace("16", "99")
    assert visited(everyone) == ({1, 2}, {(2, True)})


def test_a_way_to_the_end_of_a_function_leaves_it() -> None:
    module = ".func f(.reg .u32 n) {\n.reg .pred q; setp.eq.u32 q, n, 0;\n@q bra END;\nadd.u32 n, n, 1;\nEND:\n}"
    program = sim.parse(kernel(REGS + "call f, (u);", module=module))
    _, ways = sim.lines_and_ways(program.entries["k"].code)
    assert {(way.line, way.held): to for way, to in ways.items()} == {(6, True): {None}, (6, False): {7}}


def test_an_instruction_under_a_guard_ran_where_it_held() -> None:
    body = "setp.lt.u32 q, t, {};\n@q add.u32 u, u, 1;\n@!q add.u32 u, u, 1;\nadd.u32 u, u, 2;"
    assert visited(body.format(16)) == ({1, 2, 3, 4, 5}, set())
    assert visited(body.format(32)) == ({1, 2, 4, 5}, set())
    assert visited(body.format(0)) == ({1, 3, 4, 5}, set())


def test_a_barrier_under_a_guard_is_no_branch() -> None:
    body = "setp.ge.u32 q, t, {};\n@q bar.sync 0;\nadd.u32 u, u, 2;"
    assert visited(body.format(0)) == ({1, 2, 3, 4}, set())
    assert visited(body.format(32)) == ({1, 3, 4}, set())
    assert possible(body.format(0)) == ({1, 2, 3, 4}, {})


def test_both_ways_of_a_loop() -> None:
    body = "LOOP:\nadd.u32 u, u, 1;\nsetp.lt.u32 q, u, 3;\n@q bra LOOP;"
    assert visited(body) == ({2, 3, 4, 5}, {(4, True), (4, False)})
    assert possible(body)[1] == {(4, True): {2}, (4, False): {5}}


def test_a_function_that_is_inlined_twice() -> None:
    module = ".func f(.reg .u32 n) {\n.reg .pred q; setp.eq.u32 q, n, 0;\n@q ret;\nadd.u32 n, n, 1;\nret;\n}"
    visits = sim.Visits()
    run(kernel(REGS + "call f, (u);\nmov.u32 u, 1;\ncall f, (u);", module=module), np.zeros(4, np.uint8), visits=visits)
    assert {5, 6, 7, 8} <= visits.lines
    assert visits.ways == {(6, True), (6, False)}


def test_a_function_that_calls_itself() -> None:
    module = (
        ".func f(.reg .u32 n) {\n.reg .pred q; setp.eq.u32 q, n, 0;\n@q ret;\nsub.u32 n, n, 1;\ncall f, (n);\nret;\n}"
    )
    visits = sim.Visits()
    run(kernel(REGS + "mov.u32 u, 3;\ncall f, (u);", module=module), np.zeros(4, np.uint8), visits=visits)
    assert {5, 6, 7, 9} <= visits.lines
    assert visits.ways == {(6, True), (6, False)}


def test_a_fault_ends_what_ran() -> None:
    visits = sim.Visits()
    text = kernel(REGS + "add.u32 u, u, 1;\nst.global.u32 [p+4096], u;\nadd.u32 u, u, 1;")
    with pytest.raises(MemoryFault):
        run(text, np.zeros(4, np.uint8), visits=visits)
    assert {line for line in visits.lines if line > FIRST} == {FIRST + 1, FIRST + 2}


def test_launches_add_up_and_a_profile_may_count_too() -> None:
    visits, profile = sim.Visits(), sim.Profile()
    for below in (0, 32):
        text = kernel(REGS + BRANCH.format(below, ""))
        run(text, np.zeros(4, np.uint8), visits=visits, profile=profile)
    assert visits.ways == {(FIRST + 2, True), (FIRST + 2, False)}
    assert profile.lines[FIRST + 2].issued == 2


def test_a_launch_without_visits_runs_the_code_as_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim.Visits, "noting", None)
    run(kernel(REGS), np.zeros(4, np.uint8))
