"""Texts that compile and texts that do not, with the line at fault; nvJitLink is asked too where it is there."""

from __future__ import annotations

import pytest
from machine import HEAD, kernel

from ptxrt import sim
from ptxrt.compilers.nvjitlink import compile_ptx
from ptxrt.errors import CompileError, Unsupported
from ptxrt.sim._text.targets import TARGETS, VERSIONS

REGS = """.reg .u32 %u<4>; .reg .s32 %s<4>; .reg .b32 %b<4>; .reg .f32 %f<4>; .reg .u64 %ul<4>; .reg .b64 %bl<4>;
.reg .f64 %d<4>; .reg .pred %p<4>; .reg .u16 %h<4>; .reg .b16 %bh<4>; .reg .f16 %hf<4>; .reg .s64 %sl<4>;
.shared .u32 sm[4]; .reg .u8 %c<4>;"""

GOOD = """
add.f32 %f0, %b1, %f2;
add.s32 %u0, %s1, %b2;
and.b32 %f0, %u1, %b2;
mov.b32 %f0, %u1;
ld.global.b32 %f0, [%ul1];
ld.global.u32 %ul0, [%ul1];
ld.global.b32 %d0, [%ul1];
ld.global.f32 %bl0, [%ul1];
ld.shared.u32 %u0, [%u1];
ld.global.u8 %c0, [%ul1];
st.global.u8 [%ul1], %u0;
st.global.u32 [%ul1], 5;
st.global.f32 [%ul1], 5.0;
cvt.u32.u16 %ul0, %h0;
cvt.rn.f32.u32 %f0, %ul1;
cvt.rzi.u32.f32 %ul0, %f0;
cvt.rn.f16.f32 %bh0, %f0;
shl.b32 %f0, %u1, %s2;
setp.lt.u32 %p0, %s1, %u2;
setp.eq.b32 %p0, %f1, %u2;
selp.f32 %f0, %f1, %b2, %p0;
mul.wide.u32 %bl0, %b1, 4;
mad.wide.u32 %ul0, %u1, %u2, %sl0;
add.u32 %u0, 1, 2;
mov.u16 %h0, %tid.x;
cvt.u64.u32 %ul0, %tid.x;
mov.b32 %f0, %tid.x;
add.u32 %u0, %u1, 0x1ffffffff;
add.ftz.rn.f32 %f0, %f1, %f2;
ld.f32.global %f0, [%ul1];
mov.u64 %ul0, a;
mov.b32 %f0, {%h0,%h1};
mov.b64 {%u0,_}, %d0;
mov.pred %p0, 1;
setp.lt.and.f32 %p0|%p1, %f0, %f1, !%p2;
setp.lt.f32 %p0|_, %f0, %f1;
set.lt.f32.f32 %f0, %f0, %f1;
shfl.sync.bfly.b32 %f0|%p0, %f1, 16, 31, 0xffffffff;
bar.sync %u0, %u1;
cvta.to.global.u64 %ul0, %bl1;
min.f32 %f0, %f1, 0d0000000000000000;
add.f64 %d0, %d1, 0f3f800000;
add.u32 %u0, %u1, (1<<5);
ld.global.f32 %f0, [%ul0+-4];
mov.u32 %u0, sm; mov.u64 %ul0, sm+4;
.reg .f32 x, y, %z; add.f32 x, y, %z;
.reg .f32 add; mov.f32 add, 0f00000000;
mad.rn.f32 %f0, %f1, %f2, %f3;
slct.s32.f32 %s0, %s1, %s2, %f0;
mov.u32 %u0, WARP_SZ;
ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%u0,%u1,%u2,%u3}, [%ul0];
ld.relaxed.gpu.global.u32 %u0, [%ul0];
atom.relaxed.gpu.global.add.u32 %u0, [%ul1], 1;
atom.global.add.noftz.f16 %bh0, [%ul0], %bh1;
barrier.cta.sync 0;
fence.acq_rel.gpu; membar.gl; nanosleep.u32 100; prefetch.global.L2 [%ul0];
st.global.v2.f32 [%ul0], {%f0, 0f00000000};
fma.rn.bf16x2 %b0, %b1, %b2, %b3;
rsqrt.approx.ftz.f64 %d0, %d1;
add.s32 %s0, %s1, -3000000000; .pragma "nounroll";
""".strip().splitlines()

