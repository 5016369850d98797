"""What wants which target and version: every entry of the machine's table against its example, and nvJitLink."""

from __future__ import annotations

import random

import pytest
from machine import kernel

from ptxrt import sim
from ptxrt.compilers.nvjitlink import architectures, available, compile_ptx
from ptxrt.errors import CompileError
from ptxrt.sim._instructions.features import _NEEDS
from ptxrt.sim._text.specials import RESERVED_SHARED
from ptxrt.sim._text.targets import TARGETS, VERSIONS

Version = tuple[int, int]

REGISTERS = ".reg .pred p, q; .reg .b16 h; .reg .b32 r; .reg .b64 d;\n"
OLDEST = 20
"""The table does not distinguish older targets: what came with sm_11 to sm_20 is not in it."""

DRAWS = 800
SMALL = ("u8", "s8")
INTS = {"u16": "h", "u32": "r", "u64": "d", "s16": "h", "s32": "r", "s64": "d"}

EXAMPLES = {
    ("activemask", ""): "activemask.b32 r;",
    ("applypriority", ""): "applypriority.global.L2::evict_normal [d], 128;",
    ("barrier", ""): "barrier.sync 0;",
    ("bmsk", ""): "bmsk.clamp.b32 r, r, r;",
    ("brx", ""): "T: .branchtargets L; brx.idx r, T; L:",
    ("createpolicy", ""): "createpolicy.fractional.L2::evict_last.b64 d, 0.5;",
    ("discard", ""): "discard.global.L2 [d], 128;",
    ("dp2a", ""): "dp2a.lo.u32.u32 r, r, r, r;",
    ("dp4a", ""): "dp4a.u32.u32 r, r, r, r;",
    ("elect", ""): "elect.sync r|q, -1;",
    ("fence", ""): "fence.sc.gpu;",
    ("getctarank", ""): "getctarank.u64 r, d;",
    ("fns", ""): "fns.b32 r, r, r, r;",
    ("griddepcontrol", ""): "griddepcontrol.wait;",
    ("ldmatrix", ""): "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {r}, [r];",
    ("lop3", ""): "lop3.b32 r, r, r, r, 1;",
    ("mapa", ""): "mapa.u64 d, d, r;",
    ("match", ""): "match.any.sync.b32 r, r, -1;",
    ("movmatrix", ""): "movmatrix.sync.aligned.m8n8.trans.b16 r, r;",
    ("nanosleep", ""): "nanosleep.u32 r;",
    ("redux", ""): "redux.sync.add.u32 r, r, -1;",
    ("shf", ""): "shf.l.wrap.b32 r, r, r, r;",
    ("stmatrix", ""): "stmatrix.sync.aligned.m8n8.x1.shared.b16 [r], {r};",
    ("szext", ""): "szext.clamp.u32 r, r, r;",
    ("tanh", ""): "tanh.approx.f32 r, r;",
    ("*", "NaN"): "min.NaN.f32 r, r, r;",
    ("*", "cluster"): "barrier.cluster.arrive;",
    ("*", "mmio"): "ld.mmio.relaxed.sys.global.u32 r, [d];",
    ("*", "param::entry"): "ld.param::entry.u64 d, [out];",
    ("*", "param::func"): "{ .param .b32 x; st.param::func.b32 [x], r; }",
    ("*", "relu"): "fma.rn.relu.f16 h, h, h, h;",
    ("*", "shared::cluster"): "ld.shared::cluster.u32 r, [r];",
    ("*", "shared::cta"): "ld.shared::cta.u32 r, [r];",
    ("*", "tf32"): "cvt.rna.tf32.f32 r, r;",
    ("*", "L2::cache_hint"): "ld.global.L2::cache_hint.u32 r, [d], d;",
    ("*", "weak"): "ld.weak.u32 r, [d];",
    ("*", "relaxed"): "ld.relaxed.gpu.u32 r, [d];",
    ("*", "acquire"): "ld.acquire.gpu.u32 r, [d];",
    ("*", "release"): "st.release.gpu.u32 [d], r;",
    ("*", "acq_rel"): "atom.acq_rel.gpu.add.u32 r, [d], r;",
    ("*", "bf16"): "fma.rn.bf16 h, h, h, h;",
    ("*", "bf16x2"): "fma.rn.bf16x2 r, r, r, r;",
    **{("*", f"L1::evict_{how}"): f"ld.global.L1::evict_{how}.u32 r, [d];" for how in ("normal", "first", "last")},
    **{("*", f"L1::{how}"): f"st.global.L1::{how}.u32 [d], r;" for how in ("evict_unchanged", "no_allocate")},
    **{("*", f"L2::{size}B"): f"ld.global.L2::{size}B.u32 r, [d];" for size in (64, 128, 256)},
    ("bar", "cta"): "bar.cta.sync 0;",
    ("bar", "warp"): "bar.warp.sync -1;",
    ("barrier", "cta"): "barrier.cta.sync 0;",
    ("barrier", "acquire"): "barrier.cluster.wait.acquire;",
    ("barrier", "relaxed"): "barrier.cluster.arrive.relaxed;",
    ("barrier", "release"): "barrier.cluster.arrive.release;",
    ("cp", "async"): "cp.async.wait_all;",
    ("cp", "shared::cta"): "cp.async.cg.shared::cta.global [r], [d], 16;",
    ("cvt", "f16x2"): "cvt.rn.f16x2.f32 r, r, r;",
    # On sm_89 itself these want 8.1: see EXCEPTIONS.
    ("cvt", "e4m3x2"): "cvt.rn.satfinite.e4m3x2.f32 h, r, r;",
    ("cvt", "e5m2x2"): "cvt.rn.f16x2.e5m2x2 r, h;",
    ("cvta", "param"): "cvta.param.u64 d, d;",
    ("cvta", "param::entry"): "cvta.param::entry.u64 d, d;",
    ("fence", "async"): "fence.proxy.async;",
    ("fence", "async::generic"): "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;",
    ("fence", "mbarrier_init"): "fence.mbarrier_init.release.cluster;",
    ("fence", "proxy"): "fence.proxy.alias;",
    ("fence", "tensormap::generic"): "fence.proxy.tensormap::generic.acquire.gpu [d], 128;",
    ("isspacep", "param"): "isspacep.param q, d;",
    ("isspacep", "param::entry"): "isspacep.param::entry q, d;",
    ("ld", "nc"): "ld.global.nc.u32 r, [d];",
    ("lop3", "and"): "lop3.and.b32 r|q, r, r, r, 1, q;",
    ("lop3", "or"): "lop3.or.b32 r|q, r, r, r, 1, q;",
    ("membar", "proxy"): "membar.proxy.alias;",
    ("mov", "b128"): ".reg .b128 w; mov.b128 w, {d, d};",
    ("prefetch", "L2::evict_last"): "prefetch.global.L2::evict_last [d];",
    ("prefetch", "L2::evict_normal"): "prefetch.global.L2::evict_normal [d];",
    ("prefetch", "tensormap"): "prefetch.tensormap [d];",
    ("shfl", "sync"): "shfl.sync.bfly.b32 r, r, 1, 31, -1;",
    ("vote", "sync"): "vote.sync.all.pred q, q, -1;",
    ("suq", "array_size"): "suq.array_size.b32 r, [d];",
    ("tex", "f16"): "tex.2d.v4.f16.f32 {h, h, h, h}, [d, {r, r}];",
    ("tex", "f16x2"): "tex.2d.v2.f16x2.f32 {r, r}, [d, {r, r}];",
    ("tld4", "a2d"): "tld4.r.a2d.v4.u32.f32 {r, r, r, r}, [d, {r, r, r, r}];",
    ("txq", "array_size"): "txq.array_size.b32 r, [d];",
    ("txq", "level"): "txq.level.width.b32 r, [d], r;",
    ("txq", "num_mipmap_levels"): "txq.num_mipmap_levels.b32 r, [d];",
    ("atom", "b16"): "atom.global.cas.b16 h, [d], h, h;",
    ("cvt", "f32.bf16"): "cvt.f32.bf16 r, h;",
    ("cvt", "rn.tf32"): "cvt.rn.tf32.f32 r, r;",
    ("cvt", "rz.tf32"): "cvt.rz.relu.tf32.f32 r, r;",
    ("cvt", "satfinite.tf32"): "cvt.rna.satfinite.tf32.f32 r, r;",
    ("cvt", "bf16.f16"): "cvt.rn.bf16.f16 h, h;",
    ("cvt", "bf16.bf16"): "cvt.rni.bf16.bf16 h, h;",
    ("cvt", "bf16.f64"): "cvt.rn.bf16.f64 h, d;",
    ("cvt", "f16.bf16"): "cvt.rn.f16.bf16 h, h;",
    ("cvt", "f64.bf16"): "cvt.f64.bf16 d, h;",
    **{("cvt", f"bf16.{kind}"): f"cvt.rn.bf16.{kind} h, {source};" for kind, source in INTS.items()},
    **{("cvt", f"{kind}.bf16"): f"cvt.rzi.{kind}.bf16 {to}, h;" for kind, to in INTS.items()},
    **{("cvt", f"bf16.{kind}"): f".reg .{kind} c; cvt.rn.bf16.{kind} h, c;" for kind in SMALL},
    **{("cvt", f"{kind}.bf16"): f".reg .{kind} c; cvt.rzi.{kind}.bf16 c, h;" for kind in SMALL},
    **{("set", f"{kind}.f16"): f"set.lt.{kind}.f16 {INTS[kind]}, h, h;" for kind in ("u16", "s16", "u32", "s32")},
    **{("set", f"{kind}.f16x2"): f"set.lt.{kind}.f16x2 r, r, r;" for kind in ("u32", "s32")},
    **{("setp", kind): f"setp.lt.{kind} p|q, r, r;" for kind in ("f16x2", "bf16x2")},
    **{("set", kind): f"set.lt.{kind}.{kind} r, r, r;" for kind in ("f16x2", "bf16x2")},
    ("cvt", "pack"): "cvt.pack.sat.u16.s32 r, r, r;",
    **{("cvt", kind): f"cvt.pack.sat.{kind}.s32.b32 r, r, r, r;" for kind in ("u2", "s2", "u4", "s4")},
    **{("setp", kind): f"setp.lt.{kind} q, h, h;" for kind in ("f16", "bf16")},
    **{("set", kind): f"set.lt.{kind}.{kind} h, h, h;" for kind in ("f16", "bf16")},
}
for _kind, _r in {"f16": "h", "f16x2": "r", "bf16": "h", "bf16x2": "r"}.items():
    _two, _three = f"{_r}, {_r}", f"{_r}, {_r}, {_r}"
    EXAMPLES.update({(name, _kind): f"{name}.{_kind} {_three};" for name in ("add", "sub", "mul")})
    EXAMPLES["ex2", _kind] = f"ex2.approx{'.ftz' if _kind.startswith('b') else ''}.{_kind} {_two};"
    EXAMPLES["atom", _kind] = f"atom.global.add.noftz.{_kind} {_r}, [d], {_r};"
    EXAMPLES["red", _kind] = f"red.global.add.noftz.{_kind} [d], {_r};"
    if _kind.startswith("b"):
        EXAMPLES["tanh", _kind] = f"tanh.approx.{_kind} {_two};"
    else:
        EXAMPLES["fma", _kind] = f"fma.rn.{_kind} {_two}, {_two};"
        EXAMPLES.update({(name, _kind): f"{name}.{_kind} {_two};" for name in ("neg", "abs")})
        EXAMPLES.update({(name, _kind): f"{name}.{_kind} {_three};" for name in ("min", "max")})
