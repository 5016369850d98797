"""Devices: names, discovery with and without a driver, the default device, and a process that forked."""

from __future__ import annotations

import copy
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Patch, need_hip_compilers, printed_by, refused, with_stand_in
from numpy.testing import assert_array_equal
from texts import SAXPY, SAXPY_SIGNATURE, source_for

import ptxrt
from ptxrt import Device
from ptxrt.backends import sim as sim_backend
from ptxrt.errors import shown

# Names ------------------------------------------------------------------------------------------------------------


def test_equal_names_are_the_same_device(device: Device) -> None:
    assert Device(str(device)) is device
    assert Device(device) is device


def test_a_kind_alone_means_its_first_device(device: Device) -> None:
    assert Device(device.kind) is Device(f"{device.kind}:0")


def test_a_device_knows_kind_and_ordinal(device: Device) -> None:
    assert (str(device), repr(device)) == (f"{device.kind}:{device.ordinal}", f"Device('{device}')")


def test_the_second_device_is_another(device: Device, other_device: Device) -> None:
    assert (other_device.ordinal, other_device is device) == (1, False)
    assert other_device.modules is not device.modules


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda device: pickle.loads(pickle.dumps(device))])
def test_a_copy_of_a_device_is_the_device(device: Device, again: Any) -> None:
    assert again(device) is device


