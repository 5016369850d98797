"""python tools/mutate.py: the mutants that it makes. That tests notice them is for the tool itself to show."""

from __future__ import annotations

from collections import Counter

import mutate
import pytest
from helpers import EVERYTHING, ROOT, Capture
from mutation import hip_text, mutants, ptx_text
from mutation.equivalent import EQUIVALENT
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
def test_each_kind_changes_one_line_in_one_way(kind: str, line: str, after: str | None) -> None:
    assert list(ptx_text.KINDS[kind](line)) == ([] if after is None else [after])


@pytest.mark.parametrize(
    ("kind", "line", "after"),
    [
        ("operands swapped", "a = b - c;", "a = c - b;"),
        ("operands swapped", "k = fma(a, x[i], c);", "k = fma(a, c, x[i]);"),
        ("operands swapped", "a = b + c;", None),
        ("barrier dropped", "__syncthreads();", ";"),
        ("index shifted", "y[i] = 2;", "y[i + 1] = 2;"),
        ("comparison changed", "if (column >= total) return;", "if (column > total) return;"),
        ("comparison changed", "a = max<int>(b, c);", None),
        ("constant changed", "x *= 0.5f;", "x *= (2 * 0.5f + 1);"),
        ("constant changed", "size_t c = 0;", "size_t c = 1;"),
        ("constant changed", "go[x1] = y.v01;", None),
        ("condition turned", "if (n == 0) return;", "if (!(n == 0)) return;"),
        ("condition turned", "double w = p ? p[i] : 1;", "double w = !p ? p[i] : 1;"),
        ("operation changed", "if (a && b) return;", "if (a || b) return;"),
        ("left out", "sums[i] += x;", ";"),
        ("left out", "if (past) return;", ";"),
        ("left out", "block_sum(a, b);", ";"),
        ("left out", "const double d = x[i] - k;", None),
    ],
)
def test_each_kind_changes_one_line_of_hip_in_one_way(kind: str, line: str, after: str | None) -> None:
    assert list(hip_text.KINDS[kind](line)) == ([] if after is None else [after])


def test_every_line_of_ptx_belongs_to_the_macro_or_the_entry_that_it_is_in() -> None:
    text = """mov.u32 %a, 0;
//% macro entry(name, threads)
.visible .entry {{ name }}(
)
{
    mov.u32 %a, 1;
//% endmacro
mov.u32 %a, 2;
{{ entry("one", 256, "x_ptr") }}
    mov.u32 %a, 3;  // words
    //% macro inner()
    mov.u32 %a, 4;
    //% endmacro
    mov.u32 %a, 5;
//% if short
}
//% else
    mov.u32 %a, 6;
}
//% endif
{{ entry("two_" ~ ("a" if a else "b"), 256,
         "x_ptr") }}
    mov.u32 %a, 7;
}
.visible .entry three_{{ type }}(.param .u64 x_ptr)
{
    mov.u32 %a, 8;
}
"""
    assert [(kernel, line[-2]) for kernel, _, line in ptx_text.lines(text)] == [
        ("entry", "1"),
        ("one", "3"),
        ("inner", "4"),
        ("one", "5"),
        ("one", "6"),
        ('"two_" ~ ("a" if a else "b")', "7"),
        ("three_{{ type }}", "8"),
    ]


def test_every_entry_of_batch_norm_has_mutants_of_its_own() -> None:
    text = (ROOT / "kernels_ptx" / "batch_norm.ptx").read_text()
    counts = Counter(kernel for kernel, _, _ in ptx_text.lines(text))
    assert sum("batch_norm" in kernel for kernel in counts) == text.count("\n{{ entry(")
    assert Counter(kernel for kernel, _, _ in mutants.lines("batch_norm_parts"))["block_images"] == 9


def test_every_line_of_hip_belongs_to_the_function_that_it_is_in() -> None:
    text = """constexpr int N = 2;
template <typename T>
struct One {
    int a;  // words
};
extern "C" __global__ void __launch_bounds__(N, 1) two(int x,
                                                      int y) {
    x = y;

}
__device__ void three() { return; }
"""
    assert list(hip_text.lines(text)) == [("One", 4, "int a;"), ("two", 8, "x = y;")]


def test_a_mutant_of_hip_compiles_to_another_program() -> None:
    for family in ("hip/batch_norm_statistics", "hip/power", *(["hip/upsample_nearest2d"] if EVERYTHING else [])):
        made = mutants.mutants(family, 2 if EVERYTHING else 1, 0)
        assert all(mutant.compiles() for mutant in made)
        assert made[0].path.parent.name == "kernels_hip"
    first = mutants.mutants("hip/batch_norm_statistics", 1, 0)[0]
    for after in ("frob();", first.before):
        assert not Mutant(first.family, first.kernel, first.number, "test", first.before, after).compiles()


def test_every_kernel_of_a_file_gets_ten_mutants_that_assemble() -> None:
    made = mutants.mutants("batch_norm_statistics", 10, 0)
    counts = Counter(mutant.kernel for mutant in made)
    assert {*counts} == {"start", "place", "batch_norm_cumulative", "batch_norm_count", "batch_norm_backward_variance"}
    assert counts["batch_norm_cumulative"] == counts["start"] == 10
    assert counts["place"] == 1  # all that there are
    text = (ROOT / made[0].path).read_text()
    changed = made[0].applied(text)
    differing = [pair for pair in zip(text.split("\n"), changed.split("\n"), strict=True) if pair[0] != pair[1]]
    assert len(differing) == 1
    assert made == mutants.mutants("batch_norm_statistics", 10, 0)  # the same ones on every run


def test_a_mutant_that_no_compiler_takes_is_none() -> None:
    good = mutants.mutants("batch_norm_statistics", 1, 0)[0]
    assert not Mutant(good.family, good.kernel, good.number, "test", good.before, "frob.u32 %a, %b;").compiles()


def test_the_table_counts_and_names_what_survived() -> None:
    one, two, three = mutants.mutants("batch_norm_statistics", 1, 0)[:3]
    outcomes = [Outcome("noticed", "t"), Outcome("equivalent", "Why."), Outcome("SURVIVED")]
    facts = [{**m.facts(), **outcome.facts()} for m, outcome in zip((one, two, three), outcomes, strict=True)]
    text = mutate.KIND.body({"mutants": facts})
    assert f"| {one.kernel} " in text.replace("\\|", "|")
    assert f"line {two.number} ({two.kind})" in text.split("## Equivalent")[1]
    assert f"`{three.after}`" in text.split("## Survived")[1].split("## Equivalent")[0]


def test_an_unknown_family_is_refused(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        mutate.main(["frob"])
    assert "upsample_nearest2d" in capsys.readouterr().err


def test_equivalent_mutants_are_of_lines_that_there_are() -> None:
    there = {(family, kernel, line) for family in mutants.families() for kernel, _, line in mutants.lines(family)}
    assert [key for key in EQUIVALENT if key[:3] not in there] == []
