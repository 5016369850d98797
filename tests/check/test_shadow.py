"""Shadow mode: what it finds, what it leaves out, and that nothing of it stays."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import texels
from helpers import Capture, need_nvrtc, run_script, skip_stand_in

import ptxrt
from ptxrt import Device, ops
from ptxrt.check.compare import TOLERANCES, first_difference, is_exact

ADD = """
extern "C" __global__ void add(const float* x, float* y, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + 1234.5f;
}
extern "C" __global__ void unbounded(const float* x, float* y, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i];
}
extern "C" __global__ void reversed_(const float* x, float* y, unsigned n) {
    __shared__ float tile[64];
    tile[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = tile[63 - threadIdx.x];
}
extern "C" __global__ void racy(const float* x, float* y, unsigned n) { y[0] = x[threadIdx.x]; }
extern "C" __global__ void sum(const float* x, float* y, unsigned n) { atomicAdd(y, x[threadIdx.x]); }
"""
SIGNATURE = "const f32* x, f32* y, u32 n"


@pytest.fixture(autouse=True)
def _compiler() -> None:
    need_nvrtc()


def load(device: Device, entry: str) -> ptxrt.Kernel:
    return ptxrt.load(ptxrt.KernelSource.hip(ADD), entry, SIGNATURE, device)


def arrays(device: Device, n: int = 64) -> tuple[Any, Any]:
    return ptxrt.to_device(np.arange(n, dtype=np.float32), device), ptxrt.zeros(n, np.float32, device)


def test_a_right_kernel_is_compared_and_its_result_is_the_devices(device: Device) -> None:
    kernel, (x, y) = load(device, "add"), arrays(device)
    before = device.backend
    with ptxrt.shadow([device]) as shadow:
        assert device.backend is not before
        kernel.launch(1, 64, x, y, 64)
        assert (shadow.compared, shadow.skipped.total()) == (1, 0)
    assert device.backend is before
    kernel.launch(1, 64, x, y, 64)
    assert shadow.compared == 1
    np.testing.assert_array_equal(y.to_host(), np.arange(64) + np.float32(1234.5))


def test_a_fault_is_raised_and_nothing_is_launched(device: Device) -> None:
    kernel, (x, y) = load(device, "unbounded"), arrays(device)
    with ptxrt.shadow([device]) as shadow, pytest.raises(ptxrt.MemoryFault) as caught:
        kernel.launch(1, 65, x, y, 64)
    assert "0 bytes past the end of x" in str(caught.value)
    assert caught.value.thread == (64, 0, 0)
    assert shadow.compared == 0
    np.testing.assert_array_equal(y.to_host(), np.zeros(64))


def test_a_race_is_raised(device: Device) -> None:
    kernel, (x, y) = load(device, "reversed_"), arrays(device)
    with ptxrt.shadow([device]), pytest.raises(ptxrt.DataRace):
        kernel.launch(1, 64, x, y, 64)


def test_the_checks_may_be_named(sim: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXRT_SIM_CHECKS", "none")  # of the launch on sim itself
    kernel, (x, y) = load(sim, "racy"), arrays(sim)
    for checks in ("all", "global-races"):
        with ptxrt.shadow([sim], checks=[checks]), pytest.raises(ptxrt.DataRace):
            kernel.launch(1, 64, x, y, 64)
    with ptxrt.shadow([sim], checks=["shuffles"]) as shadow:
        kernel.launch(1, 64, x, y, 64)
    assert shadow.compared == 1
    with pytest.raises(ptxrt.InvalidArgument, match="given 'races'"):
        ptxrt.shadow([sim], checks=["races"])


def test_another_result_of_the_device_is_a_mismatch(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The binary is changed behind the compiler's back: it adds another number than the text."""
    skip_stand_in(device)  # it runs what hipRTC made, and nothing else
    compile_ = device.modules.backend.compile

    def miscompiled(*args: Any, **how: Any) -> Any:
        binary = compile_(*args, **how)
        right, wrong = (struct.pack("<f", value) for value in (1234.5, 1234.25))
        code = binary.code.replace(right, wrong)
        right, wrong = (b"0f" + bits[::-1].hex().upper().encode() for bits in (right, wrong))  # as PTX has them
        code = code.replace(right, wrong)
        assert code != binary.code
        return replace(binary, code=code)

    monkeypatch.setattr(device.modules.backend, "compile", miscompiled)
    text = ADD.replace("tile[64]", "tile[65]")  # that no other test has compiled
    kernel = ptxrt.load(ptxrt.KernelSource.hip(text), "add", SIGNATURE, device)
    x, y = arrays(device)
    with ptxrt.shadow([device]), pytest.raises(ptxrt.ShadowMismatch) as caught:
        kernel.launch(1, 64, x, y, 63)
    error = caught.value
    assert (error.op, error.argument, error.index, error.count) == ("add", "y[0]", 0, 63)
    assert "1234.5 as on the PTX machine" in str(error)
    assert "1234.25 on" in str(error)
    assert (error.thread, error.block) == ((0, 0, 0), (0, 0, 0))
    assert error.line is not None
    assert "st.global" in str(error.text)
    assert error.source_place is not None
    assert error.source_place.text == "if (i < n) y[i] = x[i] + 1234.5f;"
    assert f"{error.source_place} wrote it last there: if (i < n) y[i]" in str(error)


def test_sums_of_atomics_may_differ_in_their_last_bits(device: Device) -> None:
    kernel, (x, y) = load(device, "sum"), arrays(device)
    x.copy_from(np.float32(0.1) * np.arange(64, dtype=np.float32))
    with ptxrt.shadow([device]) as shadow:
        kernel.launch(1, 64, x, y, 64)
    assert shadow.compared == 1


def test_what_a_kernel_prints_is_printed_once(capsys: Capture) -> None:
    sim = Device("sim:0")
    text = 'extern "C" __global__ void say(int n) { printf("n = %d\\n", n); }'
    kernel = ptxrt.load(ptxrt.KernelSource.cuda(text), "say", device=sim)
    with ptxrt.shadow([sim]) as shadow:
        kernel.launch(1, 1, 7)
    assert shadow.compared == 1
    assert capsys.readouterr().out == "n = 7\n"


@pytest.mark.parametrize(("limits", "reason"), [({"max_threads": 63}, "63 threads"), ({"max_bytes": 511}, "511 bytes")])
def test_a_large_launch_is_skipped_and_counted(device: Device, limits: Any, reason: str) -> None:
    kernel, (x, y) = load(device, "unbounded"), arrays(device)
    with ptxrt.shadow([device], **limits) as shadow:
        kernel.launch(1, 64, x, y, 64)
    assert shadow.compared == 0
    (found,) = shadow.skipped
    assert reason in found
    assert reason in repr(shadow)


def test_operands_may_overlap_and_begin_anywhere(device: Device) -> None:
    kernel, (x, _) = load(device, "add"), arrays(device)
    with ptxrt.shadow([device]) as shadow:
        kernel.launch(1, 64, x[3:40], x[3:40], 37)
    assert shadow.compared == 1
    wanted = np.arange(64, dtype=np.float32)
    wanted[3:40] += np.float32(1234.5)
    np.testing.assert_array_equal(x.to_host(), wanted)


def test_memory_allocated_inside_has_its_exact_length(device: Device) -> None:
    kernel = load(device, "unbounded")
    with ptxrt.shadow([device]):
        x, y = arrays(device, 61)
        with pytest.raises(ptxrt.MemoryFault, match="0 bytes past the end of x"):
            kernel.launch(1, 62, x, y, 61)
        x.free()
        y.free()


def test_the_ops_run_in_the_shadow(device: Device) -> None:
    rng = np.random.default_rng(3)
    x, w = (ptxrt.to_device(rng.standard_normal(s).astype(np.float32), device) for s in ((2, 8, 30), (8,)))
    with ptxrt.shadow([device]) as shadow:
        y = ops.group_norm(x, w, w, groups=2)
        ops.softmax2d(y)
    assert shadow.compared >= 2
    assert not shadow.skipped


def test_a_launch_that_fails_leaves_the_device_as_it_was(device: Device) -> None:
    before = device.backend
    with pytest.raises(ZeroDivisionError), ptxrt.shadow([device]):
        raise ZeroDivisionError
    assert device.backend is before


def test_a_device_may_be_given_alone(sim: Device) -> None:
    kernel, (x, y) = load(sim, "add"), arrays(sim)
    for one in (sim, str(sim)):
        with ptxrt.shadow(one, max_threads=np.int64(64)) as shadow:
            kernel.launch(1, 64, x, y, 64)
        assert shadow.compared == 1
    wrong: Any
    for wrong in (3, "nope", [3]):
        with pytest.raises(ptxrt.InvalidArgument, match="a name such as"):
            ptxrt.shadow(wrong)


@pytest.mark.parametrize("limits", [{"max_threads": -1}, {"max_bytes": 1.5}, {"max_bytes": True}])
def test_a_limit_is_a_whole_number(limits: Any) -> None:
    with pytest.raises(ptxrt.InvalidArgument) as caught:
        ptxrt.shadow(**limits)
    assert (caught.value.op, caught.value.argument) == ("shadow", next(iter(limits)))


def test_a_process_says_at_its_end_how_many_launches_it_was() -> None:
    done = run_script("import ptxrt\nprint(ptxrt.__version__)", PTXRT_SHADOW="1")
    assert "Shadow: 0 launches compared" in done.stderr
    for off in ("", "0"):
        assert run_script("import ptxrt\nprint(ptxrt.__version__)", PTXRT_SHADOW=off).stderr == ""


@pytest.mark.parametrize("given", ["false", "off", "2", " 1"])
def test_a_switch_of_the_shadow_that_is_neither_0_nor_1_is_refused(given: str) -> None:
    done = run_script("import ptxrt", PTXRT_SHADOW=given)
    assert done.returncode == 1
    assert f"InvalidArgument: shadow: PTXRT_SHADOW: expected 0 or 1, given {given!r}" in done.stderr


# Comparing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TOLERANCES)
def test_within_the_tolerance_is_no_difference_and_above_it_is(name: str) -> None:
    kind = ptxrt.dtypes.BY_NAME[name].numpy
    one = np.array([1, 1, np.nan, np.inf], kind)
    for factor, differs in ((0.5, False), (4, True)):
        two = one.copy()
        two[1] = np.asarray(1 + factor * TOLERANCES[name]).astype(kind)
        assert first_difference(one, two, exact=True) is not None
        found = first_difference(one, two, exact=False)
        assert (found is not None and found.index == 1) == differs


def test_a_nan_equals_any_other_and_nothing_else() -> None:
    one = np.array([0x7FC00000, 0x7FC00001, 0x3F800000], np.uint32).view(np.float32)
    two = np.array([0xFFC00000, 0x7FC00002, 0x7FC00000], np.uint32).view(np.float32)
    found = first_difference(one, two, exact=True)
    assert found is not None
    assert (found.index, found.count) == (2, 1)
    found = first_difference(one, two, exact=False)
    assert found is not None
    assert (found.index, found.count) == (2, 1)


def test_minus_zero_is_another_value_where_bits_count() -> None:
    one, two = np.zeros(2, np.float32), np.array([0.0, -0.0], np.float32)
    assert first_difference(one, two, exact=True) is not None
    assert first_difference(one, two, exact=False) is None


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        ("add.rn.f32 %a, %b, %c;", True),
        ("ex2.approx.f32 %a, %b;", False),
        ("div.full.f32 %a, %b, %c;", False),
        ("atom.global.add.f32 %a, [%b], %c;", False),
        ("red.relaxed.gpu.global.add.f64 [%b], %c;", False),
        ("atom.global.add.u32 %a, [%b], %c;", True),
        ("// sqrt.approx.f32\nadd.rn.f32 %a, %b, %c; /* red.add.f32 */", True),
    ],
)
def test_which_texts_are_computed_bit_for_bit(text: str, exact: bool) -> None:
    assert is_exact(text) == exact


def test_a_launch_with_a_texture_is_skipped_and_counted(sim: Device) -> None:
    with ptxrt.Texture(np.arange(4, dtype=np.float32), sim) as texture, ptxrt.shadow([sim]) as shadow:
        assert texels.run(texture, texels.tex("1d"), [[2.5]]).view(np.float32)[0, 0] == 2
    assert shadow.compared == 0
    (found,) = shadow.skipped
    assert "textures or surfaces" in found