for _name, _to in (("atom", "d, "), ("red", "")):
    EXAMPLES.update(
        {(_name, scope): f"{_name}.{scope}.global.add.u32 {_to and 'r, '}[d], r;" for scope in ("cta", "gpu", "sys")}
    )
    EXAMPLES[_name, "f64"] = f"{_name}.global.add.f64 {_to}[d], d;"
    for _how in ("and.b64", "or.b64", "xor.b64", "min.u64", "min.s64", "max.u64", "max.s64"):
        EXAMPLES[_name, _how] = f"{_name}.global.{_how} {_to}[d], d;"

_FOUR, _TWO, _ONE = "{r, r, r, r}", "{r, r}", "{r}"
MATRICES = {
    f"mma.sync.aligned.m8n8k4.row.row.f16.f16.f16.f16 {_FOUR}, {_TWO}, {_TWO}, {_FOUR};": (70, (6, 4)),
    f"mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {_FOUR}, {_TWO}, {_ONE}, {_FOUR};": (75, (6, 5)),
    f"mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {_TWO}, {_FOUR}, {_TWO}, {_TWO};": (80, (7, 0)),
    f"mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {_FOUR}, {_TWO}, {_ONE}, {_FOUR};": (80, (7, 0)),
    f"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {_FOUR}, {_FOUR}, {_TWO}, {_FOUR};": (80, (7, 0)),
    "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {d, d}, {d}, {d}, {d, d};": (80, (7, 0)),
    "mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {d, d, d, d}, {d, d}, {d}, {d, d, d, d};": (90, (7, 8)),
    f"mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32 {_FOUR}, {_FOUR}, {_TWO}, {_FOUR};": (89, (8, 4)),
    f"mma.sync.aligned.m16n8k16.row.col.f32.e4m3.e5m2.f32 {_FOUR}, {_TWO}, {_ONE}, {_FOUR};": (89, (8, 7)),
    f"mma.sync.aligned.m16n8k32.row.col.f16.e4m3.e5m2.f16 {_TWO}, {_FOUR}, {_TWO}, {_TWO};": (89, (8, 7)),
    f"mma.sync.aligned.m8n8k16.row.col.satfinite.s32.u8.s8.s32 {_TWO}, {_ONE}, {_ONE}, {_TWO};": (75, (6, 5)),
    f"mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {_FOUR}, {_FOUR}, {_TWO}, {_FOUR};": (80, (7, 0)),
    f"mma.sync.aligned.m8n8k32.row.col.s32.u4.s4.s32 {_TWO}, {_ONE}, {_ONE}, {_TWO};": (75, (6, 5)),
    f"mma.sync.aligned.m16n8k32.row.col.s32.u4.s4.s32 {_FOUR}, {_TWO}, {_ONE}, {_FOUR};": (80, (7, 0)),
    f"mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.xor.popc {_TWO}, {_ONE}, {_ONE}, {_TWO};": (75, (7, 0)),
    f"mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.and.popc {_TWO}, {_ONE}, {_ONE}, {_TWO};": (80, (7, 1)),
    f"mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.xor.popc {_FOUR}, {_FOUR}, {_TWO}, {_FOUR};": (80, (7, 0)),
    f"mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {_FOUR}, {_TWO}, {_TWO}, {_FOUR}, r, 0;": (80, (7, 1)),
    f"mma.sp.sync.aligned.m16n8k64.row.col.f32.e4m3.e5m2.f32 {_FOUR}, {_FOUR}, {_FOUR}, {_FOUR}, r, 0;": (89, (8, 4)),
    f"mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {_FOUR}, {_TWO}, {_TWO}, {_FOUR}, r, 0;": (
        80, (8, 5)),
}  # fmt: skip

