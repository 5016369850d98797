"""A machine with two AMD GPUs for tests: libamdhip64.so built on the spot, with ptxrt's PTX machine behind it.

hip-python runs unmodified, and finds the library by ROCM_PATH, or, where it does not look there, by its name. What a
stream is given waits there until somebody waits for it: a missing wait between two streams, or a free before the last
use, then shows in results. Every call is checked as HIP checks it (handles, the current device, live memory), and
recorded. An AMD code object cannot run here, so :meth:`StandIn.know` is given the text of each one, and the machine
runs what NVRTC makes of the same text.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import math
import os
import pickle
import shutil
import struct
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import ptxrt
from ptxrt.backends.hip import BACKEND
from ptxrt.backends.sim import SimBackend
from ptxrt.compilers import Binary

SOURCE = Path(__file__).with_name("standin.c")

# The C types of each function's arguments, in one letter each: P pointer, I int, U unsigned, Z size_t or another
# integer of 64 bits, B byte.
FUNCTIONS = {
    "hipInit": "U",
    "hipRuntimeGetVersion": "P",
    "hipGetDeviceCount": "P",
    "hipGetDevicePropertiesR0600": "PI",
    "hipDeviceGetAttribute": "PII",
    "hipGetDevice": "P",
    "hipSetDevice": "I",
    "hipDeviceSynchronize": "",
    "hipGetLastError": "",
    "hipMallocAsync": "PZP",
    "hipFreeAsync": "PP",
    "hipDeviceGetMemPool": "PI",
    "hipMemPoolTrimTo": "PZ",
    "hipMemcpyHtoDAsync": "PPZP",
    "hipMemcpyDtoHAsync": "PPZP",
    "hipMemcpyDtoDAsync": "PPZP",
    "hipMemsetD8Async": "PBZP",
    "hipMemGetAddressRange": "PPP",
    "hipStreamCreateWithFlags": "PU",
    "hipStreamDestroy": "P",
    "hipStreamGetDevice": "PP",
    "hipStreamQuery": "P",
    "hipStreamSynchronize": "P",
    "hipStreamWaitEvent": "PPU",
    "hipEventCreate": "P",
    "hipEventCreateWithFlags": "PU",
    "hipEventDestroy": "P",
    "hipEventRecord": "PP",
    "hipEventQuery": "P",
    "hipEventSynchronize": "P",
    "hipEventElapsedTime": "PPP",
    "hipModuleLoadData": "PP",
    "hipModuleUnload": "P",
    "hipModuleGetFunction": "PPP",
    "hipFuncGetAttribute": "PIP",
    "hipModuleGetGlobal": "PPPP",
    "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor": "PPIZ",
    "hipModuleLaunchKernel": "PUUUUUUUPPP",
    "hipModuleLaunchCooperativeKernel": "PUUUUUUUPP",
    "hipStreamBeginCapture": "PI",
    "hipStreamEndCapture": "PP",
    "hipGraphInstantiateWithFlags": "PPZ",
    "hipGraphDestroy": "P",
    "hipGraphLaunch": "PP",
    "hipGraphExecDestroy": "P",
}
_TYPES = {
    "P": ctypes.c_void_p,
    "I": ctypes.c_int,
    "U": ctypes.c_uint,
    "Z": ctypes.c_size_t,
    "B": ctypes.c_ubyte,
}

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONFIGURATION, INVALID_DEVICE, NOT_FOUND = 0, 1, 2, 9, 101, 500
INVALID_IMAGE, INVALID_HANDLE, NOT_FOUND, NOT_READY, ILLEGAL_ADDRESS = 200, 400, 500, 600, 700
LAUNCH_FAILURE, COOPERATIVE_LAUNCH_TOO_LARGE, CAPTURE_UNSUPPORTED, UNKNOWN = 719, 720, 900, 999

IN_CAPTURE = {"hipGetDevice", "hipSetDevice", "hipGetLastError", "hipMemcpyDtoDAsync", "hipMemsetD8Async"}
IN_CAPTURE |= {"hipModuleLaunchKernel", "hipModuleLaunchCooperativeKernel", "hipStreamEndCapture"}
"""What a thread may call between the two ends of a capture."""

LDS = 64 << 10
THREADS = 2048
"""Bytes of shared memory, and threads, that a compute unit has."""

POOLS = 0x500  # the first device's memory pool, as a handle; the next device's is one more


@dataclass(frozen=True)
class Model:
    """What a device says of itself."""

    name: str
    arch: str
    wave: int
    units: int


MODELS = (
    Model("stand-in for an MI250X", "gfx90a:sramecc+:xnack-", 64, 110),
    Model("stand-in for an RX 7900 XTX", "gfx1100", 32, 96),
)


class Refused(Exception):
    """A call that HIP answers with an error."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(status)


