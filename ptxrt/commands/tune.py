"""``ptxrt tune``: the fastest variant and config of problems on a device, measured and stored; what is stored."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ptxrt import ops
from ptxrt.commands.tables import fitted
from ptxrt.errors import InvalidArgument, PtxrtError, shown
from ptxrt.ops import tuning
from ptxrt.ops.framework import Limits, forget_plans, tuned
from ptxrt.runtime.device import Device, as_device

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "add_words", "read_problems", "run"]

HELP = "measure which variant and config of an op is the fastest for a problem, and store it for later selections"
DESCRIPTION = (
    "For each problem, run each variant and config that promises as much of its results as the one selected now, check "
    "the results against the reference, time them in turns, and store the fastest. A problem is OP and a SHAPE such as "
    "8x320x64x64, with the other fields of its descriptor as FIELD=VALUE: groups=32, layout=channels-last. Exits with "
    "1 if a result is wrong, a kernel does not compile or the device is not there, and for --list if nothing is "
    "stored; with 2 if a problem or an argument is wrong: then nothing has run."
)
_ROUNDS, _ROUNDS_ON_SIM = 25, 1
_HEAD = ("op", "dtype", "layout", "language", "class", "fastest", "us", "heuristic's us")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of ``ptxrt tune``."""
    command.add_argument("op", metavar="OP", nargs="?", help="the op, such as group_norm")
    command.add_argument(
        "words", metavar="SHAPE|FIELD=VALUE", nargs="*", help="each SHAPE is a problem, with all of the fields"
    )
    command.add_argument("--file", help="problems as a JSON list of objects with op, shape and the other fields")
    command.add_argument("--device", help="where to measure; the best device there is if left out")
    command.add_argument("--dtype", help="the element type of problems that name none (f32)")
    command.add_argument("--language", choices=("ptx", "hip"), help="of the kernels; what is selected if left out")
    command.add_argument("--rounds", type=int, help=f"runs of each that count ({_ROUNDS}; on sim {_ROUNDS_ON_SIM})")
    command.add_argument("--out", metavar="FILE", help="the table to store in, not tuned.json in the cache's folder")
    command.add_argument("--list", action="store_true", help="instead: what is stored, in --out FILE or in all tables")
    command.add_argument("--json", action="store_true", help="what is stored as a JSON array")


def add_words(given: argparse.Namespace, words: Sequence[str]) -> None:
    """Add the words behind an option, which argparse leaves over: it takes all or none of OP, SHAPE and FIELD=VALUE."""
    found: list[str] = [*given.words, *words]
    given.op, given.words = (found[0], found[1:]) if given.op is None else (given.op, found)


