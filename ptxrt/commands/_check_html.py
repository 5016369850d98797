"""A check's report as one HTML file: the text with its counts drawn beside it. It needs nothing from elsewhere.

The text is what was written; of C++ the PTX of each line is behind it, folded.
"""

from __future__ import annotations

from html import escape

from ptxrt import sim
from ptxrt.check.lines import Line, lines_of, listing
from ptxrt.check.run import Report
from ptxrt.commands._check_report import COLUMNS, cells, facts, fault_text
from ptxrt.commands.tables import printable
from ptxrt.symbols import function_name

__all__ = ["as_html"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --soft: #59636e; --rule: #888; --rail: #e6e6e6;
  --bad: #b3261e; --bad-paper: #fdf1f0; --issued: #8a6fb0; --active: #4878a8; --good: #3f8f5b; --poor: #c9622c; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --paper: #16181c; --soft: #9aa3ad; --rule: #666; --rail: #33373d;
    --bad: #ff8a80; --bad-paper: #3a1d1b; --issued: #a58fd0; --active: #6fa3d6; --good: #62b880; --poor: #e08a52; }
}
body { font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2em; }
h1 { font-size: 1.3em; margin: 0 0 .6em; overflow-wrap: anywhere; }
h2 { font-size: 1em; margin: 1.6em 0 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; }
.facts th { text-align: left; font-weight: 600; padding: 0 1.5em 0 0; vertical-align: top; white-space: pre; }
.facts td { overflow-wrap: anywhere; }
.fault { border-left: 4px solid var(--bad); background: var(--bad-paper); padding: .6em 1em; margin: 1em 0;
  white-space: pre-wrap; overflow-wrap: anywhere; font: 12.5px/1.5 ui-monospace, Menlo, Consolas, monospace;
  width: fit-content; max-width: 100%; box-sizing: border-box; }
.scroll { overflow-x: auto; }
.counts { margin-top: 1.2em; font-variant-numeric: tabular-nums; }
.counts th { font-size: 12px; font-weight: 600; text-align: right; padding: .2em .5em; }
.counts thead th { border-bottom: 1px solid var(--rule); }
.counts td { font-size: 12px; text-align: right; padding: 0 .5em; white-space: nowrap; vertical-align: top; }
.counts th.text, .counts td.text, .counts th.bar, .counts td.bar { text-align: left; }
.counts td.text, .counts pre { white-space: pre-wrap; overflow-wrap: anywhere; min-width: 16em;
  font: 12.5px/1.5 ui-monospace, Menlo, Consolas, monospace; }
