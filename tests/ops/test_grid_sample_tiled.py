"""grid_sample's kernels with tiles: boxes that fit, that are cut, and that are left out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import Rng, Shape
from op_testing import Guarded, check_error, on_device, wish
from test_grid_sample import LOOPS, OUTSIDE, TYPES, VARIANTS, each_type, of_16_bits
from test_grid_sample_backward import VARIANTS as BACKWARD
from test_grid_sample_backward import check
from test_grid_sample_modes import backward as padded_gradients
from test_grid_sample_modes import bar

import ptxrt
from ptxrt import Device, PlanPreference, Unsupported
from ptxrt import sim as machine
from ptxrt.backends import sim as backend
from ptxrt.dtypes import BY_NAME, BY_NUMPY
from ptxrt.ops import (
    GridSampleArgs,
    GridSampleBackwardArgs,
    GridSampleBackwardDescriptor,
    GridSampleBackwardPlan,
    GridSampleDescriptor,
    GridSamplePlan,
    references,
)
from ptxrt.ops._grid_sample_modes_tiled import CellsConfig, HipCellsConfig
from ptxrt.ops._grid_sample_tiled import TileConfig
from ptxrt.ops._grid_sample_tiled_backward import HipTiledBackwardConfig, TiledBackwardConfig
from ptxrt.ops._grid_sample_tiled_cells import TiledCellsConfig
from ptxrt.ops._grid_sample_tiled_channels import TiledChannelsConfig
from ptxrt.ops.framework import Config

each_variant = pytest.mark.parametrize("variant", sorted({*VARIANTS} - {*LOOPS}))


def smooth(rng: Rng, shape: Shape, size: tuple[int, int], name: str, scale: float, noise: float) -> Any:
    """Return an image, and a grid of its pixels' centres, scaled, turned a little, and with noise."""
    x = rng.standard_normal(shape).astype(TYPES[name])
    rows, columns = (np.linspace(-scale, scale, length) for length in size)
    centres = np.stack(np.meshgrid(columns, rows), axis=-1) @ np.array([[1, 0.2], [-0.1, 1]])
    return x, (centres + noise * rng.standard_normal((shape[0], *size, 2))).astype(TYPES[name])


def forward(device: Device, variant: str, x: Any, grid: Any, offset: int = 0, config: Config | None = None) -> Any:
    descriptor = GridSampleDescriptor(x.shape, grid.shape, BY_NAME[BY_NUMPY[x.dtype].name])
    plan = GridSamplePlan.select(device, descriptor, wish(variant, config=config))
    out = Guarded((*x.shape[:2], *grid.shape[1:3]), x.dtype, device, offset)
    plan.run(GridSampleArgs(on_device(x, device, offset), on_device(grid, device, offset), out.array))
    return out.host()


each_shape = pytest.mark.parametrize(
    ("shape", "size", "scale", "noise", "config"),
    [
        ((1, 3, 24, 32), (19, 70), 0.9, 0.02, (64, 8, 1, 4)),  # the box of a tile fits
        ((2, 5, 24, 30), (9, 66), 1.1, 0.0, (128, 8, 1, 4)),  # two parts; rows at no multiple of 16 bytes
        ((1, 2, 40, 48), (8, 64), 0.9, 0.1, (64, 2, 1, 4)),  # it is cut
        ((1, 5, 64, 64), (9, 65), 1.2, 0.5, (64, 1, 1, 8)),  # no box
        ((1, 2, 100, 4), (8, 64), 0.9, 0.3, (64, 1, 1, 4)),  # one of a few columns is cut
        ((1, 9, 10, 12), (9, 65), 0.9, 0.02, (64, 4, 8, 16)),  # in turn, several at a time, the last ones fewer
        ((1, 33, 6, 32), (17, 64), 0.5, 0.0, (128, 2, 1, 64)),  # its channels come in several goes
        ((1, 1, 8, 96), (8, 64), 3.0, 0.0, (64, 4, 2, 4)),  # most points touch nothing
    ],
    ids=str,
)


