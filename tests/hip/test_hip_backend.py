"""backends/hip.py through hip-python itself, with the stand-in for AMD's library behind it.

Code objects are made up here, so that none of these tests needs hipRTC: the stand-in looks at their length and digest
only, and runs what NVRTC makes of their text.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import helpers
import ml_dtypes
import numpy as np
import pytest
import standin
from helpers import ELEMENT_NAMES, ROOT, Patch, printed_by, refused, run_script
from standin import StandIn
from texts import IN_HIP, SAXPY, SAXPY_SIGNATURE, source_for, store_params

import ptxrt
from ptxrt import Device, Kernel
from ptxrt.backends.hip import BACKEND, HipBackend, _text
from ptxrt.compilers import Binary, Report, hiprtc, nvrtc
from ptxrt.dtypes import BY_NAME

ARCHS = [model.arch for model in standin.MODELS]


@pytest.fixture(autouse=True)
def records(stand_in: StandIn) -> StandIn:
    """Every test here needs the stand-in, and begins with clean records."""
    return stand_in


@pytest.fixture
def hip(stand_in: StandIn) -> Device:
    return ptxrt.Device("hip:0")


@pytest.fixture
def hip1(stand_in: StandIn) -> Device:
    return ptxrt.Device("hip:1")


def code_object(text: str) -> bytes:
    """Return an ELF file of a header alone, with the text behind it."""
    header = bytearray(64)
    header[:7] = b"\x7fELF\x02\x01\x01"
    struct.pack_into("<Q", header, 40, 64 + len(text))
    return bytes(header) + text.encode()


@pytest.fixture
def compiled(stand_in: StandIn, monkeypatch: Patch) -> Iterator[Any]:
    """Compile HIP text to a made-up code object; its parameter table is the one that NVRTC's PTX has."""
    if reason := nvrtc.available():
        pytest.skip(reason)

    def compile_(language: Any, text: Any, arch: Any, *, options: Any = (), **how: Any) -> Any:
        ptx = stand_in.machine.compile(language, text, "sm_90", options=(), **how)
        binary = Binary(code_object(f"{arch}\n{text}"), "hsaco", arch, "made up", options, "", 0.0, ptx.entries)
        binary.symbols.update(ptx.symbols)
        stand_in.know(binary, text, how)
        return binary

    monkeypatch.setattr(BACKEND, "compile", compile_)
    monkeypatch.setattr(BACKEND, "compiler", lambda language: "made up 1.0")
    monkeypatch.setattr(BACKEND, "effective_options", lambda language, options, name: options)

    def clear() -> None:
        gc.collect()  # Kernels that a caught exception's traceback holds
        for device in (ptxrt.Device("hip:0"), ptxrt.Device("hip:1")):
            device.modules.clear()

    clear()
    yield compile_
    clear()


@pytest.fixture
def saxpy(hip: Device, compiled: Any) -> Kernel:
    return ptxrt.load(source_for(SAXPY, hip), "saxpy", SAXPY_SIGNATURE, hip)


# Discovery --------------------------------------------------------------------------------------------------------

LOOK = """
    import ptxrt
    print([str(device) for device in ptxrt.devices() if device.kind == "hip"])
    try:
        ptxrt.Device("hip:0")
    except ptxrt.BackendUnavailable as error:
        print(error)
"""
WANTED = ('pip install "ptxrt[hip]"', "ROCm 6.0 or newer")


def test_two_devices_of_two_kinds_are_found(hip: Device, hip1: Device) -> None:
    assert [str(device) for device in ptxrt.devices() if device.kind == "hip"] == ["hip:0", "hip:1"]
    assert [(d.arch, d.properties.warp_size) for d in (hip, hip1)] == [("gfx90a:sramecc+:xnack-", 64), ("gfx1100", 32)]
    assert (hip.name, hip1.name) == tuple(model.name for model in standin.MODELS)
    assert (hip.properties.multiprocessors, hip1.properties.multiprocessors) == (110, 96)
    assert hip.properties.driver == "HIP 7.2.53211"
    assert hip.properties.total_memory == 8 << 30


def test_hip_comes_between_cuda_and_sim(hip: Device) -> None:
    kinds = [device.kind for device in ptxrt.devices()]
    assert kinds == sorted(kinds, key=("cuda", "hip", "sim").index)


def test_pain24_a_missing_package_is_named_with_the_version_wanted() -> None:
    printed = printed_by("import sys; sys.modules['hip'] = None\n" + LOOK.replace("\n    ", "\n"))
    assert printed.startswith("[]\nDevice: hip:0 cannot be used: ")
    assert all(words in printed for words in WANTED)


@pytest.mark.parametrize("content", [None, "this is no library"], ids=["missing", "broken"])
def test_pain24_a_missing_or_broken_library_is_named_with_the_version_wanted(
    tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib" / "libamdhip64.so").write_text(content)
    printed = printed_by(LOOK, ROCM_PATH=str(tmp_path), LD_LIBRARY_PATH=str(tmp_path / "lib"))
    assert printed.startswith("[]\nDevice: hip:0 cannot be used: AMD's library libamdhip64.so cannot be used (")
    assert all(words in printed for words in WANTED)


def test_pain24_a_library_without_the_functions_is_named_with_the_version_wanted(tmp_path: Path) -> None:
    import _ctypes
    import shutil

    (tmp_path / "lib").mkdir()
    shutil.copy(_ctypes.__file__, tmp_path / "lib" / "libamdhip64.so")
    printed = printed_by(LOOK, ROCM_PATH=str(tmp_path), LD_LIBRARY_PATH=str(tmp_path / "lib"))
    assert "hipInit" in printed
    assert all(words in printed for words in WANTED)


def test_a_library_without_a_gpu_says_what_it_answers(tmp_path: Path) -> None:
    standin.build(tmp_path)  # with no callbacks
    printed = printed_by(LOOK, ROCM_PATH=str(tmp_path), LD_LIBRARY_PATH=str(tmp_path / "lib"))
    assert "HIP answers hipErrorNoDevice to hipInit" in printed


def test_a_missing_library_costs_the_other_devices_nothing(tmp_path: Path) -> None:
    done = run_script("import ptxrt; print(ptxrt.devices()[-1])", ROCM_PATH=str(tmp_path), LD_LIBRARY_PATH="")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "sim:1", "")