def run(given: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Tune or list, print through `say`, and return the exit code.

    Raises
    ------
    PtxrtError
        InvalidArgument before anything has run; WrongResult and what a device raises.
    """
    if given.list:
        if (beside := given.op or given.file) is not None:
            raise InvalidArgument(
                op="tune", argument="--list", expected="neither OP nor --file beside it", given=shown(beside)
            )
        return _list(given, say)
    device = as_device(given.device)
    rounds = given.rounds if given.rounds is not None else _ROUNDS_ON_SIM if device.kind == "sim" else _ROUNDS
    problems = [_checked(where, words, device, given.language, given.dtype) for where, words in _problems(given)]
    path = _path(given)
    tuned.writable(path)
    stored = []
    for problem in problems:
        choice = tuning.tune(device, problem, language=given.language, rounds=rounds)
        tuned.update(path, [choice])
        stored.append(choice)
        if not given.json:
            say("  ".join(_cells(choice)))
    forget_plans()
    say(json.dumps([choice.as_json() for choice in stored], indent=1) if given.json else f"stored in {path}")
    return 0


# Problems ---------------------------------------------------------------------------------------------------------


def _problems(given: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Give each problem as it is told, behind what messages call it."""
    if (given.op is None) == (given.file is None):
        raise InvalidArgument(
            op="tune", argument="OP", expected="an op, or --file", given="neither" if given.op is None else "both"
        )
    if given.file is not None:
        yield from _of_file(given.file)
        return
    shapes = [word for word in given.words if "=" not in word]
    fields: dict[str, str] = {}
    for name, text in (word.split("=", 1) for word in given.words if "=" in word):
        if name in ("op", "shape"):
            raise InvalidArgument(
                op="tune", argument=name, expected="OP and SHAPE as words of their own", given=f"{name}={text}"
            )
        if name in fields:
            raise InvalidArgument(
                op="tune", argument=name, expected="each field once", given=f"{name}={fields[name]} and {name}={text}"
            )
        fields[name] = text
    if not shapes:
        raise InvalidArgument(op="tune", argument="SHAPE", expected="sizes such as 8x320x64x64", given="none")
    for shape in shapes:
        yield shape, {"op": given.op, "shape": _sizes(shape), **{name: _value(text) for name, text in fields.items()}}


def read_problems(file: str, device: Device, language: str | None = None) -> list[Any]:
    """Return the descriptors of a file's problems, for each of which the device has a plan.

    Raises
    ------
    InvalidArgument
        Naming the file, and the first problem that is none.
    """
    return [_checked(where, words, device, language) for where, words in _of_file(file)]


def _of_file(file: str) -> Iterator[tuple[str, Any]]:
    try:
        found = json.loads(Path(file).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        found, why = None, str(error)
    else:
        why = shown(found)
    if not isinstance(found, list) or not found:
        expected = 'a file with a JSON list of problems, [{"op": "softmax2d", "shape": [8, 21, 64, 64]}]'
        raise InvalidArgument(op="tune", argument="--file", expected=expected, given=f"{file}: {why}")
    yield from ((f"problem {number} of {file}", words) for number, words in enumerate(found, 1))


def _sizes(text: str) -> list[int]:
    if not re.fullmatch(r"[0-9]{1,18}(x[0-9]{1,18})*", text):
        raise InvalidArgument(op="tune", argument="SHAPE", expected="sizes such as 8x320x64x64", given=shown(text))
    return [int(size) for size in text.split("x")]


def _value(text: str) -> Any:
    """Return what a FIELD=VALUE says: sizes, a number, true or false, or a word."""
    if re.fullmatch(r"[0-9]+(x[0-9]+)+", text):
        return _sizes(text)
    try:
        return json.loads(text.lower() if text.lower() in ("true", "false") else text)
    except (ValueError, RecursionError):
        return text


def _checked(where: str, words: Any, device: Device, language: str | None, dtype: str | None = None) -> Any:
    """Return the descriptor of a problem that the device has a plan for."""
    try:
        if not isinstance(words, Mapping):
            raise InvalidArgument(op="tune", argument="problem", expected="a JSON object", given=shown(words))
        problem = tuning.problem_of({**({"dtype": dtype} if dtype else {}), **words})
        tuning.heuristic(device, problem, language)
    except PtxrtError as error:
        raise InvalidArgument(f"{where}: {error}", op=error.op, argument=error.argument) from error
    return problem


def _path(given: argparse.Namespace) -> Path:
    """Return the table to store in."""
    path = Path(given.out) if given.out else tuned.users_file()
    if path is None:
        raise InvalidArgument(
            op="tune",
            argument="--out",
            expected="a file, since PTXRT_CACHE_DISABLE is 1, or the cache's folder is not used",
            given="none",
        )
    return path


# What is stored ---------------------------------------------------------------------------------------------------


def _list(given: argparse.Namespace, say: Callable[[str], None]) -> int:
    users = (tuned.users_file(), tuned.users_file(shared=True))
    paths = [Path(given.out)] if given.out else [*filter(None, users), *sorted(tuned.SHIPPED.glob("*.json"))]
    plans = {plan.op: plan for plan in ops.plans()}
    found = [(path, choice) for path in paths for choice in tuned.read(path).values()]
    rows = []
    for path, choice in found:
        plan = plans.get(choice.key.op)
        current = plan is not None and _is_current(choice, plan.variants)
        used = "yes" if current else "no, the kernels are others now"
        rows.append((choice.key.device, *_cells(choice), choice.measured["created"][:10], used, str(path)))
    if given.json:
        listed = [{**choice.as_json(), "file": str(path)} for path, choice in found]
        say(json.dumps(listed, indent=1))
    else:
        say(fitted(("device", *_HEAD, "measured", "used", "file"), rows, (7, 8)) if rows else "nothing is stored")
    return 0 if rows else 1


def _is_current(choice: tuned.Choice, variants: Sequence[Any]) -> bool:
    """Return whether a device of the choice's architecture, which need not be here, would use it."""
    limits, number = Limits.of(Device("sim:0").properties, choice.key.language), choice.key.arch.removeprefix("sm_")
    limits = limits._replace(target=int(number) if number.isdigit() else None)
    return choice.is_current(variants, tuning.problem_of(choice.measured["problem"]), limits)


def _cells(choice: tuned.Choice) -> Sequence[str]:
    knobs = " ".join(f"{name}={value}" for name, value in choice.config.items())
    _, _, op, dtype, layout, language, problem = choice.key
    times = (choice.measured["microseconds"], choice.measured["heuristic_microseconds"])
    fastest = f"{choice.variant} {knobs}".rstrip()
    return (op, dtype, layout, language, problem, fastest, *(f"{us:.1f}" for us in times))
