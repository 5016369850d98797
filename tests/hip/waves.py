"""HIP kernels on the host's CPU, with waves as wide as wanted: waves.h, compiled with a kernel's text.

Neither an AMD device nor its compiler is needed, only a C++ compiler.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from helpers import once_a_run
from numpy.typing import NDArray
from op_testing import laid_out

from ptxrt import ops
from ptxrt.ops.framework import KernelSpec, Launch, Operand, Region, Zero, read_kernel
from ptxrt.ops.framework.plan import Plan
from ptxrt.runtime.signature import Signature

Array = NDArray[Any]
AnyPlan: TypeAlias = Plan[Any, Any, Any]

_HERE = Path(__file__).parent

SCHEDULES = {"forward": 0, "backward": 1, "wave by wave": 2}
"""In which order the threads of a block run, and, for the second, its blocks; the third has its last wave first."""

GUARD = 256
"""Poisoned bytes before and behind each array."""


class Divergence(Exception):
    """Threads of a block wait for what the others do not reach, or ask for a shuffle that their wave cannot make."""


def compiler() -> str | None:
    """Return the path of the C++ compiler, CXX or else c++; None where there is none."""
    return shutil.which(os.environ.get("CXX", "c++"))


def library(text: str, *objects: str) -> ctypes.CDLL:
    """Compile C++ that may include the headers beside this file, link it with `objects`, and load it.

    Raises
    ------
    RuntimeError
        The compiler refuses the text.
    """

    def build() -> bytes:
        with tempfile.TemporaryDirectory(prefix="waves-") as folder:
            source = Path(folder, "text.cpp")
            source.write_text(text)
            return _output("-shared", str(source), *objects)

    return ctypes.CDLL(str(once_a_run(build, "waves", text)))


def _output(*options: str) -> bytes:
    """Return the file that the C++ compiler makes."""
    # Hidden, so that shared variables of one name in two libraries stay two.
    same = ("-std=c++20", "-O0", "-fPIC", "-w", "-ffp-contract=off", "-fvisibility=hidden")
    with tempfile.NamedTemporaryFile(prefix="waves-") as file:
        command = (compiler() or "c++", *same, *options, f"-I{_HERE}", "-o", file.name)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return Path(file.name).read_bytes()


class Program:
    """A text, compiled for the host.

    Parameters
    ----------
    text
        HIP C++.
    entries
        Its kernels.

    Raises
    ------
    RuntimeError
        The compiler refuses the text.
    """

    def __init__(self, text: str, entries: Sequence[str]) -> None:
        calls = "".join(f"WAVES_ENTRY({entry})\n" for entry in entries)
        # A scheduler in each library, whose variables are its own; compiled once, since that takes most of the time.
        scheduler = once_a_run(lambda: _output("-c", str(_HERE / "waves.cpp")), "waves.cpp")
        text = f'#include "waves.h"\n#line 1 "text.hip"\n{text}\n{calls}'
        self._library = library(text, str(scheduler))
        self._library.waves_launch.restype = ctypes.c_char_p

    def launch(
        self,
        entry: str,
        signature: Signature,
        grid: Sequence[int],
        block: int,
        values: Sequence[Any],
        wave: int,
        schedule: str,
    ) -> None:
        """Run one kernel to its end.

        Parameters
        ----------
        values
            One a parameter of `signature`: arrays as addresses.
        wave
            Lanes in a wave.
        schedule
            One of `SCHEDULES`.

        Raises
        ------
        Divergence
        """
        arguments = signature.arguments()
        signature.pack_into(arguments.raw, 0, *values)
        sizes = (ctypes.c_uint * 3)(*(*grid, 1, 1)[:3])
        address = ctypes.cast(self._library[f"waves_{entry}"], ctypes.c_void_p)
        table = ctypes.c_void_p(arguments.table)
        error = self._library.waves_launch(address, table, sizes, block, wave, SCHEDULES[schedule])
        if error:
            raise Divergence(f"{entry}, waves of {wave}, {schedule}: {error.decode()}")


compiled = functools.cache(Program)


class _Guarded:
    """An array with every byte 0xFF, inside a larger one: what is read outside of it is NaN."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] | None = None) -> None:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        memory = np.full(size + 3 * GUARD, 0xFF, np.uint8)
        start = -memory.ctypes.data % GUARD  # a device's memory begins at a multiple of 256, too
        self.whole = memory[start : start + size + 2 * GUARD]
        self.array: Array = laid_out(self.whole[GUARD : GUARD + size].view(dtype), shape, strides)

    def check(self, name: str) -> None:
        outside = np.concatenate([self.whole[:GUARD], self.whole[GUARD + self.array.nbytes :]])
        assert (outside == 0xFF).all(), f"written outside of {name}"