@pytest.mark.parametrize(
    ("call", "status", "words"),
    [
        ("hipInit", 100, "hipErrorNoDevice"),
        ("hipInit", 101, "hipErrorInvalidDevice"),
        ("hipInit", 4242, "4242"),
        ("hipRuntimeGetVersion", 3, "hipErrorNotInitialized to hipRuntimeGetVersion"),
        ("hipGetDeviceCount", 100, "no device (hipErrorNoDevice)"),
    ],
)
def test_discovery_never_raises(stand_in: StandIn, call: str, status: int, words: str) -> None:
    backend = HipBackend()
    stand_in.fail_next(call, status)
    assert words in str(backend.unavailable())
    assert backend.device_count() == 0
    stand_in.forget()
    backend.unavailable()
    assert stand_in.names() == []  # asked once


def test_no_device_is_an_answer(stand_in: StandIn, monkeypatch: Patch) -> None:
    monkeypatch.setattr(standin, "MODELS", ())
    backend = HipBackend()
    assert "no device (hipSuccess)" in str(backend.unavailable())
    assert backend.device_count() == 0


def test_pain24_an_old_rocm_is_refused_with_both_versions(stand_in: StandIn, monkeypatch: Patch) -> None:
    monkeypatch.setattr(stand_in, "version", 5_02_21153)
    backend = HipBackend()
    assert all(words in str(backend.unavailable()) for words in ("HIP 5.2.21153", *WANTED))
    assert backend.device_count() == 0
    monkeypatch.setattr(stand_in, "version", 6_00_00000)
    assert HipBackend().device_count() == 2


def test_a_forked_process_is_refused(stand_in: StandIn, monkeypatch: Patch) -> None:
    backend = HipBackend()
    assert backend.unavailable() is None
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert "'spawn'" in str(backend.unavailable())
    assert backend.device_count() == 0


def test_a_forked_child_does_not_wait_for_a_thread_that_it_has_not(tmp_path: Path) -> None:
    script = """
        import os, signal
        from ptxrt.backends.hip import HipBackend
        backend = HipBackend()
        backend._lock.acquire()  # as another thread does that looks for devices just now
        child = os.fork()
        if not child:
            signal.alarm(20)
            backend.unavailable()
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    done = run_script(script, ROCM_PATH=str(tmp_path), LD_LIBRARY_PATH="")
    assert (done.returncode, done.stdout.strip()) == (0, "0")


def test_properties_come_from_either_hip_python(hip: Device, monkeypatch: Patch) -> None:
    """Version 7.2 fills a struct that it is handed, and has bytes in it."""
    ten = BACKEND._driver

    class Filled:
        name, gcnArchName, totalGlobalMem = b"a name", b"gfx942:xnack-", 5

    class SevenTwo:
        hipDeviceProp_t = Filled

        def hipGetDeviceProperties(self, properties: Any, device: ptxrt.Device) -> Any:
            assert isinstance(properties, Filled)
            return (ten.hipError_t.hipSuccess,)

        def __getattr__(self, name: Any) -> Any:
            return getattr(ten, name)

    monkeypatch.setitem(BACKEND.__dict__, "_driver", SevenTwo())
    p = BACKEND.properties(1)
    assert (p.name, p.arch, p.total_memory, p.warp_size) == ("a name", "gfx942:xnack-", 5, 32)


class Numbers:
    """hip-python, with each attribute of a device or of a function its own number."""

    def __init__(self, hip: Any) -> None:
        self._hip = hip

    def hipDeviceGetAttribute(self, which: Any, ordinal: Any) -> Any:
        return self._hip.hipError_t.hipSuccess, int(which)

    def hipFuncGetAttribute(self, which: Any, function: Any) -> Any:
        return self._hip.hipError_t.hipSuccess, int(which)

    def __getattr__(self, name: Any) -> Any:
        return getattr(self._hip, name)


def test_each_limit_is_the_devices_attribute_of_that_name(hip: Device, monkeypatch: Patch) -> None:
    monkeypatch.setitem(BACKEND.__dict__, "_driver", Numbers(BACKEND._driver))
    members = BACKEND._driver.hipDeviceAttribute_t.__members__
    number = {name.removeprefix("hipDeviceAttribute"): int(which) for name, which in members.items()}
    p = BACKEND.properties(0)
    assert p.max_block == tuple(number[f"MaxBlockDim{axis}"] for axis in "XYZ")
    assert p.max_grid == tuple(number[f"MaxGridDim{axis}"] for axis in "XYZ")
    assert p.max_threads_per_block == number["MaxThreadsPerBlock"]
    assert p.max_shared_static == p.max_shared_dynamic == number["MaxSharedMemoryPerBlock"]
    assert (p.warp_size, p.multiprocessors) == (number["WarpSize"], number["MultiprocessorCount"])


@pytest.mark.parametrize("found", ["gfx90a", b"gfx90a", bytearray(b"gfx90a\0\0rest")])
def test_strings_of_either_hip_python_are_read(found: Any) -> None:
    assert _text(found) == "gfx90a"


# What is tested -----------------------------------------------------------------------------------------------------


def collected(*paths: str, **environment: str) -> str:
    """Return what pytest says of the tests in some files, run by none."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "--verbosity=-1", "-p", "no:cacheprovider", *paths]
    environment = {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False).stdout


def test_a_device_of_amds_has_the_tests_of_what_is_in_hip_and_no_others() -> None:
    found = collected("tests/ops/test_softmax2d.py", PTXRT_TEST_ALL="1")
    on_hip = [line for line in found.splitlines() if "[hip:0" in line]
    assert any("::test_matches_the_reference[" in line and "-hip/baseline-" in line for line in on_hip)
    assert any("::test_softmax2d_matches_cpu_small[" in line for line in on_hip)
    assert not any("-tiled-" in line or "-baseline-" in line for line in on_hip)


@pytest.mark.parametrize(("required", "end"), [("", "no tests"), ("hip", "PTXRT_REQUIRE=hip, but there is no C++")])
def test_the_waves_are_skipped_in_no_run_that_requires_hip(required: str, end: str) -> None:
    files = sorted(str(path) for path in (ROOT / "tests" / "hip").glob("test_waves*.py"))
    assert len(files) > 1
    assert end in collected(*files, CXX="no-such-compiler", PTXRT_REQUIRE=required)


@pytest.mark.parametrize("missing", [hiprtc, nvrtc], ids=lambda module: module.__name__)
@pytest.mark.parametrize(("required", "end"), [((), pytest.skip.Exception), (("hiprtc",), pytest.fail.Exception)])
def test_a_compiler_that_is_missing_is_skipped_in_no_run_that_requires_it(
    monkeypatch: Patch, missing: Any, required: Any, end: Any
) -> None:
    for module in (hiprtc, nvrtc):
        monkeypatch.setattr(module, "available", lambda module=module: "it is gone" if module is missing else None)
    monkeypatch.setattr(helpers, "REQUIRED", required)
    with pytest.raises(end, match="it is gone"):
        helpers.need_hip_compilers()


