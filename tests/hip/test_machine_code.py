"""The machine code that AMD's compiler makes of the HIP kernels, run on the host: see machine_code.py."""

from __future__ import annotations

import functools
import mmap
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import helpers
import machine_code
import numpy as np
import pytest
import waves
from helpers import AMD_TARGETS, EVERYTHING, Patch, amd_targets, compiled_for_amd, covering
from op_testing import on_device, wish
from test_waves import AS_MACHINE_CODE
from test_waves import CASES as ALL_CASES
from tolerances import bar, relative_error
from wave_cases import HIP as ALL
from wave_cases import (
    NO_MACHINE_CODE,
    TEXTS,
    Case,
    normal,
    planned,
    short_grids,  # noqa: F401
    type_of,
)

import ptxrt
from ptxrt import ops
from ptxrt.compilers import disassembly, hiprtc
from ptxrt.compilers.disassembly import disassemble
from ptxrt.dtypes import BY_NAME
from ptxrt.errors import BackendUnavailable
from ptxrt.ops import references
from ptxrt.ops.framework import Launch
from ptxrt.ops.framework.rows import RowsConfig
from ptxrt.runtime.layout import channels_last
from ptxrt.runtime.signature import Signature

pytestmark = [
    pytest.mark.amd,
    pytest.mark.usefixtures("hiprtc_there", "disassembler_there", "short_grids"),
]

HIP = [spec for spec in ALL if not spec.family.startswith(NO_MACHINE_CODE)]
CASES = {family: cases for family, cases in ALL_CASES.items() if not family.startswith(NO_MACHINE_CODE)}

SEEDS = (0, 1, 2)  # one wave after the other, and two random orders of all waves
each_target = pytest.mark.parametrize("target", amd_targets("f32"))
every_target = pytest.mark.parametrize("target", AMD_TARGETS)
each_case = pytest.mark.parametrize(
    ("make", "arguments", "target"),
    [(make, arguments, target) for make, arguments in AS_MACHINE_CODE for target in amd_targets(type_of(arguments))],
    ids=lambda v: getattr(v, "__name__", str(v)),
)

Edit = Callable[[str], str]


SPECS = {spec.entry: spec for spec in HIP}


@functools.cache
def code(family: str, dtype: str, target: str) -> bytes:
    return compiled_for_amd(TEXTS[family, dtype], target, family).code


@functools.cache
def kernel(entry: str, target: str, edit: Edit = str) -> machine_code.Kernel:
    return machine_code.Kernel(code(SPECS[entry].family, SPECS[entry].dtype, target), entry, edit)


@pytest.fixture(scope="session")
def disassembler_there(hiprtc_there: None) -> None:
    need_disassembler()


def need_disassembler() -> None:
    """Skip, or fail where PTXRT_REQUIRE wants hipRTC, unless there is LLVM's disassembler for AMD."""
    try:
        disassemble(code("layer_norm", "f32", "gfx90a"), "layer_norm_kernel")
    except BackendUnavailable as error:
        if "hiprtc" in helpers.REQUIRED:
            pytest.fail(f"PTXRT_REQUIRE=hiprtc, but {error}")
        pytest.skip(str(error))


def run(case: Case, target: str, seed: int, edits: dict[str, Edit] | None = None) -> dict[str, Any]:
    """Run a case's launches; `edits` by entry change the disassembly."""

    def launch(step: Launch, values: Any, memory: Any) -> None:
        entry = step.kernel.entry
        runs = kernel(entry, target, (edits or {}).get(entry, str))
        runs.launch(step.kernel.signature, step.grid, step.block, values, memory, seed)

    return waves.run_launches(planned(case), case.given, launch)


def on_sim(case: Case) -> dict[str, Any]:
    """Return what the case's plan computes on the PTX machine."""
    plan = planned(case)
    device = ptxrt.Device("sim:0")
    strides = {operand.name: operand.strides for operand in plan.operands}
    arrays = {name: on_device(array, device, 0, strides[name]) for name, array in case.given.items()}
    outputs = plan.run([arrays.get(operand.name) for operand in plan.operands])
    names = [operand.name for operand in plan.operands if operand.output]
    made = zip(names, outputs if isinstance(outputs, tuple) else (outputs,), strict=True)
    arrays |= {name: array for name, array in made if array is not None}
    return {o.name: arrays[o.name].to_host() for o in plan.operands if o.written and o.name in arrays}


@functools.cache
def sims_results(make: Callable[..., Case], arguments: tuple[Any, ...]) -> dict[str, Any]:
    return on_sim(make(*arguments))


