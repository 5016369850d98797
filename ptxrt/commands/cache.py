"""``ptxrt cache``: the store of compiled binaries on disk, and snapshots of a process's module cache."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence

from ptxrt.commands import _store_report, _store_upkeep, _warm
from ptxrt.commands._choosing import DURATION
from ptxrt.commands._snapshot_report import KEYS, inspect
from ptxrt.errors import InvalidArgument

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "run", "with_word"]

Say = Callable[[str], None]
Complain = Callable[[str, int], int]

HELP = (
    "the store of compiled kernels on disk: path, list, show, verify, prune, clear, warm; and a module cache's snapshot"
)
DESCRIPTION = (
    "The store of compiled kernels on disk, and snapshots of a process's module cache. ptxrt cache FILE is ptxrt cache "
    "snapshot FILE, unless FILE is one of the words below. Exits with 1 where the answer is no (nothing matches, "
    "something is damaged or failed), with 2 for wrong usage."
)
_WORDS = ("path", "list", "show", "verify", "prune", "clear", "warm", "snapshot")


def with_word(arguments: Sequence[str]) -> list[str]:
    """Return the command's arguments with ``snapshot`` put where ``ptxrt cache FILE`` leaves it out."""
    given = list(arguments)
    if given[:1] == ["cache"] and len(given) > 1 and given[1] not in (*_WORDS, "-h", "--help"):
        given.insert(1, "snapshot")
    return given


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the words of ``ptxrt cache``, each with its arguments."""
    words = command.add_subparsers(required=True, metavar="WORD")

    def add(
        word: str, act: Callable[[argparse.Namespace, Say, Complain], int], help: str, more: str = ""
    ) -> argparse.ArgumentParser:
        added = words.add_parser(word, help=help, description=f"{help[0].upper()}{help[1:]}.{more}")
        added.add_argument("--json", action="store_true", help="as JSON; docs/cache.md has the schema")
        added.set_defaults(act=act)
        return added

    add("path", _path, "where the store is, and whether it can be used", " Exits with 1 if not.")

    word = add("list", _list, "the store's entries, the least recently used first", " Exits with 1 if no entry passes.")
    _add_choice(word, _store_report.KEYS)

    word = add("show", _show, "all that is known of one entry", " Exits with 1 if there is none.")
    word.add_argument("key", metavar="KEY", help="its key, or an unambiguous beginning of it")
    word.add_argument("--disassemble", action="store_true", help="the machine code too, where there is a disassembler")

    add(
        "verify",
        _verify,
        "read every entry, compare the digests, and the parameter tables with the library's kernels; list leftovers",
        " Changes nothing. Exits with 1 if an entry is damaged.",
    )

    word = add(
        "prune", _prune, "remove leftovers, then the least recently used entries", " Exits with 1 if more is left."
    )
    word.add_argument("--max-bytes", metavar="N", help="how much may stay; what PTXRT_CACHE_MAX_BYTES says if left out")
    word.add_argument("--older-than", metavar="TIME", help=f"remove in any case what was not used for {DURATION}")

    word = add("clear", _clear, "remove all entries", " Asks first, on a terminal. Exits with 1 if any is left.")
    word.add_argument("--yes", action="store_true", help="do not ask; needed where there is no terminal")

    word = add(
        "warm",
        _warm_up,
        "compile into the store what later processes will load; no GPU is needed",
        " Every kernel of the library that plans can select, of the named ops or of all; or those of a file. Exits "
        "with 1 if any fails. PTXRT_LANGUAGE=hip in the environment chooses the kernels in HIP on NVIDIA too.",
    )
    word.add_argument("ops", metavar="OP", nargs="*", help="an op, such as group_norm_backward; all if left out")
    word.add_argument(
        "--arch",
        metavar="ARCH,...",
        help="for these architectures, as devices report them: sm_90, gfx942:sramecc+:xnack-; those of the GPUs here "
        "if left out",
    )
    word.add_argument("--file", metavar="FILE", help="instead of the library's: a .ptx, .cu or .hip file, by the path "
                      "by which it is loaded later")  # fmt: skip
    word.add_argument(
        "--entry",
        action="append",
        default=[],
        help='of FILE in C++: a kernel, "scale<float>"; may be given several times',
    )
    word.add_argument(
        "--option", metavar="OPTION", action="append", default=[], help="of FILE: one of those of the load"
    )
    word.add_argument(
        "--define", metavar="NAME[=VALUE]", action="append", default=[], help="of FILE: a macro of the source"
    )
    word.add_argument("--jobs", metavar="N", help="processes; one for each CPU if left out")

    word = add(
        "snapshot",
        _snapshot,
        "print a snapshot of a module cache, as device.modules.snapshot(FILE) writes it",
        " The word may be left out. Exits with 1 if --filter or --entry match nothing.",
    )
    word.add_argument("file", metavar="FILE")
    _add_choice(word, KEYS)
    word.add_argument("--entry", metavar="DIGEST", help="one entry in full, by an unambiguous beginning of its digest")


def _add_choice(word: argparse.ArgumentParser, keys: Iterable[str]) -> None:
    names = ", ".join(keys)
    word.add_argument(
        "--filter",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="only entries whose KEY contains VALUE; a number: is VALUE, or in a range 2..5, 2.. or ..5; age and idle: "
        f"a range of times, 7d.. or ..12h. May be given several times, and then all must hold. Keys: {names}",
    )
    word.add_argument("--sort", metavar="KEY", help="order by KEY")
    word.add_argument("--reverse", action="store_true", help="from the last to the first")


def run(given: argparse.Namespace, say: Say, complain: Complain) -> int:
    """Do what the word says, print through `say`, complain through `complain`, and return the exit code.

    Raises
    ------
    PtxrtError
        InvalidArgument for wrong usage; for what fails.
    """
    code: int = given.act(given, say, complain)
    return code


def _path(given: argparse.Namespace, say: Say, _: Complain) -> int:
    return _store_upkeep.path(_store_report.open_store(), given.json, say)


def _list(given: argparse.Namespace, say: Say, _: Complain) -> int:
    store = _store_report.readable_store()
    text, matched = _store_report.listing(
        store, filters=given.filter, sort=given.sort, reverse=given.reverse, as_json=given.json
    )
    say(text)
    return 0 if matched else 1


def _show(given: argparse.Namespace, say: Say, complain: Complain) -> int:
    text, missing, found = _store_report.show(
        _store_report.readable_store(), given.key, disassembly=given.disassemble, as_json=given.json
    )
    say(text)
    if missing:
        complain(missing, 0)
    return 0 if found else 1


def _verify(given: argparse.Namespace, say: Say, _: Complain) -> int:
    return _store_upkeep.verify(_store_report.readable_store(), given.json, say)


def _prune(given: argparse.Namespace, say: Say, complain: Complain) -> int:
    store = _store_report.readable_store()
    return _store_upkeep.prune(store, given.max_bytes, given.older_than, given.json, say, complain)


def _clear(given: argparse.Namespace, say: Say, complain: Complain) -> int:
    return _store_upkeep.clear(_store_report.readable_store(), given.yes, given.json, say, complain)


def _warm_up(given: argparse.Namespace, say: Say, complain: Complain) -> int:
    if given.file is None:
        for argument in ("entry", "option", "define"):
            if getattr(given, argument):
                raise InvalidArgument(op="cache", argument=f"--{argument}", expected="--file beside it", given="none")
        jobs = _warm.jobs_of_ops(given.ops, _warm.wanted_architectures(given.arch))
    else:
        if given.ops:
            raise InvalidArgument(op="cache", argument="OP", expected="none beside --file", given=repr(given.ops[0]))
        defines = {
            name: value if equals else None for name, equals, value in (each.partition("=") for each in given.define)
        }
        architectures = _warm.wanted_architectures(given.arch)
        jobs = _warm.jobs_of_file(given.file, given.entry, given.option, defines, architectures)
    return _warm.run(jobs, given.jobs, given.json, say, complain)


def _snapshot(given: argparse.Namespace, say: Say, _: Complain) -> int:
    text, matched = inspect(
        given.file,
        filters=given.filter,
        sort=given.sort,
        reverse=given.reverse,
        entry=given.entry,
        as_json=given.json,
    )
    say(text)
    return 0 if matched else 1