@pytest.mark.parametrize("kind", [ptxrt.CompileError, ptxrt.BackendUnavailable])
def test_what_the_stand_ins_own_compiler_refuses_is_no_fault_of_the_text(
    stand_in: StandIn, hip: Device, compiled: Any, monkeypatch: Patch, kind: Any
) -> None:
    def refuses(*_: Any, **__: Any) -> None:
        raise kind("NVRTC has not this name")

    binary = compiled("hip", 'extern "C" __global__ void k() {}', hip.arch, name=None)
    monkeypatch.setattr(stand_in.machine, "compile", refuses)
    with refused(ptxrt.DriverError, "hipModuleLoadData", None, "hipErrorUnknown"):
        BACKEND.load(0, binary, None)
    assert (stand_in.faults, [type(error) for error in stand_in.broken]) == ([], [kind])
    stand_in.broken.clear()


# Errors -------------------------------------------------------------------------------------------------------------

USES: dict[str, Callable[[Device], object]] = {
    "empty": lambda d: ptxrt.empty(4, "f4", d),
    "zeros": lambda d: ptxrt.zeros(4, "f4", d),
    "upload": lambda d: ptxrt.to_device(np.ones(4), d),
    "download": lambda d: ptxrt.zeros(4, "f4", d).to_host(),
    "stream": lambda d: d.create_stream(),
    "record": lambda d: d.default_stream.record(),
    "wait": lambda d: d.synchronize(),
    "wait for stream": lambda d: d.default_stream.synchronize(),
}
ERRORS = [
    ("hipMallocAsync", 2, ptxrt.OutOfDeviceMemory, "allocate", "Free arrays", "empty"),
    ("hipMallocAsync", 801, ptxrt.DriverError, "hipMallocAsync", "hipErrorNotSupported", "empty"),
    ("hipSetDevice", 101, ptxrt.DriverError, "hipSetDevice", "hipErrorInvalidDevice", "empty"),
    ("hipGetDevice", 4, ptxrt.DriverError, "hipGetDevice", "hipErrorDeinitialized", "empty"),
    ("hipStreamCreateWithFlags", 2, ptxrt.OutOfDeviceMemory, "allocate", "hipErrorOutOfMemory", "stream"),
    ("hipDeviceSynchronize", 700, ptxrt.DriverError, "hipDeviceSynchronize", "'sim:0'", "wait"),
    ("hipDeviceSynchronize", 719, ptxrt.DriverError, "hipDeviceSynchronize", "'sim:0'", "wait"),
    ("hipStreamSynchronize", 700, ptxrt.DriverError, "hipStreamSynchronize", "start anew", "wait for stream"),
    ("hipEventCreate", 999, ptxrt.DriverError, "hipEventCreate", "hipErrorUnknown", "record"),
    ("hipEventRecord", 400, ptxrt.DriverError, "hipEventRecord", "hipErrorInvalidHandle", "record"),
    ("hipMemsetD8Async", 1, ptxrt.DriverError, "hipMemsetD8Async", "hipErrorInvalidValue", "zeros"),
    ("hipMemcpyHtoDAsync", 1, ptxrt.DriverError, "hipMemcpyHtoDAsync", "hipErrorInvalidValue", "upload"),
    ("hipMemcpyDtoHAsync", 719, ptxrt.DriverError, "hipMemcpyDtoHAsync", "'sim:0'", "download"),
]


@pytest.mark.parametrize(
    ("call", "status", "kind", "op", "words", "use"), ERRORS, ids=[f"{row[0]}-{row[1]}" for row in ERRORS]
)
def test_an_error_of_the_driver_has_its_name_and_the_calls(
    hip1: Device, stand_in: StandIn, call: str, status: int, kind: Any, op: str, words: str, use: str
) -> None:
    stand_in.fail_next(call, status)
    with refused(kind, op, None, f"{call}: hipError", f"the stand-in's words for error {status}", words) as caught:
        USES[use](hip1)
    assert (caught.value.expected, caught.value.given[:8]) == ("hipSuccess", "hipError")
    assert stand_in.last_error == 0  # nobody else finds it
    USES[use](hip1)
    assert current() == 0


@pytest.mark.parametrize("status", [1, 9, 701])
def test_a_launch_that_the_driver_refuses_is_a_launch_error(stand_in: StandIn, saxpy: Kernel, status: int) -> None:
    x = ptxrt.zeros(4, "f4", saxpy.device)
    stand_in.fail_next("hipModuleLaunchKernel", status)
    with refused(ptxrt.LaunchError, "hipModuleLaunchKernel", None, "fewer threads or less shared memory"):
        saxpy.launch(1, 32, x, x, 4, 1.0)
    saxpy.launch(1, 32, x, x, 4, 1.0)


def test_a_cooperative_launch(hip1: Device, stand_in: StandIn, compiled: Any, on_0: None) -> None:
    kernel = ptxrt.load(source_for(SAXPY, hip1), "saxpy", SAXPY_SIGNATURE, hip1)
    x = ptxrt.zeros(4, "f4", hip1)
    kernel.launch(1, 32, x, x, 4, 1.0, cooperative=True)
    assert ("hipModuleLaunchKernel" in stand_in.names(), stand_in.launches[-1].cooperative) == (False, True)
    stand_in.fail_next("hipModuleLaunchCooperativeKernel", 720)
    with refused(ptxrt.LaunchError, "hipModuleLaunchCooperativeKernel", None, "Launch with fewer threads"):
        kernel.launch(1, 32, x, x, 4, 1.0, cooperative=True)
    assert current() == 0


def test_a_launch_after_a_fault_is_a_driver_error(stand_in: StandIn, saxpy: Kernel) -> None:
    x = ptxrt.zeros(4, "f4", saxpy.device)
    stand_in.fail_next("hipModuleLaunchKernel", 700)
    with refused(ptxrt.DriverError, "hipModuleLaunchKernel", None, "'sim:0'"):
        saxpy.launch(1, 32, x, x, 4, 1.0)


@pytest.mark.parametrize("status", [200, 209])
def test_code_that_does_not_load_names_the_fix(hip: Device, stand_in: StandIn, compiled: Any, status: int) -> None:
    stand_in.fail_next("hipModuleLoadData", status)
    with refused(ptxrt.DriverError, "hipModuleLoadData", None, "hipRTC of the same ROCm"):
        ptxrt.load(source_for(SAXPY, hip), "saxpy", SAXPY_SIGNATURE, hip)
    ptxrt.load(source_for(SAXPY, hip), "saxpy", SAXPY_SIGNATURE, hip)


def launch_on(device: ptxrt.Device) -> None:
    x = ptxrt.zeros(4, "f4", device)
    ptxrt.load(source_for(SAXPY, device), "saxpy", SAXPY_SIGNATURE, device).launch(1, 32, x, x, 4, 1.0)