BAD = """
add.f32 %f0, %u1, %f2;
add.u32 %f0, %u1, 1;
add.u32 %u0, %u1, 1.5;
add.f32 %f0, %f1, 1;
mov.u32 %f0, %u1;
mov.b32 %b0, 1.0;
ld.global.u32 %f0, [%ul1];
ld.global.f32 %u0, [%ul1];
ld.global.u32 %u0, [%d1];
ld.global.f16 %bh0, [%ul1];
st.global.f32 [%ul1], %d0;
st.global.f32 [%ul1], 5;
cvt.f32.u32 %f0, %u1;
cvt.u32.f32 %u0, %f0;
cvt.f32.f64 %f0, %d0;
cvt.rn.f64.f32 %d0, %f0;
cvt.rn.f32.f32 %f0, %f1;
cvt.rn.u32.f32 %u0, %f1;
shl.b32 %u0, %u1, %ul2;
shl.u32 %u0, %u1, %s2;
setp.lt.f32 %p0, %f1, %u2;
setp.lt.b32 %p0, %s1, %u2;
setp.lo.s32 %p0, %s1, %u2;
selp.u32 %u0, %f1, %u2, %p0;
mul.wide.u32 %u0, %u1, %u2;
add.u32 1, %u0, %u1;
add.u32 %u0, %u1;
add.u32 %u0, %tid.x, %u1;
mov.u32 %u0, %tid;
mov.u64 %ul0, %tid.x;
bra NOPE;
add.u32 %u0, %u9, 1;
frob.u32 %u0, %u1, 1;
add.q32 %u0, %u1, 1;
add.rn.u32 %u0, %u1, 1;
mul.u32 %u0, %u1, 1;
div.f32 %f0, %f1, %f2;
sqrt.f32 %f0, %f1;
fma.f32 %f0, %f1, %f2, %f3;
ld.param.u32 %u0, [nope];
mov.b64 %bl0, {%u0,%f1};
@%u0 bra L; L:
atom.global.add.u32 %f0, [%ul0], %f1;
atom.add.b32 %u0, [%ul0], %u1;
atom.global.and.u32 %u0, [%ul0], %u1;
shfl.bfly.b32 %f0, %f1, 16, 31;
bar.sync 0, 33;
bar.sync 17;
st.param.u32 [a], %u0;
st.const.u32 [%ul0], %u0;
neg.u32 %u0, %u1;
ld.global.v2.f32 {%f0,%u1}, [%ul0];
ld.global.v2.f32 %f0, [%ul0];
ld.global.v3.f32 {%f0,%f1,%f2}, [%ul0];
ld.global.f32 %f0, [%ul0-4];
ld.global.f32 %f0, %ul0;
popc.b64 %ul0, %ul0;
add.u32 %u0, %u1, %u2
mov.u32 %u0, %nosuch;
.reg .u32 %u0;
ld.global.u32 %u0, [sm];
ld.u64 %ul0, [a];
ret;;
mul.f32 %f0, -%f1, %f2;
xor.u32 %u0, %u1, %u2;
bar.arrive 0;
and.b32 %u0, %u1, 1.0;
L: L:
add.u64 %ul0, %ul1, sm;
ret; }  add.u32 %u0, %u1, %u2; {
""".strip().splitlines()


def text_of(line: str) -> str:
    return kernel(f"{REGS}\n{line}", ".param .u64 a, .param .u32 n")


def linker_accepts(text: str, arch: str = "sm_90") -> bool:
    nvjitlink = pytest.importorskip("cuda.bindings.nvjitlink")
    data = text.encode()
    try:
        handle = nvjitlink.create(1, [f"-arch={arch}"])
    except (RuntimeError, OSError) as error:  # the package without the library
        pytest.skip(f"nvJitLink cannot be used: {error}")
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), "test.ptx")
        nvjitlink.complete(handle)
    except nvjitlink.nvJitLinkError:
        return False
    finally:
        nvjitlink.destroy(handle)
    return True


