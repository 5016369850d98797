"""Benchmarks, one a subcommand: ``python tools/bench.py launch``. Each is a file of tools/benchmarks/.

A benchmark has ``NAME``, ``HELP``, ``add_arguments(parser)`` and ``run(arguments) -> exit code``; it is added to the
list below.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import cold, distributed, errors, launch, lookups, ops, report, scale, sim

BENCHMARKS = (launch, lookups, cold, ops, scale, distributed, sim, errors)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark that `arguments` name and return its exit code."""
    parser = argparse.ArgumentParser(prog="bench.py", description="Benchmarks of ptxrt beside what a user would pick.")
    commands = parser.add_subparsers(required=True, metavar="BENCHMARK")
    for benchmark in BENCHMARKS:
        command = commands.add_parser(benchmark.NAME, help=benchmark.HELP, description=benchmark.HELP)
        benchmark.add_arguments(command)
        command.set_defaults(run=benchmark.run)
    given = parser.parse_args(arguments)
    try:
        code: int = given.run(given)
    except report.Refused as error:
        print(f"bench.py: {error}", file=sys.stderr)
        return 2
    return code


if __name__ == "__main__":
    sys.exit(main())