@dataclass(eq=False)
class Queue:
    """A stream: work that waits until somebody waits for it, and how much of it has run."""

    device: int
    work: deque[tuple[Callable[[], None], Any]] = field(default_factory=deque)
    done: int = 0
    captured: list[tuple[Callable[[], None], Any]] | None = None

    def put(self, work: Callable[[], None], module: Any = None) -> int:
        """Add work, which needs `module` loaded; return how much there is to run until it has run."""
        (self.work if self.captured is None else self.captured).append((work, module))
        return self.done + len(self.work)

    def run(self, until: int | None = None) -> None:
        """Run the work up to a point, or all."""
        while self.work and (until is None or self.done < until):
            work, _ = self.work.popleft()
            self.done += 1
            work()


@dataclass(eq=False)
class Mark:
    """An event: where it was recorded, and when that was reached."""

    device: int
    queue: Queue | None = None
    position: int = 0
    time: float = 0.0

    @property
    def reached(self) -> bool:
        return self.queue is None or self.queue.done >= self.position

    def wait(self) -> None:
        if self.queue is not None:
            self.queue.run(self.position)


@dataclass(eq=False)
class Captured:
    """A graph, or one that can be launched."""

    device: int
    work: list[tuple[Callable[[], None], Any]]
    executable: bool = False


@dataclass(eq=False)
class Module:
    """A loaded code object, and the machine's module in its place."""

    device: int
    image: int
    digest: str
    binary: Binary
    machine: Any
    machine_binary: Binary
    names: dict[str, str]


@dataclass(frozen=True)
class Launch:
    """What one launch was given: `params` is the packed argument block, laid out as the code object says."""

    device: int
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    stream: int
    params: bytes
    cooperative: bool = False


@dataclass(frozen=True)
class _Packed:
    """What the machine takes for arguments."""

    params: bytes
    budget: int | None = None

    def bytes(self) -> bytes:
        return self.params


