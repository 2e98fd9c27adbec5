"""Plots as inline SVG: no script, no request, colours from the page's style sheet.

Rules:

1. A plot is drawn in a box of `WIDE` by `HIGH` units and grows with the page.
2. Colours are classes (`s0`, `s1`...), so one drawing serves light and dark pages.
3. Every bucket has a tooltip with its time and its figures; null is a gap in the line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from math import floor, log10

__all__ = ["bars", "bytes_text", "count_text", "length_text", "lines", "stacked"]

WIDE, HIGH = 480, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 8, 10, 22
_PLOT_W, _PLOT_H = WIDE - _LEFT - _RIGHT, HIGH - _TOP - _BOTTOM

Values = Sequence[float | None]
Text = Callable[[float], str]


def count_text(value: float) -> str:
    """A number for an axis or a tile: 950, 1.2k, 3.4M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def length_text(seconds: float) -> str:
    """A length of time: 12 ms, 3.4 s, 5.6 min, 7.8 h."""
    if seconds < 0.0005:
        return "0" if seconds < 5e-7 else f"{seconds * 1e6:.3g} µs"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    for size, word in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {word}"
    return f"{seconds:.3g} s"


def bytes_text(size: float) -> str:
    """A size: 12 MB."""
    for number, word in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= number:
            return f"{size / number:.3g} {word}"
    return f"{size:.0f} B"


