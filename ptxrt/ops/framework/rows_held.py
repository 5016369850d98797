"""Norms of rows whose values stay in registers: a block for each row, which reads it once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ptxrt.dtypes import BY_NAME
from ptxrt.ops.framework.kernels import KernelFamily, Role
from ptxrt.ops.framework.rows import RowsDescriptor, RowsVariant
from ptxrt.ops.framework.schedule import Argument, Config, Limits, PrecisionGuarantee, Refusal, Schedule, Workspace
from ptxrt.ops.framework.texts import ROUNDING_TARGETS
from ptxrt.ops.framework.variant import ConfigT

__all__ = ["GUARANTEE", "HeldBackward", "HeldBackwardConfig", "HeldConfig", "HeldForward", "held_family"]

_WARP, _COLUMNS, _THREADS = 32, 8, 512  # the columns that a block adds up over the slices, and its threads
_SLICE, _SLICES = 32, 1 << 8  # rows of a slice, at most; slices that are enough

GUARANTEE = PrecisionGuarantee("f32", "f64", deterministic=True, bit_stable_on_same_hardware=True)


def _vector(problem: RowsDescriptor) -> int:
    return 16 // problem.dtype.size


class _Registers(NamedTuple):
    """What entries are made for: the values of a row that a thread has at most, and a block's threads at most."""

    values: int
    threads: int

    def needs(self, problem: RowsDescriptor, values: int | None = None) -> int:
        """Return how many threads, whole warps, have a row, with at most `values` each."""
        return _WARP * -(-problem.width // (_WARP * (values or self.values)))

    def widths(self, problem: RowsDescriptor) -> list[int]:
        """Return the threads of a block that are worth measuring, few first, down to one vector each."""
        vector = _vector(problem)
        halvings = range((self.values // vector).bit_length())
        found = {self.needs(problem, self.values >> halving) for halving in halvings}
        return [threads for threads in sorted(found) if threads <= self.threads] or [self.threads]


_FORWARD, _BACKWARD = _Registers(32, 512), _Registers(16, 512)


def held_family(norm: str, kernel: str, backward_parameters_kernel: str) -> KernelFamily:
    """Return the entries of a norm, ``kernel="const T* in_ptr, ..."`` being that of its forward.

    Forward and backward have an entry for each number of slots, vectors that a thread has of a row.
    """
    types = ("f32", "f16", "bf16")
    backward = (
        "const T* in_ptr, const T* go_ptr, T* gi_ptr, const P*? w_ptr, f32* partials_ptr, u64 rows, u64 width, "
        "u64 slices, u64 length, P eps, f64 per_value"
    )
    roles = {f"{norm}_held_backward_parameters_kernel": Role(backward_parameters_kernel, hip=True)}
    for way, signature, registers in (("", kernel, _FORWARD), ("backward_", backward, _BACKWARD)):
        for slots in range(1, registers.values // 4 + 1):
            with_so_many = tuple(name for name in types if slots <= registers.values * BY_NAME[name].size // 16)
            role = Role(signature, hip=True, parameters={"slots": str(slots)}, dtypes=with_so_many)
            roles[f"{norm}_held_{way}{slots}_kernel"] = role
    return KernelFamily(f"{norm}_held", types, roles, targets=ROUNDING_TARGETS, op=norm)


@dataclass(frozen=True)
class HeldConfig(Config):
    """Knobs of a row in registers: the threads of its block."""

    threads: int

    @classmethod
    def heuristic(cls, problem: RowsDescriptor) -> HeldConfig:
        """Few, each with many values; of few rows each has more threads, which are done sooner."""
        widths = _FORWARD.widths(problem)
        return cls(widths[-1] if problem.rows * problem.width < 1 << 18 else widths[0])

    @classmethod
    def candidates(cls, problem: RowsDescriptor) -> Sequence[HeldConfig]:
        """Return many values a thread, half as many, and one vector."""
        widths = _FORWARD.widths(problem)
        return tuple(dict.fromkeys(cls(threads) for threads in (*widths[:2], widths[-1])))


@dataclass(frozen=True)
class HeldBackwardConfig(Config):
    """Knobs of the backward: the threads of a row's block, and the rows of a slice, whose columns it adds up."""

    threads: int
    length: int

    @classmethod
    def heuristic(cls, problem: RowsDescriptor) -> HeldBackwardConfig:
        """Many values a thread; slices for many blocks."""
        return cls(_BACKWARD.widths(problem)[0], min(_SLICE, max(1, problem.rows // _SLICES)))

    @classmethod
    def candidates(cls, problem: RowsDescriptor) -> Sequence[HeldBackwardConfig]:
        """Return slices of half and of twice the heuristic's length, too, and more threads."""
        threads, length = (plain := cls.heuristic(problem)).threads, plain.length
        lengths = [cls(threads, some) for some in (length, length // 2, 2 * length) if some]
        return tuple(dict.fromkeys([*lengths, cls(_BACKWARD.widths(problem)[:2][-1], length)]))


class _Held(RowsVariant[ConfigT]):
    """A row's values stay in the registers of its block."""

    name = "held"
    registers: ClassVar[_Registers]

    def suits(self, problem: RowsDescriptor) -> bool:
        """Where rows are whole vectors that registers hold."""
        return self.refusal(problem, self.registers.needs(problem)) is None

    def slots(self, problem: RowsDescriptor, threads: int) -> int:
        """Return how many vectors of a row a thread has at most."""
        return -(-problem.width // (_vector(problem) * threads))

    def refusal(self, problem: RowsDescriptor, threads: int) -> Refusal | None:
        """Return why blocks of `threads` cannot do it, or None."""
        registers = self.registers
        if problem.dtype.name not in self.family.dtypes:
            return Refusal(f"there are no entries of {problem.dtype.name}")
        if problem.width % (vector := _vector(problem)):
            return Refusal(f"rows of {problem.width} values are not whole vectors of {vector}")
        if threads % _WARP or not 0 < threads <= registers.threads:
            return Refusal(f"a block has whole warps, up to {registers.threads} threads, not {threads}")
        if threads < registers.needs(problem):
            return Refusal(f"{threads} threads hold {threads * registers.values} values, not {problem.width}")
        return None


class HeldForward(_Held[HeldConfig]):
    """A block for each row."""

    config_type = HeldConfig
    registers = _FORWARD

    def schedule(self, problem: RowsDescriptor, config: HeldConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if refusal := self.refusal(problem, config.threads):
            return refusal
        entry = f"{self.slots(problem, config.threads)}_kernel"
        launch = self.launch(entry, problem, problem.rows, config.threads, per_value=1 / problem.width)
        return Schedule((launch,), GUARANTEE)


class HeldBackward(_Held[HeldBackwardConfig]):
    """A block for each slice of rows, which adds up its columns as it goes; then sums over the slices.

    Parameters
    ----------
    numbers
        How many sums a column has.
    """

    config_type = HeldBackwardConfig
    registers = _BACKWARD

    def __init__(self, family: KernelFamily, numbers: int, language: str = "ptx") -> None:
        super().__init__(family, language)
        self.numbers = numbers

    def suits(self, problem: RowsDescriptor) -> bool:
        """Where a gradient is not what is left of a few values that cancel, which wants f64."""
        return super().suits(problem) and problem.width >= 2 * _WARP

    def schedule(self, problem: RowsDescriptor, config: HeldBackwardConfig, limits: Limits) -> Schedule | Refusal:
        """Return two launches."""
        if refusal := self.refusal(problem, config.threads):
            return refusal
        slices = -(-problem.rows // config.length)
        workspace = Workspace()
        partials = workspace.region("partials", "f32", self.numbers * problem.width * slices)
        cut: dict[str, Argument] = {
            "slices": slices, "length": config.length, "partials_ptr": partials, "per_value": 1 / problem.width,
        }  # fmt: skip
        blocks, entry = -(-problem.width // _COLUMNS), f"backward_{self.slots(problem, config.threads)}_kernel"
        return Schedule(
            (
                self.launch(entry, problem, slices, config.threads, **cut),
                self.launch("backward_parameters_kernel", problem, blocks, _THREADS, **cut),
            ),
            GUARANTEE,
            workspace,
        )
