"""printf and assert of kernels in C++: what CUDA prints is what is printed, and what it does not know is a fault."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from helpers import need_nvrtc

import ptxrt
from ptxrt.errors import SimFault

PRINTING = r"""
__device__ char text[] = "hello";
extern "C" __global__ void k(int* returned, const char* null, int n) {
    RETURNS printf(FORMAT);
}
"""


@pytest.fixture(autouse=True)
def _nvrtc() -> None:
    need_nvrtc()


def run(text: str, *args: ptxrt.KernelArgument, entry: str = "k", signature: str = "", grid: int = 1, block: int = 1,
        language: str = "cuda", **defines: str) -> None:  # fmt: skip
    make = ptxrt.KernelSource.cuda if language == "cuda" else ptxrt.KernelSource.hip
    ptxrt.load(make(text, defines=defines), entry, signature, "sim:0").launch(grid, block, *args)


def printed(what: str, capsys: pytest.CaptureFixture[str], language: str = "cuda") -> tuple[str, int]:
    """Return what printf prints of its arguments, and what it returns."""
    returned = ptxrt.zeros(1, np.int32, "sim:0")
    run(PRINTING, returned, None, 7, signature="i32* returned, u8*? null, i32 n", language=language,
        FORMAT=what, RETURNS="returned[0] =")  # fmt: skip
    return capsys.readouterr().out, int(returned.to_host()[0])


@pytest.mark.parametrize(("what", "out", "returned"), [
    # All as an H100 printed and returned it.
    ('"plain"', "plain", 0),
    ('"[%d][%5d][%-5d][%05d][%+d][% d][%.3d][%8.3d]", 42, 42, 42, 42, 42, 42, 42, 42',
     "[42][   42][42   ][00042][+42][ 42][042][     042]", 8),
    ('"[%u][%x][%X][%#x][%o][%#o][%#x]", 4000000000u, 255, 255, 255, 8, 8, 0',
     "[4000000000][ff][FF][0xff][10][010][0]", 7),
    ('"[%ld][%lld][%llu][%lx]", -5000000000l, -5000000000ll, 18000000000000000000ull, 1ul << 40',
     "[-5000000000][-5000000000][18000000000000000000][10000000000]", 4),
    ('"[%hd][%hu]", 70000, 70000', "[4464][4464]", 2),
    ('"[%f][%.2f][%10.3f][%-10.3f][%e]", 3.14159, 3.14159f, 3.14159, 3.14159, 31415.9',
     "[3.141590][3.14][     3.142][3.142     ][3.141590e+04]", 5),
    ('"[%g][%G][%E][%a][%A][%F]", 1e-7, 1e20, 2.5, 2.5, 0.1, 1.5',
     "[1e-07][1E+20][2.500000E+00][0x1.4p+1][0X1.999999999999AP-4][1.500000]", 6),
    ('"[%lf][%f][%5.1f]", 0.5, -1.f / 0.f, 1. / 0.', "[0.500000][-inf][  inf]", 3),
    ('"[%c][%3c][%-3c]|", \'a\', \'b\', \'c\'', "[a][  b][c  ]|", 3),
    ('"[%s][%10s][%-10s][%.3s]", text, text, text, text', "[hello][     hello][hello     ][hel]", 4),
    ('"[%s][%d]", null, n', "[(null)][7]", 2),
    ('"[%p][%p][%20p]", (void*)0x1234abcd, (void*)0, (void*)0x1234abcd',
     "[0x1234abcd][(nil)][          0x1234abcd]", 3),
    ('"[%%][100%%]"', "[%][100%]", 0),
    ('"[%*d][%-*d]", 6, 1, 6, 2', "[     1][2     ]", 4),
    ("(const char*)0", "", -1),
    ('""', "", 0),
    # An int, then a double, then an int: each lies at a multiple of its size.
    ('"%d %g %d %lld %c", 1, 2.5, 3, 4ll, \'5\'', "1 2.5 3 4 5", 5),
    ('"%200d|", 1', " " * 199 + "1|", 1),
])  # fmt: skip
@pytest.mark.parametrize("language", ["cuda", "hip"])
def test_what_is_printed_and_returned(
    what: str, out: str, returned: int, language: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(what, capsys, language) == (out, returned)


@pytest.mark.parametrize(("what", "words"), [
    ('"%zd", sizeof(int)', r"'%zd': convert the value to int or long long"),
    ('"%hhd", 1', r"'%hhd': convert"), ('"%jd", 1ll', "'%jd': convert"),
    ('"%.*f", 2, 1.5', r"'%\.\*f': write the precision as a number"),
    ('"%Lf", 1.5', "'%Lf': it has the conversions d i"), ('"%y", 1', "'%y': it has"), ('"%ls", text', "'%ls': it has"),
    ('"%n", &n', "'%n': it has"), ('"%5%"', "'%5%': it has"), ('"%\'d", 1', r"%'d"), ('"100%"', "'%' at the end of"),
    ('"%9999999d", 1', "asks for more than 1048576 characters"),
    ('"%*d", 1 << 30, 1', "asks for more than 1048576 characters"), ('"%d"', "wants arguments, and there are none"),
])  # fmt: skip
def test_a_format_that_cuda_does_not_know_is_a_fault(what: str, words: str) -> None:
    text = PRINTING.replace("FORMAT", what).replace("RETURNS", "if (n == threadIdx.x)")
    with pytest.raises(SimFault, match=words) as caught:
        run(text, None, None, 2, signature="i32*? returned, u8*? null, i32 n", block=8)
    assert "printf" in str(caught.value)
    assert (caught.value.thread, caught.value.block) == ((2, 0, 0), (0, 0, 0))


def test_a_string_that_is_not_there_is_a_memory_fault() -> None:
    with pytest.raises(ptxrt.MemoryFault, match="read of 1 bytes outside") as caught:
        run(PRINTING.replace("FORMAT", '"%s", (char*)0x5000').replace("RETURNS", ""), None, None, 2,
            signature="i32*? returned, u8*? null, i32 n")  # fmt: skip
    assert caught.value.address == 0x5000


def test_blocks_are_printed_in_order_and_what_a_block_prints_in_the_order_of_its_barriers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = r"""extern "C" __global__ void k() {
        if (blockIdx.x == 2) printf("early\n");
        printf("A%d.%d\n", blockIdx.x, threadIdx.x);
        if (threadIdx.x & 1) printf("odd\n");
        __syncthreads();
        if (threadIdx.x % 40 == 0) printf("B%d.%d\n", blockIdx.x, threadIdx.x);
    }"""
    run(text, grid=3, block=64)
    lines = capsys.readouterr().out.split()
    expected = []
    for block in range(3):
        expected += [
            *["early"] * 64 * (block == 2),
            *(f"A{block}.{thread}" for thread in range(64)),
            *["odd"] * 32,
            f"B{block}.0",
            f"B{block}.40",
        ]
    assert lines == expected


def test_each_thread_has_strings_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    text = r"""extern "C" __global__ void k() {
        char format[4] = {'x', (char)('a' + threadIdx.x), '\n', 0};
        printf(format);
        char s[4] = {'l', 'm', 'n'};
        s[threadIdx.x + 1] = 0;
        __shared__ char shared[2];
        if (!threadIdx.x) shared[0] = 'S', shared[1] = 0;
        __syncthreads();
        printf("%s %s\n", s, shared);
    }"""
    run(text, block=3)
    assert capsys.readouterr().out == "xa\nxb\nxc\nl S\nlm S\nlmn S\n"


def test_much_output_is_written_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr("sys.stdout", SimpleNamespace(write=written.append, flush=lambda: None))
    run(r"""extern "C" __global__ void k() { for (int i = 0; i < 30; i++) printf("%99999d\n", i); }""")
    assert [int(line) for line in "".join(written).split()] == list(range(30))
    assert len([text for text in written if text]) == 3


def test_bytes_that_sys_stdout_cannot_write_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    run(r"""extern "C" __global__ void k() { printf("%s %c\n", "gr\xc3\xbc\xc3\x9f", 0xff); }""")
    assert capsys.readouterr().out == "grüß \\xff\n"


ASSERTING = r"""extern "C" __global__ void k(int n) {
    printf("%d\n", threadIdx.x);
    assert(threadIdx.x < n && "too many");
}"""


def test_a_failing_assert_tells_what_and_where(capsys: pytest.CaptureFixture[str]) -> None:
    run(ASSERTING, 4, signature="i32 n", block=4)
    with pytest.raises(ptxrt.AssertionFailed, match=r"kernel\.cu:3, in void k\(int\), for 2 threads at once") as caught:
        run(ASSERTING, 2, signature="i32 n", block=4)
    error = caught.value
    assert isinstance(error, ptxrt.LaunchError)
    assert error.condition == 'threadIdx.x < n && "too many"'
    assert (error.file, error.file_line, error.function, error.threads) == ("kernel.cu", 3, "void k(int)", 2)
    assert (error.entry, error.thread, error.block) == ("k", (2, 0, 0), (0, 0, 0))
    assert capsys.readouterr().out == "0\n1\n2\n3\n" * 2  # also what was printed before the failure


def test_ndebug_takes_asserts_out() -> None:
    run(ASSERTING, 2, signature="i32 n", block=4, NDEBUG="1")
