"""Which stored results are stale: ``python tools/results.py``; ``--render`` writes each .md from its .json again."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fidelity
import gpu_check
import mutate
import tensor_cores
from benchmarks import cold, distributed, errors, launch, lookups, ops, report, scale, sim
from benchmarks.measured import changed

__all__ = ["KINDS", "main", "why_stale"]

KINDS = {
    tool.KIND.name: tool.KIND
    for tool in (launch, lookups, cold, ops, scale, distributed, sim, errors, fidelity, gpu_check, mutate, tensor_cores)
}


def why_stale(record: report.Record) -> str:
    """Return why a result's numbers are not those of this checkout; nothing where they are."""
    if "measured" not in record:
        return "no digest of what it measured"
    files = changed(record["measured"])
    commit = record["environment"]["commit"][:7]
    return f"stale: measured at {commit}, {', '.join(files)} changed since" if files else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each stored result."""
    parser = argparse.ArgumentParser(prog="results.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--render", action="store_true", help="write each .md again, from the .json beside it")
    given = parser.parse_args(arguments)
    for path in sorted(report.RESULTS.glob("*.json")):
        record = json.loads(path.read_text())
        print(f"{path.stem}: {why_stale(record) or 'fresh'}")
        if given.render and "measured" in record:
            path.with_suffix(".md").write_text(KINDS[record["kind"]].text(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
