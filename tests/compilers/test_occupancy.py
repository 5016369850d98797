"""Blocks of a multiprocessor, held against values worked out by hand from NVIDIA's tables."""

from __future__ import annotations

import re
from typing import Any

import pytest

import ptxrt
from ptxrt import ops
from ptxrt.compilers.occupancy import occupancy


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks", "limit"),
    [
        ("sm_90", 256, 32, 0, 8, "warps"),
        ("sm_90a", 32, 32, 0, 32, "blocks"),
        ("sm_90", 128, 64, 0, 8, "registers"),  # 8 warps in each quarter of 16384 registers
        ("sm_90", 96, 64, 0, 10, "registers"),  # 32 warps, of 3 each
        ("sm_90", 128, 33, 0, 12, "registers"),  # 33 * 32 = 1056 registers, 1280 as they are handed out
        ("sm_90", 96, 40, 0, 16, "registers"),  # 12 warps of 1280 in each quarter; undivided it would be 17 blocks
        ("sm_90", 1024, 64, 0, 1, "registers"),
        ("sm_90", 1024, 65, 0, 0, "registers"),  # 32 warps of 2304 registers are more than there are
        ("sm_90", 32, 255, 0, 8, "registers"),
        ("sm_90", 64, 16, 48 << 10, 4, "shared"),  # 49 KiB with the system's one
        ("sm_90", 64, 16, 227 << 10, 1, "shared"),
        ("sm_75", 64, 16, 32 << 10, 2, "shared"),  # nothing is the system's there
        ("sm_75", 1024, 32, 0, 1, "warps"),
        ("sm_86", 1024, 32, 0, 1, "warps"),
        ("sm_86", 768, 32, 0, 2, "warps"),
        ("sm_89", 32, 32, 0, 24, "blocks"),
        ("sm_120", 32, 32, 0, 24, "blocks"),
        ("sm_80", 32, 32, 4224, 32, "blocks"),  # 5248 bytes with the 1024 of the system, of 167936
        ("sm_80", 32, 32, 4225, 31, "shared"),  # 5376, as it is handed out
    ],
)
def test_blocks_of_a_multiprocessor(
    arch: str, threads: int, registers: int, shared: int, blocks: int, limit: str
) -> None:
    found = occupancy(arch, threads, registers, shared)
    assert found is not None
    assert (found.blocks, found.limit) == (blocks, limit)
    assert found.warps == blocks * -(-threads // 32)


@pytest.mark.parametrize(
    ("arch", "barriers", "blocks", "limit"),
    [
        ("sm_90", 2, 32, "blocks"),
        ("sm_90a", 3, 21, "barriers"),  # of 64
        ("sm_90", 16, 4, "barriers"),
        ("sm_100", 16, 4, "barriers"),
        ("sm_103", 16, 2, "barriers"),  # of 32
        ("sm_120", 16, 1, "barriers"),  # of 24
        ("sm_80", 16, 32, "blocks"),  # which the driver does not count there
    ],
)
def test_barriers_limit_the_blocks(arch: str, barriers: int, blocks: int, limit: str) -> None:
    found = occupancy(arch, 32, 16, 0, barriers)
    assert found is not None
    assert (found.blocks, found.limit) == (blocks, limit)


@pytest.mark.parametrize("arch", ["sm_61", "sm_999", "gfx90a", ""])
def test_an_architecture_that_is_not_known_has_no_answer(arch: str) -> None:
    assert occupancy(arch, 32, 32, 0) is None


@pytest.mark.cuda
@pytest.mark.parametrize("spec", [spec for spec in ops.kernels() if spec.language == "ptx"], ids=lambda s: s.entry)
def test_the_driver_says_the_same(cuda: ptxrt.Device, spec: Any) -> None:
    kernel = spec.load(cuda)
    used, ask = kernel.resources, "cuOccupancyMaxActiveBlocksPerMultiprocessor"
    backend: Any = cuda.backend
    barriers = kernel._module.binary.reports[spec.entry].barriers
    assert barriers is not None
    required = re.search(r"\.reqntid (\d+)", kernel.source.text)
    for threads in (int(required[1]),) if required else (32, 96, 128, 256, 512, 1024):
        if threads > used.max_threads:
            continue
        for dynamic in (0, 1000, 20000):
            if used.shared_bytes + dynamic > cuda.properties.max_shared_static:
                continue  # for which a kernel must be opted in
            with backend._current(cuda.ordinal):
                blocks = backend._call(ask, kernel._function, threads, dynamic)[1]
            found = occupancy(cuda.arch, threads, used.registers, used.shared_bytes + dynamic, barriers)
            assert found is None or found.blocks == blocks