@pytest.mark.parametrize("version", ["6.3", "7.0", "8.0", "8.1", "8.8"])
@pytest.mark.parametrize("target", ["sm_60", "sm_70", "sm_75"])
@pytest.mark.parametrize("size", [4352, 4353, 32764, 32765])
def test_an_entry_has_as_many_bytes_of_parameters_as_assemblers_allow(version: str, target: str, size: int) -> None:
    head = f".version {version}\n.target {target}\n.address_size 64\n"
    text = head + f".visible .entry k(.param .b8 x[{size - 1}], .param .b8 y) {{ ret; }}\n"
    accepted = linker_accepts(text)
    assert accepted == (size <= (32764 if version >= "8.1" and target > "sm_60" else 4352))
    if accepted:
        assert sim.parse(text).entries["k"].params[0].size == size - 1
        return
    with pytest.raises(CompileError, match=f"the parameters have {size} bytes") as caught:
        sim.parse(text)
    assert caught.value.line == 4


def test_a_function_may_have_more() -> None:
    head = ".version 7.0\n.target sm_75\n.address_size 64\n"
    text = head + ".func f(.param .b8 x[40000]) { ret; }\n.entry k() { ret; }\n"
    assert linker_accepts(text)
    assert sim.parse(text).entries


def test_an_unknown_target_says_which_there_are() -> None:
    words = r"there is no \.target sm_999; there are sm_50, .*sm_90, sm_100, .*sm_121, some"
    with pytest.raises(CompileError, match=words):
        sim.parse(".version 7.0\n.target sm_999\n.address_size 64\n")


@pytest.mark.parametrize("line", GOOD)
def test_what_assemblers_take(line: str) -> None:
    assert sim.parse(text_of(line)).entries["k"].params[0].type == ".u64"


@pytest.mark.parametrize("line", BAD)
def test_what_assemblers_refuse_with_its_line(line: str) -> None:
    with pytest.raises(CompileError) as caught:
        sim.parse(text_of(line))
    assert caught.value.line in (10, 11), caught.value
    if caught.value.line == 10:
        assert line.strip() in str(caught.value)
    assert "> " in str(caught.value)


def test_nvjitlink_agrees_on_all_of_these() -> None:
    wrong = [line for line in GOOD if not linker_accepts(text_of(line))]
    assert not wrong
    wrong = [line for line in BAD if linker_accepts(text_of(line))]
    assert not wrong


@pytest.mark.parametrize(("text", "line", "words"), [
    ("", 1, "empty"),
    ("  \n\n", 1, "empty"),
    ("// nothing\n", 1, "comments"),
    ("__global__ void k() {}\n", 1, "not PTX"),
    ("\n\nhello world\n", 3, "not PTX"),
    (".version 9.9\n.target sm_80\n.address_size 64\n", 1, "9.9"),
    (".version eight\n.target sm_80\n", 1, "two numbers"),
    (".version 8.0\n.address_size 64\n", 2, ".target"),
    (".version 8.0\n.target gfx942\n", 2, "gfx942"),
    (".version 8.0\n.target sm_80\n.address_size 32\n", 3, "address_size 64"),
    (HEAD + "caf\u00e9\n", 4, "which may stand in comments alone: "),
    (HEAD + ".visible .entry k() { ret; }\n.visible .entry k() { ret; }\n", 5, "twice"),
    (HEAD + ".visible .entry k(.param .u32 a, .param .u32 a) { ret; }\n", 4, "twice"),
    (HEAD + ".visible .entry k()\n{\nret;\n", 5, "never closed"),
    (HEAD + ".global .u32 x;\n.global .f32 x;\n", 5, "twice"),
    (HEAD + "/* never\nends", 4, "never ends"),
    (HEAD + ".visible .entry k() { .reg .u32 a, b; .reg .f32 a; ret; }\n", 4, "twice"),
    (HEAD + ".visible .entry k() { .reg .u32 a2;\n.reg .f32 a<3>; ret; }\n", 5, "a2 is declared twice"),
    (HEAD + ".visible .entry k() { .reg .f32 a<3>;\n.reg .u32 a2; ret; }\n", 5, "a2 is declared twice"),
    (HEAD + ".visible .entry k() { .reg .f32 a<3>;\n.reg .u32 a<2>; ret; }\n", 5, "twice"),
    (HEAD + ".visible .entry k() {\n.reg .u32 a;\nmov.u32 a, 08;\nret; }\n", 6, "number"),
])  # fmt: skip
def test_faults_of_whole_texts(text: str, line: int, words: str) -> None:
    with pytest.raises(CompileError) as caught:
        sim.parse(text, "example")
    assert caught.value.line == line, caught.value
    assert words in str(caught.value)


