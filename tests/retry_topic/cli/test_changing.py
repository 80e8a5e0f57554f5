"""The commands run-now, reschedule, delete and replay: by id, by filter, with --dry-run, and at a limited rate."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retry_topic.message import Message
from retry_topic.message.encoding import decode_body, encode_body
from retry_topic.message.headers import RetryState, read, sign, verify, write
from wheel_sched.store import Item

SECRET = b"sixteen bytes ok"
HOUR = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def dues(connection: Any) -> dict[str, int]:
    return {found.id: found.score_ms for found in connection.store.list_items("due").found}


@pytest.fixture
def waiting(wait_for: Any) -> int:
    """Store four messages that are due in an hour, two of each topic. Return the due time."""
    due = now_ms() + HOUR
    for name in ("o1", "o2"):
        wait_for(name, due)
    for name in ("m1", "m2"):
        wait_for(name, due, topic="mails")
    return due


@pytest.mark.parametrize("command", ["retry --yes", "reschedule --in 1h --yes", "delete --yes", "replay --yes"])
def test_saying_nothing_means_nothing(cli: Any, connection: Any, waiting: int, command: str) -> None:
    """Without ids, filter or --all, or with ids and a filter, a changing command is wrong usage and changes nothing."""
    before = dues(connection)
    cli(*command.split(), code=2)
    cli(*command.split(), "o1", "--topic", "orders", code=2)
    assert dues(connection) == before


@pytest.mark.parametrize("command", ["run-now", "reschedule --in 1h", "delete", "replay"])
def test_a_dry_run_counts_shows_five_and_changes_nothing(
    cli: Any, connection: Any, wait_for: Any, bury: Any, command: str
) -> None:
    """--dry-run prints the number of messages and five samples. It asks no question and changes nothing."""
    for number in range(7):
        wait_for(f"m{number}", now_ms() + HOUR)
        bury(f"d{number}")
    before = dues(connection), connection.store.counts().now
    plan = cli.json(*command.split(), "--all", "--dry-run")
    assert plan["dry_run"] is True
    assert plan["count"] == 7
    assert len(plan["samples"]) == 5
    text = cli(*command.split(), "--all", "--dry-run")
    assert "7 " in text.stdout
    assert len(text.stdout.splitlines()) == 6
    assert "nothing was changed" in text.stderr
    assert (dues(connection), connection.store.counts().now) == before


def test_run_now_makes_due_now(cli: Any, connection: Any, waiting: int) -> None:
    """Messages that the filter selects become due now. The others keep their due time."""
    assert cli.json("run-now", "--topic", "orders", "--yes") == {"done": 2}
    assert {name for name, due in dues(connection).items() if due <= now_ms()} == {"o1", "o2"}


@pytest.mark.parametrize(("pace", "step_ms"), [(["--rate", "2"], 500), (["--spread", "4s"], 1_000)])
def test_run_now_is_paced(cli: Any, connection: Any, waiting: int, pace: list[str], step_ms: int) -> None:
    """With --rate or --spread, the new due times have equal steps."""
    cli("run-now", "--all", "--yes", *pace)
    found = sorted(dues(connection).values())
    assert [later - earlier for earlier, later in itertools.pairwise(found)] == [step_ms] * 3


def test_rate_and_spread_exclude_each_other(cli: Any, waiting: int) -> None:
    """--rate together with --spread is wrong usage."""
    cli("run-now", "--all", "--rate", "2", "--spread", "4s", code=2)


def test_run_now_of_a_dead_letter_by_id_replays_it(cli: Any, connection: Any, bury: Any) -> None:
    """`run-now` with the id of a dead letter replays the letter."""
    bury("d")
    cli("run-now", "d")
    (found,) = connection.store.get(["d"])
    assert found.state == "due"


def test_run_now_of_held_messages_says_which_stay_held(cli: Any, connection: Any, waiting: int) -> None:
    """Messages of a paused topic stay held, and `run-now` says so."""
    connection.store.pause("orders")
    done = cli("run-now", "--all", "--yes")
    assert "2 messages stay held, because their topic is paused" in done.stderr
    assert set(dues(connection)) == {"m1", "m2"}


def test_an_unknown_id_changes_nothing_of_the_others(cli: Any, connection: Any, waiting: int) -> None:
    """If one id is unknown, no message is changed."""
    before = dues(connection)
    done = cli("run-now", "o1", "nope", code=1)
    assert "no message nope: nothing was changed" in done.stderr
    assert dues(connection) == before


def test_a_message_in_flight_is_left_alone_and_said_so(cli: Any, connection: Any, wait_for: Any) -> None:
    """`run-now` does not change a message in flight. The exit code is 1, because not everything was done."""
    wait_for("f", now_ms() - 5)
    connection.store.claim(1)
    done = cli("run-now", "f", code=1)
    assert "in flight: their attempt runs now" in done.stdout


def test_reschedule_to_an_instant_and_by_a_delay(cli: Any, connection: Any, waiting: int) -> None:
    """--at sets the exact due time. --in sets it relative to the store's present time."""
    cli("reschedule", "o1", "--at", "2030-01-01T00:00:00Z")
    cli("reschedule", "o2", "--in", "2h")
    found = dues(connection)
    assert found["o1"] == 1_893_456_000_000
    assert abs(found["o2"] - now_ms() - 2 * HOUR) < 10_000


