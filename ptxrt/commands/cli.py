"""The command ``ptxrt``: devices, kernels, show, parity, demo, check, verify, tune, cache.

Exit codes: 0 is success; 1 that the answer is no (a demo that disagrees, an inspection that matches nothing, a kernel
that does not compile, a device that is not there); 2 that the command or its input is at fault. Results go to
standard output, everything else to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from ptxrt import __version__, ops
from ptxrt.commands import _show_file, parity, show
from ptxrt.commands import cache as cache_command
from ptxrt.commands import check as check_command
from ptxrt.commands import tune as tune_command
from ptxrt.commands import verify as verify_command
from ptxrt.commands.tables import coloured, fitted, printable, size_in_words
from ptxrt.compilers import hiprtc, nvjitlink, nvrtc
from ptxrt.compilers.ptx_text import suggestion
from ptxrt.errors import InvalidArgument, PtxrtError
from ptxrt.ops.served import Served, served
from ptxrt.runtime.device import Device, as_device, default_device, devices

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (the process's own if left out) and return its exit code.

    Raises
    ------
    SystemExit
        From argparse, with code 2 for arguments that it does not take, 0 for --help and --version.
    """
    parser = _parser()
    given, rest = parser.parse_known_args(cache_command.with_word(sys.argv[1:] if arguments is None else arguments))
    if rest and (given.run is not _tune or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        tune_command.add_words(given, rest)
    try:
        code: int = given.run(given)
        if sys.stdout is not None:
            with _writing():
                sys.stdout.flush()  # here, where a reader that has gone can still be answered
    except BrokenPipeError:
        _discard_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        _discard_output()
        return _complain(str(error), 1)
    except MemoryError:
        return _complain("this machine has not enough memory", 2)
    except InvalidArgument as error:
        return _complain(str(error), 2)
    except PtxrtError as error:
        return _complain(str(error), 1)
    except KeyboardInterrupt:
        return _complain("interrupted", 128 + signal.SIGINT)
    return code


def _say(text: str) -> None:
    """Print text that came from files or from a driver, whatever characters the terminal has."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    with _writing():
        print(coloured(printable(text).encode(encoding, "backslashreplace").decode(encoding), sys.stdout), flush=True)


@contextmanager
def _writing() -> Iterator[None]:
    """Say of what standard output does not take that it cannot be written."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        _discard_output()
        raise PtxrtError(f"cannot write: {error}") from error


def _complain(message: str, code: int) -> int:
    if sys.stderr is not None:  # where it is closed, print would take standard output
        print(coloured(f"ptxrt: {printable(message)}", sys.stderr), file=sys.stderr)
    return code


def _discard_output() -> None:
    # What is still in the buffer would be written at exit, and fail once more with a traceback.
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # an output that is no file, as under a test
        return


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ptxrt", description="Handwritten kernels, compiled at run time and launched from Python."
    )
    parser.add_argument("--version", action="version", version=f"ptxrt {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("devices", help="the devices and compilers there are; for the others, why not")
    command.add_argument("--json", action="store_true", help="the same as a JSON object")
    command.set_defaults(run=_devices)

    command = commands.add_parser(
        "kernels",
        help="the kernels that come with ptxrt: entry, language, dtype, plan, signature",
        description="List the kernels that come with ptxrt. Exits with 1 if none has WORD in its entry, dtype or plan.",
    )
    command.add_argument("word", metavar="WORD", nargs="?", default="", help="only those that have this somewhere")
    command.add_argument(
        "--variants",
        action="store_true",
        help="instead: for each op, kind of problem, dtype and layout, the variants that serve it, in PTX and in HIP",
    )
    command.add_argument("--json", action="store_true", help="the same as a JSON array")
    command.set_defaults(run=_kernels)

    command = commands.add_parser(
        "show",
        help="a kernel as it is compiled: the text, its parameters, its resources; of a file, or one of ptxrt's own",
        description="Print a kernel as it is compiled, and behind it, as comments, its parameters, its resources, how "
        "many of its blocks a multiprocessor holds, and its machine code where there is a disassembler: the output is "
        "PTX still. It is a kernel of a .ptx, .cu or .hip FILE, or one that comes with ptxrt. For AMD's architectures "
        "(gfx1100, gfx90a:sramecc+:xnack-) it is the text in HIP. Without --arch and --device it is compiled for the "
        "default device's architecture; no device is needed for that.",
    )
    command.add_argument("what", metavar="FILE|ENTRY", help="a file, or the entry of a kernel that comes with ptxrt")
    command.add_argument("--entry", help="of a FILE: the kernel; all that are in it if left out")
    where = command.add_mutually_exclusive_group()
    where.add_argument("--arch", help="the architecture to compile for, such as sm_90 or gfx1100")
    where.add_argument("--device", help="load it on this device and ask its driver for the resources, too")
    command.set_defaults(run=_show)

    command = commands.add_parser(
        "parity",
        help="the parameters of each kernel as declared, in PTX and in HIP, side by side",
        description="Compile each kernel that there is in HIP with hipRTC, and compare the parameters that its code "
        "object tells with those of its PTX and of its declared signature. Exits with 1 on any difference.",
    )
    command.add_argument(
        "word", metavar="WORD", nargs="?", default="", help="only entries that have this in their name"
    )
    command.add_argument(
        "--arch",
        action="append",
        help=f"what to compile for; may be given several times. If left out: {', '.join(parity.ARCHITECTURES)}",
    )
    command.set_defaults(run=_parity)

    command = commands.add_parser(
        "demo",
        help="run every op at shapes of real networks, and compare with a float64 reference",
        description="Run every op, and then a kernel with a barrier left out on sim, which says so. Exits with 1 if a "
        "result disagrees with the reference. With PTXRT_LANGUAGE=hip in the environment the kernels are those in "
        "HIP, on any device.",
    )
    command.add_argument("--device", help="where to run; the best device there is if left out")
    command.add_argument("--json", action="store_true", help="the results as a JSON object, at the end")
    command.set_defaults(run=_demo)

    command = commands.add_parser("check", help=check_command.HELP, description=check_command.DESCRIPTION)
    check_command.add_arguments(command)
    command.set_defaults(run=_check)

    command = commands.add_parser("verify", help=verify_command.HELP, description=verify_command.DESCRIPTION)
    verify_command.add_arguments(command)
    command.set_defaults(run=_verify)

    command = commands.add_parser("tune", help=tune_command.HELP, description=tune_command.DESCRIPTION)
    tune_command.add_arguments(command)
    command.set_defaults(run=_tune)

    command = commands.add_parser("cache", help=cache_command.HELP, description=cache_command.DESCRIPTION)
    cache_command.add_arguments(command)
    command.set_defaults(run=_cache)
    return parser


# devices ----------------------------------------------------------------------------------------------------------


def _devices(given: argparse.Namespace) -> int:
    found = devices()
    missing = {kind: _reason(kind) for kind in ("cuda", "hip", "sim") if all(d.kind != kind for d in found)}
    compilers = ("nvJitLink", "PTX", nvjitlink), ("NVRTC", "CUDA C++ and HIP", nvrtc), ("hipRTC", "HIP", hiprtc)
    reasons = {name: compiler.available() for name, _, compiler in compilers}
    if given.json:
        versions = {name: None if reasons[name] else compiler.version() for name, _, compiler in compilers}
        record = {
            "devices": [{"device": str(device), **asdict(device.properties)} for device in found],
            "missing": missing,
            "compilers": {name: {"version": versions[name], "missing": reasons[name]} for name in versions},
            "default": str(default_device()),
        }
        _say(json.dumps(record, indent=1))
        return 0
    rows = [
        (
            str(device),
            device.name,
            device.arch,
            size_in_words(device.properties.total_memory),
            str(device.properties.multiprocessors),
            device.properties.driver,
        )
        for device in found
    ]
    if rows:
        _say(fitted(("device", "name", "arch", "memory", "multiprocessors", "driver"), rows, (3, 4)))
    for kind, reason in missing.items():
        _say(f"{kind}: {reason}")
    _say("")
    for name, takes, compiler in compilers:
        reason = reasons[name]
        _say(f"{name} {compiler.version()} takes {takes}" if reason is None else f"no {name}: {reason}")
    _say(f"default device: {default_device()}")
    return 0


def _reason(kind: str) -> str:
    """Return why there is no device of a kind."""
    try:
        Device(f"{kind}:0")
    except PtxrtError as error:
        return str(error)
    return "no device"


# kernels ----------------------------------------------------------------------------------------------------------


def _kernels(given: argparse.Namespace) -> int:
    if given.variants:
        head: tuple[str, ...] = Served._fields
        known = [(row.cells, row._asdict()) for row in served()]
    else:
        head = ("entry", "language", "dtype", "plan", "signature")
        plans = {plan.op: plan.__name__ for plan in ops.plans()}
        cells = [(spec.entry, spec.language, spec.dtype, plans[spec.op], str(spec.signature)) for spec in ops.kernels()]
        known = [(row, dict(zip(head, row, strict=True))) for row in cells]
    searched = head if given.variants else head[:-1]
    rows = [(row, record) for row, record in known if any(given.word in cell for cell in row[: len(searched)])]
    if not rows:
        near = suggestion(given.word, {cell for row, _ in known for cell in row[: len(searched)]})
        where = f"{', '.join(searched[:-1])} or {searched[-1]}"
        return _complain(f"no kernel has {given.word!r} in its {where}. {near or ''}".rstrip(" ."), 1)
    table = [row for row, _ in rows]
    _say(json.dumps([record for _, record in rows], indent=1) if given.json else fitted(head, table))
    return 0


# show -------------------------------------------------------------------------------------------------------------


def _show(given: argparse.Namespace) -> int:
    device = as_device(given.device) if given.arch is None else None
    arch = given.arch if device is None else device.arch
    if Path(given.what).suffix or os.sep in given.what:  # no entry of ours has a dot
        if given.device is not None:
            raise InvalidArgument(
                op="show", argument="--device", expected="a kernel that comes with ptxrt", given=repr(given.what),
                fix="Use --arch",
            )  # fmt: skip
        return _show_file.run(given.what, given.entry, arch, _say, _complain)
    if given.entry is not None:
        raise InvalidArgument(op="show", argument="--entry", expected="a FILE before it", given=repr(given.what))
    return show.run(given.what, arch, device if given.device is not None else None, _say, _complain)


# parity -----------------------------------------------------------------------------------------------------------


def _parity(given: argparse.Namespace) -> int:
    return parity.run(given.word, given.arch or parity.ARCHITECTURES, _say)


# demo, check, verify, tune and cache --------------------------------------------------------------------------------


def _demo(given: argparse.Namespace) -> int:
    from ptxrt.commands import demo  # noqa: PLC0415 (the other commands need none of it)

    return demo.run(as_device(given.device), _say, as_json=given.json)


def _check(given: argparse.Namespace) -> int:
    return check_command.run(given, _say, _complain)


def _verify(given: argparse.Namespace) -> int:
    return verify_command.run(given, _say, _complain)


def _tune(given: argparse.Namespace) -> int:
    return tune_command.run(given, _say)


def _cache(given: argparse.Namespace) -> int:
    return cache_command.run(given, _say, _complain)
