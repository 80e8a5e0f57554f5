"""The commands list and show: waiting messages, failed messages, and everything about one message."""

from __future__ import annotations

import time
from typing import Any

import pytest

from retry_topic.message import Message
from retry_topic.message.encoding import encode_body
from retry_topic.message.headers import RetryState, write
from retry_topic.message.headers.failed_attempts import FailedAttempt, with_failed_attempt
from wheel_sched.store import Done, Item
from wheel_sched.store.fair_shares import FairSettings, FairShares, fair_ref

HOUR = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["id"] for row in rows]


@pytest.fixture
def three(wait_for: Any) -> int:
    """Store three waiting messages of two topics, in reverse order of their due times. Return the time in ms."""
    now = now_ms()
    wait_for("c", now + 3 * HOUR, topic="mails", error="smtp.Refused", fingerprint="bbbbbbbbbbbb")
    wait_for("b", now + 2 * HOUR, key=b"k2")
    wait_for("a", now + HOUR)
    return now


def test_list_shows_what_waits_in_order_of_due(cli: Any, three: int) -> None:
    """`list` prints one line for each message: relative and absolute due time, attempt, topic, id and error."""
    lines = cli("list").stdout.splitlines()
    assert [line.split()[5] for line in lines[1:]] == ["a", "b", "c"]
    assert lines[1].startswith("in 59m") or lines[1].startswith("in 1h")
    assert "2/8" in lines[1]
    assert "shop.PaymentTimeout: no answer" in lines[1]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--topic", "orders"], ["a", "b"]),
        (["--error", "smtp.*"], ["c"]),
        (["--error", "*answer"], ["a", "b", "c"]),
        (["--fingerprint", "BBB"], ["c"]),
        (["--fingerprint", "bb0"], []),
        (["--until", "+90m"], ["a"]),
        (["--since", "+90m"], ["b", "c"]),
        (["--since", "+90m", "--until", "+150m"], ["b"]),
        (["--key", "k2"], ["b"]),
        (["--limit", "2"], ["a", "b"]),
        (["--search", "topic:orders due<90m"], ["a"]),
        (["--search", "refused"], ["c"]),
        (["--search", "attempt>1", "--limit", "2"], ["a", "b"]),
        (["--search", ""], ["a", "b", "c"]),
        (["--topic", "orders", "--error", "smtp.*"], []),
        (["--state", "held"], []),
    ],
)
def test_filters_combine(cli: Any, three: int, args: list[str], expected: list[str]) -> None:
    """A message is listed if all conditions hold. With --json each line is one object."""
    assert ids(cli.objects("list", *args)) == expected


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--search", "topik:orders"], "did you mean topic:orders?"),
        (["--search", "topic:orders", "--key", "k"], "not both"),
    ],
)
def test_a_wrong_search_is_wrong_usage(cli: Any, three: int, args: list[str], words: str) -> None:
    """A search that cannot be read is refused with advice. So is a search that is given with other conditions."""
    assert words in cli("list", *args, code=2).stderr


def test_the_json_of_a_waiting_message_has_its_times_and_error(cli: Any, three: int) -> None:
    """The JSON has the due time as epoch milliseconds and in RFC 3339, the attempt, the policy and the error."""
    row = cli.objects("list", "--limit", "1")[0]
    assert row["due_ms"] == three + HOUR
    assert row["due"].endswith("Z")
    assert (row["attempt"], row["max_attempts"], row["policy"]) == (2, 8, "default@1")
    assert (row["error_class"], row["fingerprint"], row["group"]) == ("shop.PaymentTimeout", "aaaaaaaaaaaa", "billing")


def test_the_listing_says_when_it_is_cut(cli: Any, wait_for: Any) -> None:
    """Without --limit, `list` shows 50 lines and says on stderr that there are more. With --json it shows all."""
    for number in range(51):
        wait_for(f"m{number:02}", now_ms() + HOUR + number)
    done = cli("list")
    assert len(done.stdout.splitlines()) == 51
    assert "the first 50 are shown" in done.stderr
    assert len(cli.objects("list")) == 51
    assert "shown" not in cli("list", "--limit", "51").stderr


def test_an_empty_listing_says_so_on_stderr(cli: Any, connection: Any) -> None:
    """If no message is listed, stdout is empty, without a heading."""
    done = cli("list")
    assert done.stdout == ""
    assert "nothing is due" in done.stderr


