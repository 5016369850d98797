"""The suite's frame: a case loads entries of a .ptx file of this folder, launches them, and knows what is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ptxrt

__all__ = ["CASES", "HERE", "Bench", "Case", "Result", "Results", "case", "f32"]

HERE = Path(__file__).resolve().parent

Array = NDArray[Any]


@dataclass(frozen=True)
class Result:
    """What a launch gave, the reference, and the bar of tests/tolerances.py; of bar 0 every bit is the reference's."""

    out: Array
    reference: Array
    bar: float = 0.0


Results = Mapping[str, Result]


class Bench:
    """A device with the file of a case, and random numbers that are the same on every run."""

    def __init__(self, device: ptxrt.Device, file: Path) -> None:
        self.device = device
        self.source = ptxrt.KernelSource.from_file(file)
        self.rng = np.random.default_rng(2026)

    def load(self, entry: str, signature: str, structs: Mapping[str, Any] | None = None) -> ptxrt.Kernel:
        """Load an entry; on CUDA without the assembler's own fusion, which PTX leaves open."""
        options = ("-fma=0",) if self.device.kind == "cuda" else ()
        return ptxrt.load(self.source, entry, signature, self.device, options, structs=structs)

    def put(self, array: Array) -> ptxrt.DeviceArray:
        """Copy an array to the device."""
        return ptxrt.to_device(array, self.device)

    def empty(self, shape: int | tuple[int, ...], dtype: Any = np.float32) -> ptxrt.DeviceArray:
        """Return an array that nobody has written."""
        return ptxrt.empty(shape, dtype, self.device)

    def normal(self, *shape: int, dtype: Any = np.float32) -> Array:
        """Draw from the normal distribution."""
        return self.rng.standard_normal(shape).astype(dtype)


@dataclass(frozen=True)
class Case:
    """One test body: `run` gives its results on a Bench with `file`."""

    name: str
    file: Path
    run: Callable[[Bench], Results]

    def results(self, device: ptxrt.Device) -> Results:
        """Run it on a device."""
        return self.run(Bench(device, self.file))


CASES: list[Case] = []


def case(file: str) -> Callable[[Callable[[Bench], Results]], Callable[[Bench], Results]]:
    """Add a function to the cases, with a file of this folder."""

    def added(run: Callable[[Bench], Results]) -> Callable[[Bench], Results]:
        CASES.append(Case(f"{Path(file).stem}-{run.__name__}", HERE / file, run))
        return run

    return added


def f32(value: Array) -> Array:
    """Return a value rounded once to float32, as after one instruction with .rn."""
    return np.asarray(value, np.float32)
