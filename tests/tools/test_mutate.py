"""python tools/mutate.py: the mutants that it makes. That tests notice them is for the tool itself to show."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
from helpers import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import mutate
from mutation import mutants
from mutation.mutants import Mutant
from mutation.trial import Outcome


@pytest.mark.parametrize(
    ("kind", "line", "after"),
    [
        ("operands swapped", "sub.u32 %a, %b, %c;", "sub.u32 %a, %c, %b;"),
        ("operands swapped", "fma.rn.f64 %a, %b, %c, %d;", "fma.rn.f64 %a, %d, %c, %b;"),
        ("operands swapped", "add.u32 %a, %b, %c;", None),
        ("operands swapped", "setp.eq.u32 %p, %b, %c;", None),
        ("barrier dropped", "bar.sync 0;", "// dropped"),
        ("index shifted", "@%p st.global.f32 [%to+{{ 4 * k }}], %x;", "@%p st.global.f32 [%to+{{ 4 * k }}+4], %x;"),
        ("index shifted", "mov.f32 {{ x[place] }}, %d;", None),
        ("comparison changed", "setp.lt.u32 %p, %a, %b;", "setp.le.u32 %p, %a, %b;"),
        ("constant changed", "mov.f64 %one, 0d3FF0000000000000;", "mov.f64 %one, 0d7FF0000000000000;"),
        ("constant changed", "shl.b32 %a, %a, 2;", "shl.b32 %a, %a, 3;"),
        ("condition turned", "@!%done bra next;", "@%done bra next;"),
        ("rounding changed", "cvt.rzi.u32.f64 %a, %b;", "cvt.rpi.u32.f64 %a, %b;"),
        ("operation changed", "min.u32 %a, %a, %b;", "max.u32 %a, %a, %b;"),
        ("left out", "@%p st.global.f32 [%to], %x;", "// left out"),
        ("left out", "bra next;", None),
    ],
)
def test_each_kind_changes_one_line_in_one_way(kind, line, after):
    assert list(mutants._KINDS[kind](line)) == ([] if after is None else [after])


def test_every_kernel_of_a_file_gets_ten_mutants_that_assemble():
    made = mutants.mutants("upsample_nearest2d", 10, 0)
    assert all(count >= 10 for count in Counter(mutant.kernel for mutant in made).values())
    assert {"upsample_nearest2d_{{ name }}", "upsample_nearest2d_banded_{{ name }}"} == {m.kernel for m in made}
    text = (ROOT / made[0].path).read_text()
    changed = made[0].applied(text)
    differing = [pair for pair in zip(text.split("\n"), changed.split("\n"), strict=True) if pair[0] != pair[1]]
    assert len(differing) == 1
    assert made == mutants.mutants("upsample_nearest2d", 10, 0)  # the same ones on every run


def test_a_mutant_that_no_assembler_takes_is_none():
    good = mutants.mutants("upsample_nearest2d", 1, 0)[0]
    assert not Mutant(good.family, good.kernel, good.number, "test", good.before, "frob.u32 %a, %b;").assembles()


def test_the_table_counts_and_names_what_survived():
    one, two, three = mutants.mutants("upsample_nearest2d", 1, 0)[:3]
    text = mutate._table(
        [one, two, three], [Outcome("noticed", "t"), Outcome("equivalent", "Why."), Outcome("SURVIVED")]
    )
    assert f"| {one.kernel} " in text.replace("\\|", "|")
    assert f"line {two.number} ({two.kind})" in text.split("## Equivalent")[1]
    assert f"`{three.after}`" in text.split("## Survived")[1].split("## Equivalent")[0]


def test_an_unknown_family_is_refused(capsys):
    with pytest.raises(SystemExit):
        mutate.main(["frob"])
    assert "upsample_nearest2d" in capsys.readouterr().err