_EIGHT = "{r, r, r, r, r, r, r, r}"
WMMA = {
    f"wmma.load.a.sync.aligned.row.m16n16k16.f16 {_EIGHT}, [d];": (70, (6, 3)),
    f"wmma.load.b.sync.aligned.col.m8n32k16.f16 {_EIGHT}, [d], r;": (70, (6, 3)),
    f"wmma.load.a.sync.aligned.row.m16n16k16.s8 {_TWO}, [d];": (72, (6, 3)),
    f"wmma.load.b.sync.aligned.col.m8n8k32.u4 {_ONE}, [d];": (75, (6, 3)),
    f"wmma.load.a.sync.aligned.row.m8n8k128.b1 {_ONE}, [d];": (75, (6, 3)),
    f"wmma.load.a.sync.aligned.row.m16n16k16.bf16 {_FOUR}, [d];": (80, (7, 0)),
    f"wmma.load.a.sync.aligned.row.m16n16k8.tf32 {_FOUR}, [d];": (80, (7, 0)),
    "wmma.load.a.sync.aligned.row.m8n8k4.f64 {d}, [d];": (80, (7, 0)),
    f"wmma.load.c.sync.aligned.row.m32n8k16.f32 {_EIGHT}, [d];": (70, (6, 3)),
    f"wmma.load.c.sync.aligned.row.m32n8k16.s32 {_EIGHT}, [d];": (72, (6, 3)),
    f"wmma.load.c.sync.aligned.row.m8n8k32.s32 {_TWO}, [d];": (75, (6, 3)),
    f"wmma.load.c.sync.aligned.row.m16n16k8.f32 {_EIGHT}, [d];": (80, (7, 0)),
    f"wmma.store.d.sync.aligned.row.m16n16k16.f16 [d], {_FOUR};": (70, (6, 3)),
    f"wmma.store.d.sync.aligned.row.m8n8k128.s32 [d], {_TWO}, r;": (75, (6, 3)),
    "wmma.store.d.sync.aligned.row.m8n8k4.f64 [d], {d, d}, 8;": (80, (7, 0)),
    f"wmma.mma.sync.aligned.row.col.m16n16k16.f32.f16 {_EIGHT}, {_EIGHT}, {_EIGHT}, {_FOUR};": (70, (6, 3)),
    f"wmma.mma.sync.aligned.row.row.m16n16k16.s32.u8.u8.s32.satfinite {_EIGHT}, {_TWO}, {_TWO}, {_EIGHT};": (
        72,
        (6, 3),
    ),
    f"wmma.mma.sync.aligned.row.col.m8n8k32.s32.s4.s4.s32 {_TWO}, {_ONE}, {_ONE}, {_TWO};": (75, (6, 3)),
    f"wmma.mma.xor.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32 {_TWO}, {_ONE}, {_ONE}, {_TWO};": (75, (6, 3)),
    f"wmma.mma.and.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32 {_TWO}, {_ONE}, {_ONE}, {_TWO};": (80, (7, 1)),
    f"wmma.mma.sync.aligned.col.col.m16n16k16.f32.bf16.bf16.f32 {_EIGHT}, {_FOUR}, {_FOUR}, {_EIGHT};": (80, (7, 0)),
    "wmma.mma.sync.aligned.row.col.m8n8k4.rz.f64.f64.f64.f64 {d, d}, {d}, {d}, {d, d};": (80, (7, 0)),
}

