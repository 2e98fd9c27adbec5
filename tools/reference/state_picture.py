"""The states of a row as a picture: boxes placed by hand, arrows and their words from the table.

Rules:

1. An arrow that has no way in `_WAYS` stops the program: a new change of state needs its place.
2. Only shapes and text, no script and no font of its own; readable on light and on dark pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from fastjournal.model import State

__all__ = ["picture"]

W, P, C, F, D = State
Pair = tuple[State | None, State | None]

_WIDTH, _HEIGHT = 980, 560
_BOXES: Mapping[State, tuple[int, int, str]] = {
    W: (220, 210, "WAITING"),
    P: (520, 210, "PROCESSING"),
    C: (820, 210, "COMPLETED"),
    F: (660, 70, "FAILED (dead)"),
    D: (360, 370, "DELETED"),
}
_HALF_W, _HALF_H = 72, 24
_GROUND = 500
"""Height of the bar on which every life ends."""

# For each arrow: its path, where its words stand, and how they are aligned there.
_WAYS: Mapping[Pair, tuple[str, int, int, str]] = {
    (None, W): ("M 40 210 L 144 210", 24, 192, "start"),
    (W, P): ("M 292 202 L 444 202", 368, 192, "middle"),
    (P, W): ("M 448 222 L 296 222", 368, 238, "middle"),
    (P, C): ("M 592 210 L 744 210", 668, 200, "middle"),
    (W, C): ("M 284 234 C 400 330 640 330 780 238", 600, 322, "start"),
    (P, F): ("M 552 186 L 622 98", 604, 146, "start"),
    (W, F): ("M 236 186 C 270 90 420 60 584 66", 300, 84, "end"),
    (F, W): ("M 616 46 C 460 0 180 20 204 182", 252, 50, "end"),
    (W, D): ("M 244 234 L 318 342", 300, 286, "start"),
    (D, W): ("M 300 346 L 220 238", 236, 318, "end"),
    (P, D): ("M 490 234 L 404 342", 466, 282, "start"),
    (W, None): ("M 168 234 L 168 496", 158, 400, "end"),
    (D, None): ("M 360 394 L 360 496", 370, 428, "start"),
    (P, None): ("M 536 234 L 536 496", 548, 400, "start"),
    (C, None): ("M 820 234 L 820 496", 810, 360, "end"),
    (F, None): ("M 732 70 L 950 70 L 950 496", 940, 110, "end"),
}
_SHORT = {
    "complete with a result": "complete, result",
    "complete without a result": "complete, no result",
    "delete or take of a Workq job": "",
    "lease of a Workq job": "",
    "delete with a tombstone": "delete",
    "expires passed": "expires",
    "lease_until passed": "lease ends",
    "put, same key": "put",
}
"""Words for the picture; empty: said by another of the same arrow."""


def picture(arrows: Mapping[Pair, Sequence[str]]) -> str:
    """The picture as SVG."""
    if unknown := set(arrows) ^ set(_WAYS):
        raise SystemExit(f"state_picture.py has no way for, or too many: {unknown}")
    parts = [_HEAD]
    for pair, events in arrows.items():
        path, x, y, anchor = _WAYS[pair]
        parts.append(f'<path class="arrow" d="{path}" marker-end="url(#tip)"/>')
        words = [word for event in events if (word := _SHORT.get(event, event))]
        lines = _lines(words, "," if pair[1] is not None or pair[0] is F else "")
        parts.append(_text(x, y, anchor, lines))
    for state, (x, y, name) in _BOXES.items():
        parts.append(
            f'<rect class="box {state.name.lower()}" x="{x - _HALF_W}" y="{y - _HALF_H}" '
            f'width="{2 * _HALF_W}" height="{2 * _HALF_H}" rx="8"/>'
        )
        parts.append(f'<text class="name" x="{x}" y="{y + 5}">{escape(name)}</text>')
    parts.append('<circle class="start" cx="34" cy="210" r="7"/>')
    parts.append(f'<rect class="ground" x="120" y="{_GROUND}" width="850" height="4"/>')
    parts.append(f'<text class="name" x="545" y="{_GROUND + 28}">no row</text>')
    return "\n".join([*parts, "</svg>", ""])


def _lines(words: Sequence[str], joined: str) -> list[str]:
    """One word a line where there is room below, else a few to a line."""
    if not joined:
        return list(words)
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(word) < 22:
            lines[-1] += f", {word}"
        else:
            lines.append(word)
    return lines


def _text(x: int, y: int, anchor: str, lines: Sequence[str]) -> str:
    spans = "".join(
        f'<tspan x="{x}" dy="{0 if n == 0 else 15}">{escape(line)}</tspan>'
        for n, line in enumerate(lines)
    )
    return f'<text class="word" x="{x}" y="{y}" text-anchor="{anchor}">{spans}</text>'


_HEAD = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" \
width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="States of a row">
<style>
.sheet {{ fill: #ffffff; }}
.arrow {{ fill: none; stroke: #5a6472; stroke-width: 1.4; }}
.tip, .start, .ground {{ fill: #5a6472; }}
.box {{ fill: #eef2f7; stroke: #39424e; stroke-width: 1.4; }}
.processing {{ fill: #e3edff; }} .completed {{ fill: #e4f5e8; }} .failed {{ fill: #fde8e6; }}
.deleted {{ fill: #f3f0ea; }}
text {{ font-family: system-ui, sans-serif; fill: #1d2530; }}
.name {{ font-size: 13px; font-weight: 600; text-anchor: middle; }}
.word {{ font-size: 12px; paint-order: stroke; stroke: #ffffff; stroke-width: 4px; }}
@media (prefers-color-scheme: dark) {{
.sheet {{ fill: #16191d; }}
.arrow {{ stroke: #a9b4c2; }}
.tip, .start, .ground {{ fill: #a9b4c2; }}
.box {{ fill: #2a323c; stroke: #9aa6b5; }}
.processing {{ fill: #1f3052; }} .completed {{ fill: #1d3a28; }} .failed {{ fill: #472324; }}
.deleted {{ fill: #35312a; }}
text {{ fill: #e8edf3; }}
.word {{ stroke: #16191d; }}
}}
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" \
orient="auto"><path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>
<rect class="sheet" width="{_WIDTH}" height="{_HEIGHT}" rx="10"/>"""
