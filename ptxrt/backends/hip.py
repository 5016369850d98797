"""AMD's driver, HIP, through hip-python.

The default stream is the null stream, which means "of the current device"; so a call makes its device current where it
is not, and puts back what was.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from ptxrt.backends import DeviceProperties, Function, Imported, PointerParam, Recorded, Resources, capsules, capturing
from ptxrt.backends._recent import RecentLaunches
from ptxrt.compilers import Binary, hiprtc, installed
from ptxrt.errors import BackendUnavailable, DriverError, LaunchError, OutOfDeviceMemory, PtxrtError, Unsupported

__all__ = ["BACKEND"]

_WANTED = 'the package hip-python, 7.2 or newer (pip install "ptxrt[hip]"), with ROCm 6.0 or newer'
_OLDEST = 6_00_00000  # as hipRuntimeGetVersion tells it: major, two digits of minor, five of patch
_NON_BLOCKING = 1  # hipStreamNonBlocking
_NO_TIMING = 2  # hipEventDisableTiming


class HipBackend:
    """The devices of AMD's driver; see :class:`ptxrt.backends.Backend`."""

    name = "hip"
    languages: tuple[str, ...] = ("hip",)
    compiled_languages: tuple[str, ...] = ("hip",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state: tuple[int, str | None, int] | None = None  # process, reason or None, number of devices
        self._whole = threading.RLock()  # of those who wait for a whole device
        self._recent = RecentLaunches("hip")
        self._note = self._recent.note
        os.register_at_fork(after_in_child=self._abandon)

    def _abandon(self) -> None:
        # Handles are plain integers here: a forked child has none whose destructor would call the driver.
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
                return pid, "this process was forked after HIP had been initialised; start workers with 'spawn'", 0
            return self._state

    def _count(self) -> tuple[str | None, int]:
        try:
            hip = self._driver
        except ImportError as error:
            return f"{error}; ptxrt wants {_WANTED}", 0
        try:
            success = hip.hipError_t.hipSuccess
            (status,) = hip.hipInit(0)
            if status is not success:
                return f"HIP answers {status.name} to hipInit: no AMD GPU that this ROCm knows, or no amdgpu driver", 0
            # What a failed call hands back is not set.
            status, version = hip.hipRuntimeGetVersion()
            if status is not success:
                return f"HIP answers {status.name} to hipRuntimeGetVersion", 0
            status, count = hip.hipGetDeviceCount()
        except (RuntimeError, ValueError) as error:  # no library; no such function in it; a status without a name
            reason = str(error).splitlines()[0]
            return f"AMD's library libamdhip64.so cannot be used ({reason}); ptxrt wants {_WANTED}", 0
        if version < _OLDEST:
            return f"AMD's library is {_version(version)}; ptxrt wants {_WANTED}", 0
        if status is not success or not count:
            return f"AMD's library is there, but no device ({status.name})", 0
        return None, count

    def unavailable(self) -> str | None:
        return self._discover()[1]

    def device_count(self) -> int:
        return self._discover()[2]

    @cached_property
    def _driver(self) -> Any:
        from hip import hip  # noqa: PLC0415 (nothing of HIP at import)

        return hip

    @cached_property
    def _launch(self) -> Any:
        return self._driver.hipModuleLaunchKernel

    @cached_property
    def _get_current(self) -> Any:
        return self._driver.hipGetDevice

    @cached_property
    def _success(self) -> Any:
        return self._driver.hipError_t.hipSuccess

    def properties(self, ordinal: int) -> DeviceProperties:
        p = self._properties(ordinal)
        _, version = self._call("hipRuntimeGetVersion")

        def attribute(name: str) -> int:
            which = getattr(self._driver.hipDeviceAttribute_t, f"hipDeviceAttribute{name}")
            return int(self._call("hipDeviceGetAttribute", which, ordinal)[1])

        def limits(name: str) -> tuple[int, int, int]:
            return attribute(f"{name}X"), attribute(f"{name}Y"), attribute(f"{name}Z")

        # A block has one kind of shared memory, LDS, with one limit: there is nothing to opt in to.
        shared = attribute("MaxSharedMemoryPerBlock")
        return DeviceProperties(
            name=_text(p.name),
            arch=_text(p.gcnArchName),
            warp_size=attribute("WarpSize"),
            multiprocessors=attribute("MultiprocessorCount"),
            total_memory=int(p.totalGlobalMem),
            max_threads_per_block=attribute("MaxThreadsPerBlock"),
            max_block=limits("MaxBlockDim"),
            max_grid=limits("MaxGridDim"),
            max_shared_static=shared,
            max_shared_dynamic=shared,
            driver=_version(version),
            # A dispatch packet counts threads, not blocks, in 32 bits an axis.
            max_grid_threads=2**32 - 1,
            cooperative=bool(attribute("CooperativeLaunch")),
        )

    def _properties(self, ordinal: int) -> Any:
        """Return hip-python's hipDeviceProp_t, which 10 hands back and 7.2 fills."""
        try:
            return self._call("hipGetDeviceProperties", ordinal)[1]
        except TypeError:
            filled = self._driver.hipDeviceProp_t()
            self._call("hipGetDeviceProperties", filled, ordinal)
            return filled

    # Calls ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _current(self, ordinal: int) -> Iterator[None]:
        """Make the device current, and what was current again."""
        before = self._call("hipGetDevice")[1]
        if before == ordinal:
            yield
            return
        self._call("hipSetDevice", ordinal)
        try:
            yield
        finally:
            self._call("hipSetDevice", before)

    def _call(self, name: str, *args: Any) -> Any:
        """Call the driver; a status other than success is one of our errors."""
        result = self._ask(name, *args)
        if result[0] is not self._success:
            self._fail(name, result[0])
        return result

    def _ask(self, name: str, *args: Any) -> Any:
        """Call the driver; the status is the caller's to look at."""
        try:
            return getattr(self._driver, name)(*args)
        except RuntimeError as error:  # hip-python looks each function up at its first call
            reason = str(error).splitlines()[0]
            raise BackendUnavailable(f"{name}: {reason}; ptxrt wants {_WANTED}", op=name) from error
        except ValueError as error:
            raise _unknown_status(name, error) from error

    def _fail(self, call: str, status: Any) -> NoReturn:
        words = _text(self._driver.hipGetErrorString(status)[1])
        self._driver.hipGetLastError()  # or another library's next look for errors finds ours
        kind: type[PtxrtError] = DriverError
        op, fix = call, ""
        if status.name == "hipErrorOutOfMemory":
            kind, op, fix = OutOfDeviceMemory, "allocate", ". Free arrays, or unload modules"
        elif call in ("hipModuleLaunchKernel", "hipModuleLaunchCooperativeKernel") and status.name in (
            "hipErrorInvalidValue",
            "hipErrorInvalidConfiguration",
            "hipErrorLaunchOutOfResources",
            "hipErrorCooperativeLaunchTooLarge",
        ):
            kind, fix = LaunchError, ". Launch with fewer threads or less shared memory"
        elif call == "hipModuleLoadData":
            fix = ". This ROCm does not take the code object that hipRTC made: use the hipRTC of the same ROCm"
        elif status.name in ("hipErrorIllegalAddress", "hipErrorLaunchFailure"):
            fix = self._recent.reason()
        raise kind(f"{call}: {status.name}: {words}{fix}", op=op, expected="hipSuccess", given=status.name)

    # Memory -----------------------------------------------------------------------------------------------------

    def allocate(self, ordinal: int, nbytes: int, stream: int) -> int:
        with self._current(ordinal):
            return _handle(self._call("hipMallocAsync", nbytes, stream)[1])

    def free(self, ordinal: int, ptr: int, stream: int, used_on: Iterable[int]) -> None:
        for user in used_on:
            self.wait_stream(ordinal, stream, user)
        with self._current(ordinal):
            self._call("hipFreeAsync", ptr, stream)

    def trim_memory(self, ordinal: int) -> None:
        with self._current(ordinal):
            self._call("hipMemPoolTrimTo", self._call("hipDeviceGetMemPool", ordinal)[1], 0)

    def import_array(self, ordinal: int, array: Any, stream: int) -> Imported:
        # In DLPack's numbering of ROCm's streams 0 is the default one.
        with self._current(ordinal):
            view = capsules.as_numpy(lambda **_: array.__dlpack__(stream=stream))
        strides = tuple(step // view.itemsize for step in view.strides)
        return Imported(view.__array_interface__["data"][0], view.shape, strides, view.dtype, False, (view, array))

    def export_array(self, ordinal: int, array: Any, dtype: Any) -> Any:
        return _Shared(array, dtype)

    def extent(self, ordinal: int, ptr: int) -> tuple[int, int] | None:
        with self._current(ordinal):
            status, start, nbytes = self._ask("hipMemGetAddressRange", ptr)
        if status.name in ("hipErrorNotFound", "hipErrorInvalidDevicePointer", "hipErrorInvalidValue"):
            return None
        if status is not self._success:
            self._fail("hipMemGetAddressRange", status)
        return _handle(start), _handle(start) + int(nbytes)

    def pointer_ordinal(self, ptr: int) -> int:
        raise Unsupported(op="hip", argument="pointer", expected="an array with DLPack", given=f"{ptr:#x}")

    def copy_in(self, ordinal: int, ptr: int, host: memoryview, stream: int) -> None:
        source = np.frombuffer(host, np.uint8)
        with self._current(ordinal), self._recent.waiting(ordinal, stream):
            self._call("hipMemcpyHtoDAsync", ptr, source.ctypes.data, source.nbytes, stream)
            self._call("hipStreamSynchronize", stream)

    def copy_out(self, ordinal: int, host: memoryview, ptr: int, stream: int) -> None:
        target = np.frombuffer(host, np.uint8)
        with self._current(ordinal), self._recent.waiting(ordinal, stream):
            self._call("hipMemcpyDtoHAsync", target.ctypes.data, ptr, target.nbytes, stream)
            self._call("hipStreamSynchronize", stream)

    @contextmanager
    def looking(self, ordinal: int, streams: tuple[int, ...]) -> Iterator[bool]:
        # Nothing here captures, and what another library captures on HIP is not asked for.
        for stream in streams:
            self.synchronize(ordinal, stream)
        yield True

    def copy(self, ordinal: int, dst: int, src: int, nbytes: int, stream: int) -> None:
        with self._current(ordinal):
            self._call("hipMemcpyDtoDAsync", dst, src, nbytes, stream)

    def fill(self, ordinal: int, ptr: int, byte: int, nbytes: int, stream: int) -> None:
        with self._current(ordinal):
            self._call("hipMemsetD8Async", ptr, byte, nbytes, stream)

    def give(self, ordinal: int, work: Callable[[int, int, int], None], ptr: int, nbytes: int, stream: int) -> None:
        with self._current(ordinal):
            work(ptr, nbytes, stream)

    # Textures and surfaces --------------------------------------------------------------------------------------

    def _no_textures(self, *_: Any, **__: Any) -> NoReturn:
        raise Unsupported(
            op="Texture, Surface",
            argument="device",
            expected="a CUDA device or sim",
            given="hip",
            fix="Pass the array itself: AMD's CDNA has no unit that filters textures",
        )

    create_image = destroy_image = copy_image = _no_textures
    create_texture = destroy_texture = create_surface = destroy_surface = _no_textures

    # Streams and events -----------------------------------------------------------------------------------------

    def create_stream(self, ordinal: int) -> int:
        with self._current(ordinal):
            return _handle(self._call("hipStreamCreateWithFlags", _NON_BLOCKING)[1])

    def destroy_stream(self, ordinal: int, stream: int) -> None:
        with self._current(ordinal):
            self._call("hipStreamDestroy", stream)

    def stream_ordinal(self, stream: int) -> int:
        return int(self._call("hipStreamGetDevice", stream)[1])

    def idle(self, ordinal: int, streams: Sequence[int]) -> list[int]:
        with self._current(ordinal):
            found = [stream for stream in streams if self._ask("hipStreamQuery", stream)[0] is self._success]
            if len(found) < len(streams):
                self._driver.hipGetLastError()  # or another library's next look for errors finds hipErrorNotReady
        return found

    def synchronize(self, ordinal: int, stream: int | None) -> None:
        with self._current(ordinal), self._recent.waiting(ordinal, stream):
            if stream is None:
                with self._whole:
                    self._call("hipDeviceSynchronize")
            else:
                self._call("hipStreamSynchronize", stream)

    def create_event(self, ordinal: int) -> int:
        with self._current(ordinal):
            return _handle(self._call("hipEventCreate")[1])

    def destroy_event(self, ordinal: int, event: int) -> None:
        with self._current(ordinal):
            self._call("hipEventDestroy", event)

    def record(self, ordinal: int, event: int, stream: int) -> None:
        with self._current(ordinal):
            self._call("hipEventRecord", event, stream)

    def wait(self, ordinal: int, stream: int, event: int) -> None:
        with self._current(ordinal):
            self._call("hipStreamWaitEvent", stream, event, 0)

    def wait_stream(self, ordinal: int, stream: int, awaited: int) -> None:
        with self._current(ordinal):
            event = _handle(self._call("hipEventCreateWithFlags", _NO_TIMING)[1])
            try:
                self._call("hipEventRecord", event, awaited)
                self._call("hipStreamWaitEvent", stream, event, 0)
            finally:
                self._call("hipEventDestroy", event)  # at once; what the device still needs of it stays

    def event_done(self, ordinal: int, event: int) -> bool:
        with self._current(ordinal):
            (status,) = self._ask("hipEventQuery", event)
            if status.name == "hipErrorNotReady":
                self._driver.hipGetLastError()
                return False
            if status is not self._success:
                self._fail("hipEventQuery", status)
            return True

    def event_synchronize(self, ordinal: int, event: int) -> None:
        with self._current(ordinal):
            self._call("hipEventSynchronize", event)

    def elapsed_ms(self, ordinal: int, start: int, end: int) -> float:
        with self._current(ordinal):
            return float(self._call("hipEventElapsedTime", start, end)[1])

    # Modules ----------------------------------------------------------------------------------------------------

    def compiler(self, language: str) -> str:
        return f"hipRTC {installed.version('hipRTC')}"

    def effective_options(self, language: str, options: tuple[str, ...], name: str | None) -> tuple[str, ...]:
        return hiprtc.effective_options(options, name)

    def compile(self, language: str, text: str, arch: str, **how: Any) -> Binary:
        return hiprtc.compile_hip(text, arch, **how)

    def load(self, ordinal: int, binary: Binary, name: str | None) -> Any:
        del name  # messages of the driver have none
        with self._current(ordinal):
            # HIP reads the bytes for as long as the module is loaded.
            return self._call("hipModuleLoadData", binary.code)[1], binary.code

    def unload(self, ordinal: int, module: Any) -> None:
        with self._current(ordinal), self._whole:
            self._call("hipDeviceSynchronize")
            self._call("hipModuleUnload", module[0])

    def function(
        self, ordinal: int, module: Any, binary: Binary, entry: str, pointers: tuple[PointerParam, ...]
    ) -> Function:
        del pointers  # the hardware has neither read-only nor typed ones
        with self._current(ordinal):
            function = self._call("hipModuleGetFunction", module[0], entry.encode())[1]

            def attribute(name: str) -> int:
                which = getattr(self._driver.hipFunction_attribute, f"HIP_FUNC_ATTRIBUTE_{name}")
                return int(self._call("hipFuncGetAttribute", which, function)[1])

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
        return Function(entry, function, binary.entries[entry].params or (), resources)

    def allow_shared(self, ordinal: int, function: Any, nbytes: int) -> None: ...

    def max_blocks(self, ordinal: int, function: Any, threads: int, shared_bytes: int) -> int:
        ask = "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor"
        with self._current(ordinal):
            return int(self._call(ask, function, threads, shared_bytes)[1])

    def variable(self, ordinal: int, module: Any, symbol: str) -> tuple[int, int]:
        with self._current(ordinal):
            _, ptr, nbytes = self._call("hipModuleGetGlobal", module[0], symbol.encode())
        return _handle(ptr), int(nbytes)

    def launch(
        self,
        ordinal: int,
        function: Any,
        dims: tuple[int, int, int, int, int, int],
        shared_bytes: int,
        stream: int,
        arguments: Any,
    ) -> None:
        # The hot path: no context manager, bound functions, and a switch only where another device is current.
        try:
            status, before = self._get_current()
            if status is not self._success:
                self._fail("hipGetDevice", status)
            if before != ordinal:
                self._call("hipSetDevice", ordinal)
            try:
                (status,) = self._launch(function, *dims, shared_bytes, stream, arguments.table, None)
            finally:
                if before != ordinal:
                    self._call("hipSetDevice", before)
        except ValueError as error:
            raise _unknown_status("hipModuleLaunchKernel", error) from error
        if status is not self._success:
            self._fail("hipModuleLaunchKernel", status)
        self._note((ordinal, stream, arguments.kernel, dims))

    def direct_launch(self, ordinal: int) -> None:
        return None

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
            self._call("hipModuleLaunchCooperativeKernel", function, *dims, shared_bytes, stream, arguments.table)
        self._note((ordinal, stream, arguments.kernel, dims))

    # Graphs -----------------------------------------------------------------------------------------------------

    def create_graph(self, ordinal: int, recorded: Recorded, before: Any = None) -> Any:
        with self._current(ordinal):
            graph = self._captured(ordinal, recorded)
            try:
                made = self._call("hipGraphInstantiateWithFlags", graph, 0)[1]
            finally:
                self._call("hipGraphDestroy", graph)
        if before is not None:  # HIP does not say what an update does to a replay that has not ended
            self.destroy_graph(ordinal, before)
        return made

    def _captured(self, ordinal: int, recorded: Recorded) -> Any:
        # On a stream of its own, on which there is nothing but these calls.
        relaxed = self._driver.hipStreamCaptureMode.hipStreamCaptureModeRelaxed
        stream = self.create_stream(ordinal)
        try:
            with capturing(self._whole):
                self._call("hipStreamBeginCapture", stream, relaxed)
                try:
                    recorded.issue(self, ordinal, stream)
                except BaseException:
                    self._ask("hipGraphDestroy", self._ask("hipStreamEndCapture", stream)[1])
                    raise
                with self._recent.waiting(ordinal, stream):  # nothing runs that a fault could come from
                    return self._call("hipStreamEndCapture", stream)[1]
        finally:
            self.destroy_stream(ordinal, stream)

    def launch_graph(self, ordinal: int, graph: Any, stream: int, recorded: Recorded) -> None:
        with self._current(ordinal):
            self._call("hipGraphLaunch", graph, stream)
        self._note((ordinal, stream, recorded.launches, ()))

    def destroy_graph(self, ordinal: int, graph: Any) -> None:
        with self._current(ordinal):
            self._call("hipGraphExecDestroy", graph)  # what is still running of it ends first


class _Shared:
    """What shares a DeviceArray: NumPy makes the capsule of its address, which it never looks at."""

    def __init__(self, array: Any, dtype: Any) -> None:
        self._array = array  # NumPy keeps this object, and with it the array
        self.__array_interface__ = {
            "version": 3,
            "data": (array.ptr, array.readonly),
            "shape": array.shape,
            "strides": tuple(step * dtype.itemsize for step in array.strides) if array.size else None,
            "typestr": dtype.str,
        }

    def __dlpack__(self, *, dl_device: tuple[int, int] | None = None, copy: bool | None = None, **how: Any) -> Any:
        own = self._array.__dlpack_device__()
        if copy or dl_device not in (None, own):
            raise BufferError(f"memory of {self._array.device} is shared as it is: no copy, on no other device")
        capsule = np.asarray(self).__dlpack__(**how)
        capsules.set_device(capsule, *own)
        return capsule


def _unknown_status(call: str, error: ValueError) -> DriverError:
    # "4242 is not a valid hipError_t"
    words = f"{call}: {error}. Install the hip-python of this ROCm's version"
    return DriverError(words, op=call, expected="hipSuccess")


def _handle(found: Any) -> int:
    """Return one of hip-python's pointers as an integer; a null pointer comes as None."""
    return 0 if found is None else int(found)


def _text(found: Any) -> str:
    """Return one of hip-python's strings, which are str, bytes or a C string's holder."""
    return found if isinstance(found, str) else bytes(found).split(b"\0")[0].decode(errors="replace")


def _version(number: int) -> str:
    return f"HIP {number // 10**7}.{number // 10**5 % 100}.{number % 10**5}"


BACKEND = HipBackend()