def _nice(top: float) -> tuple[float, list[float]]:
    """A round end of the axis and its ticks."""
    if top <= 0:
        return 1.0, [0.0, 1.0]
    rough = top / 4
    power = 10.0 ** floor(log10(rough))
    step = next(power * f for f in (1, 2, 2.5, 5, 10) if power * f >= rough * 0.999)
    count = -int(-top // step)
    return step * count, [step * n for n in range(count + 1)]


def _nice_length(top: float) -> tuple[float, list[float]]:
    """The same for seconds: ticks people count in."""
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400)
    if top < 4:
        return _nice(top)
    step = float(next((one for one in steps if top / one <= 5), -(-top // 432_000) * 86_400))
    count = max(1, -int(-top // step))
    return step * count, [step * n for n in range(count + 1)]


def _x(place: float, count: int) -> float:
    return _LEFT + _PLOT_W * place / max(count, 1)


def _y(value: float, top: float) -> float:
    return _TOP + _PLOT_H * (1 - min(value / top, 1.0))


def _frame(ticks: list[float], top: float, text: Text, times: Sequence[str]) -> str:
    parts = []
    for tick in ticks:
        y = _y(tick, top)
        kind = "axis" if tick == 0 else "grid"
        parts.append(
            f'<line class="{kind}" x1="{_LEFT}" x2="{WIDE - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(
            f'<text class="tick" x="{_LEFT - 5}" y="{y + 3.5:.1f}" text-anchor="end">'
            f"{escape(text(tick))}</text>"
        )
    for place, label in _labels(times):
        x = _x(place, len(times))
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{HIGH - 6}" text-anchor="middle">{label}</text>'
        )
        parts.append(
            f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP + _PLOT_H}"'
            f' y2="{_TOP + _PLOT_H + 4}"/>'
        )
    return "".join(parts)


_EVERY = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)


def _labels(times: Sequence[str]) -> list[tuple[float, str]]:
    """Round instants below the axis, at most eight, and their places."""
    if len(times) < 2:
        return [(0.5, times[0][11:16])] if times else []
    moments = [datetime.fromisoformat(time) for time in times]
    first, step = moments[0].timestamp(), (moments[1] - moments[0]).total_seconds()
    span = step * len(times)
    days = max(1, round(span / 7 / 86_400))
    every = next((one for one in _EVERY if span / one <= 7), days * 86_400)
    found = []
    for moment in moments:
        since = moment.timestamp()
        if since % every or not 0.03 < (since - first) / span < 0.97:
            continue
        text = moment.strftime("%H:%M:%S" if every < 60 else "%H:%M")
        if span > 86_400:
            text = moment.strftime("%d %b") if every >= 86_400 else moment.strftime("%d %b %H:%M")
        found.append(((since - first) / step, text))
    return found


def _tips(times: Sequence[str], series: Mapping[str, Values], text: Text) -> str:
    parts = []
    count = len(times)
    width = _PLOT_W / max(count, 1)
    for n, time in enumerate(times):
        said = [
            f"{name} {text(value)}"
            for name, values in series.items()
            if (value := values[n]) is not None
        ]
        label = escape("\n".join([time[:19].replace("T", " "), *said]))
        parts.append(
            f'<rect class="tip" x="{_x(n, count):.1f}" y="{_TOP}" width="{width:.2f}"'
            f' height="{_PLOT_H}"><title>{label}</title></rect>'
        )
    return "".join(parts)


def _legend(names: Iterable[str], colours: Sequence[int]) -> str:
    items = "".join(
        f'<li><span class="dot s{colour}"></span>{escape(name)}</li>'
        for name, colour in zip(names, colours, strict=False)
    )
    return f'<ul class="legend">{items}</ul>'


def _svg(
    title: str,
    body: Sequence[str],
    times: Sequence[str],
    series: Mapping[str, Values],
    text: Text,
    colours: Sequence[int],
) -> str:
    """A legend, and below it what was drawn with a tooltip over each bucket."""
    drawn = "".join(body) + _tips(times, series, text)
    return (
        _legend(series, colours)
        + f'<svg viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="{escape(title)}">{drawn}</svg>'
    )


def lines(
    title: str,
    times: Sequence[str],
    series: dict[str, Values],
    *,
    text: Text = count_text,
    lengths: bool = False,
    colours: Sequence[int] = (0, 1, 2, 3, 4),
) -> str:
    """One line a series."""
    known = [value for values in series.values() for value in values if value is not None]
    top, ticks = (_nice_length if lengths else _nice)(max(known, default=0.0))
    body = [_frame(ticks, top, text, times)]
    count = len(times)
    for n, values in enumerate(series.values()):
        path, pen = [], "M"
        for place, value in enumerate(values):
            if value is None:
                pen = "M"
                continue
            path.append(f"{pen}{_x(place + 0.5, count):.1f} {_y(value, top):.1f}")
            pen = "L"
        # A point between two gaps would be no line at all.
        body.append(f'<path class="line s{colours[n]}" d="{"".join(path)}"/>')
        body += (
            f'<circle class="s{colours[n]}" cx="{_x(p + 0.5, count):.1f}" cy="{_y(v, top):.1f}"'
            ' r="1.6"/>'
            for p, v in enumerate(values)
            if v is not None
            and (p == 0 or values[p - 1] is None)
            and (p + 1 == count or values[p + 1] is None)
        )
    return _svg(title, body, times, series, text, colours)


def _edge(levels: Sequence[float], top: float) -> list[str]:
    """The points of an area's edge, from one side of the plot to the other."""
    count = len(levels)
    places = [(_x(p + 0.5, count), level) for p, level in enumerate(levels)]
    if places:
        places = [(_x(0, count), levels[0]), *places, (_x(count, count), levels[-1])]
    return [f"{x:.1f} {_y(level, top):.1f}" for x, level in places]


def stacked(
    title: str,
    times: Sequence[str],
    series: dict[str, Sequence[float]],
    *,
    text: Text = count_text,
    colours: Sequence[int] = (0, 1, 2, 3, 4),
) -> str:
    """Areas on top of each other, the first one at the bottom."""
    count = len(times)
    floor_line = [0.0] * count
    sums = [sum(values[n] for values in series.values()) for n in range(count)]
    top, ticks = _nice(max(sums, default=0.0))
    body = []
    for n, values in enumerate(series.values()):
        roof = [low + max(value, 0) for low, value in zip(floor_line, values, strict=True)]
        upper = _edge(roof, top)
        lower = _edge(floor_line, top)
        if upper:
            body.append(
                f'<path class="area s{colours[n]}"'
                f' d="M{"L".join(upper)}L{"L".join(reversed(lower))}Z"/>'
            )
        floor_line = roof
    body.append(_frame(ticks, top, text, times))
    return _svg(title, body, times, series, text, colours)


def bars(
    title: str,
    times: Sequence[str],
    series: dict[str, Sequence[float]],
    *,
    text: Text = count_text,
    colours: Sequence[int] = (0, 1, 2, 3, 4),
) -> str:
    """Bars on top of each other, one a bucket."""
    count = len(times)
    sums = [sum(values[n] for values in series.values()) for n in range(count)]
    top, ticks = _nice(max(sums, default=0.0))
    width = max(_PLOT_W / max(count, 1) - 0.6, 0.8)
    body = [_frame(ticks, top, text, times)]
    for place in range(count):
        low = 0.0
        for n, values in enumerate(series.values()):
            if values[place]:
                y, base = _y(low + values[place], top), _y(low, top)
                body.append(
                    f'<rect class="bar s{colours[n]}" x="{_x(place, count) + 0.3:.1f}" y="{y:.1f}"'
                    f' width="{width:.2f}" height="{base - y:.1f}"/>'
                )
                low += values[place]
    return _svg(title, body, times, series, text, colours)