OTHERS = {
    "fence.acquire.gpu;": (90, (8, 6)),
    "fence.release.gpu;": (90, (8, 6)),
    "ld.global.v8.b32 {r, r, r, r, r, r, r, r}, [d];": (100, (8, 8)),
    "st.global.v4.b64 [d], {d, d, d, d};": (100, (8, 8)),
    "ld.volatile.local.u32 r, [r];": (0, (9, 1)),
    ".reg .b128 w; ld.global.b128 w, [d];": (70, (8, 3)),
    ".reg .b128 w; atom.global.exch.b128 w, [d], w;": (90, (8, 3)),
    "red.global.v2.f32.add [d], {r, r};": (90, (8, 1)),
    "min.xorsign.abs.f32 r, r, r;": (86, (7, 2)),
    "max.f32 r, r, r, r;": (100, (8, 8)),
    "add.u16x2 r, r, r;": (90, (8, 0)),
    "min.relu.s32 r, r, r;": (90, (8, 0)),
    "tex.2d.v4.u32.f32 {r, r, r, r}|q, [d, {r, r}];": (60, (7, 1)),
    "tex.2d.v4.u32.f32 {r, r, r, r}, [d, {r, r}], {r, r};": (30, (4, 3)),
    "sured.b.max.1d.s64.trap [d, r], d;": (50, (8, 1)),
    **MATRICES,
    **WMMA,
    "cvt.ftz.f32.bf16 r, h;": (90, (7, 8)),
    "cvt.rn.satfinite.f16.f32 h, r;": (70, (8, 1)),
    "cvt.rz.relu.satfinite.bf16x2.f32 r, r, r;": (80, (8, 1)),
    "cvt.rn.satfinite.tf32.f32 r, r;": (100, (8, 6)),
    "mov.u64 d, %pm7_64;": (50, (4, 0)),
    "mov.u32 r, %aggr_smem_size;": (90, (8, 1)),
    "mov.u32 r, %cluster_ctarank;": (90, (7, 8)),
    "mov.u64 d, %current_graph_exec;": (50, (8, 0)),
    **{f"mov.u32 r, {name};": (80, (7, 6)) for name in RESERVED_SHARED},
}
"""What the definitions ask for themselves, because it is more than a name and modifiers that tells."""

