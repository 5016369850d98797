"""Tuned choices: which variant and config were the fastest, by device, op, type, layout and class of problem.

A table is a JSON file that ``ptxrt tune`` writes (:mod:`ptxrt.ops.tuning`) and the selection of a plan reads.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ptxrt import files, store
from ptxrt.errors import InvalidArgument
from ptxrt.events import log
from ptxrt.ops.framework.schedule import Config, Limits, Schedule
from ptxrt.ops.framework.texts import text_digest
from ptxrt.ops.framework.variant import Variant
from ptxrt.runtime.device import Device
from ptxrt.runtime.layout import channels_last, contiguous, same_layout

__all__ = [
    "FILE",
    "SHIPPED",
    "Choice",
    "Key",
    "choices",
    "forget",
    "layout_of",
    "problem_class",
    "read",
    "shipped_file",
    "texts",
    "update",
    "users_file",
    "writable",
]

FILE = "tuned.json"
"""The user's table, in the store's folder; while it is written a file with ``.lock`` behind that is beside."""

SCHEMA = 1
_PATIENCE = 60.0  # seconds for another process that is writing the same table

SHIPPED = Path(__file__).resolve().parents[1] / "tables"
"""The folder of the tables that come with ptxrt, a file for each device by its name."""


class Key(NamedTuple):
    """What a choice is for.

    Attributes
    ----------
    device, arch
        Name and architecture of the device that it was measured on.
    op, dtype, layout
        The op, the element type by name, and ``"contiguous"``, ``"channels-last"`` or ``"strided"``.
    language
        Of the kernels that were compared.
    problem
        The class of problem: :func:`problem_class`.
    """

    device: str
    arch: str
    op: str
    dtype: str
    layout: str
    language: str
    problem: str

    @classmethod
    def of(cls, device: Device, op: str, problem: Any, language: str) -> Key:
        """Return that of an op's problem on a device."""
        return cls(
            device.name,
            device.arch,
            op,
            problem.dtype.name,
            layout_of(problem),
            language,
            problem_class(problem),
        )


@dataclass(frozen=True)
class Choice:
    """An entry of a table.

    Attributes
    ----------
    key
        What it is for.
    variant, config
        What was the fastest: its name, and its knobs by name.
    among
        Names of the op's variants in that language. Where there are others now, it is not used.
    kernels
        File of kernels -> SHA-256 of the texts that were measured. Where they are others now, it is not used.
    measured
        What was measured, of what, when and by what.
    """

    key: Key
    variant: str
    config: Mapping[str, Any]
    among: tuple[str, ...]
    kernels: Mapping[str, str | None]
    measured: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return it as a table has it."""
        return {**asdict(self), "key": self.key._asdict()}

    def is_current(self, variants: Sequence[Variant[Any, Any]], problem: Any, limits: Limits) -> bool:
        """Return whether no variant of a plan is new that runs the problem, and the kernels' texts are those of now."""
        new = (each for each in variants if each.language == self.key.language and each.name not in self.among)
        return dict(self.kernels) == texts(self.kernels) and not any(_runs(each, problem, limits) for each in new)

    def selected(self, variants: Sequence[Variant[Any, Any]], problem: Any) -> tuple[Variant[Any, Any], Config] | None:
        """Return the variant and its config; None if there is none of that name, or with other knobs."""
        for variant in variants:
            if (variant.name, variant.language) == (self.variant, self.key.language):
                knobs = asdict(variant.heuristic(problem))
                if _types(knobs) == _types(self.config):
                    return variant, variant.config_type(**self.config)
        return None


def _runs(variant: Variant[Any, Any], problem: Any, limits: Limits) -> bool:
    """Return whether a variant runs a problem on a device of these limits."""
    found = variant.schedule(problem, variant.heuristic(problem), limits)
    return isinstance(found, Schedule) and not found.refusal(limits)


def _types(values: Mapping[str, Any]) -> dict[str, type]:
    return {name: value.__class__ for name, value in values.items()}


def layout_of(problem: Any) -> str:
    """Return the layout of a problem's first operand, in a word."""
    strides = getattr(problem, "strides", ())
    if strides == () or same_layout(problem.shape, strides, contiguous(problem.shape)):
        return "contiguous"
    return "channels-last" if same_layout(problem.shape, strides, channels_last(problem.shape)) else "strided"


