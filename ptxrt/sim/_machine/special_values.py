"""What each lane of a chunk reads from the special registers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxrt.sim._machine.layout import RESERVED_SHARED_BYTES
from ptxrt.sim._machine.shape import Shape
from ptxrt.sim._text.specials import SPECIAL_TYPES
from ptxrt.sim._text.types import Array

__all__ = ["special_values"]


def _uint(value: int) -> Array:
    return np.array([value & 0xFFFFFFFF], np.uint32)


def special_values(name: str, shape: Shape, first_block: int, blocks: int, workspace: int) -> Array:
    """Return the values for the threads of `blocks` blocks from `first_block`, or shape (1,) where all agree."""
    stem, _, axis = name[1:].partition(".")
    if axis:
        if axis == "w":
            return _uint(0)
        place = "xyz".index(axis)
        if stem == "ntid":
            return _uint(shape.block[place])
        counts = {
            "nctaid": shape.grid[place],
            "cluster_nctaid": shape.cluster[place],
            "nclusterid": shape.grid[place] // shape.cluster[place],
        }
        if stem in counts:
            return _uint(counts[stem])
        if stem == "tid":
            if shape.block[place] == 1:
                return _uint(0)
            return np.tile(shape.thread_axis(place).astype(np.uint32), blocks)
        of_block: dict[str, tuple[int, Callable[[Array, int], Array]]] = {
            "ctaid": (shape.grid[place], shape.block_axis),
            "clusterid": (shape.grid[place] // shape.cluster[place], shape.cluster_axis),
            "cluster_ctaid": (shape.cluster[place], shape.rank_axis),
        }
        most, find = of_block[stem]
        if most == 1:
            return _uint(0)
        index = find(np.arange(first_block, first_block + blocks, dtype=np.int64), place).astype(np.uint32)
        return index if blocks == 1 else np.repeat(index, shape.threads)
    if stem == "is_explicit_cluster":
        return np.array([shape.is_cluster])
    if stem == "cluster_ctarank":
        if shape.cluster_blocks == 1:
            return _uint(0)
        rank = np.arange(first_block, first_block + blocks) % shape.cluster_blocks
        return np.repeat(rank.astype(np.uint32), shape.threads)
    if stem in ("envreg1", "envreg2"):
        # As NVIDIA's driver has it: the high and the low half of the address of the grid's workspace.
        return _uint(workspace >> 32 if stem == "envreg1" else workspace)
    if stem in ("smid", "gridid", "current_graph_exec") or stem.startswith(("envreg", "pm")):
        return np.zeros(1, SPECIAL_TYPES[name].dtype)
    used = shape.shared_static + shape.shared_dynamic
    reserved = shape.shared_total - RESERVED_SHARED_BYTES
    plain = {
        "nsmid": 1,
        "nwarpid": 64,
        "dynamic_smem_size": shape.shared_dynamic,
        "total_smem_size": -(-used // 128) * 128,
        "aggr_smem_size": used + RESERVED_SHARED_BYTES,
        # Distances as an H200 has them.
        "reserved_smem_offset_begin": reserved,
        "reserved_smem_offset_end": reserved + 288,
        "reserved_smem_offset_cap": RESERVED_SHARED_BYTES,
        "reserved_smem_offset_0": reserved,
        "reserved_smem_offset_1": reserved,
        "cluster_nctarank": shape.cluster_blocks,
    }
    if stem in plain:
        return _uint(plain[stem])
    number = np.arange(shape.threads, dtype=np.uint32)
    if stem == "warpid":
        return np.tile(number >> np.uint32(5), blocks)
    lane = number & np.uint32(31)
    bit = np.left_shift(np.uint32(1), lane)
    masks = {
        "laneid": lane,
        "lanemask_eq": bit,
        "lanemask_lt": bit - np.uint32(1),
        "lanemask_le": (bit - np.uint32(1)) | bit,
        "lanemask_gt": ~((bit - np.uint32(1)) | bit),
        "lanemask_ge": ~(bit - np.uint32(1)),
    }
    return np.tile(masks[stem], blocks)
