"""`python -m benchmarks.page`: writes the tables and pictures of docs/benchmarks.md from docs/internals/figures.md.

The benchmarks write their results into figures.md. This program measures nothing: it copies the values from there, so
both pages show the same values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.__main__ import BENCHMARKS
from benchmarks.apscheduler import plots as apscheduler_plots
from benchmarks.charts import ChartMark, Row, RowGroup, Words, bars, dots, time_text
from benchmarks.figures import Figure, missed
from benchmarks.growth import plots as growth_plots
from benchmarks.purgatory import plots as purgatory_plots
from benchmarks.report import write_section
from benchmarks.summary import CAPABILITIES, Compared
from benchmarks.wheel import plots as wheel_plots

DOCS = Path(__file__).resolve().parents[1] / "docs"
FIGURES, PAGE, PICTURES = DOCS / "internals" / "figures.md", DOCS / "benchmarks.md", DOCS / "images"
_COSTS = {"Schedule": "schedule", "Expire": "expire", "90 % cancelled, per request": "cancelled90"}
_SECTION = re.compile(r"<!-- figures: (.+?) -->\n(.*?)<!-- end of figures: \1 -->", re.DOTALL)
_TIMES = {"s": 1.0, "ms": 1e-3}
_DASH = "–"  # noqa: RUF001 - a dash


class Figures:
    """The values in docs/internals/figures.md, by their names. `benchmarks.summary` says how a value is named.

    Args:
        text: the text of that page.
    """

    def __init__(self, text: str) -> None:
        self._texts: dict[str, str] = {}
        for section, body in _SECTION.findall(text):
            for line in body.splitlines():
                cells = [cell.strip() for cell in line.split("|")[1:-1]]
                if len(cells) == 4 and cells[0].startswith("`"):
                    self._texts[f"{section}/{cells[0].strip('`')}"] = cells[1]
                elif cells and cells[0].endswith(", ns"):
                    head = cells
                elif len(cells) > 1 and section == "wheel, all" and not cells[0].startswith("-"):
                    for count, cell in zip(head[1:], cells[1:], strict=True):
                        self._texts[f"{section}/{head[0]}/{cells[0]}/{count}"] = f"{cell} ns"

    def text(self, name: str) -> str:
        """The value with its unit, as it is written on the page.

        Raises:
            KeyError: the page has no such value.
        """
        return self._texts[name]

    def value(self, name: str) -> float:
        """The value as a number.

        Raises:
            KeyError: the page has no such value.
            ValueError: the value is not measured yet.
        """
        return float(self._texts[name].split()[0].replace(",", ""))

    def result(self, section: str) -> dict[str, Any]:
        """The values of a section, in the form of a benchmark's result; what is not measured yet is left out."""
        found: dict[str, Any] = {}
        for name, text in self._texts.items():
            if name.startswith(f"{section}/") and text[0].isdigit():
                *outer, last = name.partition("/")[2].split(".")
                inside = found
                for step in outer:
                    inside = inside.setdefault(step, {})
                inside[last] = self.value(name)
        return found

    def costs(self) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
        """The times (ns) of the wheel's benchmark, by operation, mix of deadlines, count of timers, implementation."""
        costs: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
        for name, text in self._texts.items():
            if name.startswith("wheel, all/") and text[0].isdigit():
                _, title, timer, count = name.split("/")
                what, mix, _ = title.rsplit(", ", 2)
                counts = costs.setdefault(_COSTS[what], {}).setdefault(mix, {})
                counts.setdefault(count, {})[timer] = self.value(name)
        return costs


def table(figures: Figures, rows: Sequence[Compared]) -> str:
    """The Markdown table of a capability. Its first column is the ratio."""
    lines = ["| ratio | measured | wheel-sched | peer | name of the peer |", "|---|---|---|---|---|"]
    for row in rows:
        ours, theirs = (figures.text(name) if name else _DASH for name in (row.ours, row.theirs))
        lines.append(f"| {ratio(figures, row)} | {row.measured} | {ours} | {theirs} | {row.peer} |")
    return "\n".join(lines)


def ratio(figures: Figures, row: Compared) -> str:
    """How many times as good as the peer's value ours is, as text; a dash if one of the two values is 0.

    It is the measured ratio if the row names one, else the ratio of the two values.
    """
    if row.ratio:
        return figures.text(row.ratio)
    ours, theirs = figures.value(row.ours), figures.value(row.theirs)
    if not ours or not theirs:
        return _DASH
    value = ours / theirs if row.more_is_better else theirs / ours
    return f"{value:,.{_digits(value)}f} x"


def _digits(value: float) -> int:
    """How many digits to write after the point, so that about three digits are significant."""
    return 2 if value < 10 else int(value < 100)


def missed_gates(figures: Figures) -> str:
    """A table of the figures that miss their gates, or are not measured yet."""
    lines = ["| benchmark | figure | value | gate |", "|---|---|---|---|"]
    for name in BENCHMARKS:
        benchmark = import_module(f"benchmarks.{name}")
        parts = [(name, benchmark.FIGURES), (f"{name}, jvm", getattr(benchmark, "JVM_FIGURES", ()))]
        for section, declared in parts:
            lines += [_missed(figures, section, one) for one in declared if missed([one], figures.result(section))]
    return "\n".join(lines)