def test_reschedule_wants_one_time(cli: Any, waiting: int) -> None:
    """`reschedule` with neither or both of --in and --at is wrong usage."""
    cli("reschedule", "o1", code=2)
    cli("reschedule", "o1", "--in", "1h", "--at", "+1h", code=2)


def test_delete_asks_and_without_an_answer_insists_on_yes(cli: Any, connection: Any, waiting: int) -> None:
    """Without a terminal, `delete` needs --yes. With --yes it deletes exactly the selected messages."""
    assert "add --yes" in cli("delete", "--topic", "orders", code=2).stderr
    assert len(dues(connection)) == 4
    assert cli.json("delete", "--topic", "orders", "--yes") == {"done": 2}
    assert set(dues(connection)) == {"m1", "m2"}


def test_delete_by_filter_spares_the_dead_unless_they_are_named(
    cli: Any, connection: Any, waiting: int, bury: Any
) -> None:
    """`delete --topic orders` deletes waiting messages only. --state dead selects dead letters."""
    bury("d")
    cli("delete", "--topic", "orders", "--yes")
    assert connection.store.counts().total("dead") == 1
    cli("delete", "--topic", "orders", "--state", "dead", "--yes")
    assert connection.store.counts().total("dead") == 0


def test_items_with_a_route_of_their_own_are_changed_too(cli: Any, connection: Any) -> None:
    """An item's route, not its id, chooses the shard of the item. `run-now` and `delete` find items with a route."""
    from wheel_sched.store import Item, open_store

    with open_store(cli.url, namespace="routed", shards=5) as store:
        store.schedule([Item(f"i{n}", now_ms() + HOUR, b"x", "t", route=f"r{n}") for n in range(20)])
        store.bury([(Item(f"d{n}", now_ms(), b"x", "t", route=f"r{n}"), "why") for n in range(20)])
        assert cli.json("--namespace", "routed", "run-now", "--all", "--rate", "1000", "--yes") == {"done": 20}
        found = store.list_items("due").found
        assert max(item.score_ms for item in found) - min(item.score_ms for item in found) == 19
        both = ("--state", "due", "--state", "dead")
        assert cli.json("--namespace", "routed", "delete", *both, "--yes") == {"done": 40}
        assert sum(store.counts().sizes.values()) == 0


def test_replay_starts_attempts_anew_and_counts_itself(cli: Any, connection: Any, bury: Any) -> None:
    """A replayed message waits again with attempt 0 and a replay count of one."""
    bury("d1")
    bury("d2", error="smtp.Refused", fingerprint="bbbbbbbbbbbb")
    done = cli.json("replay", "--fingerprint", "aaa", "--yes")
    assert (done["replayed"], done["matched"]) == (1, 1)
    shown = cli.json("show", "d1")
    assert (shown["state"], shown["attempt"], shown["replays"]) == ("due", 0, 1)
    assert cli.json("show", "d2")["state"] == "dead"


def test_the_start_of_a_fingerprint_must_mean_one_error(cli: Any, connection: Any, bury: Any) -> None:
    """If several fingerprints have the given start, nothing is replayed, and the error lists the fingerprints."""
    bury("d1", fingerprint="ab0000000000")
    bury("d2", fingerprint="ab1111111111")
    done = cli("replay", "--fingerprint", "ab", "--yes", code=1)
    assert "2 fingerprints (ab0000000000, ab1111111111): nothing was replayed" in done.stderr
    assert connection.store.counts().total("dead") == 2


def test_replay_is_spread_over_a_time(cli: Any, connection: Any, bury: Any) -> None:
    """Four dead letters replayed over four seconds are due one second apart."""
    for number in range(4):
        bury(f"d{number}")
    cli("replay", "--all", "--spread", "4s", "--yes")
    found = sorted(dues(connection).values())
    assert [later - earlier for earlier, later in itertools.pairwise(found)] == [1_000] * 3


def test_the_loop_guard_holds_back_and_can_be_raised(cli: Any, connection: Any, bury: Any) -> None:
    """After three replays a letter stays dead, and the exit code is 1. --max-replays allows more."""
    bury("d")
    for _ in range(3):
        cli("replay", "d", "--yes")
        claim = connection.store.claim(1)
        from wheel_sched.store import Dead

        connection.store.settle(claim, [Dead("d", "max-attempts: again")])
    done = cli("replay", "d", "--yes", code=1)
    assert "held back: replayed too often already" in done.stdout
    cli("replay", "d", "--yes", "--max-replays", "9")


