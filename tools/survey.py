"""Which entries of .ptx files load on a device, and why the others do not: ``python tools/survey.py FILE FOLDER ...``.

Each entry is loaded by itself, with the signature that its .param list has. Folders are searched for .ptx files. Exit
status: 0 all load, 1 some do not, 2 there is nothing to load, or no such device.
"""

from __future__ import annotations

import argparse
import glob
import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ptxrt
from ptxrt.commands.tables import coloured, fitted, printable
from ptxrt.compilers import ParamInfo
from ptxrt.compilers.ptx_text import scan
from ptxrt.dtypes import BY_NAME, struct_type
from ptxrt.runtime.signature import Parameter, Signature

__all__ = ["Outcome", "files_of", "main", "signature_of", "survey"]

_SCALARS = {("float", 2): "f16", ("float", 4): "f32", ("float", 8): "f64"} | {
    (kind, size): f"u{8 * size}" for kind in ("int", "bits") for size in (1, 2, 4, 8)
}
_REASONS = (
    ("directive", re.compile(r"(?:unknown directive|expected a directive, found) '?([^\s:']+)")),
    (
        "type",
        re.compile(r"expected a type, found '?([^\s:']+)|, not (\.\w+):| is (\.\w+) where |(\w+ constant) where "),
    ),
    (
        "instruction",
        re.compile(r"unknown instruction (\w+)|unknown modifier \.\w+ of (\w+)|: (\w+)\S* needs \.|Feature '(\S+)'"),
    ),
)
"""Of a CompileError: what it is about, by the machine's words or the assembler's; the rest is parse."""

_AT = re.compile(r"\bline (\d+)")


@dataclass(frozen=True)
class Outcome:
    """What came of an entry; of a file that cannot be read so far, under the entry ``-``.

    Attributes
    ----------
    file, entry
        Where it is.
    seconds
        What its load took; of the first of a file with what the file took.
    signature
        As its .param list has it.
    reason
        None if it loads. Else instruction, directive, type, parse, parameters, file, or the error's class.
    what
        The instruction, directive or type.
    line, text
        Where the error is, as far as it tells.
    message
        Its first line.
    """

    file: str
    entry: str
    seconds: float
    signature: str | None = None
    reason: str | None = None
    what: str = ""
    line: int | None = None
    text: str = ""
    message: str = ""


def files_of(names: Iterable[str]) -> list[Path]:
    """Return the files that paths, folders and patterns name, each once, in their order."""
    found: dict[Path, None] = {}
    for name in names:
        path = Path(name)
        if path.is_dir():
            found.update(dict.fromkeys(sorted(path.rglob("*.ptx"))))
        else:
            found.update(dict.fromkeys([path] if path.exists() else map(Path, sorted(glob.glob(name, recursive=True)))))
    return [path for path in found if path.is_file()]