@each_shape
@each_type
@each_variant
@pytest.mark.sanitize
def test_tiles_give_the_bits_of_the_baseline(
    device: Device, rng: Rng, variant: str, name: str, shape: Shape, size: Any, scale: float, noise: float, config: Any
) -> None:
    x, grid = smooth(rng, shape, size, name, scale, noise)
    want = forward(device, variant.replace("tiled", "baseline"), x, grid)
    for offset in (0, 1):
        assert forward(device, variant, x, grid, offset, TileConfig(*config)).tobytes() == want.tobytes()


def in_cells(device: Device, x: Any, grid: Any, offsets: Any, config: Any) -> Any:
    """Return the bytes that `tiled_cells` gives; x, grid and y lie `offsets` elements behind round addresses."""
    descriptor = GridSampleDescriptor(x.shape, grid.shape, BY_NAME[BY_NUMPY[x.dtype].name])
    plan = GridSamplePlan.select(device, descriptor, wish("tiled_cells", config=TiledCellsConfig(*config)))
    out = Guarded(descriptor.out_shape, x.dtype, device, offsets[2])
    plan.run(GridSampleArgs(on_device(x, device, offsets[0]), on_device(grid, device, offsets[1]), out.array))
    return out.host().tobytes()


@pytest.mark.parametrize(
    ("shape", "size", "scale", "noise", "config"),
    [
        (
            (1, 3, 80, 160),
            (19, 68),
            0.3,
            0.01,
            (64, 24, 4),
        ),  # boxes inside the image, rows of more than a warp takes at once
        ((2, 4, 40, 96), (70, 64), 0.3, 0.02, (512, 48, 4)),  # the same of four channels
        ((1, 3, 24, 32), (19, 68), 0.9, 0.02, (192, 16, 4)),  # boxes at the edges
        (
            (1, 7, 24, 40),
            (9, 72),
            1.1,
            0.02,
            (64, 16, 8),
        ),  # in turn, four channels and three; points that touch nothing
        ((2, 6, 24, 30), (9, 66), 1.1, 0.0, (128, 8, 4)),  # two parts; rows of x, of points and of results at any bytes
        (
            (1, 2, 40, 48),
            (8, 64),
            0.9,
            0.1,
            (64, 4, 4),
        ),  # it is cut: some points have patches, others none are left for
        ((1, 4, 40, 48), (8, 64), 0.9, 0.1, (512, 6, 4)),  # patches in both rows
        ((1, 5, 64, 64), (9, 65), 1.2, 0.5, (64, 1, 8)),  # no box
        ((1, 2, 100, 4), (8, 64), 0.9, 0.3, (64, 1, 4)),  # one of a few columns is cut
        ((1, 1, 2, 400), (8, 64), 0.9, 0.1, (64, 4, 4)),  # one of a few rows is cut
        ((1, 33, 6, 32), (17, 64), 0.5, 0.0, (128, 8, 64)),  # its channels come in several goes, the last one alone
        ((1, 3, 8, 96), (8, 64), 3.0, 0.0, (64, 8, 4)),  # most points touch nothing
    ],
    ids=str,
)
@of_16_bits
@pytest.mark.ptx
@pytest.mark.sanitize
def test_cells_of_four_channels_give_the_bits_of_the_baseline(
    device: Device, rng: Rng, name: str, shape: Shape, size: Any, scale: float, noise: float, config: Any
) -> None:
    x, grid = nearly_all(rng, shape, size, name, scale, noise)
    x.reshape(-1)[::77] = np.nan
    want = forward(device, "baseline", x, grid).tobytes()
    for offsets in ((0, 0, 0), (1, 0, 0), (4, 1, 0), (0, 0, 2), (8, 4, 4), (0, 8, 4)):
        assert in_cells(device, x, grid, offsets, config) == want