def test_a_version_too_new_names_both() -> None:
    with pytest.raises(CompileError, match=r"9\.9 is newer than 9\.5"):
        sim.parse(HEAD.replace("8.0", "9.9"))
    major, minor = sim.MAX_PTX_VERSION
    assert sim.parse(HEAD.replace("8.0", f"{major}.{minor}")).version == sim.MAX_PTX_VERSION


@pytest.mark.parametrize("target", ["sm_52", "sm_75", "sm_90a", "sm_100f", "sm_120a", "compute_80"])
def test_targets_are_recorded(target: str) -> None:
    assert sim.parse(HEAD.replace("8.0", "9.5").replace("sm_80", target)).target == target


@pytest.mark.parametrize(("version", "target", "line", "words"), [
    ("8.9", "sm_90", 1, "no PTX .version 8.9"), ("7.9", "sm_50", 1, "no PTX"), ("6.6", "sm_50", 1, "no PTX"),
    ("3.3", "sm_30", 1, "no PTX"), ("3.0", "sm_30", 1, "older than 3.1"), ("0.9", "sm_10", 1, "older"),
    ("7.0", "sm_90", 2, ".version 7.8 or more"), ("7.7", "sm_90", 2, ".version 7.8"),
    ("7.8", "sm_90a", 2, ".version 8.0"),
    ("8.5", "sm_100", 2, "8.6"), ("8.7", "sm_100f", 2, "8.8"), ("8.6", "sm_99", 2, "no .target sm_99"),
    ("8.6", "sm_80a", 2, "no .target"), ("8.6", "sm_90f", 2, "no .target"), ("8.6", "compute_95", 2, "no .target"),
])  # fmt: skip
def test_versions_and_targets_that_an_assembler_refuses(version: str, target: str, line: int, words: str) -> None:
    text = f".version {version}\n.target {target}\n.address_size 64\n.visible .entry k() {{ ret; }}\n"
    with pytest.raises(CompileError) as caught:
        sim.parse(text)
    assert caught.value.line == line
    assert words in str(caught.value)


@pytest.mark.parametrize(("head", "code", "words"), [
    ("6.0 sm_50", "fence.acq_rel.gpu;", "sm_70"), ("7.8 sm_80", "fence.acquire.gpu;", "sm_90"),
    ("8.5 sm_90", "fence.release.gpu;", "8.6"), ("8.0 sm_90", "fence.acq_rel;", ".cta, .cluster"),
    ("8.0 sm_80", "membar.gpu;", ".cta, .gl"), ("8.0 sm_80", "barrier.cluster.arrive;", "sm_90"),
    ("8.0 sm_80", "mov.u32 u, %cluster_ctarank;", "sm_90"), ("7.0 sm_75", "cp.async.wait_all;", "sm_80"),
    ("7.8 sm_80", "elect.sync u|q, -1;", "sm_90"), ("7.8 sm_80", "atom.cluster.add.u32 u, [d], u;", "sm_90"),
    ("8.0 sm_80", "add.bf16 h, h, h;", "sm_90"), ("8.0 sm_75", "min.f16 h, h, h;", "sm_80"),
    ("8.6 sm_90", "max.f32 f, f, f, f;", "sm_100"), ("8.0 sm_60", "ld.relaxed.gpu.u32 u, [d];", "sm_70"),
    ("8.0 sm_80", "ld.relaxed.u32 u, [d];", "scope"), ("8.0 sm_80", "ld.gpu.u32 u, [d];", "order"),
    ("8.0 sm_80", "ld.release.gpu.u32 u, [d];", "release"), ("8.0 sm_80", "st.acquire.gpu.u32 [d], u;", "acquire"),
    ("8.0 sm_80", "ld.acquire.gpu.local.u32 u, [d];", ".shared"), ("8.0 sm_80", "ld.shared.nc.u32 u, [u];", ".nc"),
    ("8.0 sm_80", "ld.volatile.global.cg.u32 u, [d];", "cg"), ("8.0 sm_80", "st.global.ca.u32 [d], u;", "ca"),
    ("8.0 sm_80", "ld.volatile.const.u32 u, [d];", ".shared"), ("9.0 sm_80", "st.volatile.local.u32 [d], u;", "9.1"),
    ("8.0 sm_80", "atom.volatile.add.u32 u, [d], u;", "volatile"),
    ("8.0 sm_80", "red.acquire.gpu.add.u32 [d], u;", "acquire"),
    ("8.0 sm_80", "atom.gpu.cta.add.u32 u, [d], u;", "cta"), ("8.0 sm_80", "bar.sync.aligned 0;", "aligned"),
])  # fmt: skip
def test_what_the_target_or_the_version_is_too_old_for_and_what_does_not_go_together(
    head: str, code: str, words: str
) -> None:
    version, target = head.split()
    registers = ".reg .u32 u; .reg .u64 d; .reg .pred q; .reg .b16 h; .reg .f32 f;\n"
    with pytest.raises(CompileError) as caught:
        sim.parse(kernel(registers + code, head=f".version {version}\n.target {target}\n.address_size 64\n"))
    assert caught.value.line == 8
    assert words in str(caught.value).splitlines()[0]


