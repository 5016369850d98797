"""Norms of rows, the last axes of an array: what they have in common, which is all but entries and formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, get_args

from ptxrt.dtypes import BY_NAME, ElementType
from ptxrt.errors import InvalidArgument, ShapeMismatch, shown
from ptxrt.ops.framework.descriptors import F64Sums, checked_type, number
from ptxrt.ops.framework.kernels import KernelFamily, Role, parameter_type
from ptxrt.ops.framework.operands import Operand
from ptxrt.ops.framework.plan import ArgsT, Plan, PlanT, ResultT, plan_cache
from ptxrt.ops.framework.schedule import (
    Argument,
    Config,
    Launch,
    Limits,
    Refusal,
    Schedule,
    Workspace,
    blocks_in_hip,
    refusal_of_warps,
)
from ptxrt.ops.framework.texts import ROUNDING_TARGETS
from ptxrt.ops.framework.variant import ConfigT, Variant
from ptxrt.runtime.array import DeviceArray
from ptxrt.runtime.interop import as_array
from ptxrt.runtime.layout import checked_shape, whole_numbers
from ptxrt.runtime.protocols import DeviceArrayLike, StreamLike

__all__ = [
    "LEAST",
    "RowsBackward",
    "RowsBackwardConfig",
    "RowsConfig",
    "RowsDescriptor",
    "RowsForward",
    "RowsPlan",
    "RowsVariant",
    "rows_family",
]

RowsT = TypeVar("RowsT", bound="RowsDescriptor")

WARP = 32
LEAST = 32
"""Values of a row whose gradient f32 adds up, of f64 twice as many: of fewer it may be what terms that cancel leave."""
_THREADS = 256  # of a block that adds up columns, each thread those of a slice of rows
_COLUMNS = 1 << 18  # of all slices together, about, where there are rows for so many
_COLUMNS_OF_F64 = 3 << 16  # the same of f64: as many as an H200 has threads for at a time
_SLICE, _SLICES = 16, 1 << 12  # rows of a slice, at least; slices, at most

_ARRAYS = {
    "in_ptr": "x", "out_ptr": "out", "w_ptr": "weight", "b_ptr": "bias",
    "go_ptr": "grad_out", "gi_ptr": "grad_input", "gw_ptr": "grad_weight", "gb_ptr": "grad_bias",
}  # fmt: skip
"""Parameter of an entry -> the operand."""
_BACKWARD = (
    "const T* in_ptr, const T* go_ptr, T* gi_ptr, const P*? w_ptr, f64* statistics_ptr, u64 rows, u64 width, P eps"
)


def rows_family(name: str, **signatures: str) -> KernelFamily:
    """Return the entries of a norm, ``kernel="const T* in_ptr, ..."`` being that of ``layer_norm_kernel``.

    All are in both languages. Those that have a block a row, or a column, are in PTX once more with blocks of one warp.
    The signature for grad_input is the same of every norm.
    """
    signatures = {"kernel": signatures.pop("kernel"), "backward_kernel": _BACKWARD, **signatures}
    roles = {f"{name}_{role}": Role(signature, hip=True) for role, signature in signatures.items()}
    small = {
        f"{role}_small": Role(each.signature, parameters={"warps": "1"})
        for role, each in roles.items()
        if "columns" not in role
    }
    return KernelFamily(name, RowsDescriptor.types, roles | small, targets=ROUNDING_TARGETS)


@dataclass(frozen=True)
class RowsDescriptor(F64Sums):
    """Base of a problem of a norm of rows: pure data, hashable.

    Parameters
    ----------
    shape
        Of x.
    normalized_shape
        The last axes of x, at least one: they are a row.
    dtype
        Of x.
    eps
        Added to what is divided by; finite and at least 0.

    Raises
    ------
    ShapeMismatch, InvalidArgument, DTypeMismatch
    """

    shape: tuple[int, ...]
    normalized_shape: tuple[int, ...]
    dtype: ElementType = BY_NAME["f32"]
    eps: float = 1e-5

    op: ClassVar[str]
    types: ClassVar[tuple[str, ...]] = ("f32", "f64", "f16", "bf16")

    def __post_init__(self) -> None:
        shape, axes = checked_shape(self.shape, self.op), whole_numbers(self.normalized_shape)
        if axes is None:
            expected, given = "an int or a tuple of ints", shown(self.normalized_shape)
            raise InvalidArgument(op=self.op, argument="normalized_shape", expected=expected, given=given)
        if not axes or shape[-len(axes) :] != axes:
            expected = f"the last axes of x, {shape}, at least one of them"
            raise ShapeMismatch(op=self.op, argument="normalized_shape", expected=expected, given=str(axes))
        kind = checked_type(self.dtype, self.op, "x", self.types)
        eps = number(self.eps, self.op, "eps", parameter_type(kind))
        for name, value in {"shape": shape, "normalized_shape": axes, "dtype": kind, "eps": eps}.items():
            object.__setattr__(self, name, value)

    @property
    def rows(self) -> int:
        """Their number, 1 where x is one row."""
        return math.prod(self.shape[: -len(self.normalized_shape)])

    @property
    def width(self) -> int:
        """Values in a row."""
        return math.prod(self.normalized_shape)

    @property
    def extents(self) -> tuple[int, int]:
        """Rows and width, in the order in which they lie in memory."""
        return self.rows, self.width

    @property
    def empty(self) -> bool:
        """Whether x has no elements."""
        return 0 in self.shape


@dataclass(frozen=True)
class RowsConfig(Config):
    """Knobs of a block for each row: its warps, 1 or 8, in HIP any."""

    warps: int

    @classmethod
    def heuristic(cls, problem: RowsDescriptor) -> RowsConfig:
        """One warp for a short row, where there are many, or a few values are all."""
        return cls(1 if problem.width <= (1 << 10 if problem.rows >= 1 << 11 else 4 * WARP) else 8)

    @classmethod
    def candidates(cls, problem: RowsDescriptor) -> Sequence[RowsConfig]:
        """Return both widths."""
        del problem
        return cls(8), cls(1)


@dataclass(frozen=True)
class RowsBackwardConfig(Config):
    """Knobs of the backward: the warps of a block for each row, and the rows of a slice of columns."""

    warps: int
    length: int

    @classmethod
    def heuristic(cls, problem: RowsDescriptor) -> RowsBackwardConfig:
        """As in the forward; slices such that many threads have a column each."""
        columns = _COLUMNS_OF_F64 if problem.dtype.name == "f64" else _COLUMNS
        length = max(_SLICE, -(-problem.rows * problem.width // columns), -(-problem.rows // _SLICES))
        return cls(RowsConfig.heuristic(problem).warps, length)

    @classmethod
    def candidates(cls, problem: RowsDescriptor) -> Sequence[RowsBackwardConfig]:
        """Return both widths, with slices of the heuristic's length and of four times as many rows."""
        length = cls.heuristic(problem).length
        return tuple(cls(warps, rows) for warps in (8, 1) for rows in (length, 4 * length))