def signature_of(params: Sequence[ParamInfo]) -> Signature:
    """Return a signature that agrees with a .param list: numbers, and bytes for all that is none (structs, vectors)."""
    parameters, end = [], 0
    for p in params:
        scalar = _SCALARS.get((p.kind or "bits", p.size))
        if scalar is None or p.offset != -(-end // p.size) * p.size:  # of .align 4 .b8 p[8], too
            kind = struct_type("bytes", np.dtype(f"V{p.size}"), op="survey")
        else:
            kind = BY_NAME[scalar]
        parameters.append(Parameter(p.name, kind, align=kind.alignment))
        end = p.offset + p.size
    return Signature(tuple(parameters))


def survey(path: Path, device: ptxrt.Device) -> Iterator[Outcome]:
    """Load each entry of a file, and say what came of it."""
    start, source = time.perf_counter(), None
    try:
        source = ptxrt.KernelSource.from_file(path)
        entries = scan(source.text).entries
        if not entries:
            raise ptxrt.CompileError("the text has no entry at all")
    except ptxrt.PtxrtError as error:
        yield _failed(path, "-", start, "" if source is None else source.text, error)
        return
    for name, entry in entries.items():
        signature = None
        try:
            if entry.params is None:
                raise ptxrt.Unsupported("a parameter list that the scan of the text cannot read")
            signature = signature_of(entry.params)
            ptxrt.load(source, name, signature, device)
        except Exception as error:  # noqa: BLE001 (an error that is not ours is what a survey is for, too)
            yield _failed(path, name, start, source.text, error, signature)
        else:
            yield Outcome(str(path), name, time.perf_counter() - start, str(signature))
        start = time.perf_counter()


def _failed(
    path: Path, entry: str, start: float, source: str, error: Exception, signature: Signature | None = None
) -> Outcome:
    seconds, message = time.perf_counter() - start, str(error)
    first, number = message.split("\n", 1)[0], getattr(error, "line", None)
    if number is None and (at := _AT.search(first)):
        number = int(at[1])
    lines = source.split("\n")
    text = lines[number - 1].strip() if number and number <= len(lines) else ""
    reason, what = _why(error, message, text)
    declared = None if signature is None else str(signature)
    return Outcome(str(path), entry, seconds, declared, reason, what, number, text, first)


def _why(error: Exception, message: str, text: str) -> tuple[str, str]:
    if isinstance(error, ptxrt.Unsupported):
        return ("instruction", f"{error.given}".split(".", 1)[0]) if error.given else ("parameters", "")
    if isinstance(error, ptxrt.CompileError):
        for reason, words in _REASONS:
            if found := words.search(message):
                return reason, next(filter(None, found.groups()))
        said = re.sub(r"^.*?line \d+: ", "", message.split("\n", 1)[0])
        return "parse", said.partition(", found")[0].partition(": '")[0]
    if isinstance(error, ptxrt.InvalidArgument) and error.op == "KernelSource.from_file":
        return "file", ""
    return type(error).__name__, ""


def _report(outcomes: Sequence[Outcome]) -> str:
    """Return two tables: what does not load, and how many for which reason."""
    parts = []
    failed = [one for one in outcomes if one.reason]
    if failed:
        rows = [
            (one.file, one.entry, one.reason or "", str(one.line or ""), one.text or one.message, f"{one.seconds:.2f}")
            for one in failed
        ]
        parts.append(_safe(("file", "entry", "reason", "line", "text", "s"), rows, (3, 5)))
    groups: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for one in failed:
        groups[one.reason or "", one.what].append(one)
    counts = sorted(groups.items(), key=lambda item: -len(item[1]))
    counted = [
        (str(len(group)), reason, what or "-", _first(group[0]), group[0].text) for (reason, what), group in counts
    ]
    if counted:
        parts.append(_safe(("entries", "reason", "what", "first", "text"), counted, (0,)))
    files = len({one.file for one in outcomes})
    slowest = max(outcomes, key=lambda one: one.seconds)
    parts.append(
        f"{len(outcomes) - len(failed)} of {len(outcomes)} entries load, of {files} files, in "
        f"{sum(one.seconds for one in outcomes):.1f} s; the slowest is {slowest.entry} with {slowest.seconds:.2f} s"
    )
    return "\n\n".join(parts)


def _first(one: Outcome) -> str:
    name = Path(one.file).name
    return f"{name}:{one.line}" if one.line else name


def _safe(head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int]) -> str:
    return fitted(head, [tuple(printable(cell).replace("\n", " ")[:120] for cell in row) for row in rows], right)


def main(arguments: Sequence[str] | None = None) -> int:
    """Survey the files that `arguments` name, print what came of them, and return the exit status."""
    parser = argparse.ArgumentParser(prog="survey.py", description=(__doc__ or "").split(":", 1)[0])
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="a .ptx file, a folder, or a pattern such as 'a/**/*.ptx'"
    )
    parser.add_argument("--device", default="sim:0", help="where to load: sim:0, cuda:0 (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="every entry and the counts, for programs")
    given = parser.parse_args(arguments)
    try:
        device = ptxrt.Device(given.device)
    except ptxrt.PtxrtError as error:
        return _refused(str(error))
    files = files_of(given.paths)
    if not files:
        return _refused(f"no .ptx file in {' '.join(given.paths)}")
    outcomes: list[Outcome] = []
    with tqdm(files, unit="file", leave=False, disable=None, file=sys.stderr) as progress:
        for path in progress:
            for one in survey(path, device):
                outcomes.append(one)
                progress.set_postfix_str(f"{len(outcomes)} entries", refresh=True)
            device.modules.clear()
    if given.json:
        counts: dict[str, int] = defaultdict(int)
        for one in outcomes:
            counts[one.reason or "loads"] += 1
        print(
            json.dumps(
                {"device": given.device, "counts": counts, "entries": [asdict(one) for one in outcomes]}, indent=1
            )
        )
    else:
        print(coloured(_report(outcomes), sys.stdout))
    return int(any(one.reason for one in outcomes))


def _refused(words: str) -> int:
    print(coloured(f"survey.py: {words}", sys.stderr), file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
