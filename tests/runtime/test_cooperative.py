"""Cooperative launches: the blocks of a grid wait for each other, and no grid is larger than the device holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Capture, Patch, need_hip_compilers, need_nvrtc, refused
from texts import HEAD

import ptxrt
from ptxrt import Device, DeviceArray, Kernel, KernelSource
from ptxrt import sim as machine
from ptxrt.backends.sim import blocks_at_a_time
from ptxrt.check import check, verify
from ptxrt.commands.cli import main

# Each block needs what another one has written. In HIP, cooperative_groups is built in.
GROUPS = """
#include <hip/hip_cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void turned(float* x, float* y, int turns) {
    cg::grid_group grid = cg::this_grid();
    int n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int turn = 0; turn < turns; turn++) {
        x[i] = i + turn;
        grid.sync();
        y[i] = x[n - 1 - i];
        grid.sync();
    }
}
extern "C" __global__ void unsynchronised(float* x, float* y, int turns) {
    int n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
    x[i] = i;
    if (turns < 0) cg::this_grid().sync();
    y[i] = x[n - 1 - i];
}
"""

# A barrier of the grid by hand: release, count, look until all have come, acquire.
BY_HAND = f"""{HEAD}
.visible .entry turned(.param .u64 x, .param .u64 y, .param .u64 count)
{{
    .reg .b32 %n, %i, %t, %b, %c;  .reg .b64 %x, %y, %count, %at;  .reg .pred %p;
    ld.param.u64 %x, [x];  ld.param.u64 %y, [y];  ld.param.u64 %count, [count];
    mov.u32 %t, %tid.x;  mov.u32 %b, %ctaid.x;  mov.u32 %n, %ntid.x;
    mad.lo.u32 %i, %b, %n, %t;
    mul.wide.u32 %at, %i, 4;
    add.u64 %at, %x, %at;
    st.global.u32 [%at], %i;
    bar.sync 0;
    setp.ne.u32 %p, %t, 0;
    @%p bra come;
    membar.gl;
    red.global.add.u32 [%count], 1;
    mov.u32 %b, %nctaid.x;
look:
    ld.volatile.global.u32 %c, [%count];
    setp.lt.u32 %p, %c, %b;
    @%p bra look;
    membar.gl;
come:
    bar.sync 0;
    mov.u32 %c, %nctaid.x;
    mul.lo.u32 %n, %n, %c;
    sub.u32 %n, %n, %i;
    sub.u32 %n, %n, 1;
    mul.wide.u32 %at, %n, 4;
    add.u64 %at, %x, %at;
    ld.global.u32 %c, [%at];
    mul.wide.u32 %at, %i, 4;
    add.u64 %at, %y, %at;
    st.global.u32 [%at], %c;
    ret;
}}
"""
BY_HAND_SIGNATURE = "u32* x, u32* y, u32* count"


def loaded(device: Device, entry: str = "turned") -> Kernel:
    need_hip_compilers() if device.kind == "hip" else need_nvrtc()
    return ptxrt.load(KernelSource.hip(GROUPS), entry, "f32* x, f32* y, i32 turns", device)


@pytest.fixture
def turned(device: Device) -> Kernel:
    return loaded(device)


def arrays(device: Device, n: int) -> tuple[DeviceArray, DeviceArray]:
    return ptxrt.empty(n, np.float32, device), ptxrt.empty(n, np.float32, device)


def test_the_blocks_of_a_grid_wait_for_each_other(turned: Kernel, device: Device) -> None:
    blocks = min(device.properties.multiprocessors * turned.max_blocks_per_multiprocessor(64), 1000)
    x, y = arrays(device, 64 * blocks)
    turned.launch(blocks, 64, x, y, 3, cooperative=True)
    np.testing.assert_array_equal(y.to_host(), np.arange(64 * blocks)[::-1] + 2)


def test_in_brackets(turned: Kernel, device: Device) -> None:
    x, y = arrays(device, 128)
    stream = device.create_stream()
    for launcher in (turned.cooperative[(2,), 64], turned.cooperative[2, 64, 0, stream]):
        y.fill(0)
        device.synchronize()
        launcher(x, y, turns=1)
        launcher(x, y, 2)
        device.synchronize()
        np.testing.assert_array_equal(y.to_host(), np.arange(128)[::-1] + 1)


@pytest.mark.ptx
def test_a_barrier_of_the_grid_by_hand(device: Device) -> None:
    kernel = ptxrt.load(KernelSource.ptx(BY_HAND), "turned", BY_HAND_SIGNATURE, device)
    x, y = (ptxrt.empty(200 * 64, np.uint32, device) for _ in range(2))
    kernel.launch(200, 64, x, y, ptxrt.zeros(1, np.uint32, device), cooperative=True)
    np.testing.assert_array_equal(y.to_host(), np.arange(200 * 64)[::-1])


def test_a_grid_that_the_device_does_not_hold_is_refused(turned: Kernel, device: Device) -> None:
    x, y = arrays(device, 64)
    each = turned.max_blocks_per_multiprocessor(64)
    most = each * device.properties.multiprocessors
    words = (
        f"at most {most} blocks in a cooperative launch",
        f"{each} of this block",
        f"given {most + 1}",
        "Launch fewer",
    )
    with refused(ptxrt.LaunchError, "turned", "grid", *words):
        turned.launch((1, most + 1), 64, x, y, 1, cooperative=True)
    with refused(ptxrt.LaunchError, "turned", "grid", *words):
        turned.cooperative[most + 1, 64]


def test_shared_memory_counts(turned: Kernel, device: Device) -> None:
    shared = device.properties.max_shared_dynamic - turned.resources.shared_bytes
    most = device.properties.multiprocessors * turned.max_blocks_per_multiprocessor(64, shared)
    with refused(ptxrt.LaunchError, "turned", "grid", f"at most {most} blocks"):
        turned.cooperative[most + 1, 64, shared]


def test_a_device_without_cooperative_launches(turned: Kernel, device: Device, monkeypatch: Patch) -> None:
    monkeypatch.setattr(device, "properties", replace(device.properties, cooperative=False))
    with refused(ptxrt.Unsupported, "turned", "cooperative", "a device with cooperative launches"):
        turned.cooperative[1, 64]


def test_the_arguments_are_checked_as_always(turned: Kernel, device: Device) -> None:
    x, y = arrays(device, 64)
    for call in (lambda *a: turned.launch(1, 64, *a, cooperative=True), turned.cooperative[1, 64]):
        with refused(ptxrt.InvalidArgument, "turned", "turns", "i32"):
            call(x, y, 2**40)
        with refused(ptxrt.InvalidArgument, "turned", "arguments", "given 2"):
            call(x, y)


def test_without_a_cooperative_launch_the_kernel_traps(sim: Device) -> None:
    x, y = arrays(sim, 128)
    with pytest.raises(ptxrt.LaunchError, match="cooperative=True"):
        loaded(sim)[2, 64](x, y, 1)


def test_a_grid_that_does_not_wait_races(sim: Device) -> None:
    x, y = arrays(sim, 128)
    with pytest.raises(ptxrt.DataRace, match="races with an access of block"):
        loaded(sim, "unsynchronised").launch(2, 64, x, y, 1, cooperative=True)


@pytest.mark.ptx
def test_a_reloaded_kernel(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "turned.ptx"
    path.write_text(BY_HAND)
    kernel = ptxrt.load(KernelSource.from_file(path), "turned", BY_HAND_SIGNATURE, device, reload=True)
    x, y = (ptxrt.empty(128, np.uint32, device) for _ in range(2))
    launcher = kernel.cooperative[2, 64]
    launcher(x, y, ptxrt.zeros(1, np.uint32, device))
    assert y.to_host()[0] == 127
    path.write_text(BY_HAND.replace("st.global.u32 [%at], %c", "st.global.u32 [%at], 7"))
    launcher(x, y, ptxrt.zeros(1, np.uint32, device))
    assert y.to_host()[0] == 7


def test_shadow_mode_runs_it_so_too(device: Device) -> None:
    kernel = loaded(device)
    x, y = arrays(device, 128)
    with ptxrt.shadow([device]) as shadow:
        kernel.launch(2, 64, x, y, 1, cooperative=True)
    assert (shadow.compared, dict(shadow.skipped)) == (1, {})
    np.testing.assert_array_equal(y.to_host(), np.arange(128)[::-1])


def test_check_and_verify_take_it(cuda_or_sim: str) -> None:
    source = KernelSource.ptx(BY_HAND)
    arguments = {"x": "empty:u32:38400", "y": "empty:u32:38400", "count": "zeros:u32:1"}
    call: dict[str, Any] = {"block": 64, "arguments": arguments}
    report = check(source, grid=600, cooperative=True, **call)
    assert (report.cooperative, report.fault) == (True, None)
    # The machine runs fewer blocks at one time where it is not told to.
    assert isinstance(check(source, grid=600, budget=2000, **call).fault, ptxrt.Deadlock)
    with refused(ptxrt.LaunchError, "turned", "grid", "at most 4224 blocks", "32 of this block"):
        check(source, grid=4225, cooperative=True, **call)
    assert verify(source, device=cuda_or_sim, grid=600, cooperative=True, **call).agrees


def test_the_command_takes_it(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "turned.ptx"
    path.write_text(BY_HAND)
    call = ["--arg=x=empty:u32:128", "--arg=y=empty:u32:128", "--arg=count=zeros:u32:1", "--grid=2", "--block=64"]
    assert main(["check", str(path), *call, "--cooperative"]) == 0
    assert "128 threads, cooperative\n" in capsys.readouterr().out
    assert main(["check", str(path), *call, "--json"]) == 0
    assert '"cooperative": false' in capsys.readouterr().out


LOCAL = f"""{HEAD}.visible .entry k() {{ .local .b8 much[100000]; .reg .b32 %v;
    ld.local.u32 %v, [much]; st.local.u32 [much+4], %v; ret; }}"""


def test_a_grid_that_the_host_has_no_memory_for_is_refused(sim: Device) -> None:
    with refused(ptxrt.LaunchError, "k", "grid", "the host together", "4000 blocks"):
        ptxrt.load(KernelSource.ptx(LOCAL), "k", "", sim).launch(4000, 32, cooperative=True)


def test_a_fault_leaves_nothing_allocated() -> None:
    memory = machine.GlobalMemory()
    loaded = machine.load(machine.parse(f"{HEAD}.visible .entry k() {{ trap; }}"), memory)
    with pytest.raises(ptxrt.LaunchError):
        machine.launch(loaded, "k", (2, 1, 1), (1, 1, 1), b"", cooperative=True)
    assert memory.bytes_in_use == 0


@pytest.fixture(params=["sim:0", pytest.param("cuda:0", marks=pytest.mark.cuda)])
def cuda_or_sim(request: pytest.FixtureRequest) -> str:
    if request.param != "sim:0":
        request.getfixturevalue("cuda")
    return str(request.param)


@pytest.mark.parametrize(("arch", "threads", "shared", "blocks"), [
    ("sm_90", 1024, 0, 2), ("sm_90", 32, 0, 32), ("sm_90", 32, 227 << 10, 1), ("sm_75", 1024, 0, 1),
    ("sm_12", 1024, 0, 2),
])  # fmt: skip
def test_how_many_blocks_a_multiprocessor_of_sim_holds(arch: str, threads: int, shared: int, blocks: int) -> None:
    assert blocks_at_a_time(arch, threads, shared) == blocks