@pytest.mark.ptx
def test_a_box_fits_with_its_patches_in_shared_memory_of_any_size(device: Device, rng: Rng) -> None:
    x, grid = smooth(rng, (1, 1, 40, 40), (64, 64), "f16", 0.9, 0.1)
    want = forward(device, "baseline", x, grid).tobytes()
    for kib in range(1, 25):
        assert in_cells(device, x, grid, (0, 0, 0), (512, kib, 4)) == want


@pytest.mark.parametrize("channels", range(1, 10))
@pytest.mark.ptx
def test_any_number_of_channels_in_cells(device: Device, rng: Rng, channels: int) -> None:
    """Also as blocks of a part each."""
    x, grid = smooth(rng, (2, channels, 6, 16), (5, 12), "f16", 0.9, 0.1)
    want = forward(device, "baseline", x, grid).tobytes()
    for part in (4, 8, 12):
        assert in_cells(device, x, grid, (0, 0, 0), (64, 8, part)) == want


def test_cells_refuse_parts_of_cells(sim: Device) -> None:
    descriptor = GridSampleDescriptor((1, 3, 4, 4), (1, 4, 4, 2), BY_NAME["f16"])
    with pytest.raises(Unsupported, match="by fours"):
        GridSamplePlan.select(sim, descriptor, wish("tiled_cells", config=TiledCellsConfig(64, 8, 6)))


@pytest.mark.parametrize(
    ("variant", "config", "words"),
    [
        ("tiled", TileConfig(0, 8, 1, 4), "a block has a multiple of 64 threads, up to 512, not 0"),
        ("tiled", TileConfig(48, 8, 1, 4), "a multiple of 64 threads, up to 512, not 48"),
        ("tiled", TileConfig(96, 8, 1, 4), "a multiple of 64 threads, up to 512, not 96"),
        ("tiled", TileConfig(576, 8, 1, 4), "a multiple of 64 threads, up to 512, not 576"),
        ("tiled_cells", TiledCellsConfig(96, 8, 4), "a multiple of 64 threads, up to 512, not 96"),
        ("tiled_cells", TiledCellsConfig(576, 8, 4), "a multiple of 64 threads, up to 512, not 576"),
        ("backward tiled", TiledBackwardConfig(3, 0, 8), "a multiple of 32 threads, up to 512, not 3"),
        ("backward tiled", TiledBackwardConfig(96, 1, 8), "a multiple of 64 threads, up to 512, not 96"),
        ("backward tiled", TiledBackwardConfig(544, 0, 8), "a multiple of 32 threads, up to 512, not 544"),
        ("backward tiled", TiledBackwardConfig(512, 10**9, 8), "tiles up to 512 wide"),
        ("backward hip/tiled", HipTiledBackwardConfig(96, 1, 8), "a multiple of 64 threads, up to 512, not 96"),
        ("backward tiled_channels", TiledChannelsConfig(48, 16), "a multiple of 32 threads, up to 512, not 48"),
        ("backward tiled_channels", TiledChannelsConfig(544, 112), "a multiple of 32 threads, up to 512, not 544"),
    ],
    ids=str,
)
def test_tiles_refuse_threads_that_they_have_no_place_for(
    sim: Device, variant: str, config: Config, words: str
) -> None:
    """What the kernels would race for, or leave out."""
    plan: Any = GridSampleBackwardPlan if "backward" in variant else GridSamplePlan
    kind: Any = GridSampleBackwardDescriptor if "backward" in variant else GridSampleDescriptor
    with pytest.raises(Unsupported, match=words):
        plan.select(
            sim, kind((1, 3, 4, 4), (1, 4, 4, 2), BY_NAME["f16"]), wish(variant.rsplit(maxsplit=1)[-1], config=config)
        )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ((80, 8, 4), "a multiple of {row} threads, up to 256, not 80"),
        ((320, 8, 4), "a multiple of {row} threads, up to 256, not 320"),
        ((64, 8, 6), "channels by fours, not 6"),
    ],
    ids=str,
)
@pytest.mark.parametrize(("variant", "row"), [("general_tiled", 64), ("hip/general_tiled", 32)])
def test_tiles_of_other_modes_refuse_threads_and_parts_that_they_have_no_place_for(
    sim: Device, config: Any, words: str, variant: str, row: int
) -> None:
    descriptor = GridSampleDescriptor((1, 8, 4, 4), (1, 4, 4, 2), mode="bicubic")
    with pytest.raises(Unsupported, match=words.format(row=row)):
        GridSamplePlan.select(sim, descriptor, wish(variant, config=CELLS[variant](*config)))


