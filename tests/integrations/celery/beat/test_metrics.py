"""The metrics of the schedule on the page that an exporter shows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families
from wheel_sched_celery.beat import metrics
from wheel_sched_celery.beat.entry import TOPIC
from wheel_sched_celery.extension import EXTENSION

from wheel_sched.observability.prometheus import MetricsCollector, metrics_page

if TYPE_CHECKING:
    import pytest

MINUTE_MS = 60_000


def page(beat: Any) -> dict[tuple[str, ...], float]:
    """The samples about the schedule, by name and values of the labels."""
    text = metrics_page(MetricsCollector({}, beat.store))().body.decode()
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    return {(one.name[12:], *one.labels.values()): one.value for one in samples if "_beat_" in one.name}


def test_the_page_shows_what_was_sent_missed_and_caught_up(beat: Any) -> None:
    """The metrics count sent, missed and caught-up runs of each entry. They also have the lateness of the first entry
    that nobody sends.
    """
    assert page(beat) == {}
    first = beat.add("latest", 60)
    beat.add("all", 60, catch_up="all", catch_up_limit=4)
    beat.entries.add(replace(beat.entries.make("asleep", "note", 60), paused=True))
    beat.pass_ms(10 * MINUTE_MS + 500)
    found = page(beat)
    assert found["beat_oldest_overdue_seconds",] == 9 * 60 + 0.5
    assert found["beat_next_due_timestamp_seconds",] == first.due_ms / 1000
    assert (found["beat_entries", "waiting"], found["beat_entries", "paused"]) == (2, 1)
    beat.tick()
    found = page(beat)
    numbers = {name: [found[f"beat_{kind}_total", name] for kind in ("sent", "missed", "caught_up")] for name in NAMES}
    assert numbers == {"latest": [1, 9, 0], "all": [4, 6, 3], "asleep": [0, 0, 0]}
    assert found["beat_oldest_overdue_seconds",] == 0
    assert beat.entries.remove("latest")
    assert ("beat_sent_total", "latest") not in page(beat)


NAMES = ("latest", "all", "asleep")


def test_only_the_first_entries_have_counters_of_their_own(beat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that were added first have counters of their own, so a new entry never takes the counter of another."""
    monkeypatch.setattr(metrics, "MOST_NAMED", 2)
    for name in ("z", "m", "a"):
        beat.add(name, 60)
        beat.pass_ms(1)
    found = page(beat)
    assert {labels[0] for name, *labels in found if name == "beat_sent_total"} == {"z", "m"}
    assert found["beat_entries", "waiting"] == 3


def test_metrics_of_an_extension_that_fails_are_left_out(
    beat: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The page has all other metrics. The extension names the topic of the entries."""
    assert list(EXTENSION.metrics) == [TOPIC]
    beat.add("one", 60)
    monkeypatch.setattr(metrics, "read_entry", lambda _item: 1 / 0)
    assert page(beat) == {}
    assert "metrics.left_out" in caplog.text
