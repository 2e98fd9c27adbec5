"""The figures of a report as one page that needs nothing else: no script, no request. No Spark.

Rules:

1. Everything that came from the journal is escaped.
2. Only what is in the figures is shown; the page computes nothing but rates and texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from fastjournal.spark.report.svg import bars, bytes_text, count_text, length_text, lines, stacked

__all__ = ["page"]


def page(figures: dict[str, Any]) -> str:
    """The whole page."""
    template = Template(
        files("fastjournal.spark.report").joinpath("page.html").read_text(encoding="utf-8")
    )
    name = figures["journal"].rstrip("/").rpartition("/")[2] or figures["journal"]
    start, end = (figures[word][:16].replace("T", " ") for word in ("from", "to"))
    period = (
        f"{escape(figures['journal'])} · {start} to {end} UTC"
        f" ({length_text(figures['seconds'])}) · one point is {length_text(figures['step_s'])}"
    )
    return template.substitute(
        title=f"Journal report: {escape(name)}",
        period=period,
        tiles=_tiles(figures),
        plots="\n".join(_plots(figures)),
        tables="\n".join(_tables(figures)),
        footer="Made by <code>fastjournal spark report</code> from the log alone. Times are UTC."
        " Percentiles are right to one per cent. Hover over a plot for its figures.",
    )


def _length(value: float | None) -> str:
    return "–" if value is None else length_text(value)


def _percent(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value * 100:.3g} %" if value < 0.9995 or value == 1 else f"{value * 100:.2f} %"


def _whole(value: int) -> str:
    return f"{value:,}".replace(",", " ")


def _tiles(figures: dict[str, Any]) -> str:
    totals = figures["totals"]
    ratio = totals["merge_ratio"]
    merged = "–" if ratio is None else f"{ratio:.3g}"
    tiles = [
        (count_text(totals["asked"]), f"jobs asked for ({count_text(totals['asked_per_s'])}/s)", 0),
        (count_text(totals["done"]), f"done ({count_text(totals['done_per_s'])}/s)", 0),
        (merged, f"asked for per row ({count_text(totals['merged'])} merged)", 0),
        (_length(totals["wait_s"]["p95"]), "wait, 95 of 100 below", 0),
        (_length(totals["run_s"]["p95"]), "run, 95 of 100 below", 0),
        (_percent(totals["retried_jobs"]), "of done jobs took more than one attempt", 0),
        (count_text(totals["failed_attempts"]), "attempts failed", 0),
        (count_text(totals["timed_out"]), "leases lost to time-outs", totals["timed_out"]),
        (count_text(totals["dead"]), f"died ({count_text(totals['failed_now'])} dead now)",
         totals["dead"]),
        (count_text(totals["waiting_now"]),
         f"waiting now, {count_text(totals['processing_now'])} worked on", 0),
    ]  # fmt: skip
    inside = "".join(
        f'<div class="tile{" bad" if bad else ""}"><b>{escape(value)}</b>'
        f"<span>{escape(word)}</span></div>"
        for value, word, bad in tiles
    )
    return f'<div class="tiles">{inside}</div>'


def _section(title: str, note: str, body: str) -> str:
    return f'<section><h2>{title}</h2><p class="note">{note}</p>{body}</section>'


def _plots(figures: dict[str, Any]) -> list[str]:
    series, step = figures["series"], figures["step_s"]
    times = series["time"]

    # The last point may be a part of a bucket; a small part tells no rate.
    left = figures["seconds"] - step * (len(times) - 1)

    def rate(name: str) -> list[float | None]:
        found: list[float | None] = [value / step for value in series[name]]
        found[-1] = series[name][-1] / left if left > step / 4 else None
        return found

    def lengths(word: str) -> str:
        named = {
            f"{p[1:]} of 100 below": series[f"{word}_{p}_s"][: -1 if left <= step / 4 else None]
            for p in ("p99", "p95", "p50")
        }
        return lines(
            word,
            times[: len(named["50 of 100 below"])],
            named,
            text=length_text,
            lengths=True,
            colours=(5, 2, 0),
        )

    growth = []
    total = figures["log"]["bytes_before"]
    for size in series["log_bytes"]:
        total += size
        growth.append(total)
    return [
        _section(
            "Throughput",
            "Jobs in a second: asked for by producers, handed out, done.",
            lines(
                "throughput",
                times,
                {"asked for": rate("asked"), "handed out": rate("leased"), "done": rate("done")},
                colours=(5, 0, 1),
            ),
        ),
        _section(
            "Backlog",
            "Rows at the end of each point, by state."
            f" {_whole(figures['totals']['completed_now'])} completed rows are kept for their"
            " results besides.",
            stacked(
                "backlog",
                times,
                {
                    "worked on": series["processing"],
                    "waiting": series["waiting"],
                    "dead": series["failed"],
                },
                colours=(1, 0, 3),
            ),
        ),
        _section(
            "Wait", "From the moment a job could be handed out until it was.", lengths("wait")
        ),
        _section("Run", "From the lease to its end, however it ended.", lengths("run")),
        _section(
            "Trouble",
            "Attempts that failed and are tried again, leases lost to time-outs, rows given up.",
            bars(
                "trouble",
                times,
                {
                    "tried again": series["retried"],
                    "timed out": series["timed_out"],
                    "dead": series["dead"],
                },
                colours=(2, 4, 3),
            ),
        ),
        _section(
            "Log",
            _log_note(figures["log"]),
            stacked("log", times, {"bytes written": growth}, text=bytes_text, colours=(0,)),
        ),
    ]


def _log_note(log: dict[str, Any]) -> str:
    files = "segment" if log["segments"] == 1 else "segments"
    words = f"{bytes_text(log['bytes'])} in {_whole(log['segments'])} {files} on disk."
    if log["after_cleaning"] is None:
        return words + " What cleaning would free is not known here."
    gain = log["bytes"] - log["after_cleaning"]
    share = f" ({gain / log['bytes'] * 100:.0f} %)" if log["bytes"] else ""
    return words + f" Cleaning now would free {bytes_text(gain)}{share}."


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """Cells; a head that begins with `#` stands over numbers."""
    numbers = [head.startswith("#") for head in heads]

    def cell(tag: str, text: str, n: int) -> str:
        if text.startswith("<td"):
            return text
        named = ' class="n"' if numbers[n] else (' class="t"' if tag == "td" else "")
        return f"<{tag}{named}>{text}</{tag}>"

    head = "".join(cell("th", escape(text.lstrip("#")), n) for n, text in enumerate(heads))
    body = "".join(
        "<tr>" + "".join(cell("td", text, n) for n, text in enumerate(row)) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _within(one: dict[str, Any]) -> str:
    share = one["within_target"]
    if share is None:
        return '<td class="n">–</td>'
    return f'<td class="n {"good" if share >= 0.95 else "bad"}">{_percent(share)}</td>'


def _tables(figures: dict[str, Any]) -> list[str]:
    found = [
        _section(
            "Queues",
            "Target: how long a job may wait once it could be handed out; green from 95 % on.",
            _table(
                ["queue", "#asked", "#merged", "#done", "#done/s", "#failed", "#timed out", "#dead",
                 "#wait p50", "#p95", "#p99", "#run p50", "#p95", "#target", "#within",
                 "#waiting", "#oldest"],
                [_queue_row(one) for one in figures["queues"][:100]],
                "wide",
            ),
        )
    ]  # fmt: skip
    found.append(_dead(figures))
    if figures["hot_keys"]:
        exact = "" if figures["hot_keys_exact"] else " Rare keys were let go: counts may be low."
        found.append(
            '<div class="plots">'
            + _section(
                "Hot keys", f"Asked for most often.{exact}", _hot(figures["hot_keys"], "key")
            )
            + _section(
                "Hot domains",
                "The same by the domain of the key.",
                _hot(figures["hot_domains"], "domain"),
            )
            + '</div><div style="height:14px"></div>'
        )
    workers = [one for one in figures["workers"] if one["worker"]]
    if workers:
        rows = [
            [
                escape(one["worker"]),
                _whole(one["attempts"]),
                _whole(one["lost"]),
                _percent(one["lost"] / one["attempts"]),
                _whole(one["failed"]),
            ]
            for one in workers[:20]
        ]
        found.append(
            _section(
                "Lease losses",
                "Workers by the leases they let pass; what they did after that was not counted.",
                _table(["worker", "#attempts", "#lost", "#of its attempts", "#failed"], rows),
            )
        )
    return found


def _queue_row(one: dict[str, Any]) -> list[str]:
    wait, run = one["wait_s"], one["run_s"]
    return [
        escape(one["queue"]),
        _whole(one["asked"]),
        _whole(one["merged"]),
        _whole(one["done"]),
        count_text(one["done_per_s"]),
        _whole(one["failed"]),
        _whole(one["timed_out"]),
        _whole(one["dead"]),
        *(_length(wait[p]) for p in ("p50", "p95", "p99")),
        *(_length(run[p]) for p in ("p50", "p95")),
        length_text(one["target_s"]),
        _within(one),
        _whole(one["waiting_now"]),
        _length(one["oldest_ready_s"]),
    ]


def _dead(figures: dict[str, Any]) -> str:
    if not figures["dead"]:
        return _section("Dead rows", "None died.", "")
    causes = _table(
        ["queue", "why", "last words", "#rows"],
        [
            [
                escape(one["queue"]),
                escape(one["reason"]),
                escape(one["text"]) or "–",
                _whole(one["count"]),
            ]
            for one in figures["dead"][:20]
        ],
    )
    latest = _table(
        ["died", "queue", "key", "last words"],
        [
            [
                one["time"][:19].replace("T", " "),
                escape(one["queue"]),
                escape(one["key"]) or "–",
                escape(one["text"]),
            ]
            for one in figures["last_dead"][:8]
        ],
    )
    gap = '<p class="note" style="margin-top:14px">The last ones:</p>'
    return _section("Dead rows", "Why rows were given up.", causes + gap + latest)


def _hot(rows: list[dict[str, Any]], name: str) -> str:
    most = max((one["asked"] for one in rows), default=1)
    cells = []
    for one in rows[:12]:
        width = f"{one['asked'] / most * 100:.0f}%"
        bar = f'<td><div class="meter"><i style="width:{width}"></i></div></td>'
        queue = [escape(one["queue"])] if "queue" in one else []
        cells.append([escape(one[name]), *queue, bar, _whole(one["asked"])])
    return _table([name, *(["queue"] if "queue" in rows[0] else []), "", "#asked"], cells)