CASES = [*((code, _NEEDS[key]) for key, code in EXAMPLES.items()), *OTHERS.items()]

EXCEPTIONS = {
    "sm_89 wants 8.1 for 8-bit floats, sm_90 only 7.8": ("cvt.rn.satfinite.e4m3x2.f32 h, r, r;", (7, 8), "89"),
    "the same of the other one": ("cvt.rn.f16x2.e5m2x2 r, h;", (8, 0), "89"),
    "which register is read": ("mov.u64 d, %globaltimer;", (3, 1), "20"),
    "the type of an operand": ("cp.async.ca.shared.global [r], [d], 8, q;", (7, 1), "80"),
}
"""By why the table cannot say it, what the machine accepts and ptxas refuses."""


def text_of(code: str, version: Version, target: str) -> str:
    head = f".version {version[0]}.{version[1]}\n.target sm_{target}\n.address_size 64\n"
    return kernel(REGISTERS + code, head=head)


def number(target: str) -> int:
    return int(target.rstrip("af"))


def machine_accepts(code: str, version: Version, target: str) -> bool:
    try:
        sim.parse(text_of(code, version, target))
    except CompileError:
        return False
    return True


def linker_accepts(code: str, version: Version, target: str) -> bool:
    """Ask nvJitLink, for an output that is new enough: it makes nothing for the targets of old."""
    output = target if number(target) > 90 or target == "90a" else "90"
    try:
        compile_ptx(text_of(code, version, target), f"sm_{output}")
    except CompileError:
        return False
    return True