@pytest.mark.parametrize(
    ("shape", "size", "how", "said"),
    [
        ((1, 4, 4, 8, 8), (4, 8, 8), {}, "bicubic images alone"),
        ((1, 4, 1 << 15, 1 << 15), (8, 8), {"mode": "bicubic"}, "fewer than 2..30 pixels"),
    ],
    ids=str,
)
def test_tiles_of_other_modes_refuse_in_hip_what_ptx_takes(
    sim: Device, shape: Shape, size: Shape, how: Any, said: str
) -> None:
    descriptor = GridSampleDescriptor(shape, (1, *size, len(size)), **how)
    assert GridSamplePlan.select(sim, descriptor, wish("general_tiled"))
    with pytest.raises(Unsupported, match=said):
        GridSamplePlan.select(sim, descriptor, wish("hip/general_tiled"))


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("shape", [(1, 3, 4, 8), (1, 3, 1, 1), (1, 2, 0, 8), (1, 4, 3, 0)], ids=str)
@of_16_bits
@pytest.mark.ptx
def test_points_at_the_edges_of_cells_and_far_outside(device: Device, rng: Rng, name: str, shape: Shape) -> None:
    """Also where one begins to touch pixels, of as many as a side has, and those that are no numbers."""
    kind = TYPES[name]
    ends = [
        1 + 1 / side + step * 2.0 ** (-10 if name == "f16" else -7) for side in (1, 4, 8) for step in (-2, -1, 0, 1)
    ]
    values = np.array([*ends, *np.negative(ends), *OUTSIDE, 0.0, -0.0, 1e-7, -6e-5, *np.linspace(-3.2, 3.2, 41)], kind)
    grid = np.stack(np.meshgrid(values, values), axis=-1)[None].astype(kind)
    x = rng.standard_normal(shape).astype(kind)
    x.reshape(-1)[:3] = [np.inf, -np.inf, np.nan][: x.size]
    want = forward(device, "baseline", x, grid).tobytes()
    assert in_cells(device, x, grid, (0, 0, 0), (64, 8, 4)) == want
    assert in_cells(device, x, grid, (0, 0, 0), (64, 1, 4)) == want


def sampled(
    device: Device, variant: str, x: Any, grid: Any, offset: int = 0, config: Config | None = None, **how: Any
) -> Any:
    """Run another mode into a poisoned, guarded output; return the host result."""
    descriptor = GridSampleDescriptor(x.shape, grid.shape, BY_NAME[BY_NUMPY[x.dtype].name], **how)
    plan = GridSamplePlan.select(device, descriptor, wish(variant, config=config))
    out = Guarded(descriptor.out_shape, x.dtype, device, offset)
    plan.run(GridSampleArgs(on_device(x, device, offset), on_device(grid, device, offset), out.array))
    return out.host()


def nearly_all(rng: Rng, shape: Shape, size: Shape, name: str, scale: float, noise: float) -> Any:
    """Return x, and a grid of its pixels' centres, scaled, with noise, and some that are no numbers or far away."""
    x = rng.standard_normal(shape).astype(TYPES[name])
    axes = np.meshgrid(*(np.linspace(-scale, scale, length) for length in size), indexing="ij")
    grid = np.stack(axes[::-1], axis=-1) + noise * rng.standard_normal((shape[0], *size, len(size)))
    grid.reshape(-1)[[0, 3, 8]] = np.nan, np.inf, -9.0
    return x, grid.astype(TYPES[name])


