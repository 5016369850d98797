"""What a kernel of the comparison is: CUDA C++ of our own, its arguments, and how equal its results must be."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import ptxrt

__all__ = ["Case", "Rng", "floats", "integers", "launch", "outputs"]

Rng = np.random.Generator

_TYPES = {
    "f32": "float", "f64": "double", "u8": "unsigned char", "u16": "unsigned short", "u32": "unsigned",
    "u64": "unsigned long long", "i8": "signed char", "i16": "short", "i32": "int", "i64": "long long", "bool": "bool",
    "f16": "unsigned short", "bf16": "unsigned short",
}  # fmt: skip
"""In C++ without headers; a half is its bits."""


@dataclass(frozen=True)
class Case:
    """One kernel and one launch of it.

    Attributes
    ----------
    name
        The entry's name.
    signature
        Its parameters, as `ptxrt.load` takes them; the C++ ones are made of it.
    body
        What stands between the braces; ``i`` is the thread's number in a one-dimensional grid.
    grid, block
        Of the launch.
    make
        Makes the arguments, arrays and numbers in the order of the signature, from a seeded generator.
    expect
        From the arguments, what the writable arrays hold afterwards; None where NumPy has no short way to say it.
    before
        Device functions, constants and types.
    ulps
        0 where every operation is exact by definition; else how much results may differ, in units of the last place,
        `why` says by whose word.
    absolute
        Or within this much.
    close
        The relative distance from `expect` that is right; 0 for equal bit for bit.
    options
        For NVRTC beside ``--fmad=false``, which leaves a product and a sum two operations.
    shared_bytes
        Dynamic shared memory.
    """

    name: str
    signature: str
    body: str
    grid: int | tuple[int, ...]
    block: int | tuple[int, ...]
    make: Callable[[Rng], list[Any]]
    expect: Callable[..., Sequence[Any]] | None = None
    before: str = ""
    ulps: float = 0.0
    absolute: float = 0.0
    why: str = ""
    close: float = 0.0
    options: tuple[str, ...] = ()
    shared_bytes: int = 0

    @property
    def text(self) -> str:
        """The whole of the C++."""
        parameters = re.sub(r"\b(" + "|".join(_TYPES) + r")(\*?) ", lambda m: f"{_TYPES[m[1]]}{m[2]} ", self.signature)
        index = "const int i = blockIdx.x * blockDim.x + threadIdx.x;"
        return f'{self.before}\nextern "C" __global__ void {self.name}({parameters}) {{\n{index}\n{self.body}\n}}\n'

    def arguments(self) -> list[Any]:
        """Return the arguments, the same every time."""
        return self.make(np.random.default_rng([2026, *self.name.encode()]))

    @property
    def writable(self) -> list[int]:
        """Which parameters are results."""
        return [n for n, part in enumerate(self.signature.split(",")) if "*" in part and "const" not in part]


def launch(case: Case, device: ptxrt.Device) -> list[np.ndarray]:
    """Run it and return its results."""
    source = ptxrt.KernelSource.cuda(case.text, name=case.name)
    kernel = ptxrt.load(source, case.name, case.signature, device, ("--fmad=false", *case.options))
    given = [ptxrt.to_device(a, device) if isinstance(a, np.ndarray) else a for a in case.arguments()]
    kernel.launch(case.grid, case.block, *given, shared_bytes=case.shared_bytes)
    return [given[n].to_host() for n in case.writable]


def outputs(case: Case) -> list[np.ndarray] | None:
    """Return what NumPy expects, in the types of the results."""
    if case.expect is None:
        return None
    given = case.arguments()
    with np.errstate(all="ignore"):
        found = case.expect(*[np.copy(a) if isinstance(a, np.ndarray) else a for a in given])
    return [np.asarray(a).astype(given[n].dtype) for a, n in zip(found, case.writable, strict=True)]


# Inputs -------------------------------------------------------------------------------------------------------------


def floats(rng: Rng, n: int, dtype: Any = np.float32, *, wild: bool = True, scale: float = 4.0) -> np.ndarray:
    """Return normal numbers and, if `wild`, zeros, infinities, NaN, denormals and the largest among them."""
    x = (rng.standard_normal(n) * scale).astype(dtype)
    if wild:
        info = np.finfo(dtype)
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, info.tiny, -info.tiny / 2, info.smallest_subnormal, info.max,
                   -info.max, 1.0, -1.0, 0.5, 2.5, 3.5, info.tiny * 3]  # fmt: skip
        at = rng.random(n) < 0.2
        x[at] = rng.choice(np.array(special, dtype), int(at.sum()))
    return x


def integers(rng: Rng, n: int, dtype: Any = np.int32, *, zero: bool = True) -> np.ndarray:
    """Return integers of every magnitude and sign, the ends of the range among them; without `zero` if it is false."""
    info = np.iinfo(dtype)
    bits = info.bits
    x = rng.integers(0, 2**64, n, dtype=np.uint64) >> rng.integers(64 - bits, 64, n).astype(np.uint64)
    x = x.astype(f"u{bits // 8}").view(dtype)
    x = np.where(rng.random(n) < 0.5, x, np.negative(x))
    at = rng.random(n) < 0.1
    x[at] = rng.choice(np.array([0, 1, info.max, info.min, info.max - 1, info.min + 1], dtype), int(at.sum()))
    return x if zero else np.where(x == 0, dtype(1), x)
