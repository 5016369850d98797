"""Which target and which version of PTX an instruction wants, as ptxas does: by its name, and by its modifiers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from ptxrt.sim._text.syntax import Instruction

__all__ = ["requirements"]

Need = tuple[int, tuple[int, int]]

_ATOMICS = ("atom", "red")
_SUMS = ("add", "sub", "mul")
_HALVES = ("f16", "f16x2")
_BF16 = ("bf16", "bf16x2")
_EIGHTHS = ("e4m3x2", "e5m2x2")
_INTS = ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64")
_ANY = "*"

_NEEDS: dict[tuple[str, str], Need] = {
    # By name.
    ("activemask", ""): (30, (6, 2)),
    ("applypriority", ""): (80, (7, 4)),
    ("barrier", ""): (30, (5, 1)),
    ("bmsk", ""): (70, (7, 6)),
    ("brx", ""): (30, (5, 1)),
    ("createpolicy", ""): (80, (7, 4)),
    ("discard", ""): (80, (7, 4)),
    ("dp2a", ""): (61, (5, 0)),
    ("dp4a", ""): (61, (5, 0)),
    ("elect", ""): (90, (8, 0)),
    ("fence", ""): (70, (5, 1)),
    ("fns", ""): (30, (5, 1)),
    ("getctarank", ""): (90, (7, 8)),
    ("griddepcontrol", ""): (90, (7, 8)),
    ("ldmatrix", ""): (75, (6, 5)),
    ("lop3", ""): (50, (4, 3)),
    ("mapa", ""): (90, (7, 8)),
    ("match", ""): (70, (5, 1)),
    ("movmatrix", ""): (75, (7, 8)),
    ("nanosleep", ""): (70, (6, 2)),
    ("redux", ""): (80, (7, 0)),
    ("shf", ""): (32, (3, 1)),
    ("stmatrix", ""): (90, (7, 8)),
    ("szext", ""): (70, (7, 6)),
    ("tanh", ""): (75, (7, 0)),
    # By a modifier of any instruction.
    (_ANY, "NaN"): (80, (7, 0)),
    (_ANY, "cluster"): (90, (7, 8)),
    (_ANY, "mmio"): (70, (8, 2)),
    (_ANY, "param::entry"): (0, (8, 3)),
    (_ANY, "param::func"): (0, (8, 3)),
    (_ANY, "relu"): (80, (7, 0)),
    (_ANY, "shared::cluster"): (90, (7, 8)),
    (_ANY, "shared::cta"): (0, (7, 8)),
    (_ANY, "tf32"): (80, (7, 0)),
    (_ANY, "L2::cache_hint"): (80, (7, 4)),
    **{(_ANY, order): (70, (5, 1)) for order in ("weak", "relaxed", "acquire", "release", "acq_rel")},
    **{(_ANY, kind): (80, (7, 0)) for kind in _BF16},
    (_ANY, "L1::evict_normal"): (70, (7, 4)),
    **{(_ANY, f"L1::{how}"): (70, (7, 4)) for how in ("evict_first", "evict_last", "evict_unchanged", "no_allocate")},
    (_ANY, "L2::64B"): (75, (7, 4)),
    (_ANY, "L2::128B"): (75, (7, 4)),
    (_ANY, "L2::256B"): (80, (7, 4)),
    # By both.
    ("bar", "cta"): (0, (7, 8)),
    ("bar", "warp"): (30, (5, 1)),
    ("barrier", "cta"): (30, (7, 8)),
    ("barrier", "acquire"): (90, (8, 0)),
    ("barrier", "relaxed"): (90, (8, 0)),
    ("barrier", "release"): (90, (8, 0)),
    ("cp", "async"): (80, (7, 0)),
    ("cp", "shared::cta"): (80, (7, 0)),
    ("cvt", "f16x2"): (80, (7, 0)),
    **{("cvt", kind): (89, (7, 8)) for kind in _EIGHTHS},
    ("cvta", "param"): (70, (7, 7)),
    ("cvta", "param::entry"): (70, (8, 3)),
    ("fence", "async"): (90, (8, 0)),
    ("fence", "async::generic"): (90, (8, 6)),
    ("fence", "mbarrier_init"): (90, (8, 0)),
    ("fence", "proxy"): (70, (7, 5)),
    ("fence", "tensormap::generic"): (90, (8, 3)),
    ("isspacep", "param"): (70, (7, 7)),
    ("isspacep", "param::entry"): (70, (8, 3)),
    ("ld", "nc"): (32, (3, 1)),
    ("lop3", "and"): (70, (8, 2)),
    ("lop3", "or"): (70, (8, 2)),
    ("membar", "proxy"): (60, (7, 5)),
    ("mov", "b128"): (70, (8, 3)),
    ("prefetch", "L2::evict_last"): (80, (7, 4)),
    ("prefetch", "L2::evict_normal"): (80, (7, 4)),
    ("prefetch", "tensormap"): (90, (8, 0)),
    ("shfl", "sync"): (30, (5, 1)),
    ("suq", "array_size"): (0, (4, 1)),
    **{("tex", kind): (53, (4, 2)) for kind in _HALVES},
    ("tld4", "a2d"): (30, (4, 3)),
    ("txq", "array_size"): (0, (4, 1)),
    ("txq", "level"): (30, (4, 3)),
    ("txq", "num_mipmap_levels"): (0, (4, 1)),
    ("vote", "sync"): (30, (5, 1)),
    **{(name, kind): (53, (4, 2)) for name in (*_SUMS, "fma") for kind in _HALVES},
    **{(name, kind): (53, (4, 2)) for name in ("setp", "set") for kind in _HALVES},
    ("cvt", "pack"): (72, (6, 5)),
    **{("cvt", kind): (75, (6, 5)) for kind in ("u2", "s2", "u4", "s4")},
    **{(name, kind): (53, (5, 1) if name == "neg" else (6, 5)) for name in ("neg", "abs") for kind in _HALVES},
    **{(name, kind): (80, (7, 0)) for name in ("min", "max") for kind in _HALVES},
    **{("ex2", kind): (75, (7, 0)) for kind in _HALVES},
    **{(name, kind): (90, (7, 8)) for name in (*_SUMS, "ex2", "tanh", *_ATOMICS) for kind in _BF16},
    **{(name, kind): (90, (7, 8)) for name in ("setp", "set") for kind in _BF16},
    **{(name, scope): (60, (5, 0)) for name in _ATOMICS for scope in ("cta", "gpu", "sys")},
    ("atom", "b16"): (70, (6, 3)),
    **{(name, "f16"): (70, (6, 3)) for name in _ATOMICS},
    **{(name, "f16x2"): (60, (6, 2)) for name in _ATOMICS},
    **{(name, "f64"): (60, (5, 0)) for name in _ATOMICS},
    # By the name and two modifiers, in the order of the text.
    **{(name, f"{how}.b64"): (32, (3, 1)) for name in _ATOMICS for how in ("and", "or", "xor")},
    **{(name, f"{how}.{kind}"): (32, (3, 1)) for name in _ATOMICS for how in ("min", "max") for kind in ("u64", "s64")},
    **{("cvt", f"bf16.{kind}"): (90, (7, 8)) for kind in (*_INTS, "f16", "bf16", "f64")},
    **{("cvt", f"{kind}.bf16"): (90, (7, 8)) for kind in (*_INTS, "f16", "f64")},
    ("cvt", "f32.bf16"): (80, (7, 1)),
    **{("cvt", f"{way}.tf32"): (90, (7, 8)) for way in ("rn", "rz")},
    ("cvt", "satfinite.tf32"): (80, (8, 1)),
    **{("set", f"{kind}.f16"): (53, (6, 5)) for kind in ("u16", "s16", "u32", "s32")},
    **{("set", f"{kind}.f16x2"): (53, (6, 5)) for kind in ("u32", "s32")},
}
"""By name and modifier, ``*`` any name and an empty modifier any: the least target and version.

What is by both stands for what is by the modifier alone. Targets below sm_20 are not distinguished: their instructions
that came with sm_11 to sm_20 are not here.
"""

_PAIRED = {name for name, modifier in _NEEDS if "." in modifier}


def requirements(ins: Instruction) -> Iterator[tuple[str, int, tuple[int, int]]]:
    """Yield what of an instruction wants which target and version."""
    modifiers = ["", *ins.modifiers]
    if ins.name in _PAIRED:
        modifiers += [f"{first}.{second}" for first, second in combinations(ins.modifiers, 2)]
    for modifier in modifiers:
        need = _NEEDS.get((ins.name, modifier)) or _NEEDS.get((_ANY, modifier))
        if need is not None:
            yield f"{ins.name}.{modifier}" if modifier else ins.name, *need