def _missed(figures: Figures, section: str, figure: Figure) -> str:
    value = figures.text(f"{section}/{figure.key}")
    return f"| {section} | `{figure.key}` | {value} | {figure.bound} |"


def draw(figures: Figures, folder: Path) -> list[Path]:
    """Draw all benchmark pictures into `folder`. Returns their paths.

    The pictures of the purgatory, of APScheduler and of growth are drawn from `.json` files in the same folder.
    """
    texts = {"store": _store(figures), "celery": _celery(figures), "kafka": _kafka(figures), "spark": _spark(figures)}
    for name, text in texts.items():
        (folder / f"{name}.svg").write_text(text, "utf-8")
    return [
        *(folder / f"{name}.svg" for name in texts),
        *wheel_plots.write_plots({"table": figures.costs()}, folder),
        *purgatory_plots.draw(folder),
        *apscheduler_plots.draw(folder),
        *growth_plots.draw(folder),
    ]


def _rate(figures: Figures, name: str, series: int) -> list[ChartMark]:
    return [ChartMark(series, figures.value(name), figures.text(name))]


def _store(figures: Figures) -> str:
    words = Words(
        title="Store and dispatcher: messages a second beside bare commands",
        description="Bars in two groups. Longer is better.",
        axis="messages a second, longer is better",
        legend=("wheel-sched", "bare commands"),
    )
    groups = [
        RowGroup(
            "Store messages, 500 a call",
            [
                Row("schedule", _rate(figures, "store/schedule_msgs_per_s", 0)),
                Row("bare ZADD", _rate(figures, "store/baseline.zadd_msgs_per_s", 1)),
            ],
        ),
        RowGroup(
            "Release a burst of 10,000 due messages",
            [
                Row("claim, memory broker, settle", _rate(figures, "dispatch/burst_memory_msgs_per_s", 0)),
                Row("push to a stream", _rate(figures, "dispatch/burst_streams_msgs_per_s", 0)),
                Row("bare XADD", _rate(figures, "dispatch/baseline.xadd_msgs_per_s", 1)),
            ],
        ),
    ]
    return bars(words, groups)


def _celery(figures: Figures) -> str:
    words = Words(
        title="Celery: how late tasks with an ETA run, stock beside ours",
        description="Rows with two times each, in three groups. Further left is better.",
        axis="time after the ETA, further left is better",
        legend=("wheel-sched", "stock Celery"),
    )
    groups = [
        RowGroup(
            heading,
            [
                Row(f"{pool} pool", _pair(figures, f"celery/lateness_ms.{pool}.{{}}.{share}"))
                for pool in ("solo", "threads", "prefork")
            ],
        )
        for heading, share in (("Half of the tasks are no later than", "p50"), ("99 of 100 are no later than", "p99"))
    ]
    killed = Row("99 of 100 are no later than", _pair(figures, "celery/kill9_late_s.{}"))
    return dots(words, [*groups, RowGroup("One of two workers is killed", [killed])], time_text)


def _pair(figures: Figures, name: str) -> list[ChartMark]:
    return [_time(figures, name.format(side), series) for series, side in enumerate(("ours", "stock"))]


def _time(figures: Figures, name: str, series: int) -> ChartMark:
    unit = _TIMES[figures.text(name).split()[1]]
    return ChartMark(series, figures.value(name) * unit, figures.text(name))


def _kafka(figures: Figures) -> str:
    words = Words(
        title="Kafka: how late messages with mixed delays are",
        description="Three designs with two times each. Further left is better.",
        axis="time after a message is due, further left is better",
        legend=("half are no later", "99 of 100 are no later"),
    )
    designs = {"wheel-sched": "mixed", "a topic per level of delay": "spring_style", "one topic for all": "one_topic"}
    rows = [
        Row(name, [_time(figures, f"kafka/{key}_lateness_ms.p{share}", n) for n, share in enumerate((50, 99))])
        for name, key in designs.items()
    ]
    return dots(words, [RowGroup("", rows)], time_text)


def _spark(figures: Figures) -> str:
    words = Words(
        title="Spark: rows a second on two local cores",
        description="Bars of the stream writer, the reader and a plain loop of writes. Longer is better.",
        axis="rows a second, longer is better",
        legend=("wheel-sched on Spark", "a plain loop"),
    )
    rows = [
        Row("read every column", _rate(figures, "spark/reader_rows_per_s", 0)),
        Row("write", _rate(figures, "spark/writer_rows_per_s", 0)),
        Row("write, plain loop", _rate(figures, "spark/baseline.plain_rows_per_s", 1)),
    ]
    return bars(words, [RowGroup("", rows)])


def tables(figures: Figures) -> Mapping[str, str]:
    """The tables of docs/benchmarks.md, by the names of their sections."""
    found = {name: table(figures, rows) for name, rows in CAPABILITIES.items()}
    return found | {"missed gates": missed_gates(figures)}


def main() -> int:
    """Write the tables and the pictures. Returns 0."""
    figures = Figures(FIGURES.read_text("utf-8"))
    for name, text in tables(figures).items():
        write_section(PAGE, name, text)
    for path in draw(figures, PICTURES):
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