CELLS = {"general_tiled": CellsConfig, "hip/general_tiled": HipCellsConfig}
each_tiled = pytest.mark.parametrize("variant", CELLS)
each_padding = pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
of_at_most_32_bits = pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
each_image = pytest.mark.parametrize(
    ("shape", "size", "scale", "noise", "config"),
    [
        ((1, 3, 14, 16), (9, 66), 0.9, 0.02, (64, 16, 4)),  # the box of a tile fits; zeros in place of a channel
        ((2, 9, 12, 15), (17, 40), 1.2, 0.0, (128, 16, 8)),  # two parts; taps outside; rows at no multiple of 4 bytes
        ((1, 4, 40, 48), (4, 64), 0.9, 0.1, (64, 8, 4)),  # it is cut
        ((1, 5, 64, 64), (5, 65), 1.2, 0.5, (64, 1, 8)),  # no box
        ((1, 17, 6, 16), (4, 64), 0.5, 0.0, (128, 2, 64)),  # its channels come in several goes
        ((1, 7, 60, 9), (9, 33), 0.9, 0.1, (256, 20, 8)),  # it is higher than wide
        ((1, 3, 64, 64), (16, 64), 0.9, 0.0, (64, 20, 4)),  # in HIP it is a little larger than its threads fill
        ((1, 2, 3, 2), (3, 70), 1.1, 0.0, (64, 8, 4)),  # fewer pixels than taps
    ],
    ids=str,
)


def check_tiles(
    device: Device, rng: Rng, variant: str, name: str, padding: str, shape: Shape, size: Any, near: Any, config: Any
) -> None:
    """Points in a box, outside of a small one and folded by the padding, from lanes of every kind."""
    x, grid = nearly_all(rng, shape, size, name, *near)
    how: Any = {
        "mode": "bicubic" if len(size) == 2 else "bilinear",
        "padding_mode": padding,
        "align_corners": len(shape) > 4,
    }
    small, given = (CELLS[variant](*each) for each in ((64, 1, 4), config))
    want = sampled(device, variant, x, grid, config=small, **how)
    exact = references.grid_sample(x, grid, **how)
    check_error("grid_sample, tiles", device, want, exact, bar(name, shape, exact), f"{variant} {how}")
    if len(size) == 3:
        assert want.tobytes() == sampled(device, "general", x, grid, **how).tobytes()
    for offset in (0, 1):
        assert sampled(device, variant, x, grid, offset, given, **how).tobytes() == want.tobytes()
    turned = np.roll(grid, 1, axis=-2)  # each point by another lane
    got = sampled(device, variant, x, turned, 0, given, **how)
    assert np.roll(got, -1, axis=-1).tobytes() == want.tobytes()
    x.reshape(-1)[::77] = np.nan
    want, got = (sampled(device, variant, x, grid, 0, each, **how) for each in (small, given))
    assert got.tobytes() == want.tobytes()


@each_image
@each_padding
@of_at_most_32_bits
@each_tiled
@pytest.mark.sanitize
def test_bicubic_tiles_give_the_same_bits_whatever_is_in_the_box(
    device: Device,
    rng: Rng,
    variant: str,
    name: str,
    padding: str,
    shape: Shape,
    size: Any,
    scale: float,
    noise: float,
    config: Any,
) -> None:
    check_tiles(device, rng, variant, name, padding, shape, size, (scale, noise), config)


@pytest.mark.parametrize(
    ("shape", "size", "scale", "noise", "config"),
    [
        ((2, 5, 5, 6, 14), (6, 5, 34), 0.9, 0.02, (128, 24, 8)),
        ((1, 9, 3, 6, 15), (9, 3, 33), 1.3, 0.1, (64, 8, 12)),
        ((1, 4, 20, 20, 20), (4, 2, 32), 0.9, 0.2, (64, 8, 4)),  # a cut box
        ((1, 4, 1, 1, 2), (2, 3, 5), 0.9, 0.0, (96, 8, 4)),
    ],
    ids=str,
)
@each_padding
@of_at_most_32_bits
@pytest.mark.ptx
@pytest.mark.sanitize
def test_tiles_of_volumes_give_the_same_bits_whatever_is_in_the_box(
    device: Device, rng: Rng, name: str, padding: str, shape: Shape, size: Any, scale: float, noise: float, config: Any
) -> None:
    check_tiles(device, rng, "general_tiled", name, padding, shape, size, (scale, noise), config)