def test_replay_to_a_topic_that_is_not_there_replays_nothing(cli: Any, connection: Any, bury: Any) -> None:
    """If the topic of --to does not exist, the command fails and replays nothing."""
    bury("d")
    assert "there is no topic 'nowhere': nothing was replayed" in cli("replay", "d", "--to", "nowhere", code=1).stderr
    connection.broker.create_topic("elsewhere")
    cli("replay", "d", "--to", "elsewhere", "--yes")
    assert cli.json("show", "d")["target"] == "elsewhere"


def test_replay_of_what_is_not_dead_replays_nothing(cli: Any, connection: Any, waiting: int, bury: Any) -> None:
    """If one of the ids is no dead letter, nothing is replayed."""
    bury("d")
    assert "o1 is no dead letter: nothing was replayed" in cli("replay", "d", "o1", "--yes", code=1).stderr
    assert connection.store.counts().total("dead") == 1


@pytest.mark.parametrize("command", ["replay d --yes", "run-now d"])
def test_signed_letters_are_signed_again_or_left_alone(cli: Any, connection: Any, command: str) -> None:
    """A signed dead letter needs the group's secret (--secrets FILE), because consumers accept only signed messages."""
    bare = Message("billing.redelivery", b"v")
    state = sign(RetryState(id="root", attempt=8, original_topic="orders", consumer_group="billing"), bare, SECRET)
    body = encode_body(replace(bare, headers=write((), state)))
    connection.store.bury([(Item("d", now_ms(), body, "orders"), "max-attempts: ValueError")])
    assert "--secrets FILE" in cli(*command.split(), code=2).output
    assert connection.store.counts().total("dead") == 1
    Path("secrets").write_bytes(SECRET)
    cli("--secrets", "secrets", *command.split())
    (found,) = connection.store.get(["d"])
    message = decode_body(found.body)
    state = read(message.headers)
    assert verify(state, message, SECRET, "billing") is state
    assert (found.state, state.attempt) == ("due", 0)


def published(connection: Any, group: str, attempt: int = 1, name: str = "invoice-9") -> str:
    """Store a failed message as the intake does, with the id `name` that its publisher gave. Return the item's id."""
    state = RetryState(id=name, attempt=attempt, consumer_group=group, published_ms=1, original_topic="orders")
    item_id = f"{state.id_base}.{attempt}"
    body = encode_body(Message(f"{group}.redelivery", b"1", headers=write((), state)))
    connection.store.schedule([Item(item_id, now_ms() + 3_600_000, body, "orders")])
    return item_id


@pytest.mark.parametrize(
    "command",
    [
        ("show",),
        ("policy", "explain", "--id"),
        ("run-now",),
        ("reschedule", "--in", "2h"),
        ("delete", "--yes"),
        ("delete", "--dry-run"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("named", ["as logs have it", "without its attempt", "as listed"])
def test_a_message_is_found_by_the_id_that_its_handler_saw(
    cli: Any, connection: Any, command: tuple[str, ...], named: str
) -> None:
    """Every command accepts the publisher's id, the stored id, and the stored id without its attempt number. If the
    given id is not the stored one, the command prints the stored one."""
    item_id = published(connection, "billing")
    given = {"as logs have it": "invoice-9", "without its attempt": item_id[:-2], "as listed": item_id}[named]
    done = cli(*command, given)
    assert (f"{given} is stored as {item_id}" in done.stderr) == (given != item_id)
    assert command != ("delete", "--dry-run") or "would delete 1 message" in done.stdout


def test_a_dead_letter_is_found_so_too(cli: Any, connection: Any, bury: Any) -> None:
    """`replay` finds a dead letter by its id without the attempt."""
    bury("m.8")
    cli("replay", "m", "--yes")
    assert cli.objects("list", "--dead") == []


@pytest.mark.parametrize("command", [("show",), ("delete", "--yes"), ("run-now", "--yes")], ids=lambda c: c[0])
def test_an_id_of_several_messages_has_to_be_said_whole(cli: Any, connection: Any, command: tuple[str, ...]) -> None:
    """Two groups failed on one message, so two stored messages have its publisher's id. Given that id, the command
    lists both stored ids and changes nothing."""
    stored = sorted([published(connection, "billing"), published(connection, "stock")])
    before = dues(connection)
    error_text = cli(*command, "invoice-9", code=1).stderr
    assert f"invoice-9 is the id of 2 messages: choose from {', '.join(stored)}" in error_text
    assert dues(connection) == before


def test_of_several_attempts_the_latest_is_meant(cli: Any, connection: Any) -> None:
    """An id without an attempt number means the latest attempt."""
    published(connection, "billing", 2)
    assert f"is stored as {published(connection, 'billing', 11)}" in cli("show", "invoice-9").stderr


def test_no_more_is_looked_through_than_is_said(cli: Any, connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for an id stops after a fixed number of items. The error has that number."""
    monkeypatch.setattr("retry_topic.management.selecting._LOOKED_THROUGH", 2)
    monkeypatch.setattr("retry_topic.management.selecting.MAX_BATCH", 1)
    for number in range(4):
        published(connection, "billing", name=f"m{number}")
    error_text = cli("show", "m9", code=1).stderr
    assert "among the 2 that were searched; give the id that `list` shows" in error_text