class RowsVariant(Variant[RowsDescriptor, ConfigT]):
    """A variant of a norm's plan, by the norm's entries."""

    name = "baseline"

    def __init__(self, family: KernelFamily, language: str = "ptx") -> None:
        super().__init__(language)
        self.family = family

    def launch(self, role: str, problem: RowsDescriptor, blocks: int, threads: int, **more: Argument) -> Launch:
        """Return the launch of an entry, whose parameters' names say what it takes; in PTX, one warp may be another."""
        role = f"{self.family.name}_{role}"
        if self.language == "ptx" and threads == WARP and f"{role}_small" in self.family.roles:
            role += "_small"
        kernel = self.family.kernel(role, problem.dtype, self.language)
        sizes = {"rows": problem.rows, "width": problem.width, "eps": problem.eps}
        values: dict[str, Argument] = {**_ARRAYS, **sizes, **more}
        arguments = tuple(values[parameter.name] for parameter in kernel.signature.parameters)
        grid = (blocks_in_hip(blocks * threads, threads),)  # in PTX too: blocks take turns
        return Launch(kernel, grid, threads, arguments)


class RowsForward(RowsVariant[RowsConfig]):
    """A block for each row, which reads it twice."""

    config_type = RowsConfig

    def schedule(self, problem: RowsDescriptor, config: RowsConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if refusal := refusal_of_warps(config.warps, problem.dtype, self.language):
            return refusal
        return Schedule((self.launch("kernel", problem, problem.rows, WARP * config.warps),), problem.guarantee)


class RowsBackward(RowsVariant[RowsBackwardConfig]):
    """A block for each row; then sums of each column over slices of rows; then over the slices.

    Parameters
    ----------
    numbers
        How many of a row the first launch leaves to the second, which leaves as many of a column to the third.
    """

    config_type = RowsBackwardConfig

    def __init__(self, family: KernelFamily, numbers: int, language: str = "ptx") -> None:
        super().__init__(family, language)
        self.numbers = numbers

    def schedule(self, problem: RowsDescriptor, config: RowsBackwardConfig, limits: Limits) -> Schedule | Refusal:
        """Return three launches."""
        if refusal := refusal_of_warps(config.warps, problem.dtype, self.language):
            return refusal
        slices = -(-problem.rows // config.length)
        workspace = Workspace()
        of_rows = workspace.region("statistics", "f64", problem.parts * self.numbers * problem.rows)
        of_columns = workspace.region("partials", "f64", problem.parts * self.numbers * problem.width * slices)
        cut: dict[str, Argument] = {"slices": slices, "length": config.length, "partials_ptr": of_columns}
        blocks = -(-problem.width * slices // _THREADS)
        adders = WARP if slices <= 4 * WARP else 8 * WARP  # one warp does it as fast where they are few
        return Schedule(
            (
                self.launch("backward_kernel", problem, problem.rows, WARP * config.warps, statistics_ptr=of_rows),
                self.launch("backward_columns_kernel", problem, blocks, _THREADS, statistics_ptr=of_rows, **cut),
                self.launch("backward_parameters_kernel", problem, problem.width, adders, **cut),
            ),
            problem.guarantee,
            workspace,
        )


class RowsPlan(Plan[RowsT, ArgsT, ResultT]):
    """Base of a norm's plans, which has `variants`: the types in its brackets say the rest.

    The operands are those that the Args tuple names. The functions find plans by :meth:`of`.

    Attributes
    ----------
    args_type
        The Args tuple.
    """

    category = "normalization"
    args_type: ClassVar[Any]
    _find: ClassVar[Callable[..., Any]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.descriptor_type, cls.args_type, cls.result_type = get_args(cls.__dict__["__orig_bases__"][0])
        cls.op = cls.descriptor_type.op
        cls._find = staticmethod(plan_cache(cls))

    @classmethod
    def of(
        cls: type[PlanT],
        x: DeviceArrayLike,
        normalized_shape: int | Sequence[int],
        eps: float,
        stream: StreamLike | None,
    ) -> tuple[DeviceArray, PlanT]:
        """Return x as a DeviceArray, and its plan, of which 256 are kept."""
        if type(x) is not DeviceArray:
            x = as_array(x, None, cls.op, "x", stream)
        row = normalized_shape
        if type(row) is not int and not (type(row) is tuple and all(type(size) is int for size in row)):
            # No key, as a list is none, or equal to one in the cache, perhaps, and not as good: the descriptor tells.
            normalized_shape = cls.descriptor_type(x.shape, normalized_shape, x.dtype, eps).normalized_shape
        return x, cls._find(x.device, x.shape, normalized_shape, x.dtype, eps)  # type: ignore[attr-defined]

    def _operands(self) -> tuple[Operand, ...]:
        problem = self.descriptor
        values, weights = (problem.shape, problem.dtype), (problem.normalized_shape, parameter_type(problem.dtype))
        every = (
            Operand("grad_out", *values),
            Operand("x", *values),
            Operand("weight", *weights, optional=True),
            Operand("bias", *weights, optional=True),
            Operand("out", *values, output=True, in_place=("x",)),
            Operand("grad_input", *values, output=True),  # not in place: the columns' sums read grad_out and x again
            Operand("grad_weight", *weights, output=True, needs="weight"),
            Operand("grad_bias", *weights, output=True),
        )
        named = {operand.name: operand for operand in every}
        return tuple(named[name] for name in self.args_type._fields)