def problem_class(problem: Any) -> str:
    """Return the class of a problem, of a descriptor: what problems share for which one choice is measured.

    Each size is rounded up to a power of two, but for three, since a choice for three channels is not one for four.
    Behind an array's last size, along which values lie side by side, stands how many of them it is a multiple of, up to
    the values of 16 bytes: ``"8x512x4096/4 groups=32"``. What is no number is as it is; numbers that are no whole ones,
    such as eps, are left out.
    """
    vector = max(16 // problem.dtype.size, 1)
    extents = getattr(problem, "extents", None)
    words = [] if extents is None else [_rounded(extents, vector)]
    for field in fields(problem):
        value = getattr(problem, field.name)
        if isinstance(value, tuple) and extents is None and field.name != "strides":
            words.append(_rounded(value, vector))
        elif isinstance(value, (bool, str)):
            words.append(f"{field.name}={value}")
        elif isinstance(value, int):
            words.append(f"{field.name}={_power(value)}")
    return " ".join(words)


def _rounded(sizes: Sequence[int], vector: int) -> str:
    return "x".join(str(_power(size)) for size in sizes) + f"/{math.gcd(sizes[-1], vector)}"


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length() if size > 3 else max(size, 0)


def texts(names: Iterable[str]) -> dict[str, str | None]:
    """Return the SHA-256 of each file of kernels as it is now, None for one that is not there."""
    return {name: text_digest(name) for name in names}


# Looking up -------------------------------------------------------------------------------------------------------


def choices(
    device: Device, op: str, variants: Sequence[Variant[Any, Any]], problem: Any, language: str | None
) -> Iterator[tuple[str, Variant[Any, Any], Config]]:
    """Yield what is stored for such a problem, behind its file: the user's table first, then what comes with ptxrt.

    Without a language it is that which the device takes first, as it is of the heuristics.
    """
    for path, table in _tables(device.name).get(op, ()):
        choice = table.get(Key.of(device, op, problem, language or device.backend.languages[0]))
        if choice is None:
            continue
        limits = Limits.of(device.properties, choice.key.language)
        if choice.is_current(variants, problem, limits) and (found := choice.selected(variants, problem)):
            yield (path, *found)


@lru_cache
def _tables(device: str) -> dict[str, list[tuple[str, dict[Key, Choice]]]]:
    """Return, by op, the tables for a device of this name, as a process's first selection on it finds them."""
    found: dict[str, list[tuple[str, dict[Key, Choice]]]] = {}
    for path in filter(None, (users_file(), users_file(shared=True), shipped_file(device))):
        try:
            table = {key: choice for key, choice in read(path).items() if key.device == device}
        except InvalidArgument as error:
            log().warning("%s; it is not used", error)
            continue
        for op in {key.op for key in table}:
            found.setdefault(op, []).append((str(path), table))
    return found


def forget() -> None:
    """Let the next selection read the tables again."""
    _tables.cache_clear()


def users_file(*, shared: bool = False) -> Path | None:
    """Return the user's table, beside the store of compiled kernels, or the shared store's; None where there is none.

    That is so where the store's folder is not used either, since others may write to it, say.

    Raises
    ------
    InvalidArgument
        If a variable of the environment that says so is wrong: :func:`ptxrt.store.current`.
    """
    binaries = store.current()
    if binaries is None:
        return None
    folder = binaries.shared if shared else binaries.folder if binaries.usable else None
    return folder / FILE if folder else None


def shipped_file(device: str) -> Path:
    """Return the table of a device, by name, that comes with ptxrt; there need be none."""
    return SHIPPED / f"{re.sub('[^a-z0-9]+', '-', device.lower()).strip('-')}.json"


# The file ---------------------------------------------------------------------------------------------------------


def read(path: Path) -> dict[Key, Choice]:
    """Return a table's choices; none where there is no such file.

    Raises
    ------
    InvalidArgument
        If the file is no table, is not as it was written, or cannot be read.
    """
    try:
        whole = json.loads(path.read_bytes())
        if whole["schema"] != SCHEMA:
            raise ValueError(f"schema {whole['schema']}, and this ptxrt reads {SCHEMA}")
        if whole["sha256"] != _digest(whole["choices"]):
            raise ValueError("it is not what was written: its SHA-256 differs")
        rows = [Choice(Key(**row.pop("key")), among=tuple(row.pop("among")), **row) for row in whole["choices"]]
        return {choice.key: choice for choice in rows}
    except FileNotFoundError:
        return {}
    except OSError as error:
        why = f"a file that cannot be read ({error})"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"another file, or a damaged one ({error})"
    raise InvalidArgument(
        op="tune",
        argument=str(path),
        expected="a table that ptxrt tune has written",
        given=why,
        fix="Remove it, or name another",
    )


def writable(path: Path) -> None:
    """Make the folder of a table, and raise what :func:`update` would."""
    read(path)
    with _written(path):
        files.writable(path)


def update(path: Path, new: Iterable[Choice]) -> None:
    """Put choices into a table, in place of those with their keys; its folder is made.

    Raises
    ------
    InvalidArgument
        If there is another file, or it cannot be written.
    """
    with _written(path), store.locked(path.with_name(f"{path.name}.lock"), _PATIENCE):
        table = {**read(path), **{choice.key: choice for choice in new}}
        rows = [choice.as_json() for _, choice in sorted(table.items())]
        whole = {"schema": SCHEMA, "sha256": _digest(rows), "choices": rows}
        store.replace(path, (json.dumps(whole, indent=1) + "\n").encode("ascii"))


@contextlib.contextmanager
def _written(path: Path) -> Iterator[None]:
    """Make a file's folder, and say what goes wrong with writing there."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise InvalidArgument(
            op="tune", argument=str(path), expected="a file that can be written", given=str(error), fix="Name another"
        ) from error


def _digest(rows: Any) -> str:
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode("ascii")).hexdigest()