@dataclass(frozen=True)
class Memory:
    """Bytes that a launch may reach.

    Attributes
    ----------
    name
        The operand's; or what else it is.
    address, size
        In bytes.
    writable
        Whether the plan writes there.
    """

    name: str
    address: int
    size: int
    writable: bool


def run(
    plan: AnyPlan, given: Mapping[str, Array], wave: int, schedule: str, text: str | None = None
) -> dict[str, Array]:
    """Run the launches of a plan whose variant is in HIP, on the host's CPU.

    Parameters
    ----------
    plan, given
        As :func:`run_launches` has them.
    wave, schedule
        As :meth:`Program.launch` has them.
    text
        What is run in place of the first kernel's own text, which is that of others in its file.

    Returns
    -------
    dict
        All operands that the plan writes, by name.
    """

    def launch(step: Launch, values: Sequence[Any], memory: Sequence[Memory]) -> None:
        kernel = step.kernel
        family = [spec.entry for spec in ops.kernels() if _same_text(spec, kernel)]
        instead = text if _same_text(kernel, plan.schedule.launches[0].kernel) else None
        whole = read_kernel(kernel.family, language="hip", dtype=kernel.dtype).text
        program = compiled(instead or whole, tuple(family))
        program.launch(kernel.entry, kernel.signature, step.grid, step.block, values, wave, schedule)

    return run_launches(plan, given, launch)


def _same_text(one: KernelSpec, other: KernelSpec) -> bool:
    return (one.family, one.dtype, one.language) == (other.family, other.dtype, other.language)


def run_launches(
    plan: AnyPlan, given: Mapping[str, Array], launch: Callable[[Launch, Sequence[Any], Sequence[Memory]], None]
) -> dict[str, Array]:
    """Run the launches of a plan, with arrays of NumPy that have guards round them.

    Parameters
    ----------
    plan
        Its device is not used. Its operands are contiguous or channels-last.
    given
        Operands by name; an output that is not given is made, what else is not given is None.
    launch
        Runs one: it is handed the step, a value for each parameter, arrays as addresses, and what it may reach.

    Returns
    -------
    dict
        All operands that the plan writes, by name. Those given are left as they are.
    """
    operands = [operand for operand in plan.operands if operand.name in given or _is_made(operand, given)]
    arrays = {each.name: _Guarded(each.shape, each.type.numpy, each.strides) for each in operands}
    for name, array in given.items():
        arrays[name].array[...] = array
    workspace = _Guarded((plan.workspace_size,), np.uint8)
    reached = [(each.name, arrays[each.name].array, each.written) for each in operands]
    reached.append(("the workspace", workspace.array, True))

    def value(argument: Any) -> Any:
        if isinstance(argument, str):
            return arrays[argument].array.ctypes.data if argument in arrays else 0
        if isinstance(argument, Region):
            return workspace.array.ctypes.data + argument.offset
        return argument.ctypes.data if isinstance(argument, np.ndarray) else argument

    for step in plan.schedule.steps:
        if isinstance(step, Zero):
            if isinstance(step.where, Region):
                workspace.array[step.where.offset :][: step.where.nbytes] = 0
            elif step.where in arrays:
                arrays[step.where].array[...] = 0
            continue
        assert not step.shared_bytes, "there is no dynamic shared memory here"
        tables = [("a table", argument, False) for argument in step.arguments if isinstance(argument, np.ndarray)]
        memory = [Memory(name, a.ctypes.data, a.nbytes, writable) for name, a, writable in [*reached, *tables]]
        launch(step, [value(argument) for argument in step.arguments], memory)

    for name, guarded in [*arrays.items(), ("the workspace", workspace)]:
        guarded.check(name)
    for operand in operands:
        if not operand.written:
            same = arrays[operand.name].array.tobytes() == given[operand.name].tobytes()
            assert same, f"written to {operand.name}"
    return {operand.name: arrays[operand.name].array for operand in operands if operand.written}


def _is_made(operand: Operand, given: Mapping[str, Array]) -> bool:
    return operand.output and operand.absent is None and (operand.needs is None or operand.needs in given)
