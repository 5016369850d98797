"""A check's report as one HTML file: the text with its counts drawn beside it. It needs nothing from elsewhere."""

from __future__ import annotations

from html import escape

from ptxrt import sim
from ptxrt.check.run import Report
from ptxrt.commands._check_report import COLUMNS, cells, facts, fault_text, lines_of
from ptxrt.commands.tables import printable

__all__ = ["as_html"]

_STYLE = """
:root { color-scheme: light; }
body { font: 14px/1.45 system-ui, sans-serif; color: #1b1f24; background: #fff; margin: 2em; }
h1 { font-size: 1.3em; margin: 0 0 .6em; }
table { border-collapse: collapse; }
.facts th { text-align: left; font-weight: 600; padding: 0 1.5em 0 0; vertical-align: top; white-space: pre; }
.fault { border-left: 4px solid #b3261e; background: #fdf1f0; padding: .6em 1em; margin: 1em 0; white-space: pre-wrap;
  font: 12.5px/1.5 ui-monospace, Menlo, Consolas, monospace; width: fit-content; max-width: 100%; }
.counts { margin-top: 1.2em; font-variant-numeric: tabular-nums; }
.counts th { font-size: 12px; font-weight: 600; text-align: right; padding: .2em .5em; border-bottom: 1px solid #888; }
.counts td { font-size: 12px; text-align: right; padding: 0 .5em; white-space: nowrap; }
.counts th.text, .counts td.text, .counts th.bar, .counts td.bar { text-align: left; }
.counts td.text { white-space: pre; font: 12.5px/1.5 ui-monospace, Menlo, Consolas, monospace; }
.counts td.number { color: #777; }
.counts tr.bad td.code { outline: 2px solid #b3261e; outline-offset: -2px; }
.counts tr.second td.code { outline: 2px dashed #b3261e; outline-offset: -2px; }
.counts tr.idle td.text { color: #8a8f95; }
.counts tr.total td { border-top: 1px solid #888; font-weight: 600; }
.counts thead { display: table-header-group; }
svg { vertical-align: middle; }
dl { font-size: 12px; color: #444; columns: 2; max-width: 70em; }
dt { font-weight: 600; } dd { margin: 0 0 .4em; }
@media print {
  body { margin: 0; font-size: 10px; }
  .counts td, .counts th, .counts td.text { font-size: 8px; }
  .counts td.text { white-space: pre-wrap; }
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
    title = f"{report.entry.name} in {report.name}"
    head = "".join(f"<tr><th>{escape(key)}</th><td>{_text(value)}</td></tr>" for key, value in facts(report))
    fault = ""
    if report.fault is not None:
        fault = f'<div class="fault">{_text(fault_text(report.text, report.fault))}</div>\n'
    profile = report.profile or sim.Profile()
    meanings = "".join(f"<dt>{name}</dt><dd>{escape(words)}</dd>" for name, words in {**COLUMNS, **_COLOUR}.items())
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{escape(printable(title))}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(printable(title))}</h1>\n"
        f'<table class="facts">{head}</table>\n{fault}{_listing(report, profile)}\n<dl>{meanings}</dl>\n'
        "</body>\n</html>\n"
    )


def _text(text: str) -> str:
    return escape(printable(text))


def _listing(report: Report, profile: sim.Profile) -> str:
    total = profile.total()
    sums = cells(total)
    names = [name for name in COLUMNS if sums[name]]
    most = max((line.lanes for line in profile.lines.values()), default=0)
    heads = "".join(f'<th title="{escape(COLUMNS[name])}">{name}</th>' for name in names)
    rows = []
    for number, text in enumerate(lines_of(report.text), 1):
        line = profile.lines.get(number) or sim.LineCounts()
        rows.append(_row(report, number, text, line, most, total, names))
    rows.append(
        '<tr class="total"><td></td><td class="text">all lines</td><td></td>'
        + "".join(f"<td>{escape(sums[name])}</td>" for name in names)
        + "</tr>"
    )
    return (
        '<table class="counts"><thead><tr><th>line</th><th class="text">text</th>'
        f'<th class="bar">lane-instructions</th>{heads}</tr></thead>\n<tbody>\n'
        + "\n".join(rows)
        + "\n</tbody></table>"
    )


def _row(
    report: Report, number: int, text: str, line: sim.LineCounts, most: int, total: sim.LineCounts, names: list[str]
) -> str:
    words = cells(line) if line.issued else dict.fromkeys(COLUMNS, "")
    drawn = {name: escape(word) for name, word in words.items()}
    if line.active is not None:
        drawn["active"] += _bar(line.active / 32, "#4878a8")
    if line.efficiency is not None:
        drawn["eff"] += _bar(line.efficiency, "#3f8f5b" if line.efficiency > 0.75 else "#c9622c")
    if line.shared_requests:
        # The share of the turns that conflicts took.
        drawn["conflicts"] += _bar(line.conflicts / max(line.wavefronts, 1), "#c9622c")
    kinds = [] if line.issued else ["idle"]
    if report.fault is not None:
        kinds += ["bad"] if number == report.fault.line else []
        kinds += ["second"] if number == report.fault.other_line else []
    heat = f' style="background: rgba(235, 110, 30, {0.7 * _heat(line, total):.3f})"' if line.issued else ""
    share = _bar(line.lanes / most, "#8a6fb0", 90) if line.issued and most else ""
    return (
        f'<tr class="{" ".join(kinds)}"><td class="number">{number}</td><td class="text code"{heat}>{_text(text)}</td>'
        f'<td class="bar">{share}</td>' + "".join(f"<td>{drawn[name]}</td>" for name in names) + "</tr>"
    )


def _heat(line: sim.LineCounts, total: sim.LineCounts) -> float:
    """Return the largest of a line's shares of what there is to lose."""
    return max(
        line.issued / max(total.issued, 1),
        (line.sectors - line.least_sectors) / max(total.sectors, 1),
        line.conflicts / max(total.wavefronts, 1),
    )


def _bar(share: float, colour: str, width: int = 40) -> str:
    """Return a bar that is filled to `share`."""
    filled = width * min(max(share, 0.0), 1.0)
    return (
        f' <svg width="{width}" height="9" role="img" aria-label="{share:.2f}">'
        f'<rect width="{width}" height="9" fill="#e6e6e6"/>'
        f'<rect width="{filled:.1f}" height="9" fill="{colour}"/></svg>'
    )
