"""NVIDIA's driver through cuda.bindings; cuda.core for arrays of other libraries alone, since its import takes long.

The default stream is the legacy one, which means "of the current context"; so a call makes the device's primary
context current where it is not, and puts back what was.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import Any, NoReturn

import numpy as np

from ptxrt.backends import (
    DeviceProperties,
    DirectLaunch,
    Function,
    Imported,
    PointerParam,
    Recorded,
    Resources,
    capturing,
)
from ptxrt.backends._cuda_textures import CudaTextures
from ptxrt.backends._recent import RecentLaunches
from ptxrt.collector import paused
from ptxrt.compilers import Binary, ParamInfo, installed
from ptxrt.errors import BackendUnavailable, DriverError, LaunchError, OutOfDeviceMemory, PtxrtError, Unsupported

__all__ = ["BACKEND"]

_INSTALL = 'install the packages with pip install "ptxrt[cuda13]" (or cuda12)'
_NAME_BYTES = 256  # room for a device's name
_CONFIGURATIONS = 1024  # of launches that follow others: kept, since one takes longer to make than to launch
_PORTABLE_CLUSTER = 8  # blocks; to larger ones a kernel must be opted in, and not each device has them
_LARGE_CLUSTER = 16
_WITH_LARGE_CLUSTERS = (9, 10)  # compute capabilities
_MANY = 114  # multiprocessors of the smallest H100: a part of a GPU may have no 16 of them that make a cluster


class CudaBackend(CudaTextures):
    """The devices of NVIDIA's driver; see :class:`ptxrt.backends.Backend`."""

    name = "cuda"
    languages: tuple[str, ...] = ("ptx", "cuda", "hip")
    compiled_languages: tuple[str, ...] = ("ptx", "cuda", "hip")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state: tuple[int, str | None, int] | None = None  # process, reason or None, number of devices
        self._contexts: dict[int, Any] = {}  # the driver's objects, which compare faster than as integers
        self._seen: dict[int, list[int]] = {}  # of each device: see DirectLaunch.seen
        self._pools: dict[int, Any] = {}  # None for a device that has none
        self._images = {}
        self._whole = threading.RLock()  # of those who wait for a whole device
        self._recent = RecentLaunches("cuda")
        self._note = self._recent.note
        os.register_at_fork(after_in_child=self._abandon)

    def _abandon(self) -> None:
        # A thread that is not here any more may hold the old ones.
        self._lock, self._whole = threading.Lock(), threading.RLock()

    # Discovery --------------------------------------------------------------------------------------------------

    def _discover(self) -> tuple[int, str | None, int]:
        with self._lock:
            if self._state is None:
                reason, count = self._count()
                self._state = (os.getpid(), reason, count)
            pid, _, count = self._state
            if count and pid != os.getpid():
                return pid, "this process was forked after CUDA had been initialised; start workers with 'spawn'", 0
            return self._state

    def _count(self) -> tuple[str | None, int]:
        try:
            with paused():
                from cuda.bindings import driver  # noqa: PLC0415 (nothing of CUDA at import)
            (status,) = driver.cuInit(0)  # opens the driver's library
        except ImportError as error:
            return f"{error}; {_INSTALL}", 0
        except RuntimeError as error:  # cuda.pathfinder's DynamicLibNotFoundError
            return f"NVIDIA's driver library is not there ({str(error).splitlines()[0]}); install the driver", 0
        if status is not driver.CUresult.CUDA_SUCCESS:
            return f"NVIDIA's driver answers {status.name} to cuInit", 0
        self._use(driver)
        status, count = driver.cuDeviceGetCount()
        return (None, count) if count else ("NVIDIA's driver is there, but no device", 0)

    def unavailable(self) -> str | None:
        return self._discover()[1]

    def device_count(self) -> int:
        return self._discover()[2]

    def _use(self, driver: Any) -> None:
        """Have cuda.bindings' driver; what a launch uses of it, in attributes that the class does not have: faster."""
        self._driver, self._success = driver, driver.CUresult.CUDA_SUCCESS
        self._get_current, self._launch, self._launch_following, self._launch_graph = (
            driver.cuCtxGetCurrent,
            driver.cuLaunchKernel,
            driver.cuLaunchKernelEx,
            driver.cuGraphLaunch,
        )
        self._following = lru_cache(maxsize=_CONFIGURATIONS)(partial(_following, driver))

    @cached_property
    def _core(self) -> Any:
        try:
            with paused():
                import cuda.core  # noqa: PLC0415 (few programs exchange arrays)
                import cuda.core.utils  # noqa: PLC0415
        except ImportError as error:
            raise BackendUnavailable(f"cuda.core: {error}; {_INSTALL}", op="cuda.core", fix=_INSTALL) from error
        return cuda.core

    def properties(self, ordinal: int) -> DeviceProperties:
        # Nothing here needs a context: listing the devices must not make one on each.
        def attribute(name: str) -> int:
            which = getattr(self._driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
            return int(self._call("cuDeviceGetAttribute", which, ordinal)[1])

        _, name = self._call("cuDeviceGetName", _NAME_BYTES, ordinal)
        _, total = self._call("cuDeviceTotalMem", ordinal)
        _, version = self._call("cuDriverGetVersion")
        major, multiprocessors = attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("MULTIPROCESSOR_COUNT")
        large = major in _WITH_LARGE_CLUSTERS and multiprocessors >= _MANY
        return DeviceProperties(
            name=name.split(b"\0")[0].decode(),
            arch=f"sm_{major}{attribute('COMPUTE_CAPABILITY_MINOR')}",
            warp_size=attribute("WARP_SIZE"),
            multiprocessors=multiprocessors,
            total_memory=total,
            max_threads_per_block=attribute("MAX_THREADS_PER_BLOCK"),
            max_block=(attribute("MAX_BLOCK_DIM_X"), attribute("MAX_BLOCK_DIM_Y"), attribute("MAX_BLOCK_DIM_Z")),
            max_grid=(attribute("MAX_GRID_DIM_X"), attribute("MAX_GRID_DIM_Y"), attribute("MAX_GRID_DIM_Z")),
            max_shared_static=attribute("MAX_SHARED_MEMORY_PER_BLOCK"),
            max_shared_dynamic=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            driver=f"CUDA {version // 1000}.{version % 1000 // 10}",
            cooperative=bool(attribute("COOPERATIVE_LAUNCH")),
            max_cluster=_LARGE_CLUSTER if large else _PORTABLE_CLUSTER,
        )

    # Calls ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _current(self, ordinal: int) -> Iterator[None]:
        """Make the device's primary context current, and what was current again."""
        before = self._call("cuCtxGetCurrent")[1]
        switch = before != self._contexts.get(ordinal)
        try:
            if switch:
                if ordinal not in self._contexts:
                    # For the life of the process: a context that nobody retains is gone with all that is in it.
                    self._contexts[ordinal] = self._call("cuDevicePrimaryCtxRetain", ordinal)[1]
                self._call("cuCtxSetCurrent", self._contexts[ordinal])
            yield
        except Exception as error:
            self._translate(error)
            raise
        finally:
            if switch:
                self._call("cuCtxSetCurrent", before)

    def _call(self, name: str, *args: Any) -> Any:
        """Call the driver; a status other than success is one of our errors."""
        result = getattr(self._driver, name)(*args)
        if result[0] is not self._success:
            self._fail(name, result[0])
        return result

    def _fail(self, call: str, status: Any) -> NoReturn:
        _, text = self._driver.cuGetErrorString(status)
        words = text.decode() if isinstance(text, bytes) else str(text)
        kind: type[PtxrtError] = DriverError
        fix = ""
        if status.name == "CUDA_ERROR_OUT_OF_MEMORY":
            kind, fix = OutOfDeviceMemory, ". Free arrays, or unload modules"
        elif call in ("cuLaunchKernel", "cuLaunchCooperativeKernel") and status.name in (
            "CUDA_ERROR_INVALID_VALUE",
            "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
            "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
        ):
            kind, fix = LaunchError, ". Launch with fewer threads or less shared memory"
        elif status.name == "CUDA_ERROR_INVALID_CLUSTER_SIZE":
            kind, fix = LaunchError, ". Launch a grid of whole clusters; the device must have room for one"
        elif status.name in ("CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_MISALIGNED_ADDRESS", "CUDA_ERROR_LAUNCH_FAILED"):
            fix = self._recent.reason()
        op = "allocate" if call.startswith("cuMemAlloc") else call
        raise kind(f"{call}: {status.name}: {words}{fix}", op=op, expected="CUDA_SUCCESS", given=status.name)

    def _translate(self, error: Exception) -> None:
        """Raise cuda.core's errors as ours: they are the driver's own words with the status in front."""
        if type(error).__name__ != "CUDAError":
            return
        if "CUDA_ERROR_OUT_OF_MEMORY" in str(error):
            raise OutOfDeviceMemory(f"cuda.core: {error}. Free arrays, or unload modules", op="allocate") from error
        raise DriverError(f"cuda.core: {error}", op="cuda.core") from error

    # Memory -----------------------------------------------------------------------------------------------------

    def _pool(self, ordinal: int) -> Any:
        """Return the device's pool, None where it has none; it keeps what is freed unless somebody has set a limit."""
        if ordinal not in self._pools:
            supported = self._driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
            pool = None
            if self._call("cuDeviceGetAttribute", supported, ordinal)[1]:
                kept = self._driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
                pool = self._call("cuDeviceGetMemPool", ordinal)[1]
                if not int(self._call("cuMemPoolGetAttribute", pool, kept)[1]):
                    self._call("cuMemPoolSetAttribute", pool, kept, self._driver.cuuint64_t((1 << 64) - 1))
            self._pools[ordinal] = pool
        return self._pools[ordinal]

    def allocate(self, ordinal: int, nbytes: int, stream: int) -> int:
        with self._current(ordinal):
            pool = self._pool(ordinal)
            if pool is None:
                return int(self._call("cuMemAlloc", nbytes)[1])
            return int(self._call("cuMemAllocFromPoolAsync", nbytes, pool, stream)[1])

    def free(self, ordinal: int, ptr: int, stream: int, used_on: Iterable[int]) -> None:
        for user in used_on:
            self.wait_stream(ordinal, stream, user)
        with self._current(ordinal):
            if self._pool(ordinal) is None:
                self._call("cuStreamSynchronize", stream)
                self._call("cuMemFree", ptr)
            else:
                self._call("cuMemFreeAsync", ptr, stream)

    def trim_memory(self, ordinal: int) -> None:
        with self._current(ordinal):
            pool = self._pool(ordinal)
            if pool is not None:
                self._call("cuMemPoolTrimTo", pool, 0)

    def import_array(self, ordinal: int, array: Any, stream: int) -> Imported:
        with self._current(ordinal):
            # In DLPack's numbering 1 is the legacy default stream, and 0 is not allowed.
            view = self._core.utils.StridedMemoryView.from_any_interface(array, stream_ptr=stream or 1)
        return Imported(view.ptr, tuple(view.shape), view.strides, view.dtype, view.readonly, (view, array))

    def export_array(self, ordinal: int, array: Any, dtype: Any) -> Any:
        with self._current(ordinal):
            if array.size:
                buffer = self._core.Buffer.from_handle(array.ptr, array.memory.nbytes, owner=array)
            else:  # CuPy takes no null pointer for memory of the device
                buffer = self._core.Device(ordinal).memory_resource.allocate(1, stream=self._core.LEGACY_DEFAULT_STREAM)
            return self._core.utils.StridedMemoryView.from_buffer(
                buffer, array.shape, array.strides, dtype=dtype, is_readonly=array.readonly
            )

    def extent(self, ordinal: int, ptr: int) -> tuple[int, int] | None:
        with self._current(ordinal):
            status, start, nbytes = self._driver.cuMemGetAddressRange(ptr)
        if status is self._driver.CUresult.CUDA_ERROR_NOT_FOUND:
            return None
        if status is not self._success:
            self._fail("cuMemGetAddressRange", status)
        return int(start), int(start) + int(nbytes)

    def pointer_ordinal(self, ptr: int) -> int:
        attribute = self._driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        return int(self._call("cuPointerGetAttribute", attribute, ptr)[1])

    def copy_in(self, ordinal: int, ptr: int, host: memoryview, stream: int) -> None:
        source = np.frombuffer(host, np.uint8)
        with self._current(ordinal), self._recent.waiting(ordinal, stream):
            self._call("cuMemcpyHtoDAsync", ptr, source.ctypes.data, source.nbytes, stream)
            self._call("cuStreamSynchronize", stream)

    def copy_out(self, ordinal: int, host: memoryview, ptr: int, stream: int) -> None:
        target = np.frombuffer(host, np.uint8)
        with self._current(ordinal), self._recent.waiting(ordinal, stream):
            self._call("cuMemcpyDtoHAsync", target.ctypes.data, ptr, target.nbytes, stream)
            self._call("cuStreamSynchronize", stream)

    @contextmanager
    def _beside_captures(self, ordinal: int) -> Iterator[None]:
        """Let calls disturb no graph that is being captured."""
        relaxed = self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        with self._current(ordinal):
            before = self._call("cuThreadExchangeStreamCaptureMode", relaxed)[1]
            try:
                yield
            finally:
                self._call("cuThreadExchangeStreamCaptureMode", before)

    @contextmanager
    def looking(self, ordinal: int, streams: tuple[int, ...]) -> Iterator[bool]:
        with self._beside_captures(ordinal):
            # The default stream answers with an error where a stream that synchronises with it is being captured.
            states = [self._driver.cuStreamIsCapturing(stream) for stream in (0, *streams)]
            idle = all(state[0] is self._success and not int(state[1]) for state in states)
            for stream in streams if idle else ():
                self._call("cuStreamSynchronize", stream)
            yield idle

    def copy(self, ordinal: int, dst: int, src: int, nbytes: int, stream: int) -> None:
        with self._current(ordinal):
            self._call("cuMemcpyDtoDAsync", dst, src, nbytes, stream)

    def fill(self, ordinal: int, ptr: int, byte: int, nbytes: int, stream: int) -> None:
        with self._current(ordinal):
            self._call("cuMemsetD8Async", ptr, byte, nbytes, stream)

    def give(self, ordinal: int, work: Callable[[int, int, int], None], ptr: int, nbytes: int, stream: int) -> None:
        with self._current(ordinal):
            work(ptr, nbytes, stream)

    # Streams and events -----------------------------------------------------------------------------------------

    def create_stream(self, ordinal: int) -> int:
        with self._current(ordinal):
            return int(self._call("cuStreamCreate", self._driver.CUstream_flags.CU_STREAM_NON_BLOCKING)[1])

    def destroy_stream(self, ordinal: int, stream: int) -> None:
        with self._current(ordinal):
            self._call("cuStreamDestroy", stream)

    def stream_ordinal(self, stream: int) -> int:
        context = self._call("cuStreamGetCtx", stream)[1]
        for ordinal, known in self._contexts.items():
            if known == context:
                return ordinal
        self._call("cuCtxPushCurrent", context)
        try:
            return int(self._call("cuCtxGetDevice")[1])
        finally:
            self._call("cuCtxPopCurrent")

    def idle(self, ordinal: int, streams: Sequence[int]) -> list[int]:
        with self._beside_captures(ordinal):
            return [stream for stream in streams if self._driver.cuStreamQuery(stream)[0] is self._success]

    def synchronize(self, ordinal: int, stream: int | None) -> None:
        with self._current(ordinal), self._recent.waiting(ordinal, stream):
            if stream is None:
                with self._whole:
                    self._call("cuCtxSynchronize")
            else:
                self._call("cuStreamSynchronize", stream)

    def create_event(self, ordinal: int) -> int:
        with self._current(ordinal):
            return int(self._call("cuEventCreate", self._driver.CUevent_flags.CU_EVENT_DEFAULT)[1])

    def destroy_event(self, ordinal: int, event: int) -> None:
        with self._current(ordinal):
            self._call("cuEventDestroy", event)

    def record(self, ordinal: int, event: int, stream: int) -> None:
        with self._current(ordinal):
            self._call("cuEventRecord", event, stream)

    def wait(self, ordinal: int, stream: int, event: int) -> None:
        with self._current(ordinal):
            self._call("cuStreamWaitEvent", stream, event, 0)

    def wait_stream(self, ordinal: int, stream: int, awaited: int) -> None:
        with self._current(ordinal):
            event = self._call("cuEventCreate", self._driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)[1]
            try:
                self._call("cuEventRecord", event, awaited)
                self._call("cuStreamWaitEvent", stream, event, 0)
            finally:
                self._call("cuEventDestroy", event)  # the driver keeps it until it has happened

    def event_done(self, ordinal: int, event: int) -> bool:
        with self._current(ordinal):
            (status,) = self._driver.cuEventQuery(event)
        if status is not self._success and status is not self._driver.CUresult.CUDA_ERROR_NOT_READY:
            self._fail("cuEventQuery", status)
        return bool(status is self._success)

    def event_synchronize(self, ordinal: int, event: int) -> None:
        with self._current(ordinal):
            self._call("cuEventSynchronize", event)

    def elapsed_ms(self, ordinal: int, start: int, end: int) -> float:
        with self._current(ordinal):
            return float(self._call("cuEventElapsedTime", start, end)[1])

    # Modules ----------------------------------------------------------------------------------------------------

    def compiler(self, language: str) -> str:
        if language == "ptx":
            return f"nvJitLink {installed.version('nvJitLink')}"
        return f"NVRTC {installed.version('NVRTC')}"

    def effective_options(self, language: str, options: tuple[str, ...], name: str | None) -> tuple[str, ...]:
        if language == "ptx":
            return options
        from ptxrt.compilers import hip_on_nvrtc  # noqa: PLC0415 (most kernels are in PTX)

        return hip_on_nvrtc.cxx_options(language, options, name)

    def compile(self, language: str, text: str, arch: str, **how: Any) -> Binary:
        if language != "ptx":
            from ptxrt.compilers import hip_on_nvrtc  # noqa: PLC0415 (where all is in the store nothing is compiled)

            return hip_on_nvrtc.compile_cxx(language, text, arch, output="cubin", **how)
        from ptxrt.compilers import nvjitlink  # noqa: PLC0415 (as above)
        from ptxrt.compilers.ptx_text import output_arch, scan  # noqa: PLC0415

        del how["defines"]  # PTX has no preprocessor, and KernelSource.ptx takes no defines
        return nvjitlink.compile_ptx(text, output_arch(scan(text, how["name"]).target, arch), **how)

    def load(self, ordinal: int, binary: Binary, name: str | None) -> Any:
        del name  # messages of the driver have none
        with self._current(ordinal):
            return self._call("cuLibraryLoadData", binary.code, [], [], 0, [], [], 0)[1]

    def unload(self, ordinal: int, module: Any) -> None:
        with self._current(ordinal), self._whole:
            self._call("cuCtxSynchronize")
            self._call("cuLibraryUnload", module)

    def function(
        self, ordinal: int, module: Any, binary: Binary, entry: str, pointers: tuple[PointerParam, ...]
    ) -> Function:
        del pointers  # the hardware has neither read-only nor typed ones
        with self._current(ordinal):
            kernel = self._call("cuLibraryGetKernel", module, entry.encode())[1]
            function = self._call("cuKernelGetFunction", kernel)[1]
            params = tuple(self._params(kernel, binary.entries[entry].params))

            def attribute(name: str) -> int:
                which = getattr(self._driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
                return int(self._call("cuKernelGetAttribute", which, kernel, ordinal)[1])

            cluster = math.prod(max(1, attribute(f"REQUIRED_CLUSTER_{axis}")) for axis in ("WIDTH", "HEIGHT", "DEPTH"))
            if cluster > _PORTABLE_CLUSTER:
                self._allow_cluster(function, entry, cluster)
            report = binary.reports.get(entry)
            resources = Resources(
                registers=attribute("NUM_REGS"),
                shared_bytes=attribute("SHARED_SIZE_BYTES"),
                local_bytes=attribute("LOCAL_SIZE_BYTES"),
                constant_bytes=attribute("CONST_SIZE_BYTES"),
                max_threads=attribute("MAX_THREADS_PER_BLOCK"),
                spill_store_bytes=report.spill_store_bytes if report else None,
                spill_load_bytes=report.spill_load_bytes if report else None,
            )
        return Function(entry, function, params, resources)

    def _allow_cluster(self, function: Any, entry: str, blocks: int) -> None:
        """Opt the entry in to clusters of so many blocks, more than each device takes; Unsupported where none fits."""
        which = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        config = self._driver.CUlaunchConfig()
        config.gridDimX = config.gridDimY = config.gridDimZ = blocks  # a multiple of the cluster, whatever its shape
        config.blockDimX = config.blockDimY = config.blockDimZ = 1
        (status,), fit = self._driver.cuFuncSetAttribute(function, which, 1), 0
        if status is self._success:
            status, fit = self._driver.cuOccupancyMaxActiveClusters(function, config)
        if status is not self._success or not fit:
            raise Unsupported(
                f"{entry}: clusters of {blocks} blocks do not fit this device ({status.name}); "
                f"each device that has clusters takes {_PORTABLE_CLUSTER} blocks",
                op=entry,
                expected=f"clusters of at most {_PORTABLE_CLUSTER} blocks",
                given=blocks,
            )

    def _params(self, kernel: Any, declared: tuple[ParamInfo, ...] | None) -> Iterator[ParamInfo]:
        """Yield what the binary says of each parameter, place and size; class and name are the text's."""
        if declared is not None:
            for index, text in enumerate(declared):
                _, offset, size = self._call("cuKernelGetParamInfo", kernel, index)
                yield replace(text, offset=offset, size=size)
            return
        # Where the text's list could not be read the driver is asked until it refuses: it has no count to ask for.
        for index in itertools.count():
            status, offset, size = self._driver.cuKernelGetParamInfo(kernel, index)
            if status is not self._success:
                return
            yield ParamInfo(offset, size, None)

    def allow_shared(self, ordinal: int, function: Any, nbytes: int) -> None:
        which = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        with self._current(ordinal):
            if self._call("cuFuncGetAttribute", which, function)[1] < nbytes:
                self._call("cuFuncSetAttribute", function, which, nbytes)

    def max_blocks(self, ordinal: int, function: Any, threads: int, shared_bytes: int) -> int:
        with self._current(ordinal):
            return int(self._call("cuOccupancyMaxActiveBlocksPerMultiprocessor", function, threads, shared_bytes)[1])

    def variable(self, ordinal: int, module: Any, symbol: str) -> tuple[int, int]:
        with self._current(ordinal):
            _, ptr, nbytes = self._call("cuLibraryGetGlobal", module, symbol.encode())
        return int(ptr), int(nbytes)

    def launch(
        self,
        ordinal: int,
        function: Any,
        dims: tuple[int, int, int, int, int, int],
        shared_bytes: int,
        stream: int,
        arguments: Any,
    ) -> None:
        # Where another context than the device's is current, or a watcher stands before; else direct_launch serves. The
        # default stream is the current context's, so that is asked each time.
        status, before = self._get_current()
        if status is not self._success:
            self._fail("cuCtxGetCurrent", status)
        context = self._contexts[ordinal]
        if before == context:
            (status,) = self._issue(function, dims, shared_bytes, stream, arguments)
        else:
            self._call("cuCtxPushCurrent", context)
            try:
                (status,) = self._issue(function, dims, shared_bytes, stream, arguments)
            finally:
                self._call("cuCtxPopCurrent")
        if status is not self._success:
            self._fail("cuLaunchKernel", status)
        self._note((ordinal, stream, arguments.kernel, dims))

    def _issue(
        self, function: Any, dims: tuple[int, int, int, int, int, int], shared_bytes: int, stream: int, arguments: Any
    ) -> Any:
        if arguments.follows:
            return self._launch_following(self._following(dims, shared_bytes, stream), function, arguments.table, 0)
        # Cython's types convert fastest what is their own or None, and a tuple that is spread out costs more than six
        # names.
        x, y, z, width, height, depth = dims
        return self._launch(function, x, y, z, width, height, depth, shared_bytes, stream or None, arguments.table, 0)

    def direct_launch(self, ordinal: int) -> DirectLaunch | None:
        context, failed = self._contexts.get(ordinal), partial(self._fail, "cuLaunchKernel")
        if context is None:
            return None
        results = self._driver.CUresult
        elsewhere = (
            results.CUDA_ERROR_INVALID_CONTEXT,
            results.CUDA_ERROR_INVALID_HANDLE,
            results.CUDA_ERROR_CONTEXT_IS_DESTROYED,  # another's, which is current still
        )
        seen = self._seen.setdefault(ordinal, [0])
        return DirectLaunch(
            self._get_current,
            context,
            self._launch,
            self._launch_following,
            self._following,
            self._success,
            elsewhere,
            self._note,
            failed,
            seen,
        )

    def launch_cooperative(
        self,
        ordinal: int,
        function: Any,
        dims: tuple[int, int, int, int, int, int],
        shared_bytes: int,
        stream: int,
        arguments: Any,
    ) -> None:
        with self._current(ordinal):
            self._call("cuLaunchCooperativeKernel", function, *dims, shared_bytes, stream, arguments.table)
        self._note((ordinal, stream, arguments.kernel, dims))

    # Graphs -----------------------------------------------------------------------------------------------------

    def create_graph(self, ordinal: int, recorded: Recorded, before: Any = None) -> Any:
        with self._current(ordinal):
            graph = self._captured(ordinal, recorded)
            try:
                if before is not None:
                    status = self._driver.cuGraphExecUpdate(before, graph)[0]
                    if status is self._success:
                        return before
                    if status.name != "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE":
                        self._fail("cuGraphExecUpdate", status)
                made = self._call("cuGraphInstantiate", graph, 0)[1]
            finally:
                self._call("cuGraphDestroy", graph)
            if before is not None:  # the driver could not change it in place
                self._call("cuGraphExecDestroy", before)
            return made

    def _captured(self, ordinal: int, recorded: Recorded) -> Any:
        # On a stream of its own, on which there is nothing but these calls.
        relaxed = self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        stream = self.create_stream(ordinal)
        try:
            with capturing(self._whole):
                self._call("cuStreamBeginCapture", stream, relaxed)
                try:
                    recorded.issue(self, ordinal, stream)
                except BaseException:
                    self._driver.cuGraphDestroy(self._driver.cuStreamEndCapture(stream)[1])
                    raise
                with self._recent.waiting(ordinal, stream):  # nothing runs that a fault could come from
                    return self._call("cuStreamEndCapture", stream)[1]
        finally:
            self.destroy_stream(ordinal, stream)

    def launch_graph(self, ordinal: int, graph: Any, stream: int, recorded: Recorded) -> None:
        # As launch.
        status, before = self._get_current()
        if status is not self._success:
            self._fail("cuCtxGetCurrent", status)
        context = self._contexts[ordinal]
        if before == context:
            (status,) = self._launch_graph(graph, stream or None)
        else:
            self._call("cuCtxPushCurrent", context)
            try:
                (status,) = self._launch_graph(graph, stream or None)
            finally:
                self._call("cuCtxPopCurrent")
        if status is not self._success:
            self._fail("cuGraphLaunch", status)
        self._note((ordinal, stream, recorded.launches, ()))

    def destroy_graph(self, ordinal: int, graph: Any) -> None:
        with self._current(ordinal):
            self._call("cuGraphExecDestroy", graph)  # what is still running of it ends first


def _following(driver: Any, dims: tuple[int, ...], shared_bytes: int, stream: int) -> Any:
    """Return the driver's configuration of a launch that may begin while the one before it in its stream ends."""
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    made = driver.CUlaunchConfig()
    made.gridDimX, made.gridDimY, made.gridDimZ, made.blockDimX, made.blockDimY, made.blockDimZ = dims
    made.sharedMemBytes, made.hStream, made.attrs, made.numAttrs = shared_bytes, stream, [attribute], 1
    return made


BACKEND = CudaBackend()