def check(
    make: Callable[..., Case], arguments: Any, target: str, seed: int, edits: dict[str, Edit] | None = None
) -> None:
    """Run a case, and hold its results to their bars, and to sim's bits where the variant has the same every time."""
    case = make(*arguments)
    got = run(case, target, seed, edits)
    assert set(got) == set(case.want)
    for name, (want, limit) in case.want.items():
        error = relative_error(case.seen(got[name]), want)
        assert error <= limit, f"{name}: error {error:.2e} above {limit:.2e}"
    if planned(case).precision_guarantee.deterministic and not case.of_hardware:
        for name, values in sims_results(make, arguments).items():
            assert got[name].tobytes() == values.tobytes(), f"{name} has other bits than sim's"


@pytest.mark.parametrize(("required", "end"), [((), pytest.skip.Exception), (("hiprtc",), pytest.fail.Exception)])
def test_a_missing_disassembler_is_a_failure_if_hiprtc_is_required(monkeypatch: Patch, required: Any, end: Any) -> None:
    monkeypatch.setattr(disassembly, "_SCRIPT", "/no/such/script")
    monkeypatch.setattr(helpers, "REQUIRED", required)
    with pytest.raises(end, match="/no/such/script"):
        need_disassembler()


# The kernels ----------------------------------------------------------------------------------------------------------


@each_case
def test_results_are_within_their_bars_and_those_of_sim(make: Any, arguments: Any, target: str) -> None:
    for seed in SEEDS if EVERYTHING else SEEDS[1:2]:
        check(make, arguments, target, seed)


@every_target
def test_waves_are_as_wide_as_the_target_has_them(target: str) -> None:
    entries = [spec.entry for spec in HIP if spec.family == "layer_norm" and target in amd_targets(spec.dtype)]
    assert {kernel(entry, target).report.wave_size for entry in entries} == {AMD_TARGETS[target]}


@each_target
def test_bicubic_tiles_round_their_products_before_they_add_them_up(target: str) -> None:
    """There are as many additions as where each product is an fma in the text, and so none is one with a product."""
    family, entry, product = "grid_sample_modes_tiled", "grid_sample_modes_tiled_bicubic_f32", "return a * b;"
    text = TEXTS[family, "f32"]
    assert text.count(product) == 1
    texts = text, text.replace(product, "return fmaf(a, b, 0.0f);")
    rounded, by_fma = (disassemble(compiled_for_amd(each, target, family).code, entry) for each in texts)
    assert len(re.findall("_add_f32", rounded)) == len(re.findall("_add_f32", by_fma))


