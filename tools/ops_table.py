"""Write what serves each op into docs/ops.md, as ``ptxrt kernels --variants`` has it: ``tools/ops_table.py``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.report import markdown_table

from ptxrt.ops.served import Served, served

__all__ = ["PAGE", "main", "written"]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "ops.md"
_PLACE = re.compile(r"(?<=<!-- what serves each op -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL)


def written(page: str) -> str:
    """Return the page with the table of now."""
    table = markdown_table(Served._fields, [row.cells for row in served()])
    text, places = _PLACE.subn(lambda _: table, page)
    if places != 1:
        raise SystemExit(f"{PAGE.name} has no place for the table")
    return text


def main() -> None:
    """Write the table."""
    PAGE.write_text(written(PAGE.read_text()))


if __name__ == "__main__":
    main()
