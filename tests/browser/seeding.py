"""The data of the demonstration: what a shop's dashboard might show, and texts of somebody who wants to do harm.

`seed` always stores the same data. Only the times differ, because they are relative to now. The texts of `HOSTILE` are
in ids, topics, errors, payloads and names of members.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from retry_topic import Connection
from retry_topic.history.attempt import Attempt
from retry_topic.management.dead_letter_operations import DELETE, REPLAY
from retry_topic.management.inbox.notes import GroupNotes
from retry_topic.message import Message
from retry_topic.message.encoding import encode_body
from retry_topic.message.fingerprint import fingerprint
from retry_topic.message.headers import RetryState, read, write
from retry_topic.message.headers.failed_attempts import FailedAttempt, with_failed_attempt
from wheel_sched.management.operations import OperationBook
from wheel_sched.store import DelayStore, History, Item, Member, Members

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)>"
HOSTILE = (MARKUP, "{{ 7*7 }}{% raw %}", "\x1b[31mred\x1b[0m", "abc\u202etxt.exe", "nul\x00byte", "'\"><b>bold</b>")
LONG = "w" * 3_000

POLICIES = """
[default]
version = 2
max_attempts = 5
delay = { kind = "exponential", base = "2s", factor = 2.0, cap = "10m", jitter = "equal" }

[[default.rule]]
name = "refused for good"
error = ["shop.payment.CardRefused"]
status = [402]
dead = true

[topic.orders]
name = "orders"
version = 2
max_attempts = 8
max_age = "1d"
rate = "20/s"

[[topic.orders.rule]]
name = "timeouts"
error = ["*Timeout*"]
status = [504]
delay = { kind = "exponential", base = "5s", factor = 3.0, cap = "1h", jitter = "full" }

[topic.webhooks]
name = "webhooks"
max_attempts = "unlimited"
max_age = "3d"
delay = { kind = "list", delays = ["10s", "1m", "10m", "1h"] }
"""

_HOUR_MS = 3_600_000
_TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/consumer.py", line 41, in handle
    charge(order)
  File "/srv/shop/payment.py", line {line}, in charge
    raise {name}({text!r})
{error}: {text}
"""


@dataclass(frozen=True, slots=True)
class Failing:
    """A kind of failure: which topic, which error, its text for the n-th message, and how many letters of it."""

    topic: str
    error: str
    text: str
    dead: int
    status: int | None = None


FAILURES: Sequence[Failing] = (
    Failing("orders", "shop.payment.PaymentTimeout", "no answer from the bank after 30 s (order {n})", 24, 504),
    Failing("orders", "shop.payment.CardRefused", "card of customer {n} was refused: insufficient funds", 9, 402),
    Failing("webhooks", "requests.exceptions.ConnectionError", "cannot reach https://example.org/hook/{n}", 14),
    Failing("invoices", "builtins.KeyError", "'vat_id'", 3),
    Failing("emails", "shop.mail.MailboxFull", "mailbox {n}@example.org is full", 6, 552),
)

LEFT = Failing("refunds", "shop.refund.Refused", "refused", 0)
"""All dead letters of this kind have left the store."""