def with_special(case: Case, kind: str) -> Case:
    """Return a case whose floats are special: all of them, or one in twelve."""
    rng = np.random.default_rng(5)
    given = {name: array.copy() for name, array in case.given.items()}
    for array in given.values():
        if array.dtype.kind != "f":
            continue
        tiny = float(np.finfo(array.dtype).tiny)
        few = rng.choice(array.size, max(1, array.size // 12), replace=False)
        if kind == "denormal":
            array[...] *= tiny / 16
        elif kind == "huge":
            array[...] *= float(np.finfo(array.dtype).max) / 16
        elif kind == "constant":
            array[...] = array.flat[0]
        else:
            values = {"nan": [np.nan], "infinity": [np.inf, -np.inf], "zero": [0.0, -0.0]}[kind]
            array.flat[few] = np.resize(values, few.size)
    return replace(case, given=given)


def same(a: Any, b: Any) -> bool:
    """Compare bits; of NaNs only the place counts: x86's have another sign."""
    return np.where(np.isnan(a), 0, a).tobytes() == np.where(np.isnan(b), 0, b).tobytes()


SPECIAL = [
    ("group_norm", 0),
    ("group_norm", 3),
    ("group_norm_last", 0),
    ("group_norm_last", 2),
    ("softmax2d", 0),
    ("softmax2d", 2),
    ("batch_norm", 1),
    ("batch_norm", 4),
    ("local_response_norm", 1),
    ("local_response_norm", 3),
    ("grid_sample", 0),
    ("grid_sample", 1),
    *((norm, number) for norm in ("layer_norm", "rms_norm") for number in (0, 2)),
]


@pytest.mark.parametrize("kind", ["nan", "infinity", "zero", "denormal", "huge", "constant"])
@pytest.mark.parametrize(("family", "number"), SPECIAL)
def test_special_values_give_what_they_give_on_sim(family: str, number: int, kind: str) -> None:
    make, arguments = CASES[family][number]
    with np.errstate(all="ignore"):
        case = with_special(make(*arguments), kind)
        want = on_sim(case)
    assert planned(case).precision_guarantee.deterministic
    for target in amd_targets("f32"):
        for name, values in run(case, target, 1).items():
            assert same(values, want[name]), f"{name}, {target}"


# Arrays of more than 2^32 elements, of which only the last blocks' are computed ---------------------------------------


def sparse(shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    """Return zeros that take memory only where they are touched."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    try:
        memory = mmap.mmap(
            -1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        )
    except OSError as error:
        pytest.skip(f"{size >> 30} GiB of addresses: {error}")
    return np.frombuffer(memory, dtype).reshape(shape)


def run_last_blocks(plan: waves.AnyPlan, arrays: dict[str, Any], target: str, count: int) -> None:
    assert not plan.workspace_size
    written = {operand.name: operand.written for operand in plan.operands}
    memory = [waves.Memory(name, a.ctypes.data, a.nbytes, written[name]) for name, a in arrays.items()]
    [step] = plan.schedule.steps
    assert isinstance(step, Launch)
    values = [arrays[a].ctypes.data if isinstance(a, str) else a for a in step.arguments]
    tables = [a for a in values if isinstance(a, np.ndarray)]
    memory += [waves.Memory("a table", a.ctypes.data, a.nbytes, False) for a in tables]
    values = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in values]
    runs = kernel(step.kernel.entry, target)
    runs.launch(step.kernel.signature, step.grid, step.block, values, memory, 3, slice(-count, None))


def plan_of(kind: Any, problem: Any) -> waves.AnyPlan:
    plan: waves.AnyPlan = kind.select("sim:0", problem, wish("hip/baseline"))
    return plan


@each_target
def test_upsample_reaches_what_lies_far(target: str) -> None:
    shape = (2, 1, 52000, 50000)
    x, out = sparse(shape, np.uint8), sparse((2, 1, 26000, 25000), np.uint8)
    x[1, 0, -2:] = np.random.default_rng(2).integers(1, 200, (2, 50000))
    problem = ops.UpsampleNearest2dDescriptor(shape, (2_600_000_000, 2_600_000_000, 50000, 1), 26000, 25000, x.dtype)
    run_last_blocks(plan_of(ops.UpsampleNearest2dPlan, problem), {"x": x, "out": out}, target, 4)
    assert (out[1, 0, -1, -700:] == x[1, 0, -2, -1400::2]).all()


@each_target
def test_softmax2d_reaches_what_lies_far(target: str) -> None:
    shape = (2, 3, 30000, 30000)
    x, out = sparse(shape), sparse(shape)
    x[1, :, -1, -700:] = normal(3, 700)
    run_last_blocks(plan_of(ops.Softmax2dPlan, ops.Softmax2dDescriptor(shape)), {"x": x, "out": out}, target, 6)
    want = references.softmax2d(x[1:, :, -1:, -700:].copy())
    assert relative_error(out[1:, :, -1:, -700:], want) <= bar("softmax2d", "f32")


@each_target
def test_group_norm_reaches_what_lies_far(target: str) -> None:
    shape = (4, 70000, 20600)  # the grid is short: one block has the last image, and the second
    x, out = sparse(shape), sparse(shape)
    x[3, -1] = normal(20600)
    weight, bias = np.full(shape[1], 1.7, np.float32), np.full(shape[1], -0.3, np.float32)
    arrays = {"x": x, "weight": weight, "bias": bias, "out": out}
    run_last_blocks(plan_of(ops.GroupNormPlan, ops.GroupNormDescriptor(shape, shape[1])), arrays, target, 1)
    want = references.group_norm(x[3:, -1:].copy(), weight[-1:], bias[-1:], 1)
    assert relative_error(out[3:, -1:], want) <= bar("group_norm", "f32")


@each_target
def test_group_norm_of_channels_last_arrays_reaches_what_lies_far(target: str) -> None:
    shape = (4, 700000, 2060)
    strides = channels_last(shape)
    x, out = (sparse((4, 2060, 700000)).transpose(0, 2, 1) for _ in range(2))
    x[3, -1] = normal(2060)
    weight, bias = np.full(shape[1], 1.7, np.float32), np.full(shape[1], -0.3, np.float32)
    arrays = {"x": x, "weight": weight, "bias": bias, "out": out}
    problem = ops.GroupNormDescriptor(shape, shape[1], strides=strides)
    plan: Any = ops.GroupNormPlan.select("sim:0", problem, wish("hip/channels_last"))
    run_last_blocks(plan, arrays, target, 1)
    want = references.group_norm(x[3:, -1:].copy(), weight[-1:], bias[-1:], 1)
    assert relative_error(out[3:, -1:], want) <= bar("group_norm", "f32")


# Faults, planted into the disassembly ---------------------------------------------------------------------------------


@functools.cache
def edited(pattern: str, instead: str, number: int = 0) -> Edit:
    """Return what changes one of the instructions that match."""

    def edit(text: str) -> str:
        found = list(re.finditer(pattern, text, re.M))[number]
        return text[: found.start()] + found.expand(instead) + text[found.end() :]

    return edit


def noticed(family: str, target: str, entry: str, edit: Edit) -> str:
    """Return what is wrong of a family's cases, with one entry's code changed; nothing where all is right."""
    for make, arguments in CASES[family]:
        plan = planned(make(*arguments))
        launched = {step.kernel.entry for step in plan.schedule.steps if isinstance(step, Launch)}
        for seed in SEEDS if entry in launched else ():
            try:
                check(make, arguments, target, seed, {entry: edit})
            except (AssertionError, machine_code.Fault) as fault:
                return str(fault)
    return ""


# The first of block_sum.jinja, for its second call, is not needed where there is one only, or a barrier between.
SPARE = "batch_norm_kernel|batch_norm_backward(_handed)?_kernel|group_norm_backward_parameters_kernel"
# The entries of teams differ by how many values a thread has: those that teams of several waves run here.
TEAMS = "group_norm_(teams_2|backward_teams_1)_kernel$"
BARRIERS = [
    (spec.family, spec.entry, number, target)
    for spec in HIP
    if re.match("(group|batch)_norm.*kernel|grid_sample_backward", spec.entry)
    if "teams" not in spec.entry or re.match(TEAMS, spec.entry)
    for number in range(
        bool(re.match(SPARE, spec.entry)),
        1 if re.search("tickets|norm_few", spec.entry) else 5 if "backward_teams" in spec.entry else 2,
    )
    for target in AMD_TARGETS
]


@pytest.mark.parametrize(
    ("family", "entry", "number", "target"),
    covering(BARRIERS, lambda row: (row[1:3], (row[0], row[3])) if row[3] in amd_targets(SPECS[row[1]].dtype) else ()),
)
def test_a_missing_barrier_is_noticed(family: str, entry: str, number: int, target: str) -> None:
    said = noticed(family, target, entry, edited("s_barrier", "s_nop 0", number))
    # Where LDS has places, a wave that reads one too early may also go astray.
    race, astray = "two waves at one word of LDS, with no barrier between them", "outside of what the launch may reach"
    assert race in said or (entry.startswith("grid_sample_backward_last") and astray in said)


@pytest.mark.parametrize(
    ("family", "entry", "target"),
    [
        (SPECS[entry].family, entry, target)
        for entry in (
            *("batch_norm_backward_kernel", "grid_sample_f32", "grid_sample_backward_f64", "group_norm_kernel"),
            "upsample_nearest2d_backward_f32",
        )
        for target in (AMD_TARGETS if EVERYTHING else amd_targets(SPECS[entry].dtype))
    ],
)
def test_a_missing_guard_is_noticed(family: str, entry: str, target: str) -> None:
    # All lanes stay that were active.
    said = noticed(family, target, entry, edited(r"(s_and_saveexec_\S+ \S+), \S+", r"\1, -1"))
    assert re.search("outside of|not aligned in LDS", said)


@each_target
def test_a_missing_guard_of_a_loop_is_noticed(target: str) -> None:
    wide = AMD_TARGETS[target] == 64
    edit = edited(r"(s_and_saveexec_\S+ \S+), \S+", r"\1, -1") if wide else edited("v_cmpx_.*", "s_nop 0")
    said = noticed("local_response_norm", target, "lrn_forward_kernel", edit)
    assert "outside of" in said


@each_target
@pytest.mark.parametrize("number", range(20))
@pytest.mark.parametrize(
    ("family", "entry"), [("batch_norm", "batch_norm_kernel"), ("group_norm", "group_norm_kernel")]
)
def test_a_missing_exchange_of_lanes_is_noticed(family: str, entry: str, number: int, target: str) -> None:
    lane_keeps_its_own = edited(r"ds_bpermute_b32 (\S+) \S+ (\S+)", r"v_mov_b32_e32 \1 \2", number)
    assert noticed(family, target, entry, lane_keeps_its_own)


@functools.cache
def moved(which: str, size: int, number: int | None) -> Edit:
    """Return what moves one of the loads or stores by some bytes, or all of them."""

    def edit(text: str) -> str:
        found = list(re.finditer(rf"(global_{which}_\S+ .*(?:off|\]))(?: offset:(-?\d+))?$", text, re.M))
        for one in reversed(found if number is None else [found[number]]):
            text = f"{text[: one.start()]}{one[1]} offset:{int(one[2] or 0) + size}{text[one.end() :]}"
        return text

    return edit


def _ways(row: tuple[str, ...]) -> Iterator[Any]:
    """Each kernel in f32, of those that differ by lanes one; each family both ways and in a type of each other size."""
    family, entry, _, which = row
    if SPECS[entry].dtype != "f32":
        yield family, BY_NAME[SPECS[entry].dtype].size
    else:
        yield family, which
        yield re.sub(r"\d+", "", entry) if re.search(r"_(rows|eights|words)\d*_kernel|_teams_\d", entry) else entry


@pytest.mark.parametrize(
    ("family", "entry", "target", "which"),
    covering(
        (
            (spec.family, spec.entry, target, which)
            for spec in sorted(HIP, key=lambda spec: spec.dtype == "f16")
            if spec.entry != "batch_norm_count"  # whose load is a scalar one
            for target in amd_targets(spec.dtype)
            for which in ("load", "store")
        ),
        _ways,
    ),
)
def test_an_address_off_by_an_element_is_noticed(family: str, entry: str, which: str, target: str) -> None:
    size = {"u8": 1, "f16": 2, "bf16": 2, "f64": 8}.get(entry.rpartition("_")[2], 4)
    # What the norms load first is the number about which they take moments, any will do; others the size of a block.
    first = {"grid_sample": 1, "softmax2d": 1, "upsample_nearest2d": 1}
    norms = ("batch_norm", "batch_norm_rounded", "batch_norm_tickets", "group_norm", "group_norm_last", "norm_last")
    first |= dict.fromkeys((*norms, "group_norm_few"), -1)
    first |= {"upsample_nearest2d": 0} if "_tables_" in entry else {}
    number = -1 if re.match("layer_norm(_backward)?_kernel|lrn_.*_walking", entry) else first.get(family, 0)
    last = -4 if "_tables_" in entry else -1  # of four rows that are next to each other, the first
    edit = moved(which, size, last if which == "store" else number)
    # Whose loops are in an order that the compiler chooses, or of whose ways of access one alone is gone.
    held = (
        "group_norm_held",
        "group_norm_teams",
        "group_norm_teams_backward",
        "layer_norm_apart",
        "layer_norm_held",
        "rms_norm_apart",
        "rms_norm_held",
    )
    moving = (
        "batch_norm_exact",
        "batch_norm_whole",
        "group_norm_cached",
        "group_norm_tickets",
        "norm_last_tickets",
        *held,
    )
    rows = "(layer|rms)_norm_kernel_f64"
    in_two_ways = re.match(
        f"(softmax2d|lrn)_.*(last|held|strips|walking)|grid_sample_last|batch_norm_.*(cached|alone)|{rows}", entry
    )
    if in_two_ways or family in moving or re.search("last_backward_finish|_(factors|narrow)_", entry):
        edit = moved(which, size, None)
    assert noticed(family, target, entry, edit)


# The machine ----------------------------------------------------------------------------------------------------------


@every_target
@pytest.mark.parametrize(
    "instruction",
    ["v_unheard_of v0, v1", "v_mov_b32_e32 v0, v1 clamp", "v_add_f64 v[0:1], v2, v[2:3]", "s_mov_b32 s0, x"],
)
def test_an_unknown_instruction_is_named(target: str, instruction: str) -> None:
    with pytest.raises(machine_code.Fault, match=f"unknown instruction {re.escape(instruction)}$"):
        machine_code.Kernel(code("layer_norm", "f32", target), "layer_norm_kernel", edited("s_endpgm", instruction))


@every_target
@pytest.mark.parametrize(
    ("pattern", "instead", "said"),
    [
        ("s_endpgm", "s_branch 65535", "it does not end"),
        ("s_waitcnt .*", "ds_bpermute_b32 v0, v0, v0", "a value from a lane that is not active"),
        ("s_waitcnt .*", "ds_read_b32 v0, v0 offset:65532", "outside of the block's LDS|not aligned in LDS"),
    ],
)
def test_what_the_machine_holds_wrong(target: str, pattern: str, instead: str, said: str) -> None:
    # Rows of 67, of eight warps: some waves have lanes that are not active.
    make, arguments = CASES["layer_norm"][1]
    case = replace(make(*arguments), config=RowsConfig(8))
    with pytest.raises(machine_code.Fault, match=said):
        run(case, target, 0, {"layer_norm_kernel": edited(pattern, instead, -1)})


@every_target
@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("out", lambda m: replace(m, writable=False), r"global_store_.*: written to out"),
        ("out", lambda m: replace(m, size=m.size - 1), r"global_store_.*: writes outside of what the launch may reach"),
        ("x", lambda m: replace(m, size=m.size - 1), r"global_load_.*: reads outside of what the launch may reach"),
        (
            "x",
            lambda m: replace(m, address=m.address + 1),
            r"global_load_.*: reads outside of what the launch may reach",
        ),
    ],
)
def test_what_a_launch_may_reach_is_exact(target: str, name: str, change: Any, said: str) -> None:
    make, arguments = CASES["layer_norm"][0]
    case = make(*arguments)

    def launch(step: Launch, values: Any, memory: Any) -> None:
        changed = [change(each) if each.name == name else each for each in memory]
        runs = kernel(step.kernel.entry, target)
        runs.launch(step.kernel.signature, step.grid, step.block, values, changed)

    with pytest.raises(machine_code.Fault, match=rf"layer_norm_kernel, .* {said}$"):
        waves.run_launches(planned(case), case.given, launch)


@each_target
def test_a_seed_is_an_order_of_the_waves(target: str) -> None:
    make, arguments = CASES["grid_sample"][3]
    case = make(*arguments)
    results = [run(case, target, seed)["grad_input"].tobytes() for seed in (1, 1, 2, 3)]
    assert results[0] == results[1]
    assert len(set(results)) > 1  # it adds up by atomic operations, in whatever order


ARITHMETIC = """
extern "C" __global__ void arithmetic(const double* a, const double* b, double* quotient, double* root, float* single,
                                      int* integer, unsigned int* natural) {
    const unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    quotient[i] = a[i] / b[i];
    root[i] = sqrt(b[i]);
    single[i] = float(a[i]);
    integer[i] = int(a[i]);
    natural[i] = (unsigned int)(b[i]);
}"""


@every_target
def test_division_roots_and_conversions_are_ieees(target: str) -> None:
    rng = np.random.default_rng(4)
    a, b = rng.integers(0, 1 << 64, (2, 8192), np.uint64).view(np.float64)  # of any exponent
    special = [0.0, np.inf, np.nan, 5e-324, 2.2e-308, 1.7e308, 1.0, 3e9]
    a[:256], b[:256] = (each.ravel() for each in np.meshgrid(*[[*special, *(-x for x in special)]] * 2))
    a[256:2304] = rng.normal(0, 2e9, 2048)
    b[256:4352] = a[256:4352] * rng.uniform(0.5, 2, 4096)
    with np.errstate(all="ignore"):
        # To the letter of the manual, a quotient that is too large is NaN, and a denormal one is rounded twice, or NaN.
        too_large = np.isinf(a / b) & np.isfinite(a) & (b != 0)
        denormal = (abs(a / b) < np.finfo(np.float64).tiny) & (a != 0) & np.isfinite(b)
        a[too_large | denormal] = np.nan
        inside = np.clip(a, -(2**31), 2**31 - 1), np.clip(b, 0, 2**32 - 1)
        integer, natural = (np.where(np.isnan(x), 0, x).astype(kind) for x, kind in zip(inside, "iI", strict=True))
        want = (a / b, np.sqrt(b), a.astype(np.float32), integer, natural)
    got = [np.empty_like(each) for each in want]
    arrays = [a, b, *got]
    signature = Signature.parse(
        "const f64* a, const f64* b, f64* quotient, f64* root, f32* single, i32* integer, u32* natural"
    )
    memory = [waves.Memory("an array", x.ctypes.data, x.nbytes, True) for x in arrays]
    runs = machine_code.Kernel(hiprtc.compile_hip(ARITHMETIC, target, name="arithmetic").code, "arithmetic")
    for seed in SEEDS:
        runs.launch(signature, (a.size // 256,), 256, [x.ctypes.data for x in arrays], memory, seed)
        for parameter, x, y in zip(signature.parameters[2:], got, want, strict=True):
            assert same(x, y), parameter.name
