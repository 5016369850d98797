"""What CUDA's driver is asked for textures and surfaces, without a driver."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from ptxrt.backends.cuda import CudaBackend
from ptxrt.images import ImageFormat, Sampling

driver: Any = pytest.importorskip("cuda.bindings.driver")
F32, U8 = np.dtype(np.float32), np.dtype(np.uint8)


class Asked(CudaBackend):
    """A backend that notes the calls of the driver, with the bytes of what they are given."""

    def __init__(self) -> None:
        super().__init__()
        self._use(driver)
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    @contextmanager
    def _current(self, ordinal: int) -> Iterator[None]:
        yield

    def _call(self, name: str, *args: Any) -> Any:
        self.calls.append((name, args))
        return None, driver.CUarray(0x77) if name == "cuArray3DCreate" else 0x55


def words(given: Any, code: str) -> tuple[Any, ...]:
    return struct.unpack(code, ctypes.string_at(given.getPtr(), struct.calcsize(code)))


@pytest.mark.parametrize(
    ("form", "surface", "wanted"),
    [
        (ImageFormat(F32, 1, 7), False, (7, 0, 0, 0x20, 1, 0)),
        (ImageFormat(F32, 4, 7, 5), False, (7, 5, 0, 0x20, 4, 8)),
        (ImageFormat(F32, 4, 7, 40000), False, (7, 40000, 0, 0x20, 4, 0)),
        (ImageFormat(np.dtype(np.float16), 2, 7, 5), True, (7, 5, 0, 0x10, 2, 10)),
        (ImageFormat(U8, 1, 7, 5, 3), True, (7, 5, 3, 1, 1, 2)),
        (ImageFormat(np.dtype(np.int16), 1, 7, 0, 3, True), False, (7, 0, 3, 9, 1, 1)),
    ],
)
def test_an_array_is_made(form: ImageFormat, surface: bool, wanted: Any) -> None:
    asked = Asked()
    assert asked.create_image(0, form, surface=surface) == 0x77
    ((name, (given,)),) = asked.calls
    assert (name, words(given, "3Q3I")) == ("cuArray3DCreate", wanted)


@pytest.mark.parametrize("into", [True, False])
def test_all_of_it_is_copied(into: bool) -> None:
    asked, form = Asked(), ImageFormat(F32, 2, 7, 5, 3)
    image = asked.create_image(0, form, surface=False)
    asked.copy_image(0, image, form, 0x1000, 9, into=into)
    name, (given, stream) = asked.calls[-1]
    host, device, array = 0, 2, 3
    memory, opaque = (device, host, 0x1000, 0, 0, 56, 5), (array, host, 0, 0x77, 0, 0, 0)
    found = words(given, "4Q I4x 3Q Q 2Q 4Q I4x 3Q Q 2Q 3Q")
    sides = [(side[4], *side[5:9], *side[9:]) for side in (found[:11], found[11:22])]
    assert (name, stream, found[22:]) == ("cuMemcpy3DAsync", 9, (56, 5, 3))
    assert sides == ([memory, opaque] if into else [opaque, memory])


def test_a_texture_is_made() -> None:
    asked, form = Asked(), ImageFormat(F32, 1, 7, 5)
    image = asked.create_image(0, form, surface=False)
    how = Sampling(("wrap", "mirror", "border"), True, True, False, (0.5, 1.0, 2.0, 4.0))
    assert asked.create_texture(0, image, form, how, is_memory=False) == 0x55
    name, (resource, description, view) = asked.calls[-1]
    assert (name, view, words(resource, "I4xQ")) == ("cuTexObjectCreate", None, (0, 0x77))
    assert words(description, "3I I I I I 3f 4f") == (0, 2, 3, 1, 2, 0, 0, 0, 0, 0, 0.5, 1, 2, 4)


@pytest.mark.parametrize(("dtype", "normalized", "flags"), [(U8, False, 1), (U8, True, 0), (F32, False, 0)])
def test_integers_are_read_as_such_unless_they_are_normalised(dtype: Any, normalized: bool, flags: int) -> None:
    asked, form = Asked(), ImageFormat(dtype, 1, 7)
    how = Sampling(normalized_float=normalized)
    asked.create_texture(0, asked.create_image(0, form, surface=False), form, how, is_memory=False)
    assert words(asked.calls[-1][1][1], "5I")[4] == flags


def test_a_texture_of_memory() -> None:
    asked = Asked()
    asked.create_texture(0, 0x4000, ImageFormat(F32, 2, 50), Sampling(), is_memory=True)
    assert words(asked.calls[-1][1][0], "I4xQIIQ") == (2, 0x4000, 0x20, 2, 400)


def test_a_surface_is_made_and_all_is_given_back_when_nothing_runs() -> None:
    asked, form = Asked(), ImageFormat(F32, 1, 7, 5)
    image = asked.create_image(0, form, surface=True)
    surface = asked.create_surface(0, image, form)
    name, (resource,) = asked.calls[-1]
    assert (name, words(resource, "I4xQ")) == ("cuSurfObjectCreate", (0, 0x77))
    asked.calls.clear()
    asked.destroy_surface(0, surface)
    asked.destroy_texture(0, 0x66)
    asked.destroy_image(0, image)
    made = [(name, *map(int, args)) for name, args in asked.calls]
    wait = ("cuCtxSynchronize",)
    assert made == [
        wait,
        ("cuSurfObjectDestroy", 0x55),
        wait,
        ("cuTexObjectDestroy", 0x66),
        wait,
        ("cuArrayDestroy", 0x77),
    ]
