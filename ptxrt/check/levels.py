"""Is it my kernel, or the assembler? A launch on the PTX machine, and as compiled at each level of optimisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ptxrt import backends
from ptxrt.check.compare import Difference, first_difference, is_exact
from ptxrt.check.run import Report, check
from ptxrt.errors import CompileError, InvalidArgument, LaunchError
from ptxrt.runtime.array import DeviceArray, to_device
from ptxrt.runtime.device import Device
from ptxrt.runtime.kernel import load
from ptxrt.runtime.source import KernelSource

__all__ = ["LEVELS", "Level", "Verification", "verify"]

LEVELS = (0, 1, 2, 3)
"""Of the assembler in nvJitLink, ``-Xptxas=-O0`` to ``-Xptxas=-O3``; the last is what :func:`ptxrt.load` uses."""

_UNWRITTEN = 0xCD  # what the machine fills new memory with


@dataclass(frozen=True)
class Level:
    """What a kernel computed as compiled at one level.

    Attributes
    ----------
    level : int
    differences : dict
        By parameter, the first element that is not the PTX machine's; empty where all agree.
    error : CompileError or LaunchError or None
        Why it did not run.
    """

    level: int
    differences: dict[str, Difference] = field(default_factory=dict)
    error: CompileError | LaunchError | None = None

    @property
    def agrees(self) -> bool:
        """Whether it ran, and computed what the PTX machine did."""
        return not self.differences and self.error is None


@dataclass(frozen=True)
class Verification:
    """What :func:`verify` found.

    Attributes
    ----------
    report : ptxrt.check.Report
        Of the PTX machine.
    device : Device or None
        Where the levels ran; None where there is no GPU.
    levels : tuple of Level
        Empty without a GPU, and after a fault of the machine: such a kernel is not launched.
    """

    report: Report
    device: Device | None
    levels: tuple[Level, ...]

    @property
    def agrees(self) -> bool:
        """Whether the machine found no fault, and every level that ran computed the same."""
        return self.report.fault is None and all(level.agrees for level in self.levels)

    @property
    def conclusion(self) -> str:
        """What that says of the kernel, and of the assembler, in a sentence."""
        if self.report.fault is not None:
            return "It is the kernel: the PTX machine finds a fault. It has not been launched on a GPU."
        if not self.levels:
            return "The PTX machine finds no fault. There is no NVIDIA GPU here to compare it with."
        if failed := [f"-O{level.level}" for level in self.levels if level.error is not None]:
            return f"The PTX machine finds no fault; {', '.join(failed)} did not run."
        wrong = [f"-O{level.level}" for level in self.levels if not level.agrees]
        if not wrong:
            return "The PTX machine finds no fault, and every level of the assembler computes the same."
        if len(wrong) == len(self.levels):
            return (
                "No level computes what the PTX machine does: the kernel relies on what PTX leaves open (an order of "
                "threads, a race that the machine's models do not see), or the machine has an error."
            )
        return (
            f"{', '.join(wrong)} compute something else than the others: the assembler, or a kernel that relies on "
            "what PTX leaves open, such as the order of threads."
        )


def verify(
    source: KernelSource,
    entry: str | None = None,
    signature: Any = None,
    *,
    device: Device | str | None = None,
    levels: Sequence[int] = LEVELS,
    **call: Any,
) -> Verification:
    """Run a kernel on the PTX machine with every check on, then on a GPU as compiled at each level, and compare.

    Of CUDA C++ and HIP the PTX that NVRTC makes is compared: the levels are those of the assembler behind it.

    Parameters
    ----------
    source, entry, signature, **call
        As for :func:`ptxrt.check.check`.
    device
        The GPU; the first of NVIDIA's if left out. ``"sim:0"`` runs the machine alone.
    levels
        Which of :data:`LEVELS`.

    Raises
    ------
    InvalidArgument
        For a level that there is not, a device of AMD's; and what :func:`ptxrt.check.check` raises.
    BackendUnavailable
        For a `device` that is not there.
    """
    if not set(levels) <= set(LEVELS):
        raise InvalidArgument(op="verify", argument="levels", expected=f"some of {LEVELS}", given=repr(levels))
    where = _gpu(device)
    if where is not None and source.__class__ is KernelSource and source.language != "ptx":
        call.setdefault("arch", where.arch)
    report = check(source, entry, signature, **call)
    if where is None or report.fault is not None:
        return Verification(report, where, ())
    return Verification(report, where, tuple(_run(report, where, level) for level in levels))


def _gpu(device: Device | str | None) -> Device | None:
    if device is None:
        return Device("cuda:0") if backends.get("cuda").device_count() else None
    found = Device(device)
    if found.kind == "hip":
        raise InvalidArgument(op="verify", argument="device", expected="an NVIDIA GPU, or sim", given=str(found))
    return found if found.kind == "cuda" else None


def _run(report: Report, device: Device, level: int) -> Level:
    text = KernelSource.ptx(report.text, name=report.name)
    try:
        kernel = load(text, report.entry.name, report.signature, device, (f"-Xptxas=-O{level}",))
        arguments = [_operand(value, device) for value in report.values]
        kernel.launch(
            report.grid, report.block, *arguments, shared_bytes=report.shared_bytes, cooperative=report.cooperative
        )
    except (CompileError, LaunchError) as error:
        return Level(level, error=error)
    exact = is_exact(report.text)
    found = {
        value.parameter.name: first_difference(report.arrays[value.parameter.name], array.to_host(), exact=exact)
        for value, array in zip(report.values, arguments, strict=True)
        if isinstance(array, DeviceArray)
    }
    return Level(level, {name: difference for name, difference in found.items() if difference is not None})


def _operand(value: Any, device: Device) -> Any:
    """Return an argument as it was on the machine, on the device."""
    if value.array is None:
        return value.number
    array = to_device(value.array, device)
    if value.empty:
        array.fill_bytes(_UNWRITTEN)
    return array
