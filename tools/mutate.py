"""Mutate the kernels and see that the tests notice: ``python tools/mutate.py [FAMILY ...]``.

Every kernel of kernels_ptx/ and kernels_hip/ (an entry, a macro, a function) is broken in at least ten ways, a line at
a time: operands swapped, a barrier dropped, an index shifted, a comparison or a constant changed, a condition turned, a
rounding changed, an instruction left out. Each mutant that still compiles is put into a copy of the checkout, and the
tests of its family run there on sim until the first one fails. A mutant that no test notices must be listed in
mutation/equivalent.py, with the reason why it computes the same. The tables go to docs/results/. Exit status 1 if one
survives that is not listed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from mutation.equivalent import EQUIVALENT
from mutation.mutants import Mutant, families, mutants
from mutation.trial import Checkout, Outcome, measured

import ptxrt


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the mutants, try them, print and store a table a family; return 1 if one survives that is not listed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"of {', '.join(families())}; all if left out")
    parser.add_argument("--each", type=int, default=10, help="mutants a kernel, at least (10)")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other lines (0)")
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time (2)")
    parser.add_argument("--line", type=int, help="only the mutants of this line of the file")
    report.add_out(parser)
    given = parser.parse_args(arguments)
    if unknown := sorted(set(given.families) - set(families())):
        parser.error(f"no file of kernels for {', '.join(unknown)}; there are {', '.join(families())}")
    survived = False
    for family in given.families or families():
        try:
            measurement = report.Measurement(given.out, measured(family))
        except report.NotStorable as error:
            print(f"mutate.py: {error}", file=sys.stderr)
            return 2
        made = [m for m in mutants(family, given.each, given.seed) if given.line in (None, m.number)]
        outcomes = _try_all(made, given.jobs)
        survived = survived or any(outcome.result == "SURVIVED" for outcome in outcomes)
        facts = [{**mutant.facts(), **outcome.facts()} for mutant, outcome in zip(made, outcomes, strict=True)]
        record = {"family": family, "mutants": facts}
        print(_table(record), flush=True)
        if given.line is None:
            name = f"mutants-{family.replace('/', '-')}"
            for path in measurement.save(KIND, name, ptxrt.Device("sim:0"), record):
                print("stored", path)
    return 1 if survived else 0


def _try_all(made: Sequence[Mutant], jobs: int) -> list[Outcome]:
    with TemporaryDirectory(prefix="ptxrt-mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        free: SimpleQueue[Checkout] = SimpleQueue()
        for job in range(jobs):
            free.put(Checkout(Path(folder) / str(job)))

        def attempt(mutant: Mutant) -> Outcome:
            checkout = free.get()
            try:
                outcome = checkout.attempt(mutant)
            finally:
                free.put(checkout)
            if outcome.result == "survived":
                reason = EQUIVALENT.get(mutant.key)
                outcome = Outcome("equivalent", reason) if reason else Outcome("SURVIVED", outcome.by)
            print(f"{mutant.family} {mutant.kernel} line {mutant.number}, {mutant.kind}: {outcome.result}", flush=True)
            return outcome

        return list(pool.map(attempt, made))


def _table(record: report.Record) -> str:
    kernels: dict[tuple[str, str], Counter[str]] = {}
    for one in record["mutants"]:
        kernels.setdefault((one["family"], one["kernel"]), Counter())[one["result"]] += 1
    columns = ["noticed", "equivalent", "SURVIVED"]
    rows = [[*kernel, str(sum(found.values())), *(str(found[c]) for c in columns)] for kernel, found in kernels.items()]
    none = "None.\n"
    text = report.markdown_table(["family", "kernel", "mutants", *columns], rows) + "\n"
    for result, title in (("SURVIVED", "Survived"), ("equivalent", "Equivalent, and why")):
        found = "".join(
            f"- {one['family']}, {one['kernel']}, line {one['number']} ({one['kind']}): `{one['before']}` became "
            f"`{one['after']}`. {one['by']}\n"
            for one in record["mutants"]
            if one["result"] == result
        )
        text += f"\n## {title}\n\n{found or none}"
    return text


KIND = report.Kind("mutants", lambda record: f"What the tests notice when {record['family']} is broken", _table)


if __name__ == "__main__":
    sys.exit(main())
