"""What a stored number was measured of, as digests, so that a test can say that it is stale.

A key names files or kernels of a checkout, and its digest can be computed again from the key alone:

- ``ptxrt/sim``: a file, or the files of a folder that the package, its kernels and its tests are made of;
- ``group_norm.ptx f32``: the texts of a family's entries in one language and element type, as they are compiled.

``python -m benchmarks.measured KEY ...`` prints the digests of the checkout that it lies in, as JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from ptxrt import ops

__all__ = ["ROOT", "changed", "digests", "kernel_keys"]

ROOT = Path(__file__).resolve().parents[2]
_SUFFIXES = (".py", ".ptx", ".hip", ".jinja", ".h", ".c")
ABSENT = "not there"


def digests(keys: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of what each key names, in hexadecimal; ``"not there"`` where that is nothing."""
    return {key: _of_kernels(key) if " " in key else _of_files(key) for key in sorted(set(keys))}


def changed(measured: Mapping[str, str]) -> list[str]:
    """Return the keys of a result's digests under which this checkout has something else."""
    now = digests(measured)
    return [key for key in measured if now[key] != measured[key]]


def kernel_keys(family: str, dtype: str, language: str) -> list[str]:
    """Return the keys of a family's kernels and of the Python file that has it, an op's or the framework's."""
    framework = f"ptxrt/ops/framework/{family}.py"
    return [f"{family}.{language} {dtype}", framework if (ROOT / framework).is_file() else f"ptxrt/ops/_{family}.py"]


def _of_files(key: str) -> str:
    path = ROOT / key
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES)
    return _sha256((file.relative_to(ROOT).as_posix(), file.read_bytes()) for file in files)


@cache  # some hundreds of texts are rendered; a process renders each once, so its digest stays too
def _of_kernels(key: str) -> str:
    file, _, dtype = key.partition(" ")
    family, _, language = file.partition(".")
    chosen = [s for s in ops.kernels() if (s.family, s.language, s.dtype) == (family, language, dtype)]
    return _sha256(sorted((spec.entry, spec.source.text.encode()) for spec in chosen))


def _sha256(parts: Iterable[tuple[str, bytes]]) -> str:
    total, empty = hashlib.sha256(), True
    for name, content in parts:
        empty = False
        # Of fixed length each, so that nothing can move from one part to the next unseen.
        total.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(content).digest())
    return ABSENT if empty else total.hexdigest()


if __name__ == "__main__":
    print(json.dumps(digests(sys.argv[1:])))
