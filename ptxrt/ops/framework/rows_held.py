"""Norms of rows whose values stay in registers: a block for each row, which reads it once, or a warp for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from ptxrt.dtypes import BY_NAME, ElementType
from ptxrt.ops.framework.kernels import KernelFamily, Role, parameter_type
from ptxrt.ops.framework.rows import LEAST, RowsDescriptor, RowsForward, RowsVariant
from ptxrt.ops.framework.schedule import (
    Argument,
    Config,
    Launch,
    Limits,
    PrecisionGuarantee,
    Refusal,
    Schedule,
    Workspace,
    ceil_div,
)
from ptxrt.ops.framework.texts import ROUNDING_TARGETS
from ptxrt.ops.framework.variant import ConfigT

__all__ = [
    "GUARANTEE",
    "HeldBackward",
    "HeldBackwardConfig",
    "HeldConfig",
    "HeldForward",
    "HeldWarps",
    "HeldWarpsBackward",
    "WarpsBackwardConfig",
    "WarpsConfig",
    "forward_variants",
    "held_family",
    "launch_of_columns",
]

_WARP, _COLUMNS, _THREADS = 32, 8, 512  # the columns that a block adds up over the slices, and its threads
_SLICE, _SHORTEST = 32, 4  # rows of a slice, at most, of f64 four times as many; and at least, where slices are enough
_SLICES = 1 << 8  # that are enough
_AT_ONCE = 1 << 16  # threads of a backward that run at a time, about
_ALL_THREADS = 1 << 17  # that keep a GPU busy in the forward
_MANY_ROWS = 1 << 13  # from which on a warp's block is enough for one
_OWN_BYTES = 2048  # of shared memory that a backward of f64 takes besides, at most
_MULTIPROCESSORS = 132  # of an H200: each has room for 512 threads with the registers of a backward of f64
_MANY_WARPS = 1 << 12  # rows, of which a warp is fast for each, however many values it has
_LANES, _SLOTS = (2, 4, 8, 16), 2  # that have a row, where a warp has several, and vectors of each of them
_BYTES = 16 * _SLOTS  # of a row that a lane has then
_OF_WARPS_BACKWARD, _LANES_BACKWARD = 8, (8, 16, 32)  # values of a lane in the backward, and lanes that have a row
# Bytes at a time: vectors or eights, of which the lane's next rows are on their way in the backward, or words.
_ACCESSES = {"rows": 16, "eights": 8, "words": 4}
_COPYING, _STAGES = 80, 4  # sm_80, which these copies need, and the places of a lane's ring
_TURNS = 64  # rows of a lane in the backward, at most
_WARPS = 4  # of a block at most, where warps have rows
_KEPT = 16  # values of a row for which a lane keeps weights, at most
_PAIRS = {"layer_norm": 10, "rms_norm": 12}  # of warps that keep weights: how many a multiprocessor runs at a time
_MOST_TURNS = 8  # of these warps
_MANY = 1 << 20  # values, from which on warps take more than one turn
_FEWEST = 4  # values of a row of f64, of whose gradients less is left than f64 is good for
_SHORT = 512  # values of a row that a warp is fast for, however few rows there are

GUARANTEE = PrecisionGuarantee("f32", "f64", deterministic=True, bit_stable_on_same_hardware=True)


def _guarantee(problem: RowsDescriptor) -> PrecisionGuarantee:
    return problem.guarantee if problem.dtype.name == "f64" else GUARANTEE


def _vector(problem: RowsDescriptor) -> int:
    return 16 // problem.dtype.size


class _Registers(NamedTuple):
    """What entries are made for: the values of a row that a thread has at most, and of f64, and a block's threads."""

    values: int
    of_f64: int
    threads: int

    def most(self, dtype: ElementType) -> int:
        """Return how many values of a type a thread has at most."""
        return self.of_f64 if dtype.name == "f64" else self.values

    def needs(self, problem: RowsDescriptor, values: int | None = None) -> int:
        """Return how many threads, whole warps, have a row, with at most `values` each."""
        return _WARP * ceil_div(problem.width, _WARP * (values or self.most(problem.dtype)))

    def widths(self, problem: RowsDescriptor) -> list[int]:
        """Return the threads of a block that are worth measuring, few first, down to one vector each."""
        most = self.most(problem.dtype)
        halvings = range((most // _vector(problem)).bit_length())
        found = {self.needs(problem, most >> halving) for halving in halvings}
        return [threads for threads in sorted(found) if threads <= self.threads] or [self.threads]


_FORWARD, _BACKWARD = _Registers(32, 16, 512), _Registers(16, 8, 512)


def _slots(dtype: ElementType, kind: str) -> tuple[int, ...]:
    """Return how many eights or words a lane may have of a row that is not whole vectors: up to 16 values."""
    return tuple(nbytes // _ACCESSES[kind] for nbytes in ((_BYTES, 2 * _BYTES) if dtype.size == 4 else (_BYTES,)))


def _kind(problem: RowsDescriptor) -> str | Refusal:
    """Return of what rows are made that are not whole vectors."""
    nbytes = problem.width * problem.dtype.size
    if nbytes % _ACCESSES["words"]:
        return Refusal(f"rows of {problem.width} values are not whole words of 4 bytes")
    return "words" if nbytes % _ACCESSES["eights"] else "eights"


def held_family(norm: str, kernel: str, backward_parameters_kernel: str) -> KernelFamily:
    """Return the entries of a norm, ``kernel="const T* in_ptr, ..."`` being that of its forward.

    Forward and backward have an entry for each number of slots, vectors that a thread has of a row, and for warps each
    number of lanes. In PTX alone, f64, and warps whose lanes keep no weights.
    """
    types, alone = ("f32", "f64", "f16", "bf16"), ("f64",)
    backward = (
        "const T* in_ptr, const T* go_ptr, T* gi_ptr, const P*? w_ptr, P* partials_ptr, u64 rows, u64 width, "
        "u64 slices, u64 length, P eps, f64 per_value"
    )
    roles = {
        f"{norm}_held_backward_parameters_kernel": Role(backward_parameters_kernel, hip=True, ptx_alone=alone),
    }
    for way, signature, registers in (("", kernel, _FORWARD), ("backward_", backward, _BACKWARD)):
        slots_of = {name: registers.most(BY_NAME[name]) * BY_NAME[name].size // 16 for name in types}
        for slots in range(1, max(slots_of.values()) + 1):
            dtypes = tuple(name for name, most in slots_of.items() if slots <= most)
            slotted = {"slots": str(slots)}
            roles[f"{norm}_held_{way}{slots}_kernel"] = Role(
                signature, hip=True, parameters=slotted, dtypes=dtypes, ptx_alone=alone
            )
            if not way:
                of_warps = tuple(name for name in dtypes if name not in alone)
                wide = tuple(name for name in of_warps if slots * 16 > _KEPT * BY_NAME[name].size)
                for lanes in (*_LANES, _WARP) if slots == _SLOTS else (_WARP,) if slots > _SLOTS else ():
                    of_lanes = {} if lanes == _WARP else {"lanes": str(lanes)}
                    roles[f"{norm}_held_{slots}_rows{lanes if of_lanes else ''}_kernel"] = Role(
                        signature, hip=True, parameters=slotted | of_lanes, dtypes=of_warps, ptx_alone=wide
                    )
    by_warps = backward.replace(" u64 length,", "")
    for name in (name for name in types if name not in alone):
        for kind, access in _ACCESSES.items():
            given = {} if kind == "rows" else {"access": access}
            for slots in _slots(BY_NAME[name], kind) if given else ():
                for lanes in (*_LANES, _WARP) if slots * access == _BYTES else (_WARP,):
                    entry = f"{norm}_held_{slots}_{kind}{lanes}_kernel"
                    _add(roles, entry, kernel, name, slots=slots, lanes=lanes, **given)
            slots, target = _OF_WARPS_BACKWARD * BY_NAME[name].size // access, None
            if kind != "words":
                given, target = given | {"stages": _STAGES}, _COPYING
            for lanes in _LANES_BACKWARD:
                entry = f"{norm}_held_backward_{slots}_{kind}{lanes}_kernel"
                _add(roles, entry, by_warps, name, target, slots=slots, lanes=lanes, **given)
    return KernelFamily(f"{norm}_held", types, roles, targets=ROUNDING_TARGETS, op=norm)


def _add(
    roles: dict[str, Role], entry: str, signature: str, dtype: str, target: int | None = None, **parameters: int
) -> None:
    """Add an entry's role, or an element type to it."""
    dtypes = (*(roles[entry].dtypes if entry in roles else ()), dtype)
    named = {name: str(value) for name, value in parameters.items()}
    roles[entry] = Role(signature, hip=True, parameters=named, dtypes=dtypes, target=target)


def launch_of_columns(variant: RowsVariant[Any], problem: RowsDescriptor, **given: Argument) -> Launch:
    """Return the second launch of a backward, which adds up the columns of slices, eight a block."""
    blocks = ceil_div(problem.width, _COLUMNS)
    return variant.launch("backward_parameters_kernel", problem, blocks, _THREADS, **given)


@dataclass(frozen=True)
class HeldConfig(Config):
    """Knobs of a row in registers: the threads of its block."""

    threads: int

    @classmethod
    def heuristic(cls, problem: RowsDescriptor) -> HeldConfig:
        """Few, each with many values, as long as they are enough for a GPU; of few rows more than a warp."""
        alone = problem.rows >= _MANY_ROWS and not (problem.op == "layer_norm" and problem.dtype.size == 4)
        widths = [width for width in _FORWARD.widths(problem) if width > _WARP or alone]
        return cls(
            next((width for width in widths if problem.rows * width >= _ALL_THREADS), max(widths, default=_WARP))
        )

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
        """Many values a thread; as many slices as run at a time, but short ones where their sums would be many."""
        threads = _BACKWARD.widths(problem)[0]
        if problem.dtype.name == "f64":
            each = ceil_div(problem.rows, _MULTIPROCESSORS * (_THREADS // max(threads, 1)))  # none of an empty row
            return cls(threads, min(4 * _SLICE, max(1, each)))
        length = math.ceil(max(problem.rows * threads / _AT_ONCE, min(_SHORTEST, problem.rows / _SLICES)))
        return cls(threads, min(_SLICE, 1 << max(0, length - 1).bit_length()))

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
        return ceil_div(problem.width, _vector(problem) * threads)

    def refusal(self, problem: RowsDescriptor, threads: int) -> Refusal | None:
        """Return why blocks of `threads` cannot do it, or None."""
        registers, most = self.registers, self.registers.most(problem.dtype)
        if not self.family.has(problem.dtype, self.language):
            return Refusal(f"there are no entries of {problem.dtype.name}")
        if problem.width % (vector := _vector(problem)):
            return Refusal(f"rows of {problem.width} values are not whole vectors of {vector}")
        if threads % _WARP or not 0 < threads <= registers.threads:
            return Refusal(f"a block has whole warps, up to {registers.threads} threads, not {threads}")
        if threads < registers.needs(problem):
            return Refusal(f"{threads} threads hold {threads * most} values, not {problem.width}")
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
        return Schedule((launch,), _guarantee(problem))


@dataclass(frozen=True)
class WarpsConfig(Config):
    """Knobs of rows in the registers of warps: a block's warps, and how often each of them goes on to further rows."""

    warps: int
    turns: int

    @classmethod
    def heuristic(cls, problem: RowsDescriptor) -> WarpsConfig:
        """Four of few rows. Of many two, and where weights are kept of 16 bits as many turns as take the least time.

        All blocks that run at a time take so many turns, and what a block does before them is about one more. Of f32
        turns gain little.
        """
        if problem.rows * problem.width < _MANY:
            return cls(4, 1)
        if problem.width > _KEPT * _WARP:
            return cls(2, 1)
        if problem.dtype.size > 2:
            return cls(2, 1 + (problem.op == "layer_norm"))
        turns, at_once = ceil_div(problem.rows, _WARP // _lanes(problem) * 2), _MULTIPROCESSORS * _PAIRS[problem.op]
        waves = {each: ceil_div(turns, each * at_once) for each in range(_MOST_TURNS, 0, -1)}
        return cls(2, min(waves, key=lambda each: waves[each] * (each + 1)))

    @classmethod
    def candidates(cls, problem: RowsDescriptor) -> Sequence[WarpsConfig]:
        """Return the heuristic's, four with a turn, and two with one or some."""
        return tuple(dict.fromkeys([cls.heuristic(problem), cls(4, 1), *(cls(2, turns) for turns in (1, 2, 3))]))


class _Share(NamedTuple):
    """What a lane has of a row: so many slots, of which so many lanes have one each, and of what kind these are."""

    slots: int
    lanes: int
    kind: str


class HeldWarps(_Held[WarpsConfig]):
    """A warp for each row, or for several, and several warps a block: more of these run at a time than blocks."""

    name = "held_warps"
    config_type = WarpsConfig
    registers = _FORWARD

    def suits(self, problem: RowsDescriptor) -> bool:
        """Where rows are short, the fewer there are the shorter; of more values a mean is found as soon by a block."""
        shared = self._share(problem)
        if isinstance(shared, Refusal) or shared.kind != "rows":
            return not isinstance(shared, Refusal)
        single = problem.dtype.size == 4
        if problem.width <= _SHORT and (single or problem.rows >= 4 * problem.width):
            return True
        return problem.rows >= _MANY_WARPS and not (single and problem.op == "layer_norm")

    def schedule(self, problem: RowsDescriptor, config: WarpsConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if not 0 < config.warps <= _WARPS:
            return Refusal(f"a block has 1 to {_WARPS} warps, not {config.warps}")
        if config.turns < 1:
            return Refusal(f"a warp has rows at least once, not {config.turns} times")
        if isinstance(shared := self._share(problem), Refusal):
            return shared
        slots, lanes, kind = shared
        blocks = ceil_div(problem.rows, _WARP // lanes * config.warps * config.turns)
        entry = f"{slots}_{kind}{'' if kind == 'rows' and lanes == _WARP else lanes}_kernel"
        launch = self.launch(entry, problem, blocks, config.warps * _WARP, per_value=1 / problem.width)
        return Schedule((launch,), GUARANTEE)

    def _share(self, problem: RowsDescriptor) -> _Share | Refusal:
        """Return how a warp shares rows out: to as few lanes as hold one, with _BYTES each."""
        if problem.dtype.name == "f64":
            return Refusal("there are no entries of f64")
        if not problem.width % _vector(problem) and problem.width >= 2 * _vector(problem):
            if refusal := self.refusal(problem, _WARP):
                return refusal
            if self.language == "hip" and problem.width > _KEPT * _WARP:
                return Refusal(f"in HIP a warp holds {_KEPT * _WARP} values, not {problem.width}")
            return _Share(max(_SLOTS, self.slots(problem, _WARP)), _lanes(problem), "rows")
        if isinstance(kind := _kind(problem), Refusal):
            return kind
        at_once = _WARP * _ACCESSES[kind] // problem.dtype.size  # values of a slot
        slots = next((slots for slots in _slots(problem.dtype, kind) if problem.width <= slots * at_once), None)
        if slots is None:
            most = max(_slots(problem.dtype, kind)) * at_once
            return Refusal(f"of rows that are not whole vectors a warp holds {most} values, not {problem.width}")
        return _Share(slots, _lanes(problem), kind)


def forward_variants(family: KernelFamily, held: KernelFamily) -> tuple[RowsVariant[Any], ...]:
    """Return the variants of a norm's forward, by the families of `baseline` and of `held`."""
    return (
        HeldWarps(held),
        HeldForward(held),
        RowsForward(family),
        HeldWarps(held, "hip"),
        HeldForward(held, "hip"),
        RowsForward(family, "hip"),
    )


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
        """Where a gradient is not what is left of a few values that cancel."""
        return super().suits(problem) and problem.width >= LEAST * problem.parts

    def schedule(self, problem: RowsDescriptor, config: HeldBackwardConfig, limits: Limits) -> Schedule | Refusal:
        """Return two launches."""
        if refusal := self.refusal(problem, config.threads):
            return refusal
        if problem.dtype.name == "f64" and problem.width < _FEWEST:
            return Refusal(f"gradients of rows of {problem.width} values cancel, which wants pairs of f64")
        slices, slots = ceil_div(problem.rows, config.length), self.slots(problem, config.threads)
        workspace = Workspace()
        of_type = parameter_type(problem.dtype).name
        partials = workspace.region("partials", of_type, self.numbers * problem.width * slices)
        cut: dict[str, Argument] = {
            "slices": slices, "length": config.length, "partials_ptr": partials, "per_value": 1 / problem.width,
        }  # fmt: skip
        rows = self.launch(f"backward_{slots}_kernel", problem, slices, config.threads, **cut)
        if of_type == "f64":  # a vector of weights, and one of each of the sums, of each slot of a thread
            shared = 16 * slots * config.threads * (1 + self.numbers)
            rows = replace(rows, shared_bytes=shared, own_bytes=_OWN_BYTES)
        columns = launch_of_columns(self, problem, **cut)
        return Schedule((rows, columns), _guarantee(problem), workspace)


@dataclass(frozen=True)
class WarpsBackwardConfig(Config):
    """Knobs of the backward by warps: its blocks, each of which adds up a slice of the rows."""

    slices: int

    @classmethod
    def heuristic(cls, problem: RowsDescriptor) -> WarpsBackwardConfig:
        """A block a multiprocessor, or three or four where each has turns; more where f32 would add up many rows."""
        turns = ceil_div(problem.rows, _WARPS * _WARP // _lanes_backward(problem))
        copying = _by_vectors(problem) or _kind(problem) == "eights"
        few, many = min(turns, _MULTIPROCESSORS), (3 if copying else 4) * _MULTIPROCESSORS
        return cls(max(1, few, min(turns // 4, many), ceil_div(turns, _TURNS)))

    @classmethod
    def candidates(cls, problem: RowsDescriptor) -> Sequence[WarpsBackwardConfig]:
        """Return half and twice as many, too."""
        slices = cls.heuristic(problem).slices
        return tuple(dict.fromkeys([cls(slices), cls(ceil_div(slices, 2)), cls(2 * slices)]))


class HeldWarpsBackward(RowsVariant[WarpsBackwardConfig]):
    """A warp for each row, or for several: of a block for each, most lanes would have nothing to do.

    Parameters
    ----------
    numbers
        How many sums a column has.
    """

    name = "held_warps"
    config_type = WarpsBackwardConfig

    def __init__(self, family: KernelFamily, numbers: int, language: str = "ptx") -> None:
        super().__init__(family, language)
        self.numbers = numbers

    def suits(self, problem: RowsDescriptor) -> bool:
        """Where a warp holds a row, and a gradient is not what is left of a few values that cancel."""
        return problem.width >= LEAST and self._refused(problem, WarpsBackwardConfig(1)) is None

    def schedule(self, problem: RowsDescriptor, config: WarpsBackwardConfig, limits: Limits) -> Schedule | Refusal:
        """Return two launches."""
        if refusal := self._refused(problem, config):
            return refusal
        slices, lanes, workspace = config.slices, _lanes_backward(problem), Workspace()
        partials = workspace.region("partials", "f32", self.numbers * problem.width * slices)
        cut: dict[str, Argument] = {"slices": slices, "partials_ptr": partials, "per_value": 1 / problem.width}
        old = self.language == "ptx" and limits.target is not None and limits.target < _COPYING
        kind = "words" if old else "rows" if _by_vectors(problem) else _kind(problem)
        if isinstance(kind, Refusal):
            return kind
        entry = f"backward_{_OF_WARPS_BACKWARD * problem.dtype.size // _ACCESSES[kind]}_{kind}{lanes}_kernel"
        rows = self.launch(entry, problem, slices, _WARPS * _WARP, **cut)
        columns = launch_of_columns(self, problem, **cut)
        return Schedule((rows, columns), GUARANTEE, workspace)

    def _refused(self, problem: RowsDescriptor, config: WarpsBackwardConfig) -> Refusal | None:
        """Return why so many slices cannot do it, or None."""
        most = _OF_WARPS_BACKWARD * _WARP
        if problem.dtype.name == "f64":
            return Refusal("there are no entries of f64")
        if config.slices < 1:
            return Refusal(f"there is at least a slice, not {config.slices}")
        if isinstance(kind := _kind(problem), Refusal):
            return kind
        if problem.width > most:
            return Refusal(f"a warp holds {most} values, not {problem.width}")
        return None


def _by_vectors(problem: RowsDescriptor) -> bool:
    """Whether lanes have vectors in the backward: all slots but the last one are to be full."""
    return not problem.width % _vector(problem) and problem.width >= _LANES_BACKWARD[0] * _vector(problem)


def _lanes(problem: RowsDescriptor) -> int:
    """Return how many lanes have a row in the forward: as few as hold it with _BYTES each."""
    return next((lanes for lanes in _LANES if problem.width * problem.dtype.size <= _BYTES * lanes), _WARP)


def _lanes_backward(problem: RowsDescriptor) -> int:
    """Return how many lanes have a row: as few as hold it."""
    return next((lanes for lanes in _LANES_BACKWARD if problem.width <= _OF_WARPS_BACKWARD * lanes), _WARP)
