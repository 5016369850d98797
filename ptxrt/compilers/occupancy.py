"""How many blocks of a kernel a multiprocessor of NVIDIA's can hold at one time.

The limits are those of the CUDA programming guide, "Technical Specifications per Compute Capability"; how registers
and shared memory are handed out, and how much of it the system keeps, is as in NVIDIA's header cuda_occupancy.h, which
comes with the package nvidia-cuda-runtime (13.5).
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Occupancy", "occupancy"]

# By compute capability: warps, blocks, and KiB of shared memory of a multiprocessor.
_LIMITS = {
    70: (64, 32, 96), 72: (64, 32, 96), 75: (32, 16, 64),
    80: (64, 32, 164), 86: (48, 16, 100), 87: (48, 16, 164), 89: (48, 24, 100),
    90: (64, 32, 228), 100: (64, 32, 228), 101: (48, 24, 228), 103: (64, 32, 228), 110: (48, 24, 228),
    120: (48, 24, 100), 121: (48, 24, 100),
}  # fmt: skip
_TWO_BARRIERS = (90, 100)  # for each block that there can be; others have one
_REGISTERS = 65536
_PARTS = 4  # of a multiprocessor, each with a quarter of the registers
_REGISTERS_AT_ONCE = 256


class Occupancy(NamedTuple):
    """What a multiprocessor holds.

    Attributes
    ----------
    blocks, warps
        At one time; 0 where the kernel cannot be launched so.
    most_warps
        What it could hold of other kernels.
    limit
        What there is too little of for one block more: ``"warps"``, ``"blocks"``, ``"registers"``, ``"shared"`` or
        ``"barriers"``.
    """

    blocks: int
    warps: int
    most_warps: int
    limit: str


def occupancy(arch: str, threads: int, registers: int, shared_bytes: int, barriers: int = 0) -> Occupancy | None:
    """Return how many blocks a multiprocessor holds; None for an architecture whose limits are not known here.

    Parameters
    ----------
    arch
        ``"sm_90"``, ``"sm_90a"``.
    threads
        Of a block.
    registers
        Of a thread.
    shared_bytes
        Of a block, static and dynamic.
    barriers
        Of a block, as :class:`~ptxrt.compilers.Report` counts them.
    """
    found = re.fullmatch(r"sm_(\d+)[af]?", arch)
    limits = _LIMITS.get(int(found[1])) if found else None
    if found is None or limits is None:
        return None
    most_warps, most_blocks, kibibytes = limits
    capability = int(found[1])
    recent = capability >= 80
    warps = -(-threads // 32)
    bounds = {"warps": most_warps // warps, "blocks": most_blocks}
    of_a_warp = _rounded_up(max(registers, 1) * 32, _REGISTERS_AT_ONCE)
    if of_a_warp * _rounded_up(warps, _PARTS) > _REGISTERS:
        bounds["registers"] = 0
    else:
        bounds["registers"] = _REGISTERS // _PARTS // of_a_warp * _PARTS // warps
    of_a_block = _rounded_up(shared_bytes + (1024 if recent else 0), 128 if recent else 256)
    if of_a_block:
        bounds["shared"] = kibibytes * 1024 // of_a_block
    if barriers and capability >= 90:  # before, the driver does not count them
        bounds["barriers"] = (2 if capability in _TWO_BARRIERS else 1) * most_blocks // barriers
    limit = min(bounds, key=lambda name: bounds[name])
    return Occupancy(bounds[limit], bounds[limit] * warps, most_warps, limit)


def _rounded_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
