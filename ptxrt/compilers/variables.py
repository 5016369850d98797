"""The variables of a module in global and constant memory: what PTX says of them, and finding one by its name."""

from __future__ import annotations

import re

from ptxrt.compilers._binary import Binary, VariableInfo
from ptxrt.compilers.ptx_text import NAME, blanked, listed, suggestion
from ptxrt.errors import InvalidArgument, shown
from ptxrt.symbols import demangled

__all__ = ["find_variable", "variables_of"]

_VARIABLE = re.compile(
    r"\.(?<![\w.]\.)(?:global|const)\s+(?:\.attribute\s*\([^)]*\)\s*)?(?:\.align\s+\d+\s*)?"
    rf"(?:\.v(?P<lanes>[24])\s*)?\.(?P<type>[a-z]+\d+)\s+(?P<first>{NAME}\s*(?:\[[^\]]*\]\s*)*)"
    rf"(?P<others>(?:,\s*{NAME}\s*(?:\[[^\]]*\]\s*)*)*)[=;,]"
)
_DIMENSION = re.compile(r"\[([^\]]*)\]")
_NUMBER = re.compile(r"\s*(\d{1,18})[uU]?\s*")
_OF_HEADERS = re.compile(r"(?:_INTERNAL_\w+::)?(?:cuda|cooperative_groups|std|__\w+)::")


def variables_of(text: str, *, signed: bool = True) -> dict[str, VariableInfo]:
    """Return the variables that a PTX text declares, by name.

    Parameters
    ----------
    text
        The PTX.
    signed
        Whether its integer types tell signed from unsigned; those that a C++ compiler writes do not.
    """
    found = {}
    for match in _VARIABLE.finditer(blanked(text)):
        letter, bits = re.match(r"([a-z]+)(\d+)", match["type"]).groups()  # type: ignore[union-attr]
        kind = {"s": "i", "u": "u", "f": "f", "bf": "bf"}.get(letter, "")
        for declared in (match["first"] + match["others"]).split(","):
            name = declared.partition("[")[0].strip()
            lengths = [_NUMBER.fullmatch(length) for length in _DIMENSION.findall(declared)]
            lanes = [int(match["lanes"])] if match["lanes"] else []
            # Of a length that is not written out, or a constant expression, the driver tells the bytes.
            shape = None if None in lengths else (*(int(length[1]) for length in lengths if length), *lanes)
            type_ = f"{kind}{bits}" if kind and (signed or "f" in kind) else ""
            found[name] = VariableInfo(name, type_, shape)
    return found


def find_variable(binary: Binary, name: str, op: str) -> VariableInfo:
    """Return a variable by its name in the binary, or, in C++, by its own: ``"table"``, ``"ns::table"``.

    What a text declares itself comes before what CUDA's headers do, which may be hundreds.

    Raises
    ------
    InvalidArgument
        For a name that no variable has, or several have.
    """
    if isinstance(name, str) and name in binary.variables:
        return binary.variables[name]
    words = {demangled(symbol): found for symbol, found in binary.variables.items()}
    own = [word for word in words if not _OF_HEADERS.match(word)]
    for among in (own, [*words]):
        ends = [word for word in among if isinstance(name, str) and name and f"::{word}".endswith(f"::{name}")]
        if name in ends or len(ends) == 1:
            return words[name if name in ends else ends[0]]
        if ends:
            break
    raise InvalidArgument(
        op=op,
        argument="name",
        expected=f"one of the module's variables: {listed(ends or own) or 'it has none'}",
        given=f"{shown(name)}{f', which is {len(ends)} of them' if ends else ''}",
        fix=None if ends else suggestion(str(name), own),
    )
