"""Whether a commit is right on a GPU machine, in one command: ``python tools/gpu_check.py [--out DIR]``.

Runs the launch benchmark with its bounds; the tests that need a GPU, a missing one being a failure; and the marked
subset under compute-sanitizer's memcheck and racecheck, where that is installed. How fast the ops are is told by
``tools/bench.py ops --check``. Needs no installation: pytest and the packages of ptxrt[cuda13] are enough. Writes what
it found, the ops' worst errors too, to docs/results/.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.errors import save_errors
from benchmarks.launch import BASE
from benchmarks.report import Kind, Measurement, NotStorable, Record, add_out, markdown_table, slug

import ptxrt

ROOT = Path(__file__).resolve().parents[1]
_SUBSET = ["-m", "pytest", "-p", "no:cacheprovider", "-m"]
_AT_ONCE = 6  # of each tool
_PARTS = {"test_every_variant.py": 4, "test_rows_held.py": 2, "test_norm_last.py": 2}
"""File -> processes that have a part of its tests each, of those that take longest."""
_SECONDS = 600


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks, write the record, and return 0 if everything passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_out(parser)
    out = parser.parse_args(arguments).out.resolve()
    try:
        device = ptxrt.Device("cuda:0")
        measurement = Measurement(out, ["ptxrt", "kernels_ptx", "kernels_hip", "tests"])
    except (ptxrt.PtxrtError, NotStorable) as error:
        print(error, file=sys.stderr)
        return 1
    # The benchmarks first: after minutes of tests the host's processor is slower.
    launch = [sys.executable, "tools/bench.py", "launch", "--bursts", "120", "--check", "--out", str(out)]
    rows = [_run("launch benchmark, bounds checked", launch, rf".* {re.escape(BASE)}: .*")]
    with TemporaryDirectory() as folder:
        file = Path(folder) / "errors.json"
        tests = [
            sys.executable,
            "-m",
            "pytest",
            "tests",
            "-m",
            "cuda",
            "-p",
            "no:cacheprovider",
            *_shared_by((os.cpu_count() or 2) * 3 // 4),
        ]
        rows.append(_run("tests that need a GPU", tests, r"\d+ .*in [\d.]+s.*", PTXRT_ERRORS=str(file)))
        errors = json.loads(file.read_text()) if file.exists() else []
    save_errors(out, device, errors)  # whatever becomes of the rest
    with ThreadPoolExecutor() as pool:
        rows += pool.map(_sanitize, ("memcheck", "racecheck"))
    record = {"gpus": _count(), "checks": rows}
    for path in measurement.save(KIND, f"gpu-check-{slug(device.name)}", device, record):
        print("stored", path)
    print(_body(record))
    return 0 if all(row["result"] in ("passed", "not there") for row in rows) else 1


def _body(record: Record) -> str:
    return markdown_table(
        ["check", "result", "what it said", "seconds"],
        [[row["check"], row["result"], "; ".join(row["said"]), f"{row['seconds']:.0f}"] for row in record["checks"]],
    )


KIND = Kind("gpu-check", lambda _: "The checks of a GPU machine", _body)


def _shared_by(processes: int) -> list[str]:
    """Return pytest's options for some processes, where pytest-xdist is there."""
    return ["-n", str(processes), "--dist", "worksteal"] if importlib.util.find_spec("xdist") else []


def _count() -> int:
    return sum(device.kind == "cuda" for device in ptxrt.devices())


def _sanitize(tool: str) -> dict[str, Any]:
    name, program = f"compute-sanitizer {tool}", shutil.which("compute-sanitizer")
    if program is None:
        return {"check": name, "result": "not there", "said": [], "seconds": 0.0}
    texts = {path: path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py"))}
    chosen = "sanitize and cuda"
    if tool == "racecheck":  # which does not follow all barriers of some warps (docs/roadmap.md)
        chosen += " and not partial_barriers"
        whole = re.compile(r"^pytestmark = .*mark\.partial_barriers", re.MULTILINE)
        texts = {path: text for path, text in texts.items() if not whole.search(text)}
    files = [path for path, text in texts.items() if "mark.sanitize" in text]
    parts = [(path, part, count) for path in files for count in [_PARTS.get(path.name, 1)] for part in range(count)]
    parts.sort(key=lambda each: -each[2])  # those of the longest begin first
    command = [program, "--tool", tool, "--error-exitcode", "3", sys.executable, *_SUBSET, chosen]
    telling = r"\d+ passed.*in [\d.]+s.*|=+ (?:ERROR|RACECHECK) SUMMARY.*"
    with ThreadPoolExecutor(_AT_ONCE) as pool:  # the tools slow the host down more than the device
        # Not each product of kernels and types: under racecheck a launch takes a hundred times as long.
        run = partial(_run, telling=telling, PTXRT_TEST_ALL="")

        def check(path: Path, part: int, count: int) -> dict[str, Any]:
            named = f"{path.name} {part + 1}/{count}" if count > 1 else path.name
            return run(named, [*command, str(path)], PTXRT_TEST_PART=f"{part + 1}/{count}")

        rows = list(pool.map(check, *zip(*parts, strict=True)))
    failed = [f"{row['check']}: {row['result']}" for row in rows if row["result"] != "passed"]
    said = [f"{row['check']}: {', '.join(row['said'])}" for row in rows]
    return {
        "check": name,
        "result": "; ".join(failed) or "passed",
        "said": said,
        "seconds": max(row["seconds"] for row in rows),
    }


def _run(check: str, command: Sequence[str], telling: str, **environment: str) -> dict[str, Any]:
    """Run a command; keep its status and the lines of its output that tell the result."""
    required = "cuda,cudax2" if _count() > 1 else "cuda"
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    started = time.perf_counter()
    print(f"{check} ...", flush=True)
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PTXRT_REQUIRE": required, "PTXRT_TEST_ALL": "1", "PYTHONPATH": path, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"check": check, "result": f"no end within {_SECONDS} s", "said": [], "seconds": float(_SECONDS)}
    said = [line.strip("= ") for line in done.stdout.splitlines() if re.fullmatch(telling, line.strip())]
    if done.returncode:
        print(done.stdout[-20000:], flush=True)
    result = "passed" if done.returncode == 0 else f"failed with status {done.returncode}"
    seconds = time.perf_counter() - started
    print(f"{check}: {result}, {seconds:.0f} s", flush=True)
    return {"check": check, "result": result, "said": said, "seconds": seconds}


if __name__ == "__main__":
    sys.exit(main())
