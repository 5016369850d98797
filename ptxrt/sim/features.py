"""Which target and which version of PTX an instruction wants, as ptxas does: by its name, and by its modifiers."""

from __future__ import annotations

from collections.abc import Iterator

from ptxrt.sim.program import Instruction

__all__ = ["requirements"]

Need = tuple[int, tuple[int, int]]

_ATOMICS = ("atom", "red")
_SUMS = ("add", "sub", "mul")
_HALVES = ("f16", "f16x2")
_BF16 = ("bf16", "bf16x2")
_ANY = "*"

_NEEDS: dict[tuple[str, str], Need] = {
    # By name.
    ("activemask", ""): (0, (6, 2)),
    ("applypriority", ""): (80, (7, 4)),
    ("barrier", ""): (0, (5, 1)),
    ("bmsk", ""): (70, (7, 6)),
    ("createpolicy", ""): (80, (7, 4)),
    ("discard", ""): (80, (7, 4)),
    ("dp2a", ""): (61, (5, 0)),
    ("dp4a", ""): (61, (5, 0)),
    ("elect", ""): (90, (8, 0)),
    ("fence", ""): (70, (5, 1)),
    ("getctarank", ""): (90, (7, 8)),
    ("griddepcontrol", ""): (90, (7, 8)),
    ("lop3", ""): (50, (4, 3)),
    ("mapa", ""): (90, (7, 8)),
    ("match", ""): (70, (5, 1)),
    ("nanosleep", ""): (70, (6, 2)),
    ("redux", ""): (80, (7, 0)),
    ("szext", ""): (70, (7, 6)),
    ("tanh", ""): (75, (7, 0)),
    # By a modifier of any instruction.
    (_ANY, "NaN"): (80, (7, 0)),
    (_ANY, "cluster"): (90, (7, 8)),
    (_ANY, "mmio"): (70, (8, 2)),
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
    ("bar", "warp"): (0, (5, 1)),
    ("barrier", "cta"): (0, (7, 8)),
    ("barrier", "acquire"): (90, (8, 0)),
    ("barrier", "relaxed"): (90, (8, 0)),
    ("barrier", "release"): (90, (8, 0)),
    ("cp", "async"): (80, (7, 0)),
    ("fence", "acquire"): (90, (8, 6)),
    ("fence", "async"): (90, (8, 0)),
    ("fence", "mbarrier_init"): (90, (8, 0)),
    ("fence", "proxy"): (70, (7, 5)),
    ("isspacep", "param"): (70, (7, 7)),
    ("lop3", "and"): (70, (8, 2)),
    ("lop3", "or"): (70, (8, 2)),
    ("prefetch", "L2::evict_last"): (80, (7, 4)),
    ("prefetch", "L2::evict_normal"): (80, (7, 4)),
    ("shfl", "sync"): (0, (5, 1)),
    ("vote", "sync"): (0, (5, 1)),
    **{(name, kind): (53, (4, 2)) for name in (*_SUMS, "fma", "setp", "set") for kind in _HALVES},
    **{(name, kind): (53, (5, 1) if name == "neg" else (6, 5)) for name in ("neg", "abs") for kind in _HALVES},
    **{(name, kind): (80, (7, 0)) for name in ("min", "max") for kind in _HALVES},
    **{("ex2", kind): (75, (7, 0)) for kind in _HALVES},
    **{(name, kind): (90, (7, 8)) for name in (*_SUMS, "ex2", "tanh", "setp", "set", *_ATOMICS) for kind in _BF16},
    **{(name, scope): (60, (5, 0)) for name in _ATOMICS for scope in ("cta", "gpu", "sys")},
    **{(name, kind): (70, (6, 3)) for name in _ATOMICS for kind in ("b16", "f16")},
    **{(name, "f16x2"): (60, (6, 2)) for name in _ATOMICS},
    **{(name, "f64"): (60, (5, 0)) for name in _ATOMICS},
}
"""By name and modifier, ``*`` any name and an empty modifier any: the least target and version."""


def requirements(ins: Instruction) -> Iterator[tuple[str, int, tuple[int, int]]]:
    """Yield what of an instruction wants which target and version."""
    for modifier in ("", *ins.modifiers):
        for name in (ins.name, _ANY):
            need = _NEEDS.get((name, modifier))
            if need is not None:
                yield f"{ins.name}.{modifier}" if modifier else ins.name, *need
