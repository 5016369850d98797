"""Where the variables of one entry lie in the memory of a block, of a thread, and among the parameters."""

from __future__ import annotations

from dataclasses import dataclass, field

from ptxrt.sim._text.syntax import Variable
from ptxrt.symbols import variable_name

__all__ = ["RESERVED_SHARED_BYTES", "Layout", "Param"]

RESERVED_SHARED_BYTES = 1024


@dataclass(frozen=True)
class Param:
    """One parameter of an entry: PTX type with the dot, whole size and alignment in bytes, place in the buffer."""

    name: str
    type: str
    size: int
    align: int
    offset: int


@dataclass(eq=False)
class Layout:
    """The memory of one entry besides global memory, and how its code accesses memory at all."""

    entry: str
    params: tuple[Param, ...] = ()
    shared_word: int = 0
    """Bytes of the narrowest access that may go to shared memory; 0 for none."""
    global_word: int = 0
    """The same for global memory."""
    float_types: set[str] = field(default_factory=set)
    """The floating-point types of accesses that may go to global memory."""
    shared_places: dict[Variable, int] = field(default_factory=dict)
    """Where in a block's shared memory each variable lies that the code names; the others of the text take no place."""
    shared_declared: dict[Variable, None] = field(default_factory=dict)
    """The shared variables that its functions declare."""
    shared_bytes: int = 0
    """Static shared memory of a block."""
    shared_accessed: bool = False
    """Whether an access says ``.shared``, by a variable's name or by a number."""
    reserved_shared: bool = False
    """Whether the code asks where the system's own shared memory is; it then lies at the end of a block's."""
    workspace_read: bool = False
    """Whether the code asks where the grid waits, as that of cooperative_groups does."""
    dynamic_offset: int = 0
    """Where dynamic shared memory begins, behind them."""
    local_bytes: int = 0
    stack_base: int = 0
    """Where in local memory the stack of functions that are not inlined begins."""
    local_variables: list[tuple[Variable, int]] = field(default_factory=list)
    """Local variables with their places, inlined functions' included."""

    @property
    def local_stride(self) -> int:
        """Bytes from one lane's local memory to the next one's, so that each is aligned."""
        return -(-self.local_bytes // 16) * 16

    def nearest(self, space: str, at: int, shared_total: int) -> str:
        """Say in words where a place in shared, local or parameter memory lies; a block has `shared_total` bytes."""
        if space == "shared":
            spans = [(place, v.size, v.name) for v, place in self.shared_places.items() if v.size]
            dynamic = next((v.name for v in self.shared_places if not v.size), "dynamic shared memory")
            if self.reserved_shared:
                shared_total -= RESERVED_SHARED_BYTES
                spans.append((shared_total, RESERVED_SHARED_BYTES, "the reserved shared memory"))
            if shared_total > self.dynamic_offset:
                spans.append((self.dynamic_offset, shared_total - self.dynamic_offset, dynamic))
        elif space == "local":
            spans = [(place, v.size, v.name) for v, place in self.local_variables]
        else:
            spans = [(p.offset, p.size, p.name) for p in self.params]
        if not spans:
            return f"there is no {space} memory"
        start, length, symbol = min(spans, key=lambda s: max(s[0] - at, at - (s[0] + s[1]) + 1, 0))
        name = variable_name(symbol)
        if at < start:
            return f"{start - at} bytes before {name} of {length} bytes"
        if at < start + length:
            return f"{at - start} bytes into {name} of {length} bytes"
        return f"{at - start - length} bytes past the end of {name} of {length} bytes"
