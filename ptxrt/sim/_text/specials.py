"""The special registers and their types."""

from __future__ import annotations

from ptxrt.sim._text.types import TYPES, PtxType

__all__ = ["DYNAMIC", "HALVED", "RESERVED_SHARED", "SPECIAL_NEEDS", "SPECIAL_TYPES"]

_U32 = TYPES["u32"]
_U64 = TYPES["u64"]
_PLAIN = ("laneid", "warpid", "nwarpid", "smid", "nsmid", "lanemask_eq", "lanemask_le", "lanemask_lt", "lanemask_ge",
          "lanemask_gt", "clock", "clock_hi", "globaltimer_lo", "globaltimer_hi", "dynamic_smem_size",
          "total_smem_size", "aggr_smem_size", "cluster_ctarank", "cluster_nctarank")  # fmt: skip

RESERVED_SHARED = tuple(f"%reserved_smem_offset_{what}" for what in ("begin", "end", "cap", "0", "1"))
"""Where the shared memory is that a GPU's system keeps for itself, and libraries such as cooperative groups use."""

_AXES = ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")

SPECIAL_TYPES: dict[str, PtxType] = {
    **{f"%{name}.{axis}": _U32 for name in _AXES for axis in "xyzw"},
    **{f"%{name}": _U32 for name in _PLAIN},
    **{f"%envreg{number}": _U32 for number in range(32)},
    **{f"%pm{number}": _U32 for number in range(8)},
    **{f"%pm{number}_64": _U64 for number in range(8)},
    **dict.fromkeys(RESERVED_SHARED, _U32),
    "%gridid": _U64,
    "%current_graph_exec": _U64,
    "%is_explicit_cluster": TYPES["pred"],
    "%clock64": _U64,
    "%globaltimer": _U64,
}
"""Every special register that the machine has, with its type."""

SPECIAL_NEEDS: dict[str, tuple[int, tuple[int, int]]] = {
    **{name: (90, (7, 8)) for name in SPECIAL_TYPES if "cluster" in name},
    **dict.fromkeys(RESERVED_SHARED, (80, (7, 6))),
    "%aggr_smem_size": (90, (8, 1)),
    "%current_graph_exec": (50, (8, 0)),
    **{f"%pm{number}_64": (50, (4, 0)) for number in range(8)},
}
"""The least target and version of those that came late."""

HALVED = frozenset(f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyzw")
"""Those that had 16 bits once, and that mov may still read as such."""

DYNAMIC = frozenset({"%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"})
"""Those that are read anew each time: they count the instructions that the chunk has executed."""
