"""`BeatEntries`: what is stored, changed and refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from wheel_sched_celery.beat.entries import BeatEntries
from wheel_sched_celery.beat.entry import item_id_of

from wheel_sched.errors import ConfigError, NotDone, Rejected


@pytest.fixture(params=[1, 3], ids=["one-shard", "three-shards"])
def beat(request: pytest.FixtureRequest, make_beat: Callable[..., Any]) -> Any:
    return make_beat(shards=request.param)


def test_an_entry_waits_for_its_first_due_time(beat: Any) -> None:
    entry = beat.add("one", 60, args=(1,), options={"queue": "mail"})
    assert (entry.due_ms, entry.added_ms, entry.source) == (beat.now_ms + 60_000, beat.now_ms, "run-time")
    stored = beat.entries.get("one")
    assert (stored.state, stored.found.score_ms, stored.problem) == ("waiting", beat.now_ms + 60_000, "")
    assert beat.entries.get("two") is None
    with pytest.raises(NotDone, match="already"):
        beat.add("one", 30)


def test_entries_are_listed_by_name(beat: Any) -> None:
    for name in ("b", "ä", "a", "with a space"):
        beat.add(name)
    assert [stored.name for stored in beat.entries.all()] == ["a", "b", "with a space", "ä"]


def test_a_paused_entry_waits_for_resume(beat: Any) -> None:
    beat.add("one", "0 4 * * *")
    assert beat.entries.pause("one").state == "paused"
    assert beat.entries.pause("one").entry.due_ms is None
    assert beat.entries.next_runs("one", 3) == []
    beat.pass_ms(3 * 86_400_000)
    stored = beat.entries.resume("one")
    assert stored.state == "waiting"
    assert stored.entry.due_ms == beat.now_ms + 16 * 3_600_000
    assert beat.entries.resume("one").found.version == stored.found.version


def test_the_next_runs(beat: Any) -> None:
    beat.add("one", 60)
    assert beat.entries.next_runs("one", 3) == [beat.now_ms + 60_000 * number for number in (1, 2, 3)]


def test_another_schedule_moves_the_due_time(beat: Any) -> None:
    beat.add("one", 3600)
    first = beat.entry()
    stored = beat.entries.replace(beat.entries.make("one", "note", 60))
    assert stored.entry.due_ms == beat.now_ms + 60_000
    assert stored.found.score_ms == beat.now_ms + 60_000
    assert stored.entry.earlier == ((first.fingerprint, beat.now_ms),)
    beat.pass_ms(10_000)
    same = beat.entries.replace(beat.entries.make("one", "note", 60, args=(5,)))
    assert same.entry.due_ms == stored.entry.due_ms


def test_a_paused_entry_stays_paused_when_it_is_replaced(beat: Any) -> None:
    beat.add("one", 3600)
    beat.entries.pause("one")
    assert beat.entries.replace(beat.entries.make("one", "note", 60)).state == "paused"


def test_a_change_of_a_version_that_is_gone_is_refused(beat: Any) -> None:
    beat.add("one", 3600)
    version = beat.entries.get("one").found.version
    beat.entries.pause("one")
    with pytest.raises(NotDone, match="changed meanwhile"):
        beat.entries.replace(beat.entries.make("one", "note", 60), if_version=version)
    with pytest.raises(NotDone, match="changed meanwhile"):
        beat.entries.remove("one", if_version=version)
    assert beat.entries.get("one").state == "paused"


def test_a_removed_entry_is_gone(beat: Any) -> None:
    beat.add("one")
    assert beat.entries.remove("one")
    assert beat.entries.get("one") is None
    assert beat.entries.all() == []
    assert not beat.entries.remove("one")


def test_an_entry_that_the_code_still_has_stays_removed(beat: Any) -> None:
    beat.app.conf.beat_schedule["one"] = {"task": "note", "schedule": 60}
    beat.entries.add(replace(beat.entries.make("one", "note", 60), source="code"))
    assert beat.entries.remove("one")
    stored = beat.entries.get("one")
    assert (stored.state, stored.entry.due_ms) == ("removed", None)
    with pytest.raises(NotDone, match="was removed"):
        beat.entries.pause("one")
    assert beat.add("one", 30).due_ms == beat.now_ms + 30_000
    beat.entries.replace(replace(beat.entry(), source="code"))
    beat.entries.remove("one")
    assert beat.entries.resume("one").state == "waiting"


@pytest.mark.parametrize("change", ["pause", "resume", "next_runs"])
def test_an_entry_that_is_not_there_is_named(beat: Any, change: str) -> None:
    with pytest.raises(NotDone, match="no entry 'two'"):
        getattr(beat.entries, change)("two")


def test_a_wrong_schedule_names_the_entry(beat: Any) -> None:
    with pytest.raises(Rejected, match=r"entry 'one': .*nothing was changed"):
        beat.entries.make("one", "note", "61 * * * *")
    assert beat.entries.all() == []


def test_a_claimed_entry_can_be_changed(beat: Any) -> None:
    entry = beat.add("one", 60)
    beat.pass_ms(60_000)
    (claim,) = [claim for shard in range(beat.store.shards) if (claim := beat.store.claim(shard=shard)).items]
    stored = beat.entries.pause("one")
    assert stored.entry == replace(entry, paused=True, due_ms=None)
    assert stored.found.state == "leased"
    assert stored.found.version != claim.items[0].version


def test_an_entry_that_died_comes_back(beat: Any) -> None:
    entry = beat.add("one", 60)
    beat.store.cancel([item_id_of("one")])
    beat.store.bury([(entry.item(), "an older release could not read it")])
    assert beat.entries.get("one").state == "failed"
    assert "older release" in beat.entries.get("one").problem
    assert beat.entries.resume("one").state == "waiting"


def test_an_unreadable_entry_can_be_removed(beat: Any) -> None:
    item = beat.add("one", 60).item()
    beat.store.replace(replace(item, body=b"B1?"))
    assert [stored.state for stored in beat.entries.all()] == ["unreadable"]
    with pytest.raises(NotDone, match="cannot be read"):
        beat.entries.pause("one")
    assert beat.entries.remove("one")


def test_an_app_without_a_store_has_no_entries(make_beat: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="install"):
        BeatEntries(object.__new__(type("NoApp", (), {})))