UNKNOWN = {
    "hipDeviceSynchronize": lambda d: d.synchronize(),
    "hipEventQuery": lambda d: d.default_stream.record().done,
    "hipEventDestroy": lambda d: d.default_stream.wait(d.default_stream),
    "hipModuleLaunchKernel": launch_on,
}


@pytest.mark.parametrize("call", UNKNOWN)
def test_an_error_that_hip_python_does_not_know_is_a_driver_error(
    hip1: Device, stand_in: StandIn, compiled: Any, on_0: None, call: str
) -> None:
    stand_in.fail_next(call, 4242)
    with refused(ptxrt.DriverError, call, None, "4242", "hip-python of this ROCm's version"):
        UNKNOWN[call](hip1)
    assert current() == 0


def test_pain24_a_function_that_this_rocm_has_not_names_the_version_wanted(hip: Device) -> None:
    with refused(ptxrt.BackendUnavailable, "hipMemGetInfo", None, "hipMemGetInfo", *WANTED):
        BACKEND._call("hipMemGetInfo")


def test_no_bytes_are_the_null_pointer(hip: Device) -> None:
    assert BACKEND.allocate(0, 0, 0) == 0


# The current device -----------------------------------------------------------------------------------------------


def current() -> int:
    return int(BACKEND._driver.hipGetDevice()[1])


def set_current(ordinal: int) -> None:
    BACKEND._driver.hipSetDevice(ordinal)


@pytest.fixture
def on_0() -> Iterator[None]:
    set_current(0)
    yield
    set_current(0)


def test_pain13_every_call_works_on_its_device_and_puts_back_what_was(hip1: Device, compiled: Any, on_0: None) -> None:
    x = ptxrt.to_device(np.arange(4, dtype=np.float32), hip1)
    kernel = ptxrt.load(source_for(SAXPY, hip1), "saxpy", SAXPY_SIGNATURE, hip1)
    one, two = hip1.create_stream(), hip1.create_stream()
    first: Any = one.record()
    kernel.launch(1, 32, x, x, 4, 1.0, stream=one)
    second: Any = one.record()
    two.wait(second)
    two.wait(one)
    y = ptxrt.empty(4, "f4", hip1)
    y.copy_from(x, stream=two)
    z = ptxrt.zeros(4, "f4", hip1)
    steps: dict[str, Callable[[], object]] = {
        "done": lambda: second.done,
        "event": second.synchronize,
        "elapsed": lambda: first.elapsed_ms(second),
        "stream": two.synchronize,
        "device": hip1.synchronize,
        "values": lambda: np.testing.assert_array_equal(y.to_host(), [0, 2, 4, 6]),
        "zeros": lambda: np.testing.assert_array_equal(z.to_host(), np.zeros(4)),
        "free": x.free,
        "unload": hip1.modules.clear,
    }
    for name, step in steps.items():
        step()
        assert current() == 0, name
    set_current(1)
    first = second = None
    del one, two, step
    steps.clear()
    gc.collect()
    assert current() == 1


def test_the_device_that_was_current_comes_back_after_an_error(hip1: Device, stand_in: StandIn, on_0: None) -> None:
    stand_in.fail_next("hipMallocAsync", 2)
    with pytest.raises(ptxrt.OutOfDeviceMemory):
        ptxrt.empty(4, "f4", hip1)
    assert current() == 0


def test_a_device_that_is_not_put_back_is_reported(hip1: Device, stand_in: StandIn, compiled: Any, on_0: None) -> None:
    kernel = ptxrt.load(source_for(SAXPY, hip1), "saxpy", SAXPY_SIGNATURE, hip1)
    x = ptxrt.zeros(4, "f4", hip1)
    uses: list[Callable[[], object]] = [lambda: kernel.launch(1, 32, x, x, 4, 1.0), hip1.synchronize]
    for use in uses:
        stand_in.fail_next("hipSetDevice", 101, after=1)
        with refused(ptxrt.DriverError, "hipSetDevice", None, "hipErrorInvalidDevice"):
            use()
        set_current(0)


def test_a_launch_changes_no_device_for_good(hip1: Device, stand_in: StandIn, compiled: Any, on_0: None) -> None:
    kernel = ptxrt.load(source_for(SAXPY, hip1), "saxpy", SAXPY_SIGNATURE, hip1)
    x = ptxrt.zeros(4, "f4", hip1)
    stand_in.fail_next("hipGetDevice", 4)
    with refused(ptxrt.DriverError, "hipGetDevice", None, "hipErrorDeinitialized"):
        kernel.launch(1, 32, x, x, 4, 1.0)
    assert current() == 0
    assert stand_in.launches == []


def test_a_refused_launch_puts_the_device_back(hip1: Device, stand_in: StandIn, compiled: Any, on_0: None) -> None:
    kernel = ptxrt.load(source_for(SAXPY, hip1), "saxpy", SAXPY_SIGNATURE, hip1)
    x = ptxrt.zeros(4, "f4", hip1)
    stand_in.fail_next("hipModuleLaunchKernel", 1)
    with pytest.raises(ptxrt.LaunchError):
        kernel.launch(1, 32, x, x, 4, 1.0)
    assert current() == 0
    kernel.launch(1, 32, x, x, 4, 1.0)
    assert current() == 0
    assert stand_in.launches[-1].device == 1