@each_image
@each_padding
@of_at_most_32_bits
@pytest.mark.ptx
def test_bicubic_tiles_have_the_same_bits_in_both_languages(
    device: Device, rng: Rng, name: str, padding: str, shape: Shape, size: Any, scale: float, noise: float, config: Any
) -> None:
    x, grid = nearly_all(rng, shape, size, name, scale, noise)
    x.reshape(-1)[::77] = np.nan
    how: Any = {"mode": "bicubic", "padding_mode": padding, "align_corners": shape[1] % 2 == 0}
    ptx, hip = (
        sampled(device, variant, x, grid, config=kind(*config if "hip" in variant else (64, 16, 4)), **how)
        for variant, kind in CELLS.items()
    )
    assert hip.tobytes() == ptx.tobytes()


@of_at_most_32_bits
@each_tiled
def test_a_bicubic_sum_of_products_that_are_all_minus_zero_is_minus_zero(
    device: Device, variant: str, name: str
) -> None:
    """The weights of a point between the pixels of 4 x 4 are negative at the edges: zeros of these signs leave -0."""
    x = np.zeros((1, 4, 4, 4), TYPES[name])
    x[..., 1:3, 1:3] = -0.0
    grid = np.zeros((1, 1, 1, 2), TYPES[name])
    assert np.signbit(sampled(device, variant, x, grid, config=CELLS[variant](64, 16, 4), mode="bicubic")).all()


def counted(monkeypatch: pytest.MonkeyPatch, run: Callable[[], object], lines: str) -> Any:
    """Return sim's counts of the lines of a text that have this pattern in them."""
    profile, texts = machine.Profile(), []

    def launch(loaded: Any, *given: Any, **how: Any) -> Any:
        texts.append(loaded.program.source.text)
        return machine.launch(loaded, *given, **{**how, "profile": profile})

    monkeypatch.setattr(backend, "COLLECTORS", [launch])
    run()
    text = texts[-1].splitlines()
    return [found for number, found in profile.lines.items() if re.search(lines, text[number - 1])]


def reads_of_cells(device: Device, monkeypatch: pytest.MonkeyPatch, variant: str, x: Any, grid: Any) -> Any:
    """Return sim's counts of the loads of cells, in blocks of 256 threads and boxes as large as may be."""
    config = CELLS[variant](256, 80, 4)
    wide = r"ld\.shared\.v[24]\.\w+\s*\{%(cell_|f\d|rs\d)"
    return counted(monkeypatch, lambda: sampled(device, variant, x, grid, config=config, mode="bicubic"), wide)


