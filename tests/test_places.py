"""Places in what somebody wrote: the lines of a text, numbered as #line says."""

from __future__ import annotations

import pickle

from ptxrt.places import SourcePlace, Sources


def test_lines_have_the_numbers_and_files_that_line_directives_give_them() -> None:
    text = 'one\n#line 10 "made.h"\nten\n  # 20 "other.h" 1 3\ntwenty\n#line 30\nthirty\n#pragma once\n'
    files = Sources((("k.cu", text),)).files
    assert files["k.cu"] == {1: "one", 2: '#line 10 "made.h"'}
    assert files["made.h"] == {10: "ten", 11: '  # 20 "other.h" 1 3'}
    assert files["other.h"] == {20: "twenty", 21: "#line 30", 30: "thirty", 31: "#pragma once"}


def test_what_stands_in_a_comment_is_no_directive() -> None:
    text = '/* see\n#line 90 "no.h"\n*/\nconst char* s = "/*";\n#line 7\nseven\n// the end'
    assert Sources((("k.cu", text),)).files == {
        "k.cu": {1: "/* see", 2: '#line 90 "no.h"', 3: "*/", 4: 'const char* s = "/*";', 5: "#line 7",
                 7: "seven", 8: "// the end"}
    }  # fmt: skip


def test_lines_end_where_compilers_end_them() -> None:
    sources = Sources((("k.cu", "one\r\n  two\x0c\u2028\r\nthree"),))
    assert sources.files["k.cu"] == {1: "one", 2: "  two\x0c\u2028", 3: "three"}
    assert (sources.line("k.cu", 2), sources.line("k.cu", 4), sources.line("h.h", 1)) == ("two", None, None)


def test_a_place_in_words() -> None:
    outer = SourcePlace("k.cu", 20, "scale")
    place = SourcePlace("k.cu", 7, "helper", "x;", (SourcePlace("k.cu", 7, "helper", "x;"), outer))
    assert str(place) == "k.cu:7"
    assert place.chain == "in helper() at k.cu:7, inlined into scale() at k.cu:20"
    assert outer.chain == "in scale() at k.cu:20"
    assert pickle.loads(pickle.dumps(place)) == place
