"""What an instruction, or a watcher of what it does, may know of the machine that runs it.

Each protocol is one side of it. ``chunk.Chunk`` has them all, and nothing but the launch knows that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NoReturn, Protocol

from ptxrt.sim._machine.access import Access, Piece
from ptxrt.sim._machine.allocations import Allocation, Store
from ptxrt.sim._machine.element_types import Elements
from ptxrt.sim._machine.layout import Layout
from ptxrt.sim._machine.memory import GlobalMemory
from ptxrt.sim._machine.outlined import Outlined
from ptxrt.sim._machine.shape import Shape
from ptxrt.sim._text.syntax import Instruction, Variable
from ptxrt.sim._text.types import Array

__all__ = ["Faults", "Getter", "Groups", "Lanes", "Machine", "Order", "Reduction", "Registers", "Setter", "Spaces"]


class Lanes(Protocol):
    """The lanes of a chunk of blocks, and which of them are active.

    Attributes
    ----------
    n, count
        Lanes present (exited ones are gone), and active now.
    idx
        Which lanes are active, ascending; None for all that are present.
    first_block, blocks
        The chunk's first block in the grid, and how many it has.
    padded
        Lanes of a block, padded to whole warps.
    origin
        Place of each lane in the chunk, each block padded to whole warps.
    block
        Number of each lane's block within the chunk.
    """

    n: int
    count: int
    idx: Array | None
    first_block: int
    blocks: int
    padded: int
    origin: Array
    block: Array

    @property
    def shape(self) -> Shape:
        """The shape of the launch."""

    def active(self) -> Array:
        """Return the indices of the active lanes."""

    def of_active(self, per_lane: Array) -> Array:
        """Return the active lanes' part of an array over all lanes."""

    def spread(self, value: Array) -> Array:
        """Return a value read by a getter as one of shape (active,)."""

    def activate(self, idx: Array | None) -> None:
        """Make these lanes the active ones."""

    def positions(self) -> Array:
        """Return the lane at each padded place of the chunk, -1 where none is (any more)."""


class Registers(Lanes, Protocol):
    """The register file: one array a slot, of shape (n,), or (1,) where every lane holds the same."""

    regs: list[Array]

    def put(self, slot: int, value: Array) -> None:
        """Write the active lanes of a slot, when not all lanes are active."""

    def set(self, slot: int, value: Array) -> None:
        """Write the active lanes of a slot; the array becomes the register's."""

    def clock(self, name: str) -> Array:
        """Return a clock register: instructions executed so far."""


class Groups(Lanes, Protocol):
    """Lanes with the same program counter run together; what splits them and brings them together again."""

    waiting: dict[int, Array]
    """By block of the code, the lanes that wait there for others of their warps."""

    def defer(self, block: int, idx: Array) -> None:
        """Let a group run later from `block`."""

    def merge(self, first: Array, second: Array) -> Array:
        """Return the union of two groups, ascending."""

    def split(self, slot: int, when: bool, target: int, following: int) -> int:
        """Send the active lanes whose predicate equals `when` to `target`, and go on with the others."""

    def exit(self) -> int:
        """Take the active lanes out of the chunk."""


class Order(Protocol):
    """What orders the accesses of different threads; the race models are informed of it."""

    def passed_barrier(self, blocks: Array | None) -> None:
        """Note that these blocks (all for None) have passed a barrier."""

    def synchronised_warps(self) -> None:
        """Note that the warps of the active lanes have synchronised."""

    def fence(self, *, wide: bool = True, of_barrier: bool = False) -> None:
        """Note that the active lanes pass a fence; `wide` if its scope is more than the block.

        `of_barrier`: it is what a cluster's barrier does, which the races of a cluster follow by themselves.
        """