def failed(
    kind: Failing, n: int, attempt: int, now_ms: int, *, due_ms: int | None, value: bytes | None = None
) -> Message:
    """A message of which `attempt` deliveries have failed, as the intake stores it."""
    text = kind.text.replace("{n}", str(n))
    lines: str | None = None
    for number in range(1, attempt + 1):
        delay_ms = None if due_ms is None and number == attempt else 2**number * 1_000
        at_ms = now_ms - (attempt - number + 1) * 60_000
        why = "max-attempts: 5" if delay_ms is None else f"rule 1 (timeouts) of {kind.topic}@2"
        lines = with_failed_attempt(
            lines, FailedAttempt(number, at_ms, f"web-{n % 3}:4{n % 10}", kind.error, text, delay_ms, why)
        )
    name = kind.error.rpartition(".")[2]
    state = RetryState(
        id=f"{kind.topic[:3]}{n:05d}",
        attempt=attempt,
        max_attempts=5,
        first_failed_ms=now_ms - attempt * 60_000,
        last_failed_ms=now_ms - 60_000,
        due_ms=due_ms,
        delay_ms=2**attempt * 1_000,
        policy=f"{kind.topic}@2",
        original_topic=kind.topic,
        original_partition=n % 4,
        original_offset=f"{n}-0",
        original_timestamp_ms=now_ms - _HOUR_MS,
        consumer_group="shop",
        error_class=kind.error,
        error_mro=("builtins.OSError",),
        error_message=text,
        error_fingerprint=fingerprint(kind.error, text),
        error_status=kind.status,
        failed_attempts=lines,
        traceback=_TRACEBACK.format(line=80 + n % 3, name=name, text=text, error=kind.error),
    )
    payload = value or json.dumps({"order": n, "customer": f"c-{n % 17}", "total": 12.5 + n}).encode()
    return Message("shop.redelivery", payload, f"c-{n % 17}".encode(), write((("trace", b"t-%d" % n),), state))


def letter_of(letter_id: str, died_ms: int, message: Message) -> tuple[Item, str]:
    """A dead letter and its reason, as the intake buries it."""
    state = read(message.headers)
    refs = (f"fp:{state.error_fingerprint}",)
    return Item(
        letter_id, died_ms, encode_body(message), state.original_topic or "", refs
    ), f"max-attempts: {state.error_class}"


def seed(connection: Connection, *, hostile: bool = True) -> None:
    """Fill the store of a connection. Takes about a tenth of a second.

    Args:
        connection: the connection to an empty namespace.
        hostile: whether texts of `HOSTILE` are among the data. Defaults to True.
    """
    store = connection.store
    now_ms = store.now_ms()
    _seed_waiting(connection, now_ms)
    _seed_dead(connection, now_ms)
    if hostile:
        _seed_hostile(connection, now_ms)
    store.pause("invoices")
    _announce(store, hostile)
    rows = [
        Attempt(
            f"ord{n:05d}", "orders", 1 + n % 4, now_ms - n * 9_000, now_ms - n * 9_000 + n % 700,
            ("ok", "failed", "failed", "dead")[n % 4], None if n % 4 == 0 else FAILURES[0].error, 0,
        )
        for n in range(200, 0, -1)
    ]  # fmt: skip
    History(store).append([(row.id, row.encode()) for row in rows], keep=10_000)
    _prepare_operations(store)
    _note_groups(connection)