@pytest.mark.parametrize("name", ["", "sim:", "sim:-1", "sim:x", "SIM:0", "sim 0", "sim:0 ", "sim:0\n", "0", "tpu:0"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with refused(ptxrt.InvalidArgument, "Device", "name", "'cuda:0' or 'sim:0'", repr(name), "ptxrt.devices()"):
        Device(name)


@pytest.mark.parametrize("name", [None, 0, ("sim", 0)], ids=repr)
def test_a_name_is_a_str(name: Any) -> None:
    with refused(ptxrt.InvalidArgument, "Device", "name", repr(name), "ptxrt.devices()"):
        Device(name)


def test_an_ordinal_that_is_not_there_is_refused(device: Device) -> None:
    with refused(ptxrt.InvalidArgument, "Device", "name", "an ordinal below", f"{device.kind}:999", "ptxrt.devices()"):
        Device(f"{device.kind}:999")


def test_a_device_has_the_limits_that_launches_are_held_to(device: Device) -> None:
    p = device.properties
    assert p.max_threads_per_block == 1024
    assert p.total_memory >= 1 << 30
    assert device.name
    if device.kind == "hip":
        assert p.warp_size in (32, 64)
        assert p.max_grid[0] == 2**31 - 1
        assert p.max_grid_threads == 2**32 - 1
        assert p.max_shared_static == p.max_shared_dynamic >= 64 << 10
        assert device.arch.startswith("gfx")
        return
    assert p.warp_size == 32
    assert p.max_grid == (2**31 - 1, 65535, 65535)
    assert p.max_grid_threads > 1024 * p.max_grid[0]
    assert p.max_block == (1024, 1024, 64)
    assert 48 << 10 == p.max_shared_static <= p.max_shared_dynamic
    assert device.arch.startswith("sm_")


def test_sim_has_a_real_gpus_limits(sim: Device) -> None:
    p = sim.properties
    assert (sim.arch, p.max_shared_dynamic) == ("sm_90", 227 << 10)


def test_synchronize_returns(device: Device) -> None:
    device.synchronize()


def test_trimming_leaves_live_arrays_and_the_device_usable(device: Device) -> None:
    host = np.arange(1 << 16, dtype=np.float32)
    held, freed = ptxrt.to_device(host, device), ptxrt.zeros(1 << 20, np.float32, device)
    freed.free()
    device.trim_memory()
    assert_array_equal(held.to_host(), host)
    assert not ptxrt.zeros(1 << 20, np.float32, device).to_host().any()


def test_trimming_gives_freed_memory_back_to_the_driver(cuda: Device) -> None:
    from cuda.core import Device

    pool = Device(cuda.ordinal).memory_resource.attributes
    freed = ptxrt.empty(1 << 30, np.uint8, cuda)
    freed.free()
    cuda.synchronize()
    before = pool.reserved_mem_current
    cuda.trim_memory()
    assert pool.reserved_mem_current <= before - (1 << 30)


@pytest.mark.two_devices
def test_pain13_an_array_of_the_second_device_is_handled_there(device: Device, other_device: Device) -> None:
    x = ptxrt.to_device(np.arange(64, dtype=np.float32), other_device)
    y = ptxrt.zeros(64, np.float32, other_device)
    stream = other_device.create_stream()
    kernel = ptxrt.load(source_for(SAXPY, device), "saxpy", SAXPY_SIGNATURE, other_device)
    stream.wait(other_device.default_stream)
    kernel.launch(1, 64, x, y, 64, 2.0, stream=stream)
    if not stream.record().done:
        stream.synchronize()
    assert_array_equal(y.to_host(stream), 2 * x.to_host())
    assert (x.device, y[1:].device, stream.device, kernel.device) == (other_device,) * 4


@pytest.mark.two_devices
def test_pain15_a_kernel_loaded_on_one_device_is_another_on_the_second(device: Device, other_device: Device) -> None:
    source = source_for(SAXPY, device)
    kernels = [ptxrt.load(source, "saxpy", SAXPY_SIGNATURE, where) for where in (device, other_device)]
    for kernel in kernels:
        x = ptxrt.to_device(np.arange(64, dtype=np.float32), kernel.device)
        y = ptxrt.zeros(64, np.float32, kernel.device)
        kernel.launch(2, 32, x, y, 64, 3.0)
        assert_array_equal(y.to_host(), 3 * x.to_host())
    before = [where.modules.stats()["misses"] for where in (device, other_device)]
    ptxrt.load(source, "saxpy", SAXPY_SIGNATURE, other_device)
    assert [where.modules.stats()["misses"] for where in (device, other_device)] == before


@pytest.mark.two_devices
@pytest.mark.parametrize("argument", ["x", "y"])
def test_pain15_a_kernel_takes_no_array_of_another_device(device: Device, other_device: Device, argument: str) -> None:
    kernel = ptxrt.load(source_for(SAXPY, device), "saxpy", SAXPY_SIGNATURE, device)
    arrays = {"x": device, "y": device, argument: other_device}
    x, y = (ptxrt.zeros(64, np.float32, where) for where in arrays.values())
    with refused(ptxrt.DeviceMismatch, "saxpy", argument, f"an array on {device}", str(other_device), "Copy it there"):
        kernel.launch(1, 64, x, y, 64, 1.0)


# Discovery --------------------------------------------------------------------------------------------------------


IN_THREADS = """
import sys, threading
import numpy as np
import ptxrt
x = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
found = []
def work():
    found.append(ptxrt.ops.softmax2d(ptxrt.to_device(x, sys.argv[1])).to_host())
for _ in range(3):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
print(len(found), all((each == found[0]).all() for each in found))
"""


def test_a_device_outlives_the_threads_that_use_it(device: Device) -> None:
    if device.kind == "hip":
        pytest.skip("the stand-in is not in another process")
    done = subprocess.run(
        [sys.executable, "-c", IN_THREADS, str(device)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "3 True\n"), done.stderr


def test_sim_is_always_there_and_last() -> None:
    kinds = [device.kind for device in ptxrt.devices()]
    assert kinds == sorted(kinds, key=["cuda", "hip", "sim"].index)
    assert kinds.count("sim") >= 1


def test_there_are_two_sim_devices_by_default() -> None:
    script = "import ptxrt; print([str(d) for d in ptxrt.devices() if d.kind == 'sim'])"
    assert printed_by("import os; os.environ.pop('PTXRT_SIM_DEVICES', None)\n" + script) == "['sim:0', 'sim:1']"


@pytest.mark.parametrize("count", [1, 5])
def test_the_environment_sets_the_number_of_sim_devices(count: int) -> None:
    script = "import ptxrt; print(sum(d.kind == 'sim' for d in ptxrt.devices()))"
    assert printed_by(script, PTXRT_SIM_DEVICES=str(count)) == str(count)


@pytest.mark.parametrize("variable", ["PTXRT_SIM_DEVICES", "PTXRT_SIM_MEMORY"])
@pytest.mark.parametrize("value", ["two", "-1", "1.5", "²", "9" * 5000], ids=range(5))
def test_a_setting_that_is_no_number_is_refused(variable: str, value: Any, monkeypatch: Patch) -> None:
    monkeypatch.setenv(variable, value)
    with refused(ptxrt.InvalidArgument, variable, "environment", "a whole number", shown(value)):
        sim_backend.SimBackend().properties(0) if variable == "PTXRT_SIM_MEMORY" else sim_backend.BACKEND.device_count()


def test_no_sim_device_at_all_is_refused(monkeypatch: Patch) -> None:
    monkeypatch.setenv("PTXRT_SIM_DEVICES", "0")
    with refused(ptxrt.InvalidArgument, "PTXRT_SIM_DEVICES", "environment", "at least 1", "'0'"):
        ptxrt.devices()


def test_the_environment_sets_the_architecture_of_sim() -> None:
    assert printed_by("import ptxrt; print(ptxrt.Device('sim').arch)", PTXRT_SIM_ARCH="sm_75") == "sm_75"


def test_a_setting_of_sim_that_is_empty_counts_as_unset(monkeypatch: Patch) -> None:
    for name in ("PTXRT_SIM_DEVICES", "PTXRT_SIM_ARCH", "PTXRT_SIM_MEMORY"):
        monkeypatch.setenv(name, "")
    properties = sim_backend.SimBackend().properties(0)
    assert (sim_backend.BACKEND.device_count(), properties.arch, properties.total_memory) == (2, "sm_90", 8 << 30)


@pytest.mark.parametrize("arch", ["sm90", "sm_", "90", "sm_90 ", "sm_90x", "sm_" + "9" * 5000], ids=range(6))
def test_an_architecture_of_sim_that_is_none_is_refused(monkeypatch: Patch, arch: Any) -> None:
    monkeypatch.setenv("PTXRT_SIM_ARCH", arch)
    with refused(ptxrt.InvalidArgument, "PTXRT_SIM_ARCH", "environment", "sm_90", shown(arch)):
        sim_backend.SimBackend().properties(0)


def test_the_default_device_is_the_first(monkeypatch: Patch) -> None:
    monkeypatch.delenv("PTXRT_DEVICE", raising=False)
    assert ptxrt.default_device() is ptxrt.devices()[0]


def test_the_environment_names_the_default_device(monkeypatch: Patch) -> None:
    monkeypatch.setenv("PTXRT_DEVICE", "sim:1")
    assert ptxrt.default_device() is Device("sim:1")
    assert ptxrt.empty(1).device is Device("sim:1")


def test_a_default_device_that_is_not_there_is_refused(monkeypatch: Patch) -> None:
    monkeypatch.setenv("PTXRT_DEVICE", "sim:77")
    with refused(ptxrt.InvalidArgument, "Device", "name", "sim:77"):
        ptxrt.default_device()


# Without a driver -------------------------------------------------------------------------------------------------


def test_pain23_import_calls_no_driver() -> None:
    script = """
        import sys
        before = set(sys.modules)  # cuda-bindings 12.9 has Python import its namespace at every start
        import ptxrt
        assert not [name for name in set(sys.modules) - before if name.split(".")[0] == "cuda"]
        mapped = open("/proc/self/maps").read()
        assert not [name for name in ("libcuda", "libnvrtc", "libnvJitLink") if name in mapped]
    """
    printed_by(script)


def test_an_import_loads_neither_the_ops_nor_the_machine_nor_their_packages() -> None:
    """They come at their first use: an import of what a program of its own kernels needs takes a third of the time."""
    script = """
        import sys
        import ptxrt
        early = {name for name in sys.modules if name.startswith(("ptxrt.", "numpy", "jinja2", "rich", "elftools"))}
        assert early == {"ptxrt._version"}, early
        ptxrt.load
        late = ("ptxrt.ops", "ptxrt.sim", "ptxrt.check", "ptxrt.commands", "jinja2", "rich", "tqdm", "elftools")
        assert not [name for name in sys.modules if name.startswith(late)]
        for name in ptxrt.__all__:
            getattr(ptxrt, name)
        assert {"ops", "shadow"} <= set(dir(ptxrt))
        assert ptxrt.ops.softmax2d and ptxrt.references.softmax2d and ptxrt.PlanPreference and ptxrt.shadow
        try:
            ptxrt.opps
        except AttributeError:
            print("refused")
    """
    assert printed_by(script).strip() == "refused"


LOOK = """
    import ptxrt
    print(*[str(device) for device in ptxrt.devices() if device.kind != "sim"])
    try:
        ptxrt.Device("cuda:0")
    except ptxrt.BackendUnavailable as error:
        print(error)
    assert ptxrt.default_device() is ptxrt.Device("sim:0")
"""


@pytest.mark.parametrize("package", ["cuda", "cuda.bindings"])
def test_pain23_without_the_cuda_packages_there_is_sim(package: str) -> None:
    hide = f"import sys; sys.modules['{package}'] = None\n"
    printed = printed_by(hide + LOOK.replace("\n    ", "\n"), PTXRT_DEVICE="")
    assert "cuda:0 cannot be used" in printed
    assert 'pip install "ptxrt[cuda13]"' in printed


def _broken_text(folder: Path) -> None:
    (folder / "libcuda.so.1").write_text("this is no library")


def _without_functions(folder: Path) -> None:
    import _ctypes

    shutil.copy(_ctypes.__file__, folder / "libcuda.so.1")


@pytest.mark.parametrize("breaking", [_broken_text, _without_functions])
def test_pain23_with_a_broken_driver_there_is_sim(breaking: Any, tmp_path: Path) -> None:
    pytest.importorskip("cuda.core")
    breaking(tmp_path)
    printed = printed_by(LOOK, PTXRT_DEVICE="", LD_LIBRARY_PATH=str(tmp_path))
    assert "cuda:0 cannot be used: NVIDIA's driver" in printed


def test_pain23_with_no_gpu_to_be_seen_there_is_sim() -> None:
    printed = printed_by(LOOK, PTXRT_DEVICE="", CUDA_VISIBLE_DEVICES="")
    assert "cuda:0 cannot be used: " in printed


# Fork -------------------------------------------------------------------------------------------------------------

FORK = """
import os, sys
import numpy as np
import ptxrt
from ptxrt import KernelSource

{before}
child = os.fork()
if child == 0:
    try:
        {statement}
    except ptxrt.BackendUnavailable as error:
        print(error)
    sys.exit()  # an ordinary end, with every destructor
sys.exit(os.waitpid(child, 0)[1])
"""

OPENED = """
device = ptxrt.Device("{device}")
x = ptxrt.to_device(np.zeros(4, "f4"), device)
stream = device.create_stream()
event = stream.record()
source = ptxrt.KernelSource.{source.language}({source.text!r})
kernel = ptxrt.load(source, "saxpy", "{signature}", device)
"""

USES = (
    "device.synchronize()",
    "ptxrt.empty(4, 'f4', device)",
    "x.to_host()",
    "x.copy_from(np.ones(4, 'f4'))",
    "kernel.launch(1, 32, x, x, 4, 2.0)",
    "ptxrt.load(source, 'saxpy', kernel.signature, device)",
    "stream.synchronize()",
    "event.synchronize()",
    "device.create_stream()",
    "x.__dlpack__()",
    "ptxrt.Device(str(device)).synchronize()",
)
EACH = f"""
for use in {USES!r}:
    try:
        exec(use)
        print("no error of", use)
    except ptxrt.BackendUnavailable as error:
        print(error)
"""


def printed_on(device: Device, script: str) -> str:
    # Python 3.12 warns of any fork beside threads, which a driver has.
    return printed_by(script, PYTHONWARNINGS="ignore::DeprecationWarning", **with_stand_in(device))


def opened(device: Device) -> str:
    if device.kind == "hip":
        need_hip_compilers()
    return OPENED.format(device=device, source=source_for(SAXPY, device), signature=SAXPY_SIGNATURE)


def forked(device: Device, before: str, statement: str) -> str:
    return printed_on(device, FORK.format(before=before, statement=statement))


def test_pain17_using_what_the_parent_opened_is_refused_after_a_fork(device: Device) -> None:
    said = forked(device, opened(device), f"exec({EACH!r})").splitlines()
    assert len(said) == len(USES)
    for line in said:
        assert line.startswith(f"{device.kind}: "), line
        assert "forked" in line, line
        assert "'spawn'" in line, line


def test_pain17_a_forked_child_ends_without_a_word(device: Device) -> None:
    assert forked(device, opened(device), "x.free(); del x, stream, event, kernel") == ""


def test_pain17_the_parent_works_on_after_a_fork(device: Device) -> None:
    script = FORK.format(before=opened(device), statement="pass")
    script = script.replace("sys.exit(os.waitpid(child, 0)[1])", "os.waitpid(child, 0); print(x.to_host().sum())")
    assert printed_on(device, script) == "0.0"


def test_pain17_a_child_that_opens_the_device_first_works(device: Device) -> None:
    assert forked(device, "", f"print(ptxrt.zeros(3, 'i32', '{device}').to_host())") == "[0 0 0]"


def test_pain17_a_spawned_worker_works(device: Device) -> None:
    script = f"""
        import multiprocessing, operator
        import ptxrt
        if __name__ == "__main__":
            device = ptxrt.Device("{device}")
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.apply(operator.attrgetter("arch"), (device,)) == device.arch)
    """
    assert printed_on(device, script) == "True"


@pytest.mark.parametrize("held", ["array, view", "stream, event", "kernel"])
def test_a_process_ends_without_a_word_whatever_it_still_holds(device: Device, held: str) -> None:
    imports = "import builtins\nimport numpy as np\nimport ptxrt\nfrom ptxrt import KernelSource\n"
    keep = f"\nview = x[1:]; array = x; builtins.held = {held}"
    assert printed_on(device, imports + opened(device) + keep) == ""