class Faults(Protocol):
    """What is raised when a lane is at fault; `lane` counts among all lanes present."""

    def memory_fault(
        self, ins: Instruction, problem: str, lane: int, address: int, size: int, nearest: str, fix: str | None = None
    ) -> NoReturn:
        """Raise MemoryFault."""

    def place(self, lane: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Return thread and block index of a lane."""

    def fault(self, ins: Instruction, problem: str, lane: int) -> NoReturn:
        """Raise a SimFault that is neither of memory nor a race nor a deadlock."""

    def race(
        self, problem: str, ins: Instruction, lane: int, address: int, size: int, earlier: Instruction, thread: int
    ) -> NoReturn:
        """Raise DataRace between a lane and an earlier access of a thread of the block that `problem` names."""

    def deadlock(self, ins: Instruction, problem: str, lane: int, fix: str | None = None) -> NoReturn:
        """Raise Deadlock."""

    def trap(self, ins: Instruction, problem: str = "trap") -> NoReturn:
        """Raise what `trap` is: the launch fails."""

    def assertion(
        self, ins: Instruction, condition: str, *, file: str, line: int, function: str, threads: int
    ) -> NoReturn:
        """Raise what `assert` is where it fails, for the first of these threads."""


class Output(Protocol):
    """What the threads print."""

    def add(self, block: int, text: bytes) -> None:
        """Note what a thread of a block prints."""


class ClusterWatcher(Protocol):
    """The race model of shared memory between blocks of a cluster."""

    def arrive(self, *, releases: bool) -> None:
        """Note that the active lanes arrive at the barrier of their cluster."""

    def waited(self, threads: Array) -> None:
        """Note that these threads, by place in the chunk, have waited for the barrier that they arrived at."""

    def check(self, access: Access, inside: Array, block: Array, *, mapped: bool = False) -> None:
        """Check and note an access of the active lanes at these bytes of these blocks' shared memory.

        `mapped`: by addresses of mapa, of some lanes at least.
        """


class SharedWatcher(Protocol):
    """The race model of shared memory."""

    def check(self, access: Access, place: Array) -> None:
        """Check and note an access of the active lanes at these bytes of their blocks' shared memory."""


class GlobalWatcher(Protocol):
    """The race model of global memory."""

    def check(self, m: Spaces, access: Access, allocation: Allocation, at: Array, part: Array | None) -> None:
        """Check and note an access of the active lanes (or of a part of them) at these bytes of an allocation."""


class AccessCounter(Protocol):
    """Counts of what accesses do."""

    def global_access(self, m: Lanes, access: Access, pieces: list[Piece]) -> None:
        """Count an access of the active lanes to global memory."""

    def shared_access(self, m: Lanes, access: Access, place: Array) -> None:
        """Count an access of the active lanes at these bytes of their blocks' shared memory."""


class Spaces(Lanes, Faults, Protocol):
    """The state spaces, and who watches the accesses to them.

    Attributes
    ----------
    params, shared, local
        The launch's parameters; shared memory of all blocks, `shared_stride` bytes each; local memory of all lanes.
    shared_marks
        A 1 for each byte of shared memory that has been written, if that is to be checked.
    """

    shared_stride: int
    marks: bool
    """Whether to look for reads of bytes that nobody has written."""
    watched: bool
    """Whether that, or races in global memory, are looked for."""
    off_switch: str | None
    """What to say of a fault that only a check finds that nobody has asked for."""
    written: list[Array] | None
    """The words that the active lanes are about to write, while their place is looked up; None for an atomic."""

    @property
    def memory(self) -> GlobalMemory: ...
    @property
    def layout(self) -> Layout: ...
    @property
    def params(self) -> Store: ...
    @property
    def shared(self) -> Store: ...
    @property
    def local(self) -> Store: ...
    @property
    def shared_marks(self) -> Store | None: ...
    @property
    def elements(self) -> dict[Allocation, Elements]: ...
    @property
    def races(self) -> SharedWatcher | None: ...
    @property
    def cluster_races(self) -> ClusterWatcher | None: ...
    @property
    def global_races(self) -> GlobalWatcher | None: ...
    @property
    def profile(self) -> AccessCounter | None: ...

    def looked(self, nbytes: int) -> None:
        """Count so many bytes that the checks of ``marks`` and ``global_races`` have looked at; they may end then."""


class BlockBarriers(Protocol):
    """bar.sync, bar.arrive and bar.red."""

    def sync(
        self,
        ins: Instruction,
        number: int,
        count: int | None,
        following: int,
        reduction: Reduction | None = None,
        flags: Array | None = None,
    ) -> int:
        """Park the active lanes at barrier `number`; they go on at block `following`."""

    def arrive(self, number: int, count: int) -> None:
        """Count the active lanes as arrived, without parking them."""


class WarpBarriers(Protocol):
    """bar.warp.sync."""

    def sync(self, ins: Instruction, wanted: Array, following: int) -> int:
        """Let the active lanes wait until all lanes that `wanted` names, and that have not exited, wait too."""


class ClusterBarriers(Protocol):
    """barrier.cluster."""

    def arrive(self, ins: Instruction, *, releases: bool) -> None:
        """Note that the active lanes have arrived, each for the first time since it last waited."""

    def wait(self, ins: Instruction, following: int) -> int:
        """Let the active lanes wait for the barrier that they have arrived at."""


class Calls(Protocol):
    """The stack of the functions that are not inlined."""

    def enter(self, m: Machine, callee: Outlined, following: int, ins: Instruction) -> int:
        """Save what the callee's slots hold for the active lanes; they will go on at `following`."""

    def leave(self, m: Machine, callee: Outlined) -> int:
        """Put back what the call saved, and send the active lanes where they came from."""


class Copies(Protocol):
    """The asynchronous copies under way."""

    def start(self, m: Machine, access: Access, where: Array, values: list[Array]) -> None:
        """Begin a copy of the active lanes, as a part of the group that each has open."""

    def commit(self, m: Machine) -> None:
        """Close the open group of the active lanes."""

    def wait(self, m: Machine, but: int | None) -> None:
        """Complete the active lanes' groups but the last `but`; None for all copies, committed or not."""


class Machine(Registers, Groups, Order, Spaces, Protocol):
    """All of it: what an instruction runs on."""

    @property
    def checks(self) -> frozenset[str]:
        """The names of the checks that were asked for."""

    @property
    def arch(self) -> int:
        """Whose tensor cores compute: 90 for those of sm_90."""

    @property
    def addresses(self) -> dict[Variable, int]:
        """Where the variables in .global and .const lie."""

    @property
    def barriers(self) -> BlockBarriers: ...
    @property
    def warp_barriers(self) -> WarpBarriers: ...
    @property
    def cluster_barriers(self) -> ClusterBarriers: ...
    @property
    def calls(self) -> Calls: ...
    @property
    def copies(self) -> Copies: ...
    @property
    def printed(self) -> Output: ...


Getter = Callable[[Machine], Array]
"""Reads a source for the active lanes: shape (active,) or (1,)."""

Setter = Callable[[Machine, Array], None]
"""Writes a result to the active lanes; the array becomes the register's."""


@dataclass(frozen=True)
class Reduction:
    """What ``bar.red`` computes over the lanes of a block, and where the result goes."""

    kind: Literal["popc", "and", "or"]
    write: Setter
