"""How the figures of the suite look: a page, tables for the docs, chart and words for the README.

Rules:

1. Nothing is fetched from anywhere: styles and pictures stand in the file itself.
2. Bars of a row share one scale; where smaller is better the shorter bar wins, and it is said.
3. Ours is always shown first, ahead or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from math import log
from typing import Any

__all__ = ["chart", "headline", "html_page", "markdown_table", "put_between"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --dim: #667085; --line: #e3e6eb; --paper: #fff;
  --ours: #1f6feb; --peer: #b6bfcc; --good: #18794e; --bad: #b42318; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ebf0; --dim: #98a2b3; --line: #2c333f;
  --paper: #14181f; --ours: #58a6ff; --peer: #4a5568; --good: #4cc38a; --bad: #ff8a80; } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 60rem; padding: 2rem 1rem 4rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { margin: 0 } h2 { margin: 2.5rem 0 .5rem; border-bottom: 1px solid var(--line) }
.dim { color: var(--dim) }
.row { padding: .7rem 0; border-bottom: 1px solid var(--line) }
.name { font-weight: 600 }
.bar { display: grid; grid-template-columns: minmax(8rem, 15rem) 1fr 12rem; gap: .75rem;
  align-items: center; }
.bar > span:first-child { overflow: hidden; text-overflow: ellipsis; white-space: nowrap }
.bar i { display: block; height: .8rem; border-radius: 2px; background: var(--peer);
  min-width: 2px }
.bar.ours i { background: var(--ours) }
.figure { font-variant-numeric: tabular-nums; text-align: right; white-space: nowrap }
.ahead { color: var(--good) } .behind { color: var(--bad) }
@media (max-width: 40rem) { .bar { grid-template-columns: 1fr 7rem } .bar i { grid-column: 1 / -1;
  grid-row: 2 } }
"""

_CHART_STYLE = """.sheet{fill:#fff}text{fill:#1d2430}.dim{fill:#667085}.ahead{fill:#1f6feb}\
.behind{fill:#b6bfcc}@media (prefers-color-scheme:dark){.sheet{fill:#16191d}text{fill:#e8edf3}\
.dim{fill:#98a2b3}.ahead{fill:#58a6ff}.behind{fill:#4a5568}}"""

_HEADLINES = (
    ("spool", "put, p50", "put into the spool"),
    ("journal", "put", "put, embedded"),
    ("journal", "whole cycle, os", "put, lease, complete, embedded"),
    ("journal", "whole cycle, always, 100 at once", "the same synced, 100 at once"),
    ("daemon", "interval, put, 8 clients", "put over TCP, 8 clients"),
    ("daemon", "interval, put, bulk of 500", "put over TCP, 500 at once"),
    ("daemon", "interval, cycle, one at a time", "put, lease, complete over TCP"),
    ("tasks", "put one by one, 100,000 calls", "call a task"),
    ("tasks", "run by one worker, 100,000 calls", "run a task"),
    ("spark", "read, all columns", "the log in Spark, all columns"),
)
"""Program, row and caption of what the README shows, as a table and as a chart."""


_FLOOR = ("bare ", "os.write ")
"""So begins what is no peer, but the least that any program pays for the same bytes."""


def headlines(results: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Caption and row of what the README shows, with the peers alone."""
    rows = {(program["name"], row["row"]): row for program in results for row in program["rows"]}
    found = [(caption, rows[name, row]) for name, row, caption in _HEADLINES if (name, row) in rows]
    return [
        (caption, row | {"peers": {peer: value for peer, value in row["peers"].items()
                                   if not peer.startswith(_FLOOR)}})
        for caption, row in found
    ]  # fmt: skip


def html_page(results: list[dict[str, Any]]) -> str:
    """All rows as bars."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width, initial-scale=1'>",
        f"<title>fastjournal: benchmarks</title><style>{_STYLE}</style>",
        "<h1>Benchmarks</h1>",
        "<p class=dim>Medians; ours with its smallest and largest</p>",
    ]
    for program in results:
        parts.append(f"<h2>{escape(program['name'])}</h2>")
        parts.append(f"<p class=dim>{escape(how_taken(program))}</p>")
        if program["failed"]:
            parts.append("<p class=behind>This program failed; its rows are missing.</p>")
        parts += [f"<p class=dim>Left out: {escape(why)}</p>" for why in program["left_out"]]
        for row in program["rows"]:
            parts.append("".join(_bars(row)))
    return "\n".join(parts) + "\n"


