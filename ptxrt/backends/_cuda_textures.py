"""Textures and surfaces of NVIDIA's driver, through cuda.bindings: cuda.core's have no layers.

An image is a CUDA array. What is given back may be in use by a launch, so the context is waited for.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ptxrt.images import ImageFormat, Sampling

__all__ = ["CudaTextures"]

_FORMATS = {
    np.dtype(np.uint8): "UNSIGNED_INT8",
    np.dtype(np.uint16): "UNSIGNED_INT16",
    np.dtype(np.uint32): "UNSIGNED_INT32",
    np.dtype(np.int8): "SIGNED_INT8",
    np.dtype(np.int16): "SIGNED_INT16",
    np.dtype(np.int32): "SIGNED_INT32",
    np.dtype(np.float16): "HALF",
    np.dtype(np.float32): "FLOAT",
}
_MOST_GATHERED = 32768  # tld4 reads arrays up to this size, which must be made for it


class CudaTextures:
    """The part of :class:`ptxrt.backends.cuda.CudaBackend` that makes textures and surfaces."""

    _images: dict[int, Any]
    _driver: Any

    @abstractmethod
    def _current(self, ordinal: int) -> AbstractContextManager[None]: ...
    @abstractmethod
    def _call(self, name: str, *args: Any) -> Any: ...

    def create_image(self, ordinal: int, form: ImageFormat, *, surface: bool) -> int:
        driver = self._driver
        wanted = driver.CUDA_ARRAY3D_DESCRIPTOR()
        wanted.Width, wanted.Height, wanted.Depth = form.width, form.height, form.depth
        wanted.Format, wanted.NumChannels = self._format(form), form.channels
        gathered = form.geometry == "2d" and max(form.width, form.height) <= _MOST_GATHERED
        wanted.Flags = (
            driver.CUDA_ARRAY3D_LAYERED * form.layered
            | driver.CUDA_ARRAY3D_SURFACE_LDST * surface
            | driver.CUDA_ARRAY3D_TEXTURE_GATHER * gathered
        )
        with self._current(ordinal):
            image = self._call("cuArray3DCreate", wanted)[1]
        self._images[int(image)] = image
        return int(image)

    def destroy_image(self, ordinal: int, image: int) -> None:
        with self._current(ordinal):
            self._call("cuCtxSynchronize")
            self._call("cuArrayDestroy", self._images.pop(image))

    def copy_image(self, ordinal: int, image: int, form: ImageFormat, ptr: int, stream: int, *, into: bool) -> None:
        memory = self._driver.CUmemorytype
        copy = self._driver.CUDA_MEMCPY3D()
        copy.WidthInBytes, copy.Height, copy.Depth = form.row_bytes, max(1, form.height), max(1, form.depth)
        if into:
            copy.srcMemoryType, copy.dstMemoryType = memory.CU_MEMORYTYPE_DEVICE, memory.CU_MEMORYTYPE_ARRAY
            copy.srcDevice, copy.dstArray = ptr, self._images[image]
            copy.srcPitch, copy.srcHeight = form.row_bytes, max(1, form.height)
        else:
            copy.srcMemoryType, copy.dstMemoryType = memory.CU_MEMORYTYPE_ARRAY, memory.CU_MEMORYTYPE_DEVICE
            copy.srcArray, copy.dstDevice = self._images[image], ptr
            copy.dstPitch, copy.dstHeight = form.row_bytes, max(1, form.height)
        with self._current(ordinal):
            self._call("cuMemcpy3DAsync", copy, stream)

    def create_texture(self, ordinal: int, image: int, form: ImageFormat, how: Sampling, *, is_memory: bool) -> int:
        driver = self._driver
        resource = self._array(image) if not is_memory else self._memory(image, form)
        description = driver.CUDA_TEXTURE_DESC()
        modes = [getattr(driver.CUaddress_mode, f"CU_TR_ADDRESS_MODE_{mode.upper()}") for mode in how.address_modes]
        description.addressMode = modes
        filters = driver.CUfilter_mode
        description.filterMode = filters.CU_TR_FILTER_MODE_LINEAR if how.linear else filters.CU_TR_FILTER_MODE_POINT
        whole = form.dtype.kind != "f" and not how.normalized_float
        description.flags = (
            driver.CU_TRSF_READ_AS_INTEGER * whole | driver.CU_TRSF_NORMALIZED_COORDINATES * how.normalized_coords
        )
        description.borderColor = list(how.border)
        with self._current(ordinal):
            return int(self._call("cuTexObjectCreate", resource, description, None)[1])

    def destroy_texture(self, ordinal: int, texture: int) -> None:
        with self._current(ordinal):
            self._call("cuCtxSynchronize")
            self._call("cuTexObjectDestroy", texture)

    def create_surface(self, ordinal: int, image: int, form: ImageFormat) -> int:
        del form  # the array knows it
        with self._current(ordinal):
            return int(self._call("cuSurfObjectCreate", self._array(image))[1])

    def destroy_surface(self, ordinal: int, surface: int) -> None:
        with self._current(ordinal):
            self._call("cuCtxSynchronize")
            self._call("cuSurfObjectDestroy", surface)

    def _format(self, form: ImageFormat) -> Any:
        return getattr(self._driver.CUarray_format, f"CU_AD_FORMAT_{_FORMATS[form.dtype]}")

    def _array(self, image: int) -> Any:
        resource = self._driver.CUDA_RESOURCE_DESC()
        resource.resType = self._driver.CUresourcetype.CU_RESOURCE_TYPE_ARRAY
        resource.res.array.hArray = self._images[image]
        return resource

    def _memory(self, ptr: int, form: ImageFormat) -> Any:
        resource = self._driver.CUDA_RESOURCE_DESC()
        resource.resType = self._driver.CUresourcetype.CU_RESOURCE_TYPE_LINEAR
        linear = resource.res.linear
        linear.devPtr, linear.sizeInBytes = ptr, form.nbytes
        linear.format, linear.numChannels = self._format(form), form.channels
        return resource
