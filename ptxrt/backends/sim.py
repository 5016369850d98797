"""The PTX machine as a driver: devices that are always there, and check every access.

Everything runs in the calling thread and is done on return, so streams and events only keep their names and times.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from ptxrt import sim
from ptxrt.backends import DeviceProperties, Function, Imported, PointerParam, Recorded, Resources, capsules
from ptxrt.compilers import Binary, EntryInfo, ParamInfo, installed, nvjitlink
from ptxrt.compilers.occupancy import occupancy
from ptxrt.compilers.ptx_text import PtxHeader, scan
from ptxrt.compilers.variables import variables_of
from ptxrt.dtypes import BY_NUMPY
from ptxrt.errors import CompileError, InvalidArgument, LaunchError, Unsupported, shown
from ptxrt.images import ImageFormat, Sampling
from ptxrt.places import Sources

__all__ = ["BACKEND", "COLLECTORS", "blocks_at_a_time", "param_table", "run"]

COLLECTORS: list[Callable[..., sim.LaunchReport]] = []
"""What runs a launch in the place of `sim.launch`, if any does: the last. ptxrt.testing.coverage adds one."""

_KINDS: dict[str, Literal["float", "int"]] = {"f": "float", "u": "int", "s": "int"}


class SimBackend:
    """Devices made of NumPy; see :class:`ptxrt.backends.Backend`.

    PTXRT_SIM_DEVICES sets their number (2), PTXRT_SIM_ARCH their architecture (sm_90), PTXRT_SIM_MEMORY the bytes of
    memory that each has (8 GiB).
    """

    name = "sim"
    languages: tuple[str, ...] = ("ptx", "cuda", "hip")
    compiled_languages: tuple[str, ...] = ("cuda", "hip")

    def __init__(self) -> None:
        self._memories: dict[int, sim.GlobalMemory] = {}
        # What each device has said that it is.
        self._archs: dict[int, str] = {}
        self._handles = itertools.count(1)
        self._events: dict[int, float] = {}
        # One kernel at a time on a device, as on a stream.
        self._locks: dict[int, threading.Lock] = {}
        os.register_at_fork(after_in_child=self._locks.clear)
        self._thread = threading.local()

    # Discovery --------------------------------------------------------------------------------------------------

    def unavailable(self) -> str | None:
        return None

    def device_count(self) -> int:
        return _setting("PTXRT_SIM_DEVICES", 2, least=1)

    def properties(self, ordinal: int) -> DeviceProperties:
        self._archs[ordinal] = _arch()
        return DeviceProperties(
            name="PTX machine",
            arch=self._archs[ordinal],
            warp_size=32,
            multiprocessors=132,
            total_memory=self._memory(ordinal).limit_bytes,
            max_threads_per_block=1024,
            max_block=(1024, 1024, 64),
            max_grid=(2**31 - 1, 65535, 65535),
            max_shared_static=48 << 10,
            max_shared_dynamic=227 << 10,
            max_cluster=16,
            driver=f"PTX {sim.MAX_PTX_VERSION[0]}.{sim.MAX_PTX_VERSION[1]}",
        )

    def _memory(self, ordinal: int) -> sim.GlobalMemory:
        memory = self._memories.get(ordinal)
        if memory is None:  # of two threads that come here at once one makes it
            memory = self._memories.setdefault(ordinal, sim.GlobalMemory(_setting("PTXRT_SIM_MEMORY", 8 << 30)))
        return memory

    # Memory -----------------------------------------------------------------------------------------------------

    def allocate(self, ordinal: int, nbytes: int, stream: int) -> int:
        return self._memory(ordinal).allocate(nbytes)

    def free(self, ordinal: int, ptr: int, stream: int, used_on: Iterable[int]) -> None:
        self._memory(ordinal).free(ptr)

    def trim_memory(self, ordinal: int) -> None: ...

    def import_array(self, ordinal: int, array: Any, stream: int) -> Imported:
        if "numpy.ma" in sys.modules and np.ma.is_masked(array):  # whose mask a kernel would not see
            raise BufferError("elements of it are masked")
        # NumPy's own arrays need no DLPack, which NumPy 1 reads as read-only.
        host = array if isinstance(array, np.ndarray) else capsules.as_numpy(array.__dlpack__)
        if host.dtype not in BY_NUMPY:  # refused by whoever asked
            return Imported(0, host.shape, None, host.dtype, False, None)
        if any(step % host.itemsize for step in host.strides):
            raise BufferError(f"strides of {host.strides} bytes are no multiples of {host.itemsize}")
        steps = tuple(step // host.itemsize for step in host.strides)
        ptr = 0
        if host.size and min((0, *steps)) >= 0:  # negative strides are refused by whoever asked
            span = 1 + sum((n - 1) * step for n, step in zip(host.shape, steps, strict=True))
            flat = np.lib.stride_tricks.as_strided(host, (span,), (host.itemsize,), writeable=host.flags.writeable)
            ptr = self._memory(ordinal).adopt(flat, f"shared with {type(array).__name__}")
        # The machine's memory keeps the host array alive until the address is freed, hence no owner.
        return Imported(ptr, host.shape, steps, host.dtype, not host.flags.writeable, None)

    def export_array(self, ordinal: int, array: Any, dtype: Any) -> Any:
        size = array.dtype.itemsize
        if not array.size:
            return np.empty(array.shape, dtype)
        span = size * (1 + sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)))
        host = self._memory(ordinal).view(array.ptr, span, writable=not array.readonly).view(dtype)
        return np.lib.stride_tricks.as_strided(
            host, array.shape, tuple(step * size for step in array.strides), writeable=not array.readonly
        )

    def extent(self, ordinal: int, ptr: int) -> tuple[int, int] | None:
        found = self._memory(ordinal).find(ptr)
        return None if found is None else (found.start, found.end)

    def pointer_ordinal(self, ptr: int) -> int:
        raise Unsupported(op="sim", argument="pointer", expected="an array with DLPack", given=f"{ptr:#x}")

    def copy_in(self, ordinal: int, ptr: int, host: memoryview, stream: int) -> None:
        self._memory(ordinal).view(ptr, len(host), writable=True)[:] = np.frombuffer(host, np.uint8)

    def copy_out(self, ordinal: int, host: memoryview, ptr: int, stream: int) -> None:
        np.frombuffer(host, np.uint8)[:] = self._memory(ordinal).view(ptr, len(host))

    def looking(self, ordinal: int, streams: tuple[int, ...]) -> AbstractContextManager[bool]:
        return nullcontext(True)

    def copy(self, ordinal: int, dst: int, src: int, nbytes: int, stream: int) -> None:
        memory = self._memory(ordinal)
        memory.view(dst, nbytes, writable=True)[:] = memory.view(src, nbytes)

    def fill(self, ordinal: int, ptr: int, byte: int, nbytes: int, stream: int) -> None:
        self._memory(ordinal).view(ptr, nbytes, writable=True)[:] = byte

    def give(self, ordinal: int, work: Callable[[int, int, int], None], ptr: int, nbytes: int, stream: int) -> None:
        work(ptr, nbytes, stream)

    # Textures and surfaces --------------------------------------------------------------------------------------

    def create_image(self, ordinal: int, form: ImageFormat, *, surface: bool) -> int:
        del surface  # each may be written
        return self._memory(ordinal).allocate(sim.Image(0, form).nbytes, "image")

    def destroy_image(self, ordinal: int, image: int) -> None:
        self._memory(ordinal).free(image)

    def copy_image(self, ordinal: int, image: int, form: ImageFormat, ptr: int, stream: int, *, into: bool) -> None:
        memory, placed = self._memory(ordinal), sim.Image(image, form)
        rows = placed.rows(memory.view(image, placed.nbytes, writable=into))
        flat = memory.view(ptr, form.nbytes, writable=not into).reshape(rows.shape)
        if into:
            rows[:] = flat
        else:
            flat[:] = rows

    def create_texture(self, ordinal: int, image: int, form: ImageFormat, how: Sampling, *, is_memory: bool) -> int:
        return self._memory(ordinal).handles.add(sim.Bound(sim.Image(image, form, is_memory), how))

    def destroy_texture(self, ordinal: int, texture: int) -> None:
        self._memory(ordinal).handles.remove(texture)

    def create_surface(self, ordinal: int, image: int, form: ImageFormat) -> int:
        return self._memory(ordinal).handles.add(sim.Bound(sim.Image(image, form), None))

    def destroy_surface(self, ordinal: int, surface: int) -> None:
        self._memory(ordinal).handles.remove(surface)

    # Streams and events -----------------------------------------------------------------------------------------

    def create_stream(self, ordinal: int) -> int:
        return next(self._handles)

    def destroy_stream(self, ordinal: int, stream: int) -> None: ...

    def stream_ordinal(self, stream: int) -> int:
        raise Unsupported(op="sim", argument="stream", expected="a stream of ptxrt", given=f"{stream:#x}")

    def idle(self, ordinal: int, streams: Sequence[int]) -> list[int]:
        return list(streams)

    def synchronize(self, ordinal: int, stream: int | None) -> None: ...

    def create_event(self, ordinal: int) -> int:
        handle = next(self._handles)
        self._events[handle] = 0.0
        return handle

    def destroy_event(self, ordinal: int, event: int) -> None:
        del self._events[event]

    def record(self, ordinal: int, event: int, stream: int) -> None:
        self._events[event] = time.perf_counter()

    def wait(self, ordinal: int, stream: int, event: int) -> None: ...
    def wait_stream(self, ordinal: int, stream: int, awaited: int) -> None: ...

    def event_done(self, ordinal: int, event: int) -> bool:
        return True

    def event_synchronize(self, ordinal: int, event: int) -> None: ...

    def elapsed_ms(self, ordinal: int, start: int, end: int) -> float:
        return (self._events[end] - self._events[start]) * 1e3

    # Modules ----------------------------------------------------------------------------------------------------

    def compiler(self, language: str) -> str:
        machine = f"PTX machine {sim.MAX_PTX_VERSION[0]}.{sim.MAX_PTX_VERSION[1]}"
        if language == "ptx":
            return machine
        return f"NVRTC {installed.version('NVRTC')}, {machine}"

    def effective_options(self, language: str, options: tuple[str, ...], name: str | None) -> tuple[str, ...]:
        if language == "ptx":
            return options
        from ptxrt.compilers import hip_on_nvrtc  # noqa: PLC0415 (most kernels are in PTX)

        return hip_on_nvrtc.cxx_options(language, options, name)

    def compile(self, language: str, text: str, arch: str, **how: Any) -> Binary:
        if language != "ptx":
            from ptxrt.compilers import hip_on_nvrtc  # noqa: PLC0415 (as above)

            # The PTX on the way to a cubin, which is what the machine runs.
            binary = hip_on_nvrtc.compile_cxx(language, text, arch, output="ptx", line_info=True, **how)
            try:
                _parsed(binary.code.decode(), how["name"], binary.sources)
            except CompileError as error:
                error.included = binary.included
                raise
            return binary
        nvjitlink.check_options(how["options"])
        started = time.perf_counter()
        header = scan(text, how["name"])
        program = _parsed(text, how["name"], Sources())
        _check_target(header, arch, text, how["name"])
        return Binary(
            code=text.encode(),
            kind="ptx",
            arch=arch,
            compiler=self.compiler("ptx"),
            options=how["options"],
            log="",
            seconds=time.perf_counter() - started,
            entries={name: EntryInfo(name, param_table(entry)) for name, entry in program.entries.items()},
            symbols={name: name for name in program.entries},
            variables=variables_of(text),
            ptx=text,
        )

    def load(self, ordinal: int, binary: Binary, name: str | None) -> Any:
        return sim.load(_parsed(binary.code.decode(), name, binary.sources), self._memory(ordinal))

    def unload(self, ordinal: int, module: Any) -> None:
        sim.unload(module)

    def function(
        self, ordinal: int, module: Any, binary: Binary, entry: str, pointers: tuple[PointerParam, ...]
    ) -> Function:
        found = module.program.entries[entry]
        resources = Resources(
            registers=found.registers,
            shared_bytes=found.shared_bytes,
            local_bytes=found.local_bytes,
            constant_bytes=found.const_bytes,
            max_threads=found.max_threads,
        )
        arrays = tuple(
            sim.ArrayParam(found.params[p.index].offset, p.name, p.element, p.const)
            for p in pointers
            if p.index < len(found.params)
        )
        # What C++ tells of its parameters is more than its PTX does.
        return Function(entry, (module, found, arrays), binary.entries[entry].params or param_table(found), resources)

    def allow_shared(self, ordinal: int, function: Any, nbytes: int) -> None: ...

    def max_blocks(self, ordinal: int, function: Any, threads: int, shared_bytes: int) -> int:
        return blocks_at_a_time(self._archs[ordinal], threads, function[1].shared_bytes + shared_bytes)

    def variable(self, ordinal: int, module: Any, symbol: str) -> tuple[int, int]:
        found: tuple[int, int] = module.address_of(symbol)
        return found

    def launch(
        self,
        ordinal: int,
        function: Any,
        dims: tuple[int, int, int, int, int, int],
        shared_bytes: int,
        stream: int,
        arguments: Any,
        *,
        cooperative: bool = False,
    ) -> None:
        module, entry, arrays = function
        grid, block = dims[:3], dims[3:]
        if entry.required_block not in (None, block):
            raise LaunchError(
                op=entry.name,
                argument="block",
                expected=f"{entry.required_block}, as .reqntid says",
                given=str(block),
                fix="Launch blocks of that shape, or write another .reqntid",
            )
        if math.prod(block) > entry.max_threads:
            raise LaunchError(
                op=entry.name,
                argument="block",
                expected=f"at most {entry.max_threads} threads",
                given=str(block),
                fix="Launch smaller blocks, or raise the kernel's .maxntid (in C++ __launch_bounds__)",
            )
        with self._one_at_a_time(ordinal, entry.name):
            run(
                module,
                entry.name,
                grid,
                block,
                arguments.bytes(),
                arrays=arrays,
                shared_bytes=shared_bytes,
                budget=arguments.budget,
                arch=self._archs[ordinal],
                cooperative=cooperative,
            )

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
        self.launch(ordinal, function, dims, shared_bytes, stream, arguments, cooperative=True)

    # Graphs -----------------------------------------------------------------------------------------------------

    def create_graph(self, ordinal: int, recorded: Recorded, before: Any = None) -> Any: ...

    def launch_graph(self, ordinal: int, graph: Any, stream: int, recorded: Recorded) -> None:
        recorded.issue(self, ordinal, stream)

    def destroy_graph(self, ordinal: int, graph: Any) -> None: ...

    @contextmanager
    def _one_at_a_time(self, ordinal: int, entry: str) -> Iterator[None]:
        """Wait for the launches of other threads on the device, and let them wait.

        A signal handler or a finalizer runs in the middle of whatever its thread does. If that is a launch, another can
        neither wait for it, which goes on only when the handler is done, nor run before it ends, since it may read what
        is not written yet. So it is refused; on another device too, or two threads could wait for each other.
        """
        if getattr(self._thread, "launching", False):
            raise LaunchError(
                op=entry,
                argument="launch",
                expected="a launch that interrupts no other",
                given="one from a signal handler or a finalizer that runs in the middle of a launch of this thread",
                fix="Note there what is to be done, and launch later",
            )
        try:
            self._thread.launching = True
            with self._locks.setdefault(ordinal, threading.Lock()):
                yield
        finally:
            self._thread.launching = False


def blocks_at_a_time(arch: str, threads: int, shared_bytes: int) -> int:
    """Return how many blocks a multiprocessor of sim holds: as NVIDIA's of `arch`, if the registers suffice.

    Nothing allocates real registers here, which on a GPU may allow fewer.
    """
    found = occupancy(arch, threads, 1, shared_bytes) or occupancy("sm_90", threads, 1, shared_bytes)
    return found.blocks if found else 0


def run(loaded: sim.Loaded, *args: Any, **how: Any) -> sim.LaunchReport:
    """Run a launch as `ptxrt.sim.launch` does, and let coverage see it, where it is measured."""
    return (COLLECTORS[-1] if COLLECTORS else sim.launch)(loaded, *args, **how)


def _arch() -> str:
    arch = os.environ.get("PTXRT_SIM_ARCH") or "sm_90"
    if not re.fullmatch(r"sm_[0-9]{1,4}[af]?", arch):
        raise InvalidArgument(
            op="PTXRT_SIM_ARCH", argument="environment", expected="an architecture such as sm_90", given=shown(arch)
        )
    return arch


def _check_target(header: PtxHeader, arch: str, text: str, name: str | None) -> None:
    """Refuse what a real device of `arch` would: a text for a newer one, or for another one's own features."""
    wanted, here = (int("".join(filter(str.isdigit, target))) for target in (header.target, arch))
    if wanted > here or (header.target[-1] in "af" and wanted != here):
        raise CompileError(
            f"the text says .target {header.target}, and this compile is for {arch}",
            kernel=name,
            arch=arch,
            line=header.target_line,
            source=text,
            expected=f".target {arch} or older",
            given=f".target {header.target}",
            fix=f"Write .target {arch} or older, or set PTXRT_SIM_ARCH",
        )


@lru_cache(maxsize=64)
def _parsed(text: str, name: str | None, sources: Sources) -> sim.Program:
    """Compiling and loading, on each device, need the same program: it is parsed once."""
    return sim.parse(text, name, sources)


def param_table(entry: sim.Entry) -> tuple[ParamInfo, ...]:
    """Return an entry's parameters, as far as the text tells."""
    return tuple(ParamInfo(p.offset, p.size, _kind(p), p.name) for p in entry.params)


def _kind(param: sim.Param) -> Literal["float", "int", "bits"]:
    kind = sim.TYPES[param.type[1:]]
    return _KINDS.get(kind.name[0], "bits") if kind.size == param.size else "bits"  # of an array: bits


def _setting(name: str, default: int, least: int = 0) -> int:
    text = os.environ.get(name) or str(default)
    if not re.fullmatch("[0-9]{1,19}", text) or int(text) < least:
        raise InvalidArgument(
            op=name, argument="environment", expected=f"a whole number of at least {least}", given=shown(text)
        )
    return int(text)


BACKEND = SimBackend()