.counts pre { margin: 0 0 .4em; padding-left: 1em; border-left: 2px solid var(--rule); color: var(--soft); }
.counts td.code { padding-left: 1.5em; }
.counts summary { cursor: pointer; list-style-position: outside; }
.counts td.number { color: var(--soft); }
.counts tr.bad td.code { outline: 2px solid var(--bad); outline-offset: -2px; }
.counts tr.second td.code { outline: 2px dashed var(--bad); outline-offset: -2px; }
.counts tr.idle td.text { color: var(--soft); }
.counts tr.total td { border-top: 1px solid var(--rule); font-weight: 600; }
.counts thead { display: table-header-group; }
svg { vertical-align: middle; }
.rail { fill: var(--rail); }
.issued { fill: var(--issued); } .active { fill: var(--active); }
.good { fill: var(--good); } .poor { fill: var(--poor); }
dl { font-size: 12px; color: var(--soft); columns: 2; max-width: 70em; }
dt { font-weight: 600; } dd { margin: 0 0 .4em; }
@media (max-width: 60em) {
  body { margin: 1em; }
  .counts .bar, .counts td svg { display: none; }
  dl { columns: 1; }
}
@media (max-width: 40em) {
  body { margin: .6em; }
  .facts th, .facts td { display: block; }
  .counts td, .counts th { padding: 0 .25em; font-size: 11px; }
}
@media print {
  body { margin: 0; font-size: 10px; }
  .counts td, .counts th, .counts td.text { font-size: 8px; }
  .counts tr { break-inside: avoid; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
}
"""

_COLOUR = {
    "colour": "the warmer, the larger the line's share of all issues, of all sectors (counting those that it wastes), "
    "or of all turns of shared memory (counting those lost to conflicts)"
}


def as_html(report: Report) -> str:
    """Return the whole page.

    Each executed line has a bar of the lane-instructions it took, a bar of the active lanes of its warps, and, where it
    touches memory, a bar of how much of the sectors moved was needed and its bank conflicts. A line's background is
    the warmer, the larger its share of all issues, of the wasted sectors, or of the turns lost to conflicts.
    """
    title = f"{function_name(report.entry.name)} in {next(iter(listing(report)))}"
    head = "".join(f"<tr><th>{escape(key)}</th><td>{_text(value)}</td></tr>" for key, value in facts(report))
    fault = ""
    if report.fault is not None:
        fault = f'<div class="fault">{_text(fault_text(report, report.fault))}</div>\n'
    profile = report.profile or sim.Profile()
    meanings = "".join(f"<dt>{name}</dt><dd>{escape(words)}</dd>" for name, words in {**COLUMNS, **_COLOUR}.items())
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(printable(title))}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(printable(title))}</h1>\n"
        f'<table class="facts">{head}</table>\n{fault}{_listing(report, profile)}\n<dl>{meanings}</dl>\n'
        "</body>\n</html>\n"
    )


def _text(text: str) -> str:
    return escape(printable(text))


def _listing(report: Report, profile: sim.Profile) -> str:
    files = listing(report)
    total = profile.total()
    names = [name for name in COLUMNS if cells(total)[name]]
    most = max((line.counts.lanes for lines in files.values() for line in lines), default=0)
    parts = []
    for file, lines in files.items():
        rows = [_row(report, line, profile, most, total, names) for line in lines]
        parts += [f"<h2>{_text(file)}</h2>"] if len(files) > 1 else []
        parts.append(_table(rows, names, total if file == [*files][-1] else None))
    return "\n".join(parts)


def _table(rows: list[str], names: list[str], total: sim.LineCounts | None) -> str:
    heads = "".join(f'<th title="{escape(COLUMNS[name])}">{name}</th>' for name in names)
    if total is not None:
        sums = cells(total)
        rows.append(
            '<tr class="total"><td></td><td class="text">all lines</td><td class="bar"></td>'
            + "".join(f"<td>{escape(sums[name])}</td>" for name in names)
            + "</tr>"
        )
    return (
        '<div class="scroll"><table class="counts"><thead><tr><th>line</th><th class="text">text</th>'
        f'<th class="bar">lane-instructions</th>{heads}</tr></thead>\n<tbody>\n'
        + "\n".join(rows)
        + "\n</tbody></table></div>"
    )


def _row(report: Report, line: Line, profile: sim.Profile, most: int, total: sim.LineCounts, names: list[str]) -> str:
    counts = line.counts
    words = cells(counts) if counts.issued else dict.fromkeys(COLUMNS, "")
    drawn = {name: escape(word) for name, word in words.items()}
    if counts.active is not None:
        drawn["active"] += _bar(counts.active / 32, "active")
    if counts.efficiency is not None:
        drawn["eff"] += _bar(counts.efficiency, "good" if counts.efficiency > 0.75 else "poor")
    if counts.shared_requests:
        # The share of the turns that conflicts took.
        drawn["conflicts"] += _bar(counts.conflicts / max(counts.wavefronts, 1), "poor")
    kinds = [] if counts.issued else ["idle"]
    if report.fault is not None:
        kinds += ["bad"] if _is_at(report, line, report.fault.line) else []
        kinds += ["second"] if _is_at(report, line, report.fault.other_line) else []
    heat = f' style="background: rgba(235, 110, 30, {0.7 * _heat(counts, total):.3f})"' if counts.issued else ""
    share = _bar(counts.lanes / most, "issued", 90) if counts.issued and most else ""
    return (
        f'<tr class="{" ".join(kinds)}"><td class="number">{line.number}</td>'
        f'<td class="text code"{heat}>{_code(report, line, profile)}</td>'
        f'<td class="bar">{share}</td>' + "".join(f"<td>{drawn[name]}</td>" for name in names) + "</tr>"
    )


def _is_at(report: Report, line: Line, number: int | None) -> bool:
    """Return whether line `number` of the PTX is this line, or was made of it."""
    if number is None:
        return False
    place = report.program.place(number) if report.program.sources.texts else None
    return (line.file, line.number) == ((report.name, number) if place is None else (place.file, place.line))


def _code(report: Report, line: Line, profile: sim.Profile) -> str:
    """Return the line's text; where PTX was made of it, that is behind it, to be unfolded."""
    if not line.ptx:
        return _text(line.text)
    ptx = lines_of(report.text)
    below = "\n".join(f"{n:5d}  {profile.line(n).issued:8d}  {' '.join(ptx[n - 1].split())}" for n in line.ptx)
    head = " PTX    issued"
    return f"<details><summary>{_text(line.text)}</summary><pre>{head}\n{_text(below)}</pre></details>"


def _heat(line: sim.LineCounts, total: sim.LineCounts) -> float:
    """Return the largest of a line's shares of what there is to lose."""
    return max(
        line.issued / max(total.issued, 1),
        (line.sectors - line.least_sectors) / max(total.sectors, 1),
        line.conflicts / max(total.wavefronts, 1),
    )


def _bar(share: float, kind: str, width: int = 40) -> str:
    """Return a bar that is filled to `share`, in the colour of its kind."""
    filled = width * min(max(share, 0.0), 1.0)
    return (
        f' <svg width="{width}" height="9" role="img" aria-label="{share:.2f}">'
        f'<rect width="{width}" height="9" class="rail"/>'
        f'<rect width="{filled:.1f}" height="9" class="{kind}"/></svg>'
    )