@pytest.mark.parametrize("name", ["f32", "f16"])
@each_tiled
def test_lanes_that_read_cells_never_meet_in_a_bank(
    sim: Device, rng: Rng, monkeypatch: pytest.MonkeyPatch, name: str, variant: str
) -> None:
    """By the machine's own counts, for points anywhere."""
    x, grid = nearly_all(rng, (1, 4, 40, 48), (16, 64), name, 0.9, 0.05)
    read = reads_of_cells(sim, monkeypatch, variant, x, grid)
    assert sum(found.shared_requests for found in read) > 500
    assert sum(found.conflicts for found in read) == 0


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_lanes_that_add_channels_never_meet_in_a_bank(
    sim: Device, rng: Rng, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Those that read a channel of pixels take one turn more, where a row ends."""
    x, grid = nearly_all(rng, (1, 16, 24, 24), (16, 32), name, 0.9, 0.05)
    go = rng.standard_normal((1, 16, 16, 32)).astype(x.dtype)
    problem = GridSampleBackwardDescriptor(x.shape, grid.shape, BY_NAME[name])
    plan = GridSampleBackwardPlan.select(sim, problem, wish("tiled_channels", config=TiledChannelsConfig(512, 112)))
    arguments = GridSampleBackwardArgs(*(ptxrt.to_device(array, sim) for array in (go, x, grid)))

    def run() -> None:
        plan.run(arguments)

    added = counted(monkeypatch, run, r"ld\.relaxed\.cta\.shared|atom\.shared\.cas")
    assert sum(found.shared_requests for found in added) > 1000
    assert sum(found.conflicts for found in added) == 0
    read = counted(monkeypatch, run, r"ld\.shared\.f\d\d %go_[1-3]")
    assert sum(found.conflicts for found in read) < 1.25 * sum(found.shared_requests for found in read)


@each_tiled
def test_points_that_touch_the_image_are_read_from_the_box(
    sim: Device, rng: Rng, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    """With taps outside of the image, too."""
    x, grid = smooth(rng, (1, 4, 40, 48), (16, 64), "f32", 1.04, 0.0)
    grid = np.clip(grid, -1.04, 1.04)
    read = reads_of_cells(sim, monkeypatch, variant, x, grid)
    assert sum(found.lanes for found in read) == 16 * 16 * 64  # taps of each point


def test_who_serves_large_results() -> None:
    def chosen(shape: Shape, size: Shape, dtype: str, language: str = "ptx", **how: Any) -> str:
        descriptor = GridSampleDescriptor(shape, (shape[0], *size, len(size)), BY_NAME[dtype], **how)
        return GridSamplePlan.select("sim:0", descriptor, PlanPreference(language=language)).variant.name

    many, flat = ((8, 64, 128, 128), (128, 128)), ((4, 3, 1024, 1024), (1024, 1024))
    assert chosen(*flat, "f32") == chosen(*many, "f32") == "tiled"
    of_two = (4, 2, *flat[0][2:]), flat[1]
    assert chosen(*flat, "bf16") == chosen((1, 4, 9, 9), (1024, 1024), "f16") == "tiled_cells" != chosen(*of_two, "f16")
    fewer = (8, 32, 128, 128), (128, 128)
    assert (
        chosen(*fewer, "f16") == chosen(*many, "f16") == chosen((8, 3, 224, 224), (224, 224), "bf16") == "tiled_cells"
    )
    assert chosen((8, 33, 128, 128), (128, 128), "f16") == chosen((2, 256, 64, 64), (256, 256), "f64") == "tiled"
    assert chosen(*fewer, "f32") == chosen(*many, "f64") == chosen(*flat, "f64") == "baseline"
    assert chosen((8, 64, 128, 128), (63, 999), "f16") == "baseline"
    assert chosen(*many, "f32", mode="bicubic") == chosen((2, 16, 64, 64, 64), (64,) * 3, "f16") == "general_tiled"
    assert chosen(*flat, "f32", mode="bicubic") == chosen(*many, "f64", mode="bicubic") == "general"
    assert chosen(*many, "bf16", "hip", mode="bicubic") == "general_tiled"
    assert (
        chosen(*many, "f64", "hip", mode="bicubic") == chosen((2, 16, 64, 64, 64), (64,) * 3, "f16", "hip") == "general"
    )
    assert chosen((2, 16, 64, 64, 64), (64, 64, 31), "f32") == chosen(*many, "f32", padding_mode="border") == "general"


@pytest.mark.parametrize("size", [(64, 64), (8, 16, 64)], ids=str)
def test_the_largest_boxes_and_what_threads_keep_fit_in_shared_memory(sim: Device, size: Shape) -> None:
    descriptor = GridSampleDescriptor((1, 4, *size), (1, *size, len(size)), mode="bilinear" if size[2:] else "bicubic")
    plan = GridSamplePlan.select(sim, descriptor, wish("general_tiled", config=CellsConfig(256, 300, 8)))
    (launch,) = plan.schedule.launches
    own = launch.kernel.load(sim).resources.shared_bytes
    assert launch.shared_bytes + own <= sim.properties.max_shared_dynamic


@pytest.mark.parametrize(
    ("shape", "size", "scale", "noise", "config"),
    [
        ((2, 33, 12, 20), (9, 40), 0.9, 0.02, (96, 40)),  # the box of a tile fits; the last go has one channel
        ((1, 12, 20, 40), (3, 32), 1.0, 0.1, (64, 12)),  # it is cut
        ((1, 5, 64, 64), (5, 33), 1.2, 0.5, (64, 9)),  # no box
        ((1, 17, 6, 8), (4, 64), 1.5, 0.0, (64, 24)),  # few pixels, and points that touch none
    ],
    ids=str,
)
@each_type
@pytest.mark.parametrize("variant", [key for key in BACKWARD if "tiled_channels" in key])
@pytest.mark.sanitize
def test_gradients_by_way_of_tiles_with_channels_side_by_side(
    device: Device, rng: Rng, variant: str, name: str, shape: Shape, size: Any, scale: float, noise: float, config: Any
) -> None:
    x, grid = smooth(rng, shape, size, name, scale, noise)
    go = rng.standard_normal((*shape[:2], *size)).astype(x.dtype)
    for offset in (0, 1):
        check(device, variant, go, x, grid, offsets=(offset,) * 5, config=TiledChannelsConfig(*config))


@pytest.mark.parametrize(
    ("shape", "size", "scale", "noise", "config"),
    [
        ((2, 3, 24, 32), (19, 70), 0.9, 0.02, (64, 1, 8)),  # the box of a tile fits
        ((2, 9, 24, 30), (9, 66), 1.1, 0.0, (128, 0, 24)),  # rows of no vectors
        ((1, 2, 40, 48), (20, 64), 0.9, 0.1, (64, 1, 6)),  # it is cut
        ((1, 5, 64, 64), (9, 65), 1.2, 0.5, (64, 0, 4)),  # no box
        ((1, 13, 6, 32), (17, 64), 0.5, 0.0, (128, 1, 16)),  # many points a pixel
        ((1, 2, 6, 200), (5, 64), 0.9, 0.0, (64, 1, 20)),  # a row of the box is more than a warp's vectors
        ((1, 1, 8, 96), (8, 64), 3.0, 0.0, (64, 0, 8)),  # most points touch nothing
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("variant", [key for key in BACKWARD if key.endswith("tiled")])
@pytest.mark.sanitize
def test_gradients_by_way_of_tiles_with_x(
    device: Device, rng: Rng, variant: str, name: str, shape: Shape, size: Any, scale: float, noise: float, config: Any
) -> None:
    x, grid = smooth(rng, shape, size, name, scale, noise)
    go = rng.standard_normal((*shape[:2], *size)).astype(x.dtype)
    kind = HipTiledBackwardConfig if "hip" in variant else TiledBackwardConfig
    for offset in (0, 1):
        check(device, variant, go, x, grid, offsets=(offset,) * 5, config=kind(*config))


@pytest.mark.parametrize("padding", ["border", "reflection"])
@pytest.mark.parametrize(
    ("variant", "config"),
    [("tiled", TiledBackwardConfig(64, 1, 8)), ("tiled_channels", TiledChannelsConfig(64, 12))],
    ids=str,
)
@pytest.mark.parametrize("channels", [3, 16, 19])
@pytest.mark.ptx
def test_padded_gradients_of_points_outside_of_a_box(
    device: Device, rng: Rng, channels: int, variant: str, config: Config, padding: str
) -> None:
    x, grid = smooth(rng, (2, channels, 40, 36), (18, 40), "f32", 1.3, 0.1)
    go = rng.standard_normal((2, channels, 18, 40)).astype(x.dtype)
    how: Any = {"mode": "bilinear", "padding_mode": padding, "align_corners": True}
    want = references.grid_sample_backward(go, x, grid, **how)
    for got, each in zip(padded_gradients(device, variant, go, x, grid, config, **how), want, strict=True):
        check_error("grid_sample_backward, padded", device, got, each, bar("f32", x.shape, each), f"{variant} {how}")