def test_the_assembler_knows_the_same_versions_and_targets() -> None:
    pytest.importorskip("cuda.bindings.nvjitlink")
    text = ".version {}.{}\n.target {}\n.address_size 64\n.visible .entry k() {{ ret; }}\n"

    def refused(version: tuple[int, int], target: str) -> bool:
        try:
            compile_ptx(text.format(*version, target), "sm_90")
        except CompileError as error:
            log = f"{error} {error.log}"
            return any(words in log for words in ("Unsupported .version", "Unsupported .target", "does not support"))
        return False

    if refused(sim.MAX_PTX_VERSION, "sm_90"):
        pytest.skip("nvJitLink is older than the table")
    versions = [(major, minor) for major in range(4, 10) for minor in range(10)]
    assert {version for version in versions if not refused(version, "sm_30")} == {v for v in VERSIONS if v[0] > 3}
    for name, first in TARGETS.items():
        assert not refused(first, f"sm_{name}"), name
        earlier = [version for version in VERSIONS if version < first]
        assert not earlier or refused(max(earlier), f"sm_{name}"), name


@pytest.mark.parametrize("line", [
    "wgmma.fence.sync.aligned;", "mbarrier.init.shared.b64 [%ul0], 1;", "cp.async.bulk.commit_group;",
    "tcgen05.fence::before_thread_sync;",
])  # fmt: skip
def test_what_is_known_and_not_run_is_unsupported(line: str) -> None:
    with pytest.raises(Unsupported, match=r"line 10") as caught:
        sim.parse(text_of(line))
    assert line.partition(".")[0] in str(caught.value)


def test_entries_tell_their_resources() -> None:
    text = (
        HEAD
        + """.shared .align 8 .b8 buffer[24];
    .const .u32 table[3];
    .visible .entry k(.param .u8 a, .param .u64 b, .param .align 8 .b8 c[12], .param .f32 d)
    .maxntid 128, 2, 1
    { .reg .f32 %f<10>; .reg .f64 x, y; .reg .pred p; .local .b8 stack[20]; .shared .u32 more;
      .reg .u32 r; mov.u32 r, buffer; mov.u32 r, more; ret; }
    .entry l() .reqntid 64 { ret; }
    """
    )
    program = sim.parse(text)
    entry = program.entries["k"]
    assert [(p.name, p.type, p.size, p.align, p.offset) for p in entry.params] == [
        ("a", ".u8", 1, 1, 0), ("b", ".u64", 8, 8, 8), ("c", ".b8", 12, 8, 16), ("d", ".f32", 4, 4, 28)]  # fmt: skip
    assert (entry.shared_bytes, entry.local_bytes, entry.const_bytes, entry.registers) == (28, 20, 12, 15)
    assert (entry.max_threads, entry.required_block, entry.line) == (256, None, 6)
    assert (program.entries["l"].required_block, program.entries["l"].shared_bytes) == ((64, 1, 1), 0)
    assert program.version == (8, 0)


def test_debug_sections_and_comments_are_skipped() -> None:
    text = (
        HEAD
        + """.file 1 "a.cu"
    .visible .entry k() /* c */
    {
    .loc 1 2 3
    ret; // end
    }
    .section .debug_str { .b8 1, 2, 3
    info: .b8 0 }
    """
    )
    assert sim.parse(text).entries["k"].line == 5


def test_a_range_leaves_its_stem_free() -> None:
    body = ".reg .b64 %y; .reg .f32 %y<3>; .reg .u32 %y3; mov.f32 %y2, 0f00000000; mov.u64 %y, 1; mov.u32 %y3, 2; ret;"
    assert sim.parse(HEAD + f".visible .entry k() {{ {body} }}\n", "example").entries