def test_the_current_device_is_each_threads_own(hip: Device, hip1: Device, on_0: None) -> None:
    set_current(1)
    seen: list[Any] = []

    def work() -> None:
        x = ptxrt.to_device(np.ones(3), hip1)
        seen.extend((current(), x.to_host().sum()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [0, 3.0]
    assert current() == 1


# Launches -----------------------------------------------------------------------------------------------------------

SCALARS = [
    ("u8", "u8", 200, struct.pack("B", 200)),
    ("i8", "s8", -100, struct.pack("b", -100)),
    ("bool", "u8", True, b"\1"),
    ("u16", "u16", 65535, struct.pack("H", 65535)),
    ("i16", "s16", -32768, struct.pack("h", -32768)),
    ("f16", "b16", 1.5, struct.pack("e", 1.5)),
    ("bf16", "b16", 3.0, np.array(3.0, ml_dtypes.bfloat16).tobytes()),
    ("u32", "u32", 2**32 - 1, struct.pack("I", 2**32 - 1)),
    ("i32", "s32", -(2**31), struct.pack("i", -(2**31))),
    ("f32", "f32", 2.5, struct.pack("f", 2.5)),
    ("u64", "u64", 2**64 - 1, struct.pack("Q", 2**64 - 1)),
    ("i64", "s64", -(2**63), struct.pack("q", -(2**63))),
    ("f64", "f64", 0.1, struct.pack("d", 0.1)),
]


def test_pain10_the_driver_is_handed_each_scalar_byte_by_byte(hip: Device, stand_in: StandIn, compiled: Any) -> None:
    shuffled = [SCALARS[i] for i in (12, 0, 7, 1, 3, 9, 2, 10, 5, 8, 4, 6, 11)]
    source = store_params(" ".join(ptx for _, ptx, *_ in shuffled), hip)
    # Halves go as the 16 bits that they are: the text has no float type of that width.
    declared = ", ".join(f"{'u16' if '16' in kind else kind} p{i}" for i, (kind, *_) in enumerate(shuffled))
    kernel = ptxrt.load(source, "store", f"u8* out, {declared}", hip)
    out = ptxrt.zeros(8 * len(shuffled), np.uint8, hip)
    as_bits = [int.from_bytes(raw, "little") if "16" in kind else value for kind, _, value, raw in shuffled]
    kernel.launch(1, 1, out, *as_bits)
    block = bytearray(struct.pack("Q", out.ptr))
    for _, _, _, raw in shuffled:
        block += bytes(-len(block) % len(raw)) + raw
    params = stand_in.launches[-1].params
    assert [n for n, (a, b) in enumerate(zip(params, block, strict=True)) if a != b] == []
    for row, (kind, *_, raw) in zip(out.to_host().reshape(-1, 8), shuffled, strict=True):
        assert bytes(row[: len(raw)]) == raw, kind


def test_a_launch_passes_its_geometry_stream_and_shared_bytes(hip: Device, stand_in: StandIn, saxpy: Kernel) -> None:
    x = ptxrt.zeros(4, "f4", hip)
    stream = hip.create_stream()
    saxpy.launch((2, 3, 4), (8, 2, 1), x, x, 4, 1.5, shared_bytes=48, stream=stream)
    launch = stand_in.launches[-1]
    assert (launch.entry, launch.grid, launch.block) == ("saxpy", (2, 3, 4), (8, 2, 1))
    assert (launch.shared_bytes, launch.stream, launch.device) == (48, stream.handle, 0)
    assert launch.params == struct.pack("<QQIf", x.ptr, x.ptr, 4, 1.5)


class ForeignStream:
    """Another library's stream, as torch's are on ROCm too."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __cuda_stream__(self) -> Any:
        return 0, self.stream.handle


def test_a_stream_of_another_library_is_accepted(hip: Device, stand_in: StandIn, saxpy: Kernel) -> None:
    x, stream = ptxrt.zeros(4, "f4", hip), hip.create_stream()
    saxpy.launch(1, 4, x, x, 4, 1.5, stream=ForeignStream(stream))
    assert stand_in.launches[-1].stream == stream.handle
    saxpy.launch(1, 4, x, x, 4, 1.5, stream=ForeignStream(hip.default_stream))
    assert stand_in.launches[-1].stream == 0


def test_pain14_another_librarys_stream_of_another_device_is_refused(hip: Device, hip1: Device, saxpy: Kernel) -> None:
    x = ptxrt.zeros(4, "f4", hip)
    with refused(ptxrt.DeviceMismatch, "saxpy", "stream", "a stream of hip:0", "a stream of hip:1"):
        saxpy.launch(1, 4, x, x, 4, 1.5, stream=ForeignStream(hip1.create_stream()))


def test_the_arguments_are_free_for_the_next_launch(hip: Device, stand_in: StandIn, saxpy: Kernel) -> None:
    x, y = ptxrt.to_device(np.ones(4, np.float32), hip), ptxrt.zeros(4, "f4", hip)
    for a in (1.0, 2.0, 4.0):  # none of which has run yet
        saxpy.launch(1, 32, x, y, 4, a)
    assert y.to_host().tolist() == [7.0] * 4


@pytest.mark.parametrize(("grid", "block"), [(2**22, 1024), (2**31 - 1, 3)])
def test_a_grid_of_2_to_the_32_threads_along_an_axis_is_refused(
    hip: Device, stand_in: StandIn, saxpy: Kernel, grid: int, block: int
) -> None:
    x = ptxrt.zeros(4, "f4", hip)
    words = "grid times block, at most 4294967295 threads along each axis on hip:0", f"given ({grid * block}, 1, 1)"
    with refused(ptxrt.LaunchError, "saxpy", "grid", *words):
        saxpy.launch(grid, block, x, x, 4, 1.0)
    assert "hipModuleLaunchKernel" not in stand_in.names()


@pytest.mark.parametrize("grid", [2**31 - 1, (1, 65536), (1, 1, 65536)])
def test_as_many_blocks_as_a_device_has_are_launched(hip: Device, stand_in: StandIn, saxpy: Kernel, grid: Any) -> None:
    x = ptxrt.zeros(4, "f4", hip)
    stand_in.fail_next("hipModuleLaunchKernel", 9)  # they would take the stand-in a while
    with refused(ptxrt.LaunchError, "hipModuleLaunchKernel", None):
        saxpy.launch(grid, 1, x, x, 4, 1.0)


@pytest.mark.parametrize(
    ("grid", "block", "shared_bytes", "status"),
    [(2**22, 1024, 0, "hipErrorInvalidConfiguration"), (1, 32, (64 << 10) + 1, "hipErrorInvalidValue")],
)
def test_what_we_would_let_pass_the_stand_in_refuses(
    hip: Device, saxpy: Kernel, monkeypatch: Patch, grid: int, block: int, shared_bytes: int, status: str
) -> None:
    x = ptxrt.zeros(4, "f4", hip)
    without: Any = {"max_grid_threads": 2**63 - 1, "max_shared_dynamic": 1 << 20}
    monkeypatch.setattr(hip, "properties", dataclasses.replace(hip.properties, **without))
    with refused(ptxrt.LaunchError, "hipModuleLaunchKernel", None, status):
        saxpy.launch(grid, block, x, x, 4, 1.0, shared_bytes=shared_bytes)


def test_the_stand_in_refuses_what_is_of_another_device(hip1: Device, compiled: Any, on_0: None) -> None:
    driver, event = BACKEND._driver, hip1.default_stream.record()
    stream = hip1.create_stream()
    kernel = ptxrt.load(source_for(SAXPY, hip1), "saxpy", SAXPY_SIGNATURE, hip1)
    launched = driver.hipModuleLaunchKernel(kernel._function, 1, 1, 1, 1, 1, 1, 0, 0, None, None)
    refusals = [driver.hipStreamSynchronize(stream.handle), driver.hipEventSynchronize(event.handle), launched]
    names = ["hipErrorInvalidHandle", "hipErrorInvalidHandle", "hipErrorInvalidValue"]
    assert [status.name for (status,) in refusals] == names


def test_the_stand_in_refuses_a_flag_that_is_none(hip: Device) -> None:
    assert BACKEND._driver.hipStreamCreateWithFlags(2)[0].name == "hipErrorInvalidValue"


def test_the_stand_in_has_no_time_of_what_has_not_happened(hip: Device, saxpy: Kernel) -> None:
    x = ptxrt.zeros(4, "f4", hip)
    never, now = ptxrt.Event(hip), hip.default_stream.record()
    hip.synchronize()
    saxpy.launch(1, 32, x, x, 4, 1.0)
    later = hip.default_stream.record()
    said = [BACKEND._driver.hipEventElapsedTime(now.handle, end.handle)[0].name for end in (never, later)]
    assert said == ["hipErrorInvalidHandle", "hipErrorNotReady"]


def test_threads_along_y_and_z_count_too(hip: Device, stand_in: StandIn, saxpy: Kernel, monkeypatch: Patch) -> None:
    x = ptxrt.zeros(4, "f4", hip)
    monkeypatch.setattr(hip, "properties", dataclasses.replace(hip.properties, max_grid_threads=63))
    for axis in range(3):
        grid, block = [1, 1, 1], [1, 1, 1]
        grid[axis], block[axis] = 8, 8
        with refused(ptxrt.LaunchError, "saxpy", "grid", "63 threads along each axis"):
            saxpy.launch(tuple(grid), tuple(block), x, x, 4, 1.0)
        grid[axis], block[axis] = 9, 7
        saxpy.launch(tuple(grid), tuple(block), x, x, 4, 1.0)


def test_shared_memory_has_one_limit_and_nothing_to_opt_in_to(hip: Device, stand_in: StandIn, saxpy: Kernel) -> None:
    x = ptxrt.zeros(4, "f4", hip)
    saxpy.launch(1, 32, x, x, 4, 1.0, shared_bytes=64 << 10)
    assert "hipFuncSetAttribute" not in stand_in.names()
    with refused(ptxrt.LaunchError, "saxpy", "shared_bytes", "0 to 65536"):
        saxpy.launch(1, 32, x, x, 4, 1.0, shared_bytes=(64 << 10) + 1)


# Streams, events and memory -----------------------------------------------------------------------------------------


def test_work_waits_for_its_stream_and_for_what_that_waits_for(hip: Device, stand_in: StandIn, saxpy: Kernel) -> None:
    one, two = hip.create_stream(), hip.create_stream()
    x = ptxrt.to_device(np.ones(4, np.float32), hip)
    y = ptxrt.zeros(4, "f4", hip)
    hip.synchronize()
    saxpy.launch(1, 32, x, y, 4, 3.0, stream=one)
    two.wait(one)
    z = ptxrt.empty(4, "f4", hip, stream=two)
    z.copy_from(y, stream=two)
    assert z.to_host(stream=two).tolist() == [3.0] * 4


def test_streams_do_not_wait_for_the_default_stream(hip: Device, stand_in: StandIn) -> None:
    stream = hip.create_stream()
    assert [args[1] for name, args in stand_in.calls if name == "hipStreamCreateWithFlags"] == [1]
    assert BACKEND.stream_ordinal(stream.handle) == 0


def test_pain28_memory_goes_back_after_its_last_use_on_any_stream(
    hip: Device, stand_in: StandIn, saxpy: Kernel
) -> None:
    other = hip.create_stream()
    x = ptxrt.to_device(np.ones(4, np.float32), hip)
    y = ptxrt.zeros(4, "f4", hip)
    hip.synchronize()
    saxpy.launch(1, 32, x, y, 4, 3.0, stream=other)
    x.free()
    hip.default_stream.synchronize()  # the free; the kernel must have come first
    assert y.to_host(stream=other).tolist() == [3.0] * 4
    assert stand_in.faults == []


def test_waiting_leaves_no_events_behind(hip: Device, stand_in: StandIn) -> None:
    one, two = hip.create_stream(), hip.create_stream()
    before = stand_in.handles(standin.Mark)
    one.wait(two)
    assert [args[1] for name, args in stand_in.calls if name == "hipEventCreateWithFlags"] == [2]  # without a time
    stand_in.fail_next("hipStreamWaitEvent", 400)
    with pytest.raises(ptxrt.DriverError):
        one.wait(two)
    assert stand_in.handles(standin.Mark) == before


def test_streams_events_and_memory_are_given_back(hip: Device, stand_in: StandIn) -> None:
    before = [stand_in.handles(kind) for kind in (standin.Queue, standin.Mark)], len(stand_in.live[0])
    stream = hip.create_stream()
    event, x = stream.record(), ptxrt.zeros(4, "f4", hip)
    assert len(stand_in.live[0]) == before[1] + 1
    del stream, event, x
    gc.collect()
    assert ([stand_in.handles(kind) for kind in (standin.Queue, standin.Mark)], len(stand_in.live[0])) == before


def test_trimming_waits_for_the_device_and_trims_its_own_pool(hip: Device, stand_in: StandIn) -> None:
    hip.trim_memory()
    calls = [(name, args) for name, args in stand_in.calls if name in ("hipDeviceSynchronize", "hipMemPoolTrimTo")]
    assert calls == [("hipDeviceSynchronize", ()), ("hipMemPoolTrimTo", (standin.POOLS + hip.ordinal, 0))]
    stand_in.fail_next("hipMemPoolTrimTo", 1)
    with pytest.raises(ptxrt.DriverError, match="hipMemPoolTrimTo"):
        hip.trim_memory()


def test_an_event_is_done_when_its_work_is(hip: Device, stand_in: StandIn, saxpy: Kernel) -> None:
    stream = hip.create_stream()
    x = ptxrt.zeros(4, "f4", hip)
    hip.synchronize()
    saxpy.launch(1, 32, x, x, 4, 1.0, stream=stream)
    event = stream.record()
    assert not event.done
    assert stand_in.last_error == 0
    event.synchronize()
    assert event.done
    stand_in.fail_next("hipEventQuery", 719)
    with refused(ptxrt.DriverError, "hipEventQuery", None, "hipErrorLaunchFailure"):
        _ = event.done


def test_a_stream_is_idle_when_its_work_is_done(hip: Device, stand_in: StandIn, saxpy: Kernel) -> None:
    busy, free = hip.create_stream(), hip.create_stream()
    x = ptxrt.zeros(4, "f4", hip)
    hip.synchronize()
    saxpy.launch(1, 32, x, x, 4, 1.0, stream=busy)
    assert BACKEND.idle(hip.ordinal, [busy.handle, free.handle]) == [free.handle]
    assert stand_in.last_error == 0
    busy.synchronize()
    stand_in.fail_next("hipStreamQuery", 719)
    assert BACKEND.idle(hip.ordinal, [busy.handle, free.handle]) == [free.handle]
    assert BACKEND.idle(hip.ordinal, [busy.handle, free.handle]) == [busy.handle, free.handle]


def test_elapsed_time_is_in_milliseconds(hip: Device) -> None:
    import time

    first = hip.default_stream.record()
    hip.synchronize()
    time.sleep(0.02)
    second = hip.default_stream.record()
    assert 20 <= first.elapsed_ms(second) < 2000


def test_a_freed_array_is_refused_and_its_address_is_a_fault(hip: Device, stand_in: StandIn, saxpy: Kernel) -> None:
    x = ptxrt.zeros(4, "f4", hip)
    y = ptxrt.zeros(4, "f4", hip)
    old = x.ptr
    x.free()
    with refused(ptxrt.InvalidArgument, "saxpy", "x", "free"):
        saxpy.launch(1, 32, x, y, 4, 1.0)
    hip.synchronize()
    saxpy.launch(1, 32, ptxrt.DeviceArray.from_pointer(old, 4, "f4", hip), y, 4, 1.0)
    launches = "waited for since: saxpy, grid (1, 1, 1), block (32, 1, 1), on hip:0. The"
    with refused(ptxrt.DriverError, "hipDeviceSynchronize", None, "hipErrorIllegalAddress", "'sim:0'", launches):
        hip.synchronize()
    assert isinstance(stand_in.faults[0], ptxrt.MemoryFault)


def test_memory_is_given_back_once(hip: Device) -> None:
    ptr = BACKEND.allocate(0, 64, 0)
    BACKEND.free(0, ptr, 0, ())
    with refused(ptxrt.DriverError, "hipFreeAsync", None, "hipErrorInvalidValue"):
        BACKEND.free(0, ptr, 0, ())


# Modules ------------------------------------------------------------------------------------------------------------


def test_pain18_a_module_is_not_unloaded_under_a_running_kernel(hip: Device, stand_in: StandIn, compiled: Any) -> None:
    kernel = ptxrt.load(source_for(SAXPY, hip), "saxpy", SAXPY_SIGNATURE, hip)
    x = ptxrt.to_device(np.ones(4, np.float32), hip)
    stream = hip.create_stream()
    hip.synchronize()
    before = stand_in.handles(standin.Module)
    kernel.launch(1, 32, x, x, 4, 1.0, stream=stream)
    del kernel
    gc.collect()
    hip.modules.clear()
    assert stand_in.handles(standin.Module) == before - 1
    assert x.to_host(stream=stream).tolist() == [2.0] * 4


def test_a_code_object_stays_in_memory_while_it_is_loaded(hip: Device, compiled: Any) -> None:
    binary = compiled("hip", IN_HIP[SAXPY], hip.arch, defines={}, name=None, entry="saxpy")
    module = BACKEND.load(0, binary, None)
    code = binary.code
    del binary
    assert any(held is code for held in gc.get_referents(module))
    BACKEND.unload(0, module)


def test_the_stand_in_notices_code_that_goes_too_early(hip: Device, compiled: Any, on_0: None) -> None:
    binary = compiled("hip", IN_HIP[SAXPY], hip.arch, defines={}, name=None, entry="saxpy")
    driver, image = BACKEND._driver, ctypes.create_string_buffer(binary.code, len(binary.code))
    module = driver.hipModuleLoadData(ctypes.addressof(image))[1]
    function = driver.hipModuleGetFunction(module, b"saxpy")[1]
    zero = ctypes.c_uint64(0)
    params = (ctypes.c_void_p * 4)(*[ctypes.addressof(zero)] * 4)
    driver.hipModuleLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, ctypes.addressof(params), None)
    assert driver.hipModuleUnload(module)[0].name == "hipErrorLaunchFailure"
    hip.synchronize()
    image[64] = b"?"
    assert driver.hipModuleGetFunction(module, b"saxpy")[0].name == "hipErrorInvalidImage"
    assert driver.hipModuleUnload(module)[0].name == "hipSuccess"


def test_a_code_object_of_another_architecture_does_not_load(hip: Device, compiled: Any) -> None:
    binary = compiled("hip", IN_HIP[SAXPY], "gfx1100", defines={}, name=None, entry="saxpy")
    with refused(ptxrt.DriverError, "hipModuleLoadData", None, "hipErrorNoBinaryForGpu"):
        BACKEND.load(0, binary, None)


def test_resources_are_the_drivers_and_spills_the_compilers(hip: Device, compiled: Any) -> None:
    binary = compiled("hip", IN_HIP[SAXPY], hip.arch, defines={}, name=None, entry="saxpy")
    binary.reports["saxpy"] = Report(registers=17, spill_store_bytes=4, spill_load_bytes=8)
    module = BACKEND.load(0, binary, None)
    function = BACKEND.function(0, module, binary, "saxpy", ())
    assert (function.resources.registers, function.resources.max_threads) == (17, 1024)
    assert (function.resources.spill_store_bytes, function.resources.spill_load_bytes) == (4, 8)
    assert function.params == binary.entries["saxpy"].params
    binary.reports.clear()
    assert BACKEND.function(0, module, binary, "saxpy", ()).resources.spill_store_bytes is None
    BACKEND.unload(0, module)


def test_each_resource_is_the_functions_attribute_of_that_name(hip: Device, compiled: Any, monkeypatch: Patch) -> None:
    binary = compiled("hip", IN_HIP[SAXPY], hip.arch, defines={}, name=None, entry="saxpy")
    module = BACKEND.load(0, binary, None)
    monkeypatch.setitem(BACKEND.__dict__, "_driver", Numbers(BACKEND._driver))
    members = BACKEND._driver.hipFunction_attribute.__members__
    number = {name.removeprefix("HIP_FUNC_ATTRIBUTE_"): int(which) for name, which in members.items()}
    r = BACKEND.function(0, module, binary, "saxpy", ()).resources
    assert (r.registers, r.max_threads) == (number["NUM_REGS"], number["MAX_THREADS_PER_BLOCK"])
    assert (r.shared_bytes, r.local_bytes) == (number["SHARED_SIZE_BYTES"], number["LOCAL_SIZE_BYTES"])
    assert r.constant_bytes == number["CONST_SIZE_BYTES"]
    BACKEND.unload(0, module)


def test_an_entry_that_the_code_object_has_not_is_a_driver_error(hip: Device, compiled: Any) -> None:
    binary = compiled("hip", IN_HIP[SAXPY], hip.arch, defines={}, name=None, entry="saxpy")
    module = BACKEND.load(0, binary, None)
    with refused(ptxrt.DriverError, "hipModuleGetFunction", None, "hipErrorNotFound"):
        BACKEND.function(0, module, binary, "other", ())
    BACKEND.unload(0, module)


@pytest.mark.parametrize("language", ["ptx", "cuda"])
def test_other_languages_are_unsupported(hip: Device, stand_in: StandIn, language: str) -> None:
    source = getattr(ptxrt.KernelSource, language)("text")
    with refused(ptxrt.Unsupported, "load", "source", "hip:0", language):
        ptxrt.load(source, "k", "", hip)


# Sharing with other libraries -----------------------------------------------------------------------------------------


class Foreign:
    """Another library's array on a HIP device: it has DLPack alone, and notes the stream that it is asked for."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.streams: list[Any] = []

    def __dlpack__(self, *, stream: Any = None) -> Any:
        self.streams.append(stream)
        return self._array.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


@pytest.mark.parametrize("name", [name for name in ELEMENT_NAMES if name != "bool" or np.__version__ >= "2"])
def test_dlpack_shares_each_type_with_shape_and_strides(hip: Device, name: Any) -> None:
    host = np.arange(24).reshape(4, 6).astype(BY_NAME[name].numpy)
    x = ptxrt.to_device(host, hip)
    for index in (..., (slice(1, None), slice(None, None, 2)), (1, 2), slice(0, 0)):
        there = ptxrt.from_dlpack(Foreign(x[index]))
        assert (there.ptr, there.device) == (x[index].ptr if there.size else there.ptr, hip)
        assert (there.dtype, there.shape) == (host.dtype, host[index].shape)
        np.testing.assert_array_equal(there.to_host(), host[index])
    np.testing.assert_array_equal(ptxrt.from_dlpack(Foreign(x.T)).to_host(), host.T)


def test_a_shared_array_is_written_by_both(hip: Device) -> None:
    x = ptxrt.zeros(4, "f4", hip)
    ptxrt.from_dlpack(Foreign(x))[1:3].fill_bytes(0xFF)
    assert list(np.isnan(x.to_host())) == [False, True, True, False]


def test_a_capsule_says_that_the_memory_is_amds(hip1: Device) -> None:
    for x in (ptxrt.zeros(4, "f4", hip1), ptxrt.zeros(4, ml_dtypes.bfloat16, hip1)):
        capsule = x.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        tensor = ctypes.string_at(pointer(capsule, b"dltensor"), 24)
        data, kind, ordinal, _, code, bits, lanes = struct.unpack("<QiiiBBH", tensor)
        assert (data, kind, ordinal) == (x.ptr, 10, 1)
        assert (code, bits, lanes) == ((2, 32, 1) if x.dtype == np.float32 else (4, 16, 1))


def test_shared_memory_lives_as_long_as_either_side(hip: Device, stand_in: StandIn) -> None:
    x = ptxrt.to_device(np.arange(4, dtype="f4"), hip)
    there = ptxrt.from_dlpack(Foreign(x))
    stand_in.forget()
    del x
    gc.collect()
    assert "hipFreeAsync" not in stand_in.names()
    np.testing.assert_array_equal(there.to_host(), np.arange(4, dtype="f4"))
    del there
    gc.collect()
    assert stand_in.names().count("hipFreeAsync") == 1


def test_a_capsule_keeps_the_memory_and_lets_it_go(hip: Device, stand_in: StandIn) -> None:
    x = ptxrt.zeros(4, "f4", hip)
    capsule = x.__dlpack__()
    del x
    gc.collect()
    assert "hipFreeAsync" not in stand_in.names()
    del capsule
    gc.collect()
    assert stand_in.names().count("hipFreeAsync") == 1


def test_the_producer_gets_the_stream_that_will_use_the_array(hip: Device) -> None:
    foreign, stream = Foreign(ptxrt.zeros(4, "f4", hip)), hip.create_stream()
    ptxrt.from_dlpack(foreign)
    ptxrt.from_dlpack(foreign, stream=stream)
    assert foreign.streams == [0, stream.handle]


def test_the_consumers_stream_waits_for_those_that_used_the_array(hip: Device, stand_in: StandIn) -> None:
    stream = hip.create_stream()
    x = ptxrt.empty(4, "f4", hip, stream=stream)
    stand_in.forget()
    x.__dlpack__(stream=-1)
    assert "hipStreamWaitEvent" not in stand_in.names()
    x.__dlpack__(stream=0)
    assert stand_in.names().count("hipStreamWaitEvent") == 1


def test_an_op_takes_another_librarys_array_on_its_device(hip: Device, hip1: Device, hiprtc_there: None) -> None:
    x = ptxrt.to_device(np.arange(12, dtype="f4").reshape(1, 3, 4), hip)
    want = ptxrt.ops.softmax2d(x).to_host()
    np.testing.assert_array_equal(ptxrt.ops.softmax2d(Foreign(x)).to_host(), want)
    with refused(ptxrt.DeviceMismatch, "softmax2d", "out", "hip:0", "hip:1"):
        ptxrt.ops.softmax2d(x, out=Foreign(ptxrt.to_device(want, hip1)))


@pytest.mark.parametrize("how", [{"copy": True}, {"dl_device": (1, 0)}, {"dl_device": (10, 1)}], ids=str)
def test_a_copy_or_another_device_is_refused_as_dlpack_has_it(hip: Device, how: Any) -> None:
    with pytest.raises(BufferError, match="hip:0"):
        ptxrt.zeros(4, "f4", hip).__dlpack__(**how)
    assert ptxrt.zeros(4, "f4", hip).__dlpack__(dl_device=(10, 0), copy=False)


def test_a_readonly_array_is_not_given_to_who_cannot_know(hip: Device) -> None:
    x = ptxrt.zeros((3, 1), "f4", hip).broadcast_to((3, 4))
    with pytest.raises(BufferError, match="readonly"):
        x.__dlpack__()


def test_cuda_array_interface_is_of_cuda_alone(hip: Device) -> None:
    assert not hasattr(ptxrt.zeros(4, "f4", hip), "__cuda_array_interface__")
    with refused(ptxrt.Unsupported, "hip", "pointer", "DLPack", "0x1000"):
        BACKEND.pointer_ordinal(0x1000)


def test_there_are_no_textures(hip: Device) -> None:
    array = np.zeros((2, 4), np.float32)
    for make in (ptxrt.Texture, ptxrt.Surface):
        with refused(ptxrt.Unsupported, "Texture, Surface", "device"):
            make(array, hip)
    with refused(ptxrt.Unsupported, "Texture, Surface", "device"):
        ptxrt.Texture.from_memory(ptxrt.empty(4, device=hip))
