"""The commands publish, topics, pause, resume and stats."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_publish_now_reaches_the_topic(cli: Any, connection: Any) -> None:
    """Payload, key and headers arrive as given. The header `retry-id` has the id that `publish` printed."""
    done = cli("publish", "orders", "hi", "--key", "k", "--header", "a=1", "--header", "a=2", "--create")
    assert len(done.stdout.split()) == 1
    (delivery,) = connection.broker.consumer(["orders"], "g").poll(10, 2_000)
    message = delivery.message
    headers = (("a", b"1"), ("a", b"2"), ("retry-id", done.stdout.split()[0].encode()))
    assert (message.value, message.key, message.headers) == (b"hi", b"k", headers)


def test_publish_later_waits_in_the_store(cli: Any, connection: Any) -> None:
    """--delay counts from now, and --at is exact. A second publish with the same --id stores nothing."""
    connection.broker.create_topic("orders")
    before = now_ms()
    cli("publish", "orders", "x", "--delay", "90s", "--id", "one")
    cli("publish", "orders", "x", "--delay", "5s", "--id", "one")
    cli("publish", "orders", "y", "--at", "2030-01-01T00:00:00Z", "--id", "two")
    found = {item.id: item.score_ms for item in connection.store.list_items("due").found}
    assert before + 90_000 <= found["one"] <= now_ms() + 90_000
    assert found["two"] == 1_893_456_000_000


def test_publish_later_can_name_a_fair_key(cli: Any, connection: Any) -> None:
    cli("publish", "orders", "x", "--delay", "90s", "--fair-key", "acme", "--create")
    (found,) = connection.store.list_items("due").found
    assert found.refs == ("fair:acme",)


def test_a_time_that_has_passed_is_now(cli: Any, connection: Any) -> None:
    """`publish --at` with a past time publishes the message at once and says so."""
    done = cli("publish", "orders", "x", "--create", "--at", "2001-01-01T00:00:00Z")
    assert done.stderr == "1 message published\n"
    assert connection.broker.topics()["orders"] == 1
    assert connection.store.counts().ever == {}


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--at=1960-01-01T00:00:00Z", "after 1970"),
        ("--at=12026-01-01T00:00:00Z", "expected an instant"),
        ("--delay=4000000d", "at most 3650d"),
        ("--delay=-5s", "expected a duration"),
        ("--id=", "non-empty text"),
        (f"--id={'x' * 1_000_000}", "at most 512 bytes"),
    ],
)
def test_times_and_ids_that_cannot_be_send_nothing(cli: Any, connection: Any, option: str, words: str) -> None:
    """A time before 1970 or in ten thousand years and an empty or huge id are wrong usage.

    The error is shorter than 1,000 characters.
    """
    later = () if option.startswith(("--at", "--delay")) else ("--delay", "1h")
    error_text = cli("publish", "orders", "x", "--create", option, *later, code=2).stderr
    assert words in error_text
    assert len(error_text) < 1_000
    assert connection.store.counts().ever == {}
    assert connection.broker.topics().get("orders", 0) == 0


def test_publish_lines_and_stdin(cli: Any, connection: Any, tmp_path: Path) -> None:
    """--lines publishes each line of a file that is not blank. The argument `-` publishes all of stdin
    as one message."""
    (tmp_path / "in.jsonl").write_bytes(b'{"n": 1}\n\n{"n": 2}\r\n')
    rows = cli.objects("publish", "orders", "--lines", "in.jsonl", "--create")
    assert len({row["id"] for row in rows}) == 2
    cli("publish", "orders", "-", stdin=b"\x00\xff\n")
    values = [d.message.value for d in connection.broker.consumer(["orders"], "g").poll(10, 2_000)]
    assert values == [b'{"n": 1}', b'{"n": 2}', b"\x00\xff\n"]


@pytest.mark.parametrize(
    "args",
    [
        ["orders"],
        ["orders", "x", "--lines", "f"],
        ["orders", "x", "--delay", "5"],
        ["orders", "x", "--fair-key", "a"],
        ["orders", "x", "--delay", "5s", "--at", "+5s"],
        ["orders", "x", "--header", "novalue"],
        ["orders", "x", "--delay", "5s", "--expires", "1s"],
    ],
)
def test_wrong_usage_of_publish_sends_nothing(cli: Any, connection: Any, args: list[str]) -> None:
    """After wrong usage of `publish`, the exit code is 2, and neither the store nor the topic has a message."""
    Path("f").write_text("x\n")
    connection.broker.create_topic("orders")
    cli("publish", *args, code=2)
    assert connection.broker.topics() == {"orders": 0}
    assert connection.store.counts().total("due") == 0


def test_an_unknown_topic_is_refused_with_the_near_one(cli: Any, connection: Any) -> None:
    """For an unknown topic, the error proposes a similar topic. The unknown topic is not created."""
    connection.broker.create_topic("orders")
    done = cli("publish", "order", "x", code=1)
    assert "did you mean 'orders'?" in done.stderr
    assert connection.broker.topics() == {"orders": 0}


def test_topics_show_records_and_what_waits(cli: Any, connection: Any, wait_for: Any, bury: Any) -> None:
    """`topics` lists the broker's topics and those that only the store knows, with the numbers of records and items."""
    cli("publish", "orders", "x", "--create")
    wait_for("w", now_ms() + 60_000)
    bury("d", topic="mails")
    rows = {row["topic"]: row for row in cli.objects("topics")}
    assert (rows["orders"]["records"], rows["orders"]["due"]) == (1, 1)
    assert (rows["mails"]["records"], rows["mails"]["dead"]) == (None, 1)
    assert "orders" in cli("topics").stdout


def test_pause_holds_and_resume_spreads(cli: Any, connection: Any, wait_for: Any) -> None:
    """`topics` and `stats` show the pause. `resume --spread` spreads the held messages evenly over the given time."""
    for number in range(4):
        wait_for(f"w{number}", now_ms() - 1_000)
    assert cli.json("pause", "orders")["held"] == 4
    assert "paused" in cli("topics").stdout
    assert "paused" in cli("stats").stdout
    assert cli.json("stats")["held"] == 4
    assert cli.json("resume", "orders", "--spread", "4s") == {"topic": "orders", "was_paused": True, "released": 4}
    found = sorted(item.score_ms for item in connection.store.list_items("due").found)
    assert [later - earlier for earlier, later in itertools.pairwise(found)] == [1_000] * 3


def test_resume_of_a_topic_that_was_not_paused_says_so(cli: Any, connection: Any) -> None:
    """`resume` of a topic that is not paused exits with 1, because it changes nothing."""
    connection.broker.create_topic("orders")
    assert "was not paused" in cli("resume", "orders", code=1).stderr


def test_stats_count_states_and_history(cli: Any, connection: Any, wait_for: Any, bury: Any) -> None:
    """`stats` prints the numbers of items by state and topic, the next due time, and totals."""
    wait_for("late", now_ms() - 3_000)
    bury("d")
    stats = cli.json("stats")
    assert (stats["due"], stats["dead"], stats["shards"]) == (1, 1, 1)
    assert 3_000 <= stats["overdue_ms"] < 60_000
    assert stats["topics"]["orders"]["due"] == 1
    text = cli("stats").stdout
    assert "ago)" in text
    assert "2 accepted" in text
