"""The pages of topics, pausing them, and what the overview says about messages and retries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from retry_topic import Message
from retry_topic.dashboard.items.panel import lateness_rows
from retry_topic.dashboard.topics import unread
from retry_topic.history.attempt import Attempt
from wheel_sched.store import History, Item, Members
from wheel_sched.store.fair_shares import FairSettings, FairShares, fair_ref
from wheel_sched.store.members import Member
from wheel_sched.store.once_per_key import collapse_ref, debounce_ref

HOUR = 3_600_000


def test_topics_have_their_numbers(seen: Any) -> None:
    """Page and API list the numbers of the broker and of the store for each topic."""
    seen.connection.broker.create_topic("orders")
    seen.connection.broker.publish([Message("orders", b"1"), Message("orders", b"2")])
    seen.message("a.2")
    seen.message("b.2", state="dead", in_ms=-HOUR)
    seen.store.schedule([Item("c.2", seen.store.now_ms() + HOUR, b"no message")])
    found = seen.valid("/topics", "/topics")
    orders = next(one for one in found["topics"] if one["topic"] == "orders")
    assert (orders["records"], orders["due"], orders["dead"]) == (2, 1, 1)
    page = seen.page("/topics")
    assert 'href="/topics/orders"' in page
    assert "(none)" in page


def test_one_topic_says_what_is_next_and_who_reads_it(seen: Any) -> None:
    """The page of a topic has its policy, the next due and the oldest dead message, and its live readers."""
    seen.message("late.2", in_ms=2 * HOUR)
    seen.message("soon.2", in_ms=HOUR)
    seen.message("old.2", state="dead", in_ms=-2 * HOUR)
    seen.message("other.2", topic="mail", in_ms=1)
    Members(seen.store).announce(Member("consumer", "billing", topics=("orders",), host="web-1", pid=7), 60_000)
    found = seen.valid("/topics/{topic:path}", "/topics/orders")
    assert found["next_due_ms"] == seen.found("soon.2").score_ms
    assert found["oldest_dead_ms"] == seen.found("old.2").score_ms
    assert found["policy"] == "default@1"
    assert found["policy_words"].startswith("policy default@1: a failed message is delivered 8 times")
    assert [one["name"] for one in found["readers"]] == ["billing"]
    page = seen.page("/topics/orders")
    for word in ("soon.2", "old.2", "billing", "7 on web-1", 'href="/policies/orders"'):
        assert word in page
    assert "late.2" not in page


def test_a_fair_topic_shows_who_is_behind(seen: Any) -> None:
    """Page and API of a fair topic have its keys with the most overdue messages, and which ones are at their limit."""
    assert seen.api("/topics/orders", 404)
    FairShares(seen.store).configure("orders", FairSettings(weights={"gold": 4}, max_in_flight=1))
    late_ms = seen.store.now_ms() - 1000
    for key, count in (("<b>gold", 1), ("gold", 3), ("iron", 2)):
        refs = (fair_ref(key),)
        seen.store.schedule([Item(f"{key}{n}", late_ms + n, b"no message", "orders", refs) for n in range(count)])
    seen.store.claim(3)
    fair = seen.valid("/topics/{topic:path}", "/topics/orders")["fair"]
    assert (fair["waiting"], fair["rest"], fair["exact"]) == (3, 0, True)
    rows = [(one["key"], one["waiting"], one["in_flight"], one["weight"], one["capped"]) for one in fair["keys"]]
    assert rows[:2] == [("gold", 2, 1, 4, True), ("iron", 1, 1, 1, True)]
    assert fair["keys"][0]["oldest_due_ms"] == late_ms + 1
    page = seen.page("/topics/orders")
    assert "Fair shares" in page
    assert "1 (at the limit)" in page
    assert "<b>gold" not in page


def test_superseded_messages_are_counted_by_topic(seen: Any) -> None:
    """Page and API of a topic, and the overview, count what collapse has dropped and what debounce has replaced."""
    seen.message("other.2", topic="plain")
    due_ms = seen.store.now_ms() + HOUR
    for ref, topic, count in ((collapse_ref("k"), "orders", 4), (debounce_ref("k"), "mail", 3)):
        for number in range(count):
            seen.store.schedule([Item(f"{topic}{number}", due_ms, b"no message", topic, (ref,))])
    found = [seen.valid("/topics/{topic:path}", f"/topics/{topic}") for topic in ("orders", "mail")]
    assert [(one["dropped"], one["replaced"]) for one in found] == [(3, 0), (0, 2)]
    assert "3 dropped (collapse), 0 replaced (debounce)" in seen.page("/topics/orders")
    assert "0 dropped (collapse), 2 replaced (debounce)" in seen.page("/topics/mail")
    assert "Superseded so far: 3 dropped (collapse), 2 replaced (debounce)" in seen.page("/")
    assert "superseded" not in seen.page("/topics/plain").lower()
    ever = seen.api("/overview")["ever"]
    assert (ever["dropped"], ever["replaced"]) == (3, 2)


def test_an_unknown_topic_is_not_found(seen: Any) -> None:
    """For an unknown topic, the page has status 404 and names a similar topic."""
    seen.message()
    assert "did you mean &#39;orders&#39;?" in seen.page("/topics/order", 404)
    assert "there is no topic" in seen.api("/topics/order", 404)["error"]["message"]
    assert "there is no topic" in seen.preview("pause-topic", 404, topic="order")["error"]["message"]


def test_a_topic_can_be_paused_and_resumed(seen: Any) -> None:
    """Pausing a topic holds its messages, and resuming it delivers them again. If there is nothing to do, the preview
    has the count 0.
    """
    seen.message("a.2")
    found = seen.act("pause-topic", topic="orders")
    assert found["words"] == "1 message of orders held; it is paused"
    assert seen.found("a.2").state == "held"
    assert "Resume" in seen.page("/topics/orders")
    assert seen.preview("pause-topic", topic="orders")["count"] == 0
    assert seen.act("resume-topic", topic="orders", spread="10m")["words"].startswith(
        "1 message of orders waiting again"
    )
    assert seen.found("a.2").state == "due"
    assert seen.preview("resume-topic", topic="orders")["count"] == 0
    assert seen.preview("resume-topic", 400, topic="orders", spread="x")["error"]["message"].startswith("spread:")


def test_a_pause_that_was_made_meanwhile_is_seen(seen: Any) -> None:
    """If somebody else resumes the topic after the preview, the confirmation is refused. New messages do not matter."""
    seen.message("a.2")
    token = seen.preview("pause-topic", topic="orders")["token"]
    seen.message("b.2")
    assert seen.execute("pause-topic", token, topic="orders")["done"] == 1
    token = seen.preview("resume-topic", topic="orders")["token"]
    seen.store.resume("orders")
    assert seen.execute("resume-topic", token, 409, topic="orders")["error"]["kind"] == "ChangedMeanwhile"


@pytest.mark.parametrize("action", ["pause-topic", "resume-topic"])
def test_pausing_needs_the_right_to_operate(see: Callable[..., Any], action: str) -> None:
    """A visitor who may only read cannot pause or resume."""
    one = see("read")
    one.message()
    assert one.preview(action, 403, topic="orders")["error"]["kind"] == "NotAllowed"


def test_retries_that_nobody_takes_in_are_told_with_the_command(seen: Any) -> None:
    """If a group has consumers and no retry service, the page of topics and the overview say so, with the command that
    starts a service.
    """
    Members(seen.store).announce(Member("consumer", "billing", topics=("orders",), retries_to="billing.retry"), 60_000)
    assert "wheel-sched serve billing" in seen.page("/topics")
    found = seen.api("/topics")["problems"]
    assert found[0]["what"].startswith("consumers of billing write failed messages to billing.retry")
    assert any(one == found[0] for one in seen.api("/overview")["problems"])
    assert "wheel-sched serve billing" in seen.page("/")


def test_what_ails_is_looked_at_every_few_seconds_only(seen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If many pages are opened in a short time, the retry topics are read only once."""
    looks: list[int] = []
    monkeypatch.setattr(unread, "_look", lambda _: looks.append(1) or [])
    for _ in range(5):
        seen.page("/topics")
    assert len(looks) == 1


def test_the_overview_shows_what_is_due_next_and_the_lateness(seen: Any) -> None:
    """The overview links the messages that are due next, and draws how late the latest attempts started."""
    seen.message("a.2")
    rows = [Attempt(f"m{n}", "orders", 2, 1_000, 1_000 + late, "ok") for n, late in enumerate((0, 3, 4, 99_000))]
    History(seen.store).append([(row.id, row.encode()) for row in rows], keep=100)
    page = seen.page("/")
    assert 'href="/items/a.2"' in page
    assert 'class="chart histogram"' in page
    assert "up to 5 ms 2; " in page
    assert "later 1" in page


def test_every_lateness_is_in_exactly_one_bar() -> None:
    """The counts of the bars add up to the number of attempts. Without attempts there are no bars."""
    late = [0, 1, 2, 3, 1_000, 1_001, 10_000, 10_001]
    assert sum(count for _, count in lateness_rows(late)) == len(late)
    assert dict(lateness_rows(late))["up to 1 ms"] == 2
    assert dict(lateness_rows(late))["later"] == 1
    assert lateness_rows([]) == []