class StandIn:
    """The driver. One a process: hip-python keeps the library that it finds first.

    Attributes
    ----------
    calls
        Name and arguments of each call, in order, since :meth:`forget`.
    launches
        Of these, what the kernels were given.
    faults
        What kernels did wrong, as the machine reported it; HIP says hipErrorIllegalAddress, once.
    version
        What hipRuntimeGetVersion answers.
    """

    def __init__(self) -> None:
        self.machine = SimBackend()
        self.version = 7_02_53211
        self.calls: deque[tuple[str, tuple[Any, ...]]] = deque(maxlen=100_000)
        self.launches: list[Launch] = []
        self.faults: list[ptxrt.PtxrtError] = []
        self.broken: list[BaseException] = []
        self.last_error = SUCCESS
        self._lock = threading.RLock()
        self._answers = 0
        self._left: list[Queue] = []
        self._thread = threading.local()
        self._demanded: dict[str, deque[int]] = {}
        self._handles = itertools.count(0x1000, 0x10)
        self._objects: dict[int, Any] = {}
        self._null = [Queue(device) for device in range(len(MODELS))]
        self._live: list[dict[int, int]] = [{} for _ in MODELS]
        self._known: dict[str, tuple[Binary, str, dict[str, Any]]] = {}
        self._compiled: dict[str, Binary] = {}
        self._callbacks: list[Any] = []  # for as long as the library may call them
        self._layout: Callable[[int, Model, int], None] | None = None

    # For tests ----------------------------------------------------------------------------------------------------

    def know(self, binary: Binary, text: str, how: dict[str, Any]) -> None:
        """Remember what a code object was compiled from."""
        # hipRTC's options are not NVRTC's, save for macros.
        options = tuple(option for option in how.get("options", ()) if option.startswith("-D"))
        digest = _digest(binary.code)
        self._known[digest] = known = binary, text, {"name": None, **how, "options": options}
        _once_a_run(f"known-{digest}", lambda: known)  # for other processes, which find the binary in the run's store

    def fail_next(self, name: str, status: int, after: int = 0) -> None:
        """Let a function answer with an error the next time it is called, or after some calls more."""
        self._demanded.setdefault(name, deque()).extend([SUCCESS] * after + [status])

    def forget(self) -> None:
        """Begin the records anew, and demand no more errors."""
        self.calls.clear()
        self.launches.clear()
        self.faults.clear()
        self._demanded.clear()
        self.last_error = SUCCESS

    def names(self) -> list[str]:
        """Return the names of the calls since :meth:`forget`."""
        return [name for name, _ in self.calls]

    @property
    def live(self) -> list[dict[int, int]]:
        """Address and size of what is allocated on each device."""
        return self._live

    def handles(self, kind: type) -> int:
        """Return how many objects of a kind (Queue, Mark, Module) have not been given back."""
        return sum(isinstance(found, kind) for found in self._objects.values())

    # Installing ---------------------------------------------------------------------------------------------------

    def install(self, folder: Path) -> None:
        """Build the library into `folder`/lib, have hip-python load it, and answer its calls from now on.

        Raises
        ------
        RuntimeError, ImportError, OSError, subprocess.SubprocessError
            Without a C compiler or hip-python.
        """
        path = build(folder)
        before = os.environ.get("ROCM_PATH")
        os.environ["ROCM_PATH"] = str(folder)
        try:
            # Loaded by its path first: the versions of hip-python that ask for the plain name get this one then.
            library = ctypes.CDLL(str(path))
            from hip import hip

            self._layout = partial(_fill_properties, hip)
            self._attributes = {int(which): name for name, which in hip.hipDeviceAttribute_t.__members__.items()}
            self._function_attributes = {int(w): name for name, w in hip.hipFunction_attribute.__members__.items()}
            for name, letters in FUNCTIONS.items():
                kind = ctypes.CFUNCTYPE(ctypes.c_int, *(_TYPES[letter] for letter in letters))
                callback = kind(partial(self._answer, name, getattr(self, name)))
                self._callbacks.append(callback)
                ctypes.c_void_p.in_dll(library, f"standin_{name}").value = ctypes.cast(callback, ctypes.c_void_p).value
            if hip.hipInit(0)[0] != SUCCESS or "hipInit" not in self.names():
                raise RuntimeError("hip-python has another libamdhip64.so already")
        finally:
            if before is None:
                del os.environ["ROCM_PATH"]
            else:
                os.environ["ROCM_PATH"] = before
        self._watch_compiles()
        self.forget()

    def _watch_compiles(self) -> None:
        compile_hip = BACKEND.compile

        def compile_and_tell(language: str, text: str, arch: str, **how: Any) -> Binary:
            def compiled() -> Binary:
                return compile_hip(language, text, arch, **how)

            asked = repr((text, arch, how))
            key = hashlib.sha256(asked.encode("utf-8", "surrogatepass")).hexdigest()
            # Once a run, but for what names a header, which may be another one since.
            binary = compiled() if "include" in asked else _once_a_run(f"binary-{key}", compiled)
            self.know(binary, text, how)
            return binary

        BACKEND.compile = compile_and_tell  # type: ignore[method-assign]

    def _answer(self, name: str, body: Callable[..., None], *args: Any) -> int:
        with self._lock:
            self.calls.append((name, args))
            demanded = self._demanded.get(name)
            status = demanded.popleft() if demanded else SUCCESS
            if status == SUCCESS:
                self._answers += 1
                try:
                    if getattr(self._thread, "captures", False) and name not in IN_CAPTURE:
                        raise Refused(CAPTURE_UNSUPPORTED)
                    body(*args)
                except Refused as error:
                    status = error.status
                except (ptxrt.CompileError, ptxrt.BackendUnavailable) as error:
                    self.broken.append(error)  # of NVRTC, which stands in too: AMD's compiler has accepted the text
                    status = UNKNOWN
                except ptxrt.PtxrtError as fault:
                    self.faults.append(fault)
                    status = ILLEGAL_ADDRESS
                except BaseException as error:  # noqa: BLE001 (ctypes would print it, and answer success)
                    self.broken.append(error)
                    status = UNKNOWN
                finally:
                    self._answers -= 1
            if status != SUCCESS:
                self.last_error = status
            return status

    # HIP's functions, in the order of FUNCTIONS ---------------------------------------------------------------------

    def hipInit(self, flags: int) -> None: ...

    def hipRuntimeGetVersion(self, version: int) -> None:
        _store(ctypes.c_int, version, self.version)

    def hipGetDeviceCount(self, count: int) -> None:
        _store(ctypes.c_int, count, len(MODELS))

    def hipGetDevicePropertiesR0600(self, properties: int, device: int) -> None:
        assert self._layout is not None
        self._layout(properties, _model(device), self.machine.properties(device).total_memory)

    def hipDeviceGetAttribute(self, value: int, attribute: int, device: int) -> None:
        model = _model(device)
        known = {
            "WarpSize": model.wave,
            "MultiprocessorCount": model.units,
            "MaxThreadsPerBlock": 1024,
            "MaxSharedMemoryPerBlock": LDS,
            "MaxGridDimX": 2**31 - 1,
            "CooperativeLaunch": 1,
            **dict.fromkeys(("MaxBlockDimX", "MaxBlockDimY", "MaxBlockDimZ"), 1024),
            **dict.fromkeys(("MaxGridDimY", "MaxGridDimZ"), 65536),
        }
        name = self._attributes[attribute].removeprefix("hipDeviceAttribute")
        _store(ctypes.c_int, value, known[name])

    def hipGetDevice(self, device: int) -> None:
        _store(ctypes.c_int, device, self._device)

    def hipSetDevice(self, device: int) -> None:
        _model(device)
        self._thread.device = device

    def hipDeviceSynchronize(self) -> None:
        for queue in [] if self._interrupts else self._queues(self._device):
            queue.run()

    def hipGetLastError(self) -> None:
        self.last_error = SUCCESS

    def hipMallocAsync(self, out: int, size: int, stream: int | None) -> None:
        queue = self._queue(stream)
        try:
            ptr = self.machine.allocate(queue.device, size, 0) if size else 0
        except ptxrt.OutOfDeviceMemory:
            raise Refused(OUT_OF_MEMORY) from None
        if ptr:
            self._live[queue.device][ptr] = size
        _store(ctypes.c_void_p, out, ptr)

    def hipFreeAsync(self, memory: int | None, stream: int | None) -> None:
        queue = self._queue(stream)
        if self._live[queue.device].pop(memory or 0, None) is None:
            raise Refused(INVALID_VALUE)
        assert memory is not None
        queue.put(partial(self.machine.free, queue.device, memory, 0, ()))

    def hipDeviceGetMemPool(self, out: int, device: int) -> None:
        if not 0 <= device < len(MODELS):
            raise Refused(INVALID_DEVICE)
        _store(ctypes.c_void_p, out, POOLS + device)

    def hipMemPoolTrimTo(self, pool: int, size: int) -> None:
        if not 0 <= pool - POOLS < len(MODELS):
            raise Refused(INVALID_VALUE)

    def hipMemcpyHtoDAsync(self, to: int, host: int, size: int, stream: int | None) -> None:
        queue = self._queue(stream)
        # Pageable memory has been read when the call returns.
        data = ctypes.string_at(host, size) if size else b""
        if size:
            queue.put(lambda: self.machine.copy_in(queue.device, to, memoryview(data), 0))

    def hipMemcpyDtoHAsync(self, host: int, source: int, size: int, stream: int | None) -> None:
        queue = self._queue(stream)
        if size:
            target = memoryview((ctypes.c_ubyte * size).from_address(host)).cast("B")
            queue.put(lambda: self.machine.copy_out(queue.device, target, source, 0))

    def hipMemcpyDtoDAsync(self, to: int, source: int, size: int, stream: int | None) -> None:
        queue = self._queue(stream)
        if size:
            queue.put(lambda: self.machine.copy(queue.device, to, source, size, 0))

    def hipMemsetD8Async(self, to: int, byte: int, size: int, stream: int | None) -> None:
        queue = self._queue(stream)
        if size:
            queue.put(lambda: self.machine.fill(queue.device, to, byte, size, 0))

    def hipMemGetAddressRange(self, start: int, size: int, address: int | None) -> None:
        for ptr, nbytes in self._live[self._device].items():
            if ptr <= (address or 0) < ptr + nbytes:
                _store(ctypes.c_void_p, start, ptr)
                _store(ctypes.c_size_t, size, nbytes)
                return
        raise Refused(NOT_FOUND)

    def hipStreamCreateWithFlags(self, out: int, flags: int) -> None:
        if flags not in (0, 1):
            raise Refused(INVALID_VALUE)
        self._new(out, Queue(self._device))

    def hipStreamDestroy(self, stream: int) -> None:
        queue = self._need(Queue, stream)
        del self._objects[stream]
        if self._interrupts:
            self._left.append(queue)
        else:
            queue.run()

    def hipStreamGetDevice(self, stream: int | None, device: int) -> None:
        queue = self._objects.get(stream) if stream else self._null[self._device]  # of any device
        if not isinstance(queue, Queue):
            raise Refused(INVALID_HANDLE)
        _store(ctypes.c_int, device, queue.device)

    def hipStreamQuery(self, stream: int | None) -> None:
        queue = self._queue(stream)
        if queue.work:
            queue.run(queue.done + 1)  # a GPU goes on by itself, too
            raise Refused(NOT_READY)

    def hipStreamSynchronize(self, stream: int | None) -> None:
        self._queue(stream).run()

    def hipStreamWaitEvent(self, stream: int | None, event: int, flags: int) -> None:
        mark = self._need(Mark, event)
        source, position = mark.queue, mark.position
        if source is not None:
            self._queue(stream).put(lambda: source.run(position))

    def hipEventCreate(self, out: int) -> None:
        self._new(out, Mark(self._device))

    def hipEventCreateWithFlags(self, out: int, flags: int) -> None:
        self._new(out, Mark(self._device))

    def hipEventDestroy(self, event: int) -> None:
        self._need(Mark, event)
        del self._objects[event]

    def hipEventRecord(self, event: int, stream: int | None) -> None:
        mark, queue = self._need(Mark, event), self._queue(stream)

        def stamp() -> None:
            mark.time = time.perf_counter()

        mark.queue, mark.position = queue, queue.put(stamp)

    def hipEventQuery(self, event: int) -> None:
        mark = self._need(Mark, event)
        if not mark.reached:
            assert mark.queue is not None
            mark.queue.run(mark.queue.done + 1)  # a GPU goes on by itself, too
            raise Refused(NOT_READY)

    def hipEventSynchronize(self, event: int) -> None:
        self._need(Mark, event).wait()

    def hipEventElapsedTime(self, milliseconds: int, start: int, end: int) -> None:
        first, last = self._need(Mark, start), self._need(Mark, end)
        if first.queue is None or last.queue is None:
            raise Refused(INVALID_HANDLE)
        if not (first.reached and last.reached):
            raise Refused(NOT_READY)
        _store(ctypes.c_float, milliseconds, (last.time - first.time) * 1e3)

    def hipModuleLoadData(self, out: int, image: int) -> None:
        digest = _digest_at(image)
        if digest not in self._known:
            self._known[digest] = _once_a_run(f"known-{digest}", _unknown)
        binary, text, how = self._known[digest]
        if binary.arch != _model(self._device).arch:
            raise Refused(209)  # hipErrorNoBinaryForGpu
        machine_binary = self._compiled.get(digest)
        if machine_binary is None:
            arch = self.machine.properties(self._device).arch
            name = hashlib.sha256(repr((digest, arch, sorted(how.items()))).encode()).hexdigest()
            make = partial(self.machine.compile, "hip", text, arch, **how)
            self._compiled[digest] = machine_binary = _once_a_run(f"machine-{name}", make)
        machine = self.machine.load(self._device, machine_binary, how.get("name"))
        entry = how.get("entry")
        names = {binary.symbols[entry]: machine_binary.symbols[entry]} if entry else {}
        self._new(out, Module(self._device, image, digest, binary, machine, machine_binary, names))

    def hipModuleUnload(self, module: int) -> None:
        found = self._need(Module, module)
        graphs = [one.work for one in self._objects.values() if isinstance(one, Captured)]
        if any(user is found for work in (*(q.work for q in self._queues(found.device)), *graphs) for _, user in work):
            raise Refused(LAUNCH_FAILURE)  # code unloaded under a kernel that is still to run
        del self._objects[module]
        self.machine.unload(found.device, found.machine)

    def hipModuleGetFunction(self, out: int, module: int, name: int) -> None:
        found, entry = self._need(Module, module), ctypes.string_at(name).decode()
        if entry not in found.binary.entries:
            raise Refused(NOT_FOUND)
        if _digest_at(found.image) != found.digest:  # HIP reads the image it was given when it makes a function
            raise Refused(INVALID_IMAGE)
        function = self.machine.function(
            found.device, found.machine, found.machine_binary, found.names.get(entry, entry), ()
        )
        self._new(out, (found, entry, function))

    def hipFuncGetAttribute(self, value: int, attribute: int, function: int) -> None:
        module, entry, found = self._objects[function]
        report = module.binary.reports.get(entry)
        known = {
            "MAX_THREADS_PER_BLOCK": found.resources.max_threads,
            "SHARED_SIZE_BYTES": found.resources.shared_bytes,
            "CONST_SIZE_BYTES": found.resources.constant_bytes,
            "LOCAL_SIZE_BYTES": found.resources.local_bytes,
            "NUM_REGS": (report.registers if report else None) or found.resources.registers,
        }
        name = self._function_attributes[attribute].removeprefix("HIP_FUNC_ATTRIBUTE_")
        _store(ctypes.c_int, value, known[name])

    def hipModuleGetGlobal(self, out: int, size: int, module: int, name: int) -> None:
        found, symbol = self._need(Module, module), ctypes.string_at(name).decode()
        if symbol not in found.binary.variables:
            raise Refused(NOT_FOUND)
        ptr, nbytes = self.machine.variable(found.device, found.machine, symbol)
        _store(ctypes.c_void_p, out, ptr)
        _store(ctypes.c_size_t, size, nbytes)

    def hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
        self, out: int, function: int, threads: int, shared_bytes: int
    ) -> None:
        _, _, found = self._objects[function]
        shared = found.resources.shared_bytes + shared_bytes
        _store(ctypes.c_int, out, min(THREADS // threads, LDS // max(shared, 1)))

    def hipModuleLaunchKernel(self, function: int, *args: Any) -> None:
        self._launch(function, args, cooperative=False)

    def hipModuleLaunchCooperativeKernel(self, function: int, *args: Any) -> None:
        threads = math.prod(args[3:6])
        most = ctypes.c_int()
        self.hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(ctypes.addressof(most), function, threads, args[6])
        if math.prod(args[:3]) > most.value * MODELS[self._device].units:
            raise Refused(COOPERATIVE_LAUNCH_TOO_LARGE)
        self._launch(function, (*args, None), cooperative=True)

    def _launch(self, function: int, args: tuple[Any, ...], *, cooperative: bool) -> None:
        dims, (shared_bytes, stream, parameters, extra) = args[:6], args[6:]
        queue = self._queue(stream)
        module, entry, found = self._objects[function]
        if module.device != queue.device or (parameters and extra):
            raise Refused(INVALID_VALUE)
        grid, block = dims[:3], dims[3:]
        if any(blocks * threads >= 2**32 for blocks, threads in zip(grid, block, strict=True)):
            raise Refused(INVALID_CONFIGURATION)
        if 0 in dims or block[0] * block[1] * block[2] > 1024 or shared_bytes + found.resources.shared_bytes > LDS:
            raise Refused(INVALID_VALUE)
        table = module.binary.entries[entry].params
        # HIP copies the arguments at once: the caller's buffer is free for the next launch.
        packed = _packed(table, parameters, extra)
        self.launches.append(Launch(queue.device, entry, grid, block, shared_bytes, stream or 0, packed, cooperative))
        run = self.machine.launch_cooperative if cooperative else self.machine.launch
        launch = partial(run, queue.device, found.handle, dims, shared_bytes, 0, _Packed(packed))
        queue.put(launch, module)

    def hipStreamBeginCapture(self, stream: int | None, mode: int) -> None:
        queue = self._queue(stream)
        if not stream or queue.captured is not None:
            raise Refused(CAPTURE_UNSUPPORTED)
        queue.captured, self._thread.captures = [], True

    def hipStreamEndCapture(self, stream: int | None, out: int) -> None:
        queue = self._queue(stream)
        if queue.captured is None:
            raise Refused(INVALID_VALUE)
        self._new(out, Captured(queue.device, queue.captured))
        queue.captured, self._thread.captures = None, False

    def hipGraphInstantiateWithFlags(self, out: int, graph: int, flags: int) -> None:
        self._new(out, Captured(self._device, self._need(Captured, graph).work, executable=True))

    def hipGraphDestroy(self, graph: int) -> None:
        self._need(Captured, graph)
        del self._objects[graph]

    def hipGraphLaunch(self, executable: int, stream: int | None) -> None:
        found = self._need(Captured, executable)
        if not found.executable:
            raise Refused(INVALID_VALUE)
        for work, module in found.work:
            self._queue(stream).put(work, module)

    def hipGraphExecDestroy(self, executable: int) -> None:
        self._need(Captured, executable)
        del self._objects[executable]  # its replays go on to their end

    # Handles --------------------------------------------------------------------------------------------------------

    @property
    def _interrupts(self) -> bool:
        """Whether a call comes in the middle of another one, from a finalizer: maybe of a kernel that runs there."""
        return self._answers > 1

    @property
    def _device(self) -> int:
        """The current device of the calling thread."""
        return getattr(self._thread, "device", 0)

    def _new(self, out: int, thing: Any) -> None:
        handle = next(self._handles)
        self._objects[handle] = thing
        _store(ctypes.c_void_p, out, handle)

    def _need(self, kind: type, handle: int) -> Any:
        found = self._objects.get(handle)
        if not isinstance(found, kind) or getattr(found, "device", self._device) != self._device:
            raise Refused(INVALID_HANDLE)  # of another kind, given back, or of a device that is not current
        return found

    def _queue(self, stream: int | None) -> Queue:
        return self._need(Queue, stream) if stream else self._null[self._device]

    def _queues(self, device: int) -> list[Queue]:
        made = [found for found in self._objects.values() if isinstance(found, Queue) and found.device == device]
        return [self._null[device], *made, *(queue for queue in self._left if queue.device == device)]


def build(folder: Path) -> Path:
    """Compile the library into `folder`/lib unless it is there, and return its path."""
    path = folder / "lib" / "libamdhip64.so"
    if folder.exists() and folder.stat().st_uid != os.getuid():
        raise RuntimeError(f"{folder} is another user's: what lies there is not loaded")
    if not path.exists():
        compiler = shutil.which("cc")
        if compiler is None:
            raise RuntimeError("there is no C compiler, cc")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as own:  # another process may be building it, too
            made = Path(own) / path.name
            options = ["-shared", "-fPIC", "-O1", f"-Wl,-soname,{path.name}"]
            subprocess.run([compiler, *options, "-o", made, SOURCE], check=True, capture_output=True)
            made.replace(path)
    return path


def default_folder() -> Path:
    """Return a folder for the library of this user and this source."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"ptxrt-standin-{os.getuid()}-{digest}"


def _model(device: int) -> Model:
    if not 0 <= device < len(MODELS):
        raise Refused(INVALID_DEVICE)
    return MODELS[device]


def _store(kind: Any, address: int, value: Any) -> None:
    kind.from_address(address).value = value


def _fill_properties(hip: Any, address: int, model: Model, total: int) -> None:
    """Write a hipDeviceProp_t; hip-python's own struct says where its fields lie."""
    ours = hip.hipDeviceProp_t()
    size = ours.c_sizeof()
    ctypes.memset(int(ours), 0, size)
    for name, value in (("name", model.name), ("gcnArchName", model.arch)):
        # Its strings cannot be set: the place is the one where a letter shows in the field.
        for at in range(size):
            before = ctypes.string_at(int(ours) + at, 1)
            ctypes.memmove(int(ours) + at, b"?", 1)
            found = len(getattr(ours, name)) == 1
            ctypes.memmove(int(ours) + at, before, 1)
            if found:
                break
        ctypes.memmove(int(ours) + at, value.encode(), len(value))
    ours.totalGlobalMem = total
    ctypes.memmove(address, int(ours), size)


def _packed(table: Any, parameters: int | None, extra: int | None) -> bytes:
    """Return the argument block of a launch, given as an address for each argument or as one buffer."""
    size = max((p.offset + p.size for p in table), default=0)
    if extra:
        buffer, length = (ctypes.c_uint64 * 4).from_address(extra)[1::2]
        return ctypes.string_at(buffer, ctypes.c_size_t.from_address(length).value)[:size]
    block = bytearray(size)
    addresses = (ctypes.c_void_p * len(table)).from_address(parameters or 0) if table else ()
    for p, address in zip(table, addresses, strict=True):
        block[p.offset : p.offset + p.size] = ctypes.string_at(address, p.size)
    return bytes(block)


def _unknown() -> Any:
    raise Refused(INVALID_IMAGE)


def _once_a_run(name: str, make: Callable[[], Any]) -> Any:
    """Return what `make` gives, or gave in another process of this test run."""
    folder = os.environ.get("TEST_RUN_FOLDER")
    path = Path(folder, name) if folder else None
    if path is not None and path.exists():
        with open(path, "rb") as file:  # not by a method of Path, which tests put others in the place of
            return pickle.load(file)
    found = make()
    if path is not None:
        part = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        with open(part, "wb") as file:
            pickle.dump(found, file)
        part.replace(path)
    return found


def _digest_at(image: int) -> str:
    """Return the digest of a code object in memory, whose length its own headers tell."""
    size = _elf_size(ctypes.string_at(image, 64), lambda at, n: ctypes.string_at(image + at, n))
    return _digest(ctypes.string_at(image, size))


def _digest(code: bytes) -> str:
    return hashlib.sha256(code[: _elf_size(code, lambda at, n: code[at : at + n])]).hexdigest()


def _elf_size(header: bytes, read: Callable[[int, int], bytes]) -> int:
    """Return where an ELF file ends: behind its last section, or behind the table of them."""
    if header[:4] != b"\x7fELF":
        raise Refused(INVALID_IMAGE)
    (sections,) = struct.unpack_from("<Q", header, 40)
    size, count = struct.unpack_from("<HH", header, 58)
    end: int = sections + size * count
    for index in range(count):
        (kind,) = struct.unpack("<I", read(sections + index * size + 4, 4))
        offset, length = struct.unpack("<QQ", read(sections + index * size + 24, 16))
        if kind != 8:  # SHT_NOBITS has no bytes in the file
            end = max(end, offset + length)
    return end