@pytest.fixture(scope="module")
def linker() -> None:
    """Skip where there is no nvJitLink that knows all versions of the table."""
    reason = available()
    if reason is None and not linker_accepts("", max(VERSIONS), "90"):
        reason = "nvJitLink is older than the table"
    if reason is not None:
        pytest.skip(f"{len(CASES)} examples are not compared: {reason}")


def limits(need: tuple[int, Version]) -> tuple[list[tuple[Version, str]], list[tuple[Version, str]]]:
    """Return the points that an entry just lets pass, and those one step below in the version or the target.

    The first that passes has the oldest target; the other, where that came after the oldest version, has this.
    """
    least, first = need
    targets = sorted((name for name in TARGETS if name.isdigit() and int(name) >= OLDEST), key=int)
    place = next(place for place, name in enumerate(targets) if int(name) >= least)
    target = targets[place]
    version = max(first, TARGETS[target])
    at = [(version, target)]
    if first < version:
        at += [(first, name) for name in targets[place:] if TARGETS[name] <= first][:1]
    below = [(max(older for older in VERSIONS if older < version), target)]
    if least > OLDEST:
        below.append((version, next(name for name in reversed(targets[:place]) if TARGETS[name] <= version)))
    return at, below


def is_exception(code: str, version: Version, target: str) -> bool:
    """Tell whether an example is one of an 8-bit float on sm_89, whose version the table has as of sm_90."""
    return target == "89" and version < (8, 1) and ("e4m3x2" in code or "e5m2x2" in code)


def test_every_entry_has_an_example() -> None:
    assert set(EXAMPLES) == set(_NEEDS)
    for (name, modifier), code in EXAMPLES.items():
        wanted = set(filter(None, [name.strip("*"), *modifier.split(".")]))
        assert any(wanted <= set(word.rstrip(";").split(".")) for word in code.split()), code


@pytest.mark.parametrize(("code", "need"), CASES)
def test_the_machine_accepts_an_example_from_its_entry_on(code: str, need: tuple[int, Version]) -> None:
    at, below = limits(need)
    refused = [point for point in at if not machine_accepts(code, *point)]
    assert not refused
    accepted = [point for point in below if machine_accepts(code, *point)]
    assert not accepted


@pytest.mark.usefixtures("linker")
def test_nvjitlink_accepts_the_examples_from_the_same_on() -> None:
    wrong = []
    for code, need in CASES:
        at, below = limits(need)
        for point in (*at, *below):
            if linker_accepts(code, *point) != (point in at) and not is_exception(code, *point):
                wrong.append((code, point))
    assert not wrong


@pytest.mark.usefixtures("linker")
def test_nvjitlink_agrees_at_other_versions_and_targets() -> None:
    drawn = random.Random(0)
    known = {number(name.removeprefix("sm_")) for name in architectures()}
    targets = [name for name in TARGETS if OLDEST <= number(name) <= 90 or number(name) in known]
    wrong, accepted = [], 0
    for _ in range(DRAWS):
        code, target = drawn.choice(CASES)[0], drawn.choice(targets)
        version = drawn.choice(sorted(version for version in VERSIONS if version >= TARGETS[target]))
        verdict = linker_accepts(code, version, target)
        accepted += verdict
        if verdict != machine_accepts(code, version, target) and not is_exception(code, version, target):
            wrong.append((code, version, target, verdict))
    assert not wrong
    assert DRAWS / 10 < accepted < DRAWS * 9 / 10  # or little was compared


@pytest.mark.usefixtures("linker")
@pytest.mark.parametrize("reason", EXCEPTIONS)
def test_what_the_table_cannot_say(reason: str) -> None:
    point = EXCEPTIONS[reason]
    assert machine_accepts(*point)
    assert not linker_accepts(*point), "the machine could accept it no longer than ptxas does: take it out here"
