"""Reading the compilers' logs. The logs are verbatim from nvJitLink and NVRTC 13.5."""

from __future__ import annotations

from ptxrt.compilers import Report
from ptxrt.compilers._logs import Problem, nvrtc_problems, ptxas_problems, resource_reports, summary

LINKED = """\
ptxas info    : 0 bytes gmem
ptxas info    : Function properties for helper
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compile time = 5.759 ms
ptxas info    : Compiling entry function 'second' for 'sm_90'
ptxas info    : Function properties for second
ptxas         .     16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 24 registers, used 0 barriers
ptxas info    : Compiling entry function 'first' for 'sm_90'
ptxas info    : Function properties for first
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 1 barriers, 1024 bytes smem
info    : 0 bytes gmem, 416 bytes cmem[3]
info    : Function properties for 'first':
info    : used 12 registers, used 1 barriers, 0 stack, 2048 bytes smem, 540 bytes cmem[0], 0 bytes lmem
"""


def test_each_entry_gets_its_own_report_and_a_function_gets_none() -> None:
    assert resource_reports(LINKED) == {
        "second": Report(24, 4, 8, 16, 0, 0, 416),
        "first": Report(12, 0, 0, 0, 1024, 1, 416),
    }


def test_constants_are_unknown_where_only_ptxas_spoke_and_said_nothing() -> None:
    log = LINKED.replace("info    : 0 bytes gmem, 416 bytes cmem[3]\n", "")
    assert resource_reports(log)["first"].constant_bytes is None


def test_constants_are_none_at_all_where_the_linker_names_no_bank() -> None:
    log = LINKED.replace(", 416 bytes cmem[3]", "")
    assert resource_reports(log)["first"].constant_bytes == 0


def test_a_log_without_reports_gives_none() -> None:
    assert resource_reports("") == {}


def test_ptxas_errors_have_their_lines() -> None:
    log = (
        "ptxas application ptx input, line 70; error   : Unknown symbol '%zz'\n"
        "ptxas application ptx input, line 71; fatal   : Parsing error near '': syntax error\n"
        "ptxas fatal   : Ptx assembly aborted due to errors\n"
        "ERROR NVJITLINK_ERROR_PTX_COMPILE: JIT the PTX (nm)\n"
    )
    assert ptxas_problems(log) == [
        Problem("Unknown symbol '%zz'", 70),
        Problem("Parsing error near '': syntax error", 71),
    ]


def test_a_line_named_at_the_end_of_a_message_counts() -> None:
    log = "ptxas fatal   : Unexpected non-ASCII character encountered on line 47\n"
    assert ptxas_problems(log) == [Problem("Unexpected non-ASCII character encountered on line 47", 47)]


def test_the_linkers_own_errors_are_found() -> None:
    log = "error   : Undefined reference to 'foo' in 'nm'\nERROR 1: complete\n"
    assert ptxas_problems(log) == [Problem("Undefined reference to 'foo' in 'nm'")]


def test_nvrtc_errors_have_file_and_line_and_warnings_are_no_errors() -> None:
    log = (
        'my.cu(3): warning #177-D: variable "u" was declared but never referenced\n'
        "my.cu(7): error: expected an expression\n"
        '/inc/a.h(9): catastrophic error: could not open source file "b.h"\n'
        'At end of source: error: expected a "}"\n'
        "nvrtc: error: unrecognized option -bogus found\n"
        '2 errors detected in the compilation of "my.cu".\n'
    )
    assert nvrtc_problems(log) == [
        Problem("expected an expression", 7, "my.cu"),
        Problem('could not open source file "b.h"', 9, "/inc/a.h"),
        Problem('expected a "}"'),
        Problem("unrecognized option -bogus found"),
    ]


def test_a_summary_joins_what_is_said_of_the_first_line_and_counts_the_rest() -> None:
    problems = [Problem("Arguments mismatch", 11), Problem("Unknown symbol '%zz'", 11), Problem("Other", 12)]
    assert summary(problems) == "line 11: Arguments mismatch; Unknown symbol '%zz' (and 1 more)"