def test_held_and_in_flight_messages_are_listed_with_their_due(cli: Any, connection: Any, wait_for: Any) -> None:
    """For a message in flight, the listed time is its due time, not the end of its lease."""
    due = now_ms() - 1_000
    wait_for("flying", due)
    connection.store.claim(1)
    wait_for("parked", now_ms() + HOUR)
    connection.store.hold(["parked"], "quarantine: looks odd")
    rows = cli.objects("list", "--state", "leased", "--state", "held")
    assert [(row["id"], row["state"]) for row in rows] == [("flying", "leased"), ("parked", "held")]
    assert rows[0]["due_ms"] == due
    assert rows[1]["reason"] == "quarantine: looks odd"


def test_dead_letters_are_grouped_by_error(cli: Any, bury: Any) -> None:
    """With --group, each error has a count, its first and last time and a sample id. The largest group comes first."""
    bury("x1", 1_000)
    bury("x2", 3_000)
    bury("y1", 2_000, error="smtp.Refused", fingerprint="bbbbbbbbbbbb")
    rows = cli.objects("list", "--dead", "--group")
    assert [(row["fingerprint"], row["count"], row["first_ms"], row["last_ms"]) for row in rows] == [
        ("aaaaaaaaaaaa", 2, 1_000, 3_000),
        ("bbbbbbbbbbbb", 1, 2_000, 2_000),
    ]
    assert rows[0]["sample"] == "x1"
    assert ids(cli.objects("list", "--dead", "--fingerprint", "b")) == ["y1"]
    text = cli("list", "--group", "--fingerprint", "bbb")
    assert "bbbbbbbbbbbb" in text.stdout
    assert "aaaaaaaaaaaa" not in text.stdout
    assert "1 dead letter" in text.stderr


def test_group_is_about_dead_letters_alone(cli: Any, connection: Any) -> None:
    """`list --group --state due` is wrong usage, not an empty list."""
    cli("list", "--group", "--state", "due", code=2)


def test_show_shows_why_a_message_is_due_then(cli: Any, three: int) -> None:
    """`show` explains the due time and prints attempts, headers, payload and origin, as text or as JSON."""
    text = cli("show", "a").stdout
    assert "attempt 2 failed with shop.PaymentTimeout" in text
    assert "policy default@1 said: wait 2.7s" in text
    assert "2 of 8 failed" in text
    assert "header        trace: t-1" in text
    assert '{"id": 1}' in text
    shown = cli.json("show", "a")
    assert shown["origin"] == {"topic": "orders", "partition": 0, "offset": "7-0", "timestamp_ms": None}
    assert shown["delay_ms"] == 2_700
    assert ["trace", "t-1"] in shown["headers"]


def test_show_finds_the_latest_attempt_of_a_root(cli: Any, wait_for: Any) -> None:
    """`show` with an id without an attempt number shows the latest attempt."""
    wait_for("root9.1", now_ms() + HOUR)
    wait_for("root9.3", now_ms() + HOUR)
    assert cli.json("show", "root9")["id"] == "root9.3"


def test_show_says_when_somebody_rescheduled(cli: Any, connection: Any, three: int) -> None:
    """If the due time differs from the policy's, `show` says that the message was rescheduled by hand."""
    connection.store.reschedule(["a"], three + 9 * HOUR)
    assert cli.json("show", "a")["why"].startswith("rescheduled by hand; policy default@1 had said")


def test_show_value_gives_the_bytes_alone(cli: Any, wait_for: Any) -> None:
    """`show --value` writes only the payload, byte for byte."""
    wait_for("bin", now_ms() + HOUR, value=b"\x00\xff\n")
    assert cli("show", "bin", "--value").stdout_bytes == b"\x00\xff\n"


@pytest.mark.parametrize(
    ("state", "words"),
    [("dead", "given up: max-attempts"), ("held", "its topic is paused"), ("leased", "under a lease until")],
)
def test_show_shows_why_of_every_state(
    cli: Any, connection: Any, wait_for: Any, bury: Any, state: str, words: str
) -> None:
    """`show` gives the reason why a message is dead, held or in flight."""
    if state == "dead":
        bury("m")
    else:
        wait_for("m", now_ms() - 5)
    if state == "held":
        connection.store.pause("orders")
    elif state == "leased":
        connection.store.claim(1)
    shown = cli.json("show", "m")
    assert shown["state"] == state
    assert words in shown["why"]


def test_show_of_an_unknown_id_fails_in_words(cli: Any, connection: Any) -> None:
    """`show` fails with exit code 1 and a readable error. stdout is empty."""
    done = cli("show", "nope", code=1)
    assert "there is no message nope" in done.stderr
    assert done.stdout == ""


def test_a_record_that_is_no_message_is_shown_and_listed_all_the_same(cli: Any, connection: Any) -> None:
    """`list` and `show` work for an item whose body is no message."""
    from wheel_sched.store import Item

    connection.store.schedule([Item("odd", now_ms() + HOUR, b"\x80 not a message", "orders")])
    assert ids(cli.objects("list")) == ["odd"]
    assert "unreadable" in cli("show", "odd").stdout