def _prepare_operations(store: DelayStore) -> None:
    """Store an operation in each state. Its letters have left the store, so no operation changes anything."""
    now_ms = store.now_ms()
    store.bury([letter_of("ref00001.5", now_ms, failed(LEFT, 1, 5, now_ms, due_ms=None))])
    store.delete_dead(["ref00001.5"])
    arguments = {"topic": LEFT.topic, "group": fingerprint(LEFT.error, LEFT.text)}
    book = OperationBook(store)
    for kind, state, done in (
        (REPLAY, "ready", 0), (DELETE, "ready", 0), (REPLAY, "running", 7), (REPLAY, "paused", 9), (REPLAY, "done", 23),
        (DELETE, "paused", 11),
    ):  # fmt: skip
        made = book.create(kind, arguments, "ada", rate=2)
        later_ms = made.created_ms + _HOUR_MS  # when the running operation takes its next batch
        book.put(replace(made, state=state, matched=24, done=done, left={"gone": done // 9}, next_ms=later_ms))


def _note_groups(connection: Connection) -> None:
    """Mark one group as acknowledged, and two as fixed. Then let a letter of a fixed group die again."""
    notes, store = GroupNotes(connection.store), connection.store
    fixed, refused, _, _, full = (
        (kind.topic, fingerprint(kind.error, kind.text.replace("{n}", "7"))) for kind in FAILURES
    )
    for (topic, group), mark in ((fixed, "fixed"), (refused, "fixed"), (full, "acknowledged")):
        notes.mark(notes.get(topic, group), mark, "grace")
    notes.write(notes.get(*full), "The provider has raised the quota.", "https://example.org/tickets/7", "grace")
    died_ms = store.now_ms() + 1
    message = failed(FAILURES[0], 5_900, 5, died_ms, due_ms=None)
    store.bury([letter_of("ord05900.5", died_ms, message)])


def _announce(store: DelayStore, hostile: bool) -> None:
    names = [("consumer", "shop"), ("consumer", "shop"), ("retry-service", "shop"), ("scheduler", "night jobs")]
    names += [("consumer", MARKUP)] if hostile else []
    for position, (kind, name) in enumerate(names):
        member = Member(
            kind,
            name,
            topics=("orders", "webhooks", *(HOSTILE[3:4] if hostile else ())),
            takes_in=("shop.retry",) if kind == "retry-service" else (),
            retries_to="shop.retry" if kind == "consumer" else "",
            releases=kind == "retry-service",
            holds={"in_flight": position, **({MARKUP: 3} if hostile else {})},
            host=f"web-{position}",
            pid=4000 + position,
            version="0.1.0",
            id=f"member-{position}",
        )
        Members(store).announce(member, _HOUR_MS * 20)


def _seed_waiting(connection: Connection, now_ms: int) -> None:
    items = []
    for number, kind in enumerate(FAILURES):
        for n in range(1, 40 - 6 * number):
            due_ms = now_ms + _HOUR_MS // 2 + n * 97_000
            attempt = 1 + n % 4
            body = encode_body(failed(kind, 500 * number + n, attempt, now_ms, due_ms=due_ms))
            items.append(Item(f"{kind.topic[:3]}{500 * number + n:05d}.{attempt}", due_ms, body, kind.topic))
    items += [
        Item(f"held-{n}", None, encode_body(failed(FAILURES[1], 8000 + n, 2, now_ms, due_ms=None)), "orders")
        for n in range(5)
    ]
    connection.store.schedule(items)


def _seed_dead(connection: Connection, now_ms: int) -> None:
    letters = []
    for number, kind in enumerate(FAILURES):
        for n in range(kind.dead):
            place = 5_000 + 200 * number + n
            message = failed(kind, place, 5, now_ms, due_ms=None)
            died_ms = now_ms - n * _HOUR_MS // 3
            letters.append(letter_of(f"{kind.topic[:3]}{place:05d}.5", died_ms, message))
    connection.store.bury(letters)


def _seed_hostile(connection: Connection, now_ms: int) -> None:
    items, letters = [], []
    bad = Failing(f"topic {HOSTILE[0]}", f"evil.{HOSTILE[1]}", " ".join(HOSTILE), 0)
    for n, text in enumerate(HOSTILE):
        due_ms = now_ms + 2 * _HOUR_MS + n
        body = encode_body(failed(bad, 9000 + n, 2, now_ms, due_ms=due_ms, value=text.encode() * 20))
        items.append(Item(f"id {text}", due_ms, body, bad.topic))
    items.append(Item("no-message", now_ms + _HOUR_MS, b"\xff\xfe no message of ours", f"topic {HOSTILE[3]}"))
    worse = Failing("orders", f"evil.{MARKUP}", f"{HOSTILE[2]} {HOSTILE[3]} {LONG}", 0)
    for n in range(2):
        message = failed(worse, 9500 + n, 5, now_ms, due_ms=None, value=b"\x00\xff" + MARKUP.encode())
        letters.append(letter_of(f"bad{n}.5", now_ms - n, message))
    connection.store.schedule(items)
    connection.store.bury(letters)