def _bars(row: dict[str, Any]) -> Iterator[str]:
    better = "smaller is better" if row["better"] == "lower" else "larger is better"
    yield f"<div class=row><div class=name>{escape(row['row'])} "
    yield f"<span class=dim>{escape(row['unit'])}, {better}</span></div>"
    most = max([row["ours"], *row["peers"].values()]) or 1.0
    low, high = (figure(value) for value in row["spread"])
    yield _bar("ours", row["ours"] / most, f"{figure(row['ours'])} [{low}, {high}]", "ours")
    for name, value in row["peers"].items():
        ratio, word = against(row, value)
        text = f"{figure(value)} <span class={word}>{ratio:.1f}× {word}</span>"
        yield _bar(escape(name), value / most, text, "")
    yield "</div>"


def _bar(name: str, share: float, text: str, kind: str) -> str:
    return (
        f"<div class='bar {kind}'><span>{name}</span>"
        f"<i style='width:{100 * share:.1f}%'></i><span class=figure>{text}</span></div>"
    )


def against(row: dict[str, Any], peer: float) -> tuple[float, str]:
    """By how much we are ahead of a peer or behind it: a ratio of at least one, and which."""
    ours = row["ours"]
    if not ours or not peer:
        return 1.0, "ahead"
    ratio = peer / ours if row["better"] == "lower" else ours / peer
    return (ratio, "ahead") if ratio >= 1 else (1 / ratio, "behind")


def how_taken(program: dict[str, Any]) -> str:
    """On which machine the figures of a program were taken, when, and whether in a short run."""
    kind = "short run" if program["quick"] else "full run"
    return f"{kind} of {program['seconds']:.0f} s, {program['machine']}, {program['taken']}"


def markdown_table(program: dict[str, Any]) -> str:
    """The rows of a program as a table of the docs; a column for each peer where they are few."""
    names = list(dict.fromkeys(name for row in program["rows"] for name in row["peers"]))
    few = len(names) <= 3
    beside = names if few else ["beside it"]
    taken = how_taken(program)
    lines = [f"{taken[0].upper()}{taken[1:]}.\n", _line(["row", "ours", "spread", *beside])]
    lines.append("|---|---:|---|" + "---|" * len(beside))
    for row in program["rows"]:
        low, high = (figure(value) for value in row["spread"])
        told = {name: _beside(row, value) for name, value in row["peers"].items()}
        beside = (
            [told.get(name, "") for name in names]
            if few
            else ["; ".join(f"{name} {text}" for name, text in told.items())]
        )
        name = f"{row['row']}, {row['unit']}"
        lines.append(_line([name, figure(row["ours"]), f"{low}–{high}", *beside]))
    lines += [f"\nLeft out: {why}" for why in program["left_out"]]
    return "\n".join(lines) + "\n"


def _beside(row: dict[str, Any], value: float) -> str:
    ratio, word = against(row, value)
    return f"{figure(value)} ({ratio:.1f}× {word})"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def put_between(text: str, name: str, content: str) -> str:
    """A page with other content between the marks of that name."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, begun, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        raise SystemExit(f"the marks {begin.strip()} and {end.strip()} are missing")
    return f"{before}{begin}{content}{end}{after}"


def headline(results: list[dict[str, Any]]) -> str:
    """What the README says of speed."""
    lines = ["| | fastjournal | beside it |", "|---|---:|---|"]
    for caption, row in headlines(results):
        beside = ", ".join(f"{name} {figure(value)}" for name, value in row["peers"].items())
        lines.append(_line([f"{caption}, {row['unit']}", figure(row["ours"]), beside]))
    return "\n".join(lines) + "\n"


def chart(results: list[dict[str, Any]]) -> str:
    """Headlines as a picture: how many times a peer's figure is worse, or better, than ours."""
    bars = [
        (caption, row, peer, value)
        for caption, row in headlines(results) for peer, value in row["peers"].items()
    ]  # fmt: skip
    height = 34 + 26 * len(bars)
    out = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 760 {height}' width='760' ",
        f"height='{height}' font-family='system-ui, sans-serif' font-size='13'>",
        f"<style>{_CHART_STYLE}</style>",
        f"<rect class='sheet' width='760' height='{height}' rx='6'/>",
        "<text class='dim' x='12' y='20'>How many times faster than the same work with…",
        " (grey: slower; bars are logarithmic)</text>",
    ]
    most = max([against(row, value)[0] for _, row, _, value in bars], default=2.0)
    for number, (caption, row, peer, value) in enumerate(bars):
        ratio, word = against(row, value)
        y = 34 + 26 * number
        width = max(2.0, 215 * log(ratio) / log(most))
        out += [
            f"<text x='12' y='{y + 15}'>{escape(caption)}</text>",
            f"<text class='dim' x='245' y='{y + 15}'>{escape(peer)}</text>",
            f"<rect class='{word}' x='470' y='{y + 4}' width='{width:.1f}' height='14' rx='2'/>",
            f"<text x='{476 + width:.1f}' y='{y + 15}'>{ratio:.1f}×</text>",
        ]
    out.append("</svg>\n")
    return "".join(out)


def figure(value: float) -> str:
    """A number with three figures, thousands marked."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