@pytest.mark.parametrize(
    "command",
    [("list",), ("list", "--dead"), ("run-now", "--yes"), ("delete", "--yes"), ("replay", "--yes")],
    ids=" ".join,
)
def test_a_topic_that_is_none_is_reported_with_the_nearest_one(
    cli: Any, wait_for: Any, command: tuple[str, ...]
) -> None:
    """Each command reports an unknown --topic. An empty answer to a typing mistake would look correct."""
    wait_for("m", now_ms() + HOUR)
    error_text = cli(*command, "--topic", "orderz", code=None).stderr
    assert "there is no topic 'orderz'" in error_text
    assert "did you mean 'orders'?" in error_text


def test_show_tells_why_each_attempt_failed(cli: Any, connection: Any) -> None:
    """`show` has a timeline of the failed attempts, and the last traceback. Hostile texts are escaped."""
    attempt = FailedAttempt(1, 1_767_225_600_000, "web-3:41", "E", "no", 4_000, "rule 2 (slow) of p@1")
    lines = with_failed_attempt("5", attempt) + '\n[2,1767225604000,null,null,"\\u001b[2J",null,"max-attempts, p@1"]'
    state = RetryState(
        id="a", attempt=2, failed_attempts=lines, traceback="Traceback:\n  in pay\x1b[2J redis://u:pw@h/0"
    )
    body = encode_body(Message("g.redelivery", b"v", None, write((), state)))
    connection.store.schedule([Item("a.2", now_ms() + HOUR, body, "orders")])
    shown = cli("show", "a.2").stdout
    assert "5 older failed attempts are not kept" in shown
    assert "attempt 1     failed 2026-01-01T00:00:00.000Z" in shown
    assert ": E: no\n              next attempt after 4s (rule 2 (slow) of p@1); handled by web-3:41\n" in shown
    assert "\\x1b[2J\n              given up (max-attempts, p@1)\n" in shown
    assert "              Traceback:\n                in pay\\x1b[2J redis://u:***@h/0\n" in shown
    assert "\x1b" not in shown
    (found,) = cli.objects("show", "a.2", "--json")
    assert found["failed_attempts_dropped"] == 5
    assert found["failed_attempts"][0]["chosen_by"] == "rule 2 (slow) of p@1"
    assert found["failed_attempts"][1]["at"] == "2026-01-01T00:00:04.000Z"
    assert found["traceback"].startswith("Traceback:\n")


def test_stats_counts_what_was_superseded(cli: Any, connection: Any) -> None:
    """`stats` counts what collapse has dropped and what debounce has replaced."""
    connection.broker.create_topic("orders")
    for number in range(4):
        connection.publish("orders", b"%d" % number, delay=3_600, collapse="customer-7")
        connection.publish("orders", b"%d" % number, delay=3_600, debounce="customer-8")
    ever = cli.json("stats", "--json")["ever"]
    assert (ever["accepted"], ever["dropped"], ever["replaced"]) == (5, 3, 3)
    assert ", 3 replaced, 3 dropped" in cli("stats").stdout


def test_list_by_key_shows_who_is_behind(cli: Any, connection: Any) -> None:
    """`list --by key` and `stats` name the keys with the most overdue messages. A topic that is not fair is refused."""
    assert "no topic is fair" in cli("list", "--by", "key").stderr
    store, late_ms = connection.store, now_ms() - HOUR
    FairShares(store).configure("orders", FairSettings(weights={"gold": 4}))
    for key, count in (("gold", 1), ("iron", 5), ("\x1b[2J", 2)):
        items = [Item(f"{key}{n}", late_ms, b"", "orders", (fair_ref(key),)) for n in range(count)]
        store.schedule(items)
    store.settle(claim := store.claim(1), [Done(item.id) for item in claim.items])
    lines = cli("list", "--by", "key", "--topic", "orders").stdout.splitlines()
    assert lines[1].split()[-2:] == ["orders", "iron"]
    assert "\x1b" not in "".join(lines)
    rows = cli.objects("list", "--by", "key", "--limit", "1", "--json")
    assert [(row["topic"], row["key"], row["oldest_due_ms"]) for row in rows] == [("orders", "iron", late_ms)]
    assert "fair       orders: " in cli("stats").stdout
    assert cli.json("stats", "--json")["fair"][0]["topic"] == "orders"
    refused = cli("list", "--by", "key", "--topic", "mails", code=2).stderr
    assert "mails is not a fair topic: set [topic.mails.fair] in its policy" in refused
    assert "remove the other options" in cli("list", "--by", "key", "--dead", code=2).stderr
