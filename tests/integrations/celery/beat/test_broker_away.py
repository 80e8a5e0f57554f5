"""While the broker is away, entries wait. Then the rule for missed occurrences holds, and nothing has piled up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from wheel_sched_celery.release import publishing
from wheel_sched_celery.release.publishing import TaskPublisher

from wheel_sched.dispatcher import Batch, Failed
from wheel_sched.store.core.settle import Done
from wheel_sched.store.recurring import Recur


class Broker:
    """A broker's connection whose sends fail while `failure` is set."""

    failure: Failed | None = None

    def send(self, tasks: list[Any]) -> list[Failed | None]:
        return [self.failure for _ in tasks]

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def publisher(beat: Any) -> Iterator[TaskPublisher]:
    made = TaskPublisher(beat.app, None)
    made._broker = Broker()  # type: ignore[assignment]
    yield made
    made.close()


def _publish(beat: Any, publisher: TaskPublisher) -> list[Any]:
    claim = beat.store.claim()
    batch = Batch(claim, claim.items)
    publisher.publish(batch)
    for item in claim.items:
        beat.store.settle(claim, [Done(item.id)]) if item.topic != "wheel-sched-beat" else None
    return batch.answers


def test_entries_wait_while_sends_fail(beat: Any, publisher: TaskPublisher, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(publishing.time, "monotonic", lambda: now_s[0])
    beat.add("one", 60)
    beat.pass_ms(60_000)
    for failure, waits in ((Failed("away"), True), (None, False), (Failed("too large", transient=False), False)):
        publisher._broker.failure = failure  # type: ignore[attr-defined]
        beat.entries.run_now("one")
        _publish(beat, publisher)
        beat.pass_ms(31_000)  # the lease of the entry is over
        (answer,) = _publish(beat, publisher)
        assert type(answer) is (Failed if waits else Recur)
        beat.pass_ms(31_000)


def test_a_failure_is_forgotten(beat: Any, publisher: TaskPublisher, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(publishing.time, "monotonic", lambda: now_s[0])
    beat.add("one", 60)
    publisher._broker.failure = Failed("away")  # type: ignore[attr-defined]
    beat.entries.run_now("one")
    _publish(beat, publisher)
    beat.pass_ms(60_000)
    now_s[0] += publishing.AWAY_S
    (answer,) = _publish(beat, publisher)
    assert type(answer) is Recur
