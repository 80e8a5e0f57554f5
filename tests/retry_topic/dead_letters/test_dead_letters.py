"""Dead letters: selected by every criterion, grouped, replayed, edited, redirected and deleted."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from retry_topic import DeadLetterFilter, DeadLetters, RetryPolicy, connect
from retry_topic.dead_letters import Replayed
from retry_topic.message import Message
from retry_topic.message.encoding import decode_body, encode_body
from retry_topic.message.headers import RetryState, read, verify, write
from retry_topic.message.topic_names import redelivery_topic_of
from wheel_sched.errors import ConfigError, Rejected, UnknownTopic
from wheel_sched.store import AttemptCounts, Found, Item

if TYPE_CHECKING:
    from conftest import Bench, Handler

Policy = Callable[..., RetryPolicy]
Handlers = Callable[..., "Handler"]
SECRET = b"sixteen bytes ok"
BACK = redelivery_topic_of("billing")


class LetterStore:
    """A bench with a store into which tests put dead letters directly."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.store = bench.connection.store
        self.letters = DeadLetters(bench.connection)
        bench.connection.broker.create_topic(BACK)

    def bury(
        self,
        name: str,
        topic: str = "orders",
        error: str = "builtins.ValueError",
        print_: str = "aaa",
        died_ms: int = 1_000,
        key: bytes | None = None,
    ) -> str:
        state = RetryState(
            id=name,
            attempt=3,
            original_topic=topic,
            original_offset=name,
            consumer_group="billing",
            error_class=error,
            error_message=f"text of {name}",
            error_fingerprint=print_,
        )
        message = Message(BACK, name.encode(), key, write((("trace", b"1"),), state))
        self.store.bury([(Item(f"{name}.3", died_ms, encode_body(message), topic), f"max-attempts: {error}")])
        return f"{name}.3"

    def found(self, **criteria: Any) -> list[str]:
        return [letter.id for letter in self.letters.select(DeadLetterFilter(**criteria))]

    def waiting(self) -> list[Found]:
        return self.store.list_items("due", limit=500).found

    def dead(self) -> list[str]:
        return [letter.id for letter in self.letters.select()]


@pytest.fixture
def letter_store(bench: Bench) -> LetterStore:
    return LetterStore(bench)


@pytest.fixture
def mixed(letter_store: LetterStore) -> LetterStore:
    """Four dead letters that differ in topic, error, fingerprint, key and time."""
    letter_store.bury("a", died_ms=1_000, key=b"k1")
    letter_store.bury("b", topic="payments", died_ms=2_000, print_="bbb")
    letter_store.bury("c", error="httpx.ReadTimeout", died_ms=3_000, print_="bbb")
    letter_store.bury("d", error="httpx.ConnectError", died_ms=4_000, key=b"\xff")
    return letter_store


@pytest.mark.parametrize(
    ("criteria", "ids"),
    [
        ({}, "abcd"),
        ({"topic": "payments"}, "b"),
        ({"error": "httpx.*"}, "cd"),
        ({"error": "text of a"}, "a"),
        ({"error": "max-attempts: *Timeout"}, "c"),
        ({"fingerprint": "bbb"}, "bc"),
        ({"since_ms": 2_000}, "bcd"),
        ({"until_ms": 3_000}, "ab"),
        ({"since_ms": 2_000, "until_ms": 4_000}, "bc"),
        ({"key": b"\xff"}, "d"),
        ({"ids": frozenset(["a.3", "d.3", "nobody.3"])}, "ad"),
        ({"ids": frozenset(["a.3", "d.3"]), "since_ms": 4_000}, "d"),
        ({"ids": frozenset(["a.3", "d.3"]), "until_ms": 4_000, "topic": "orders"}, "a"),
        ({"fingerprint": "bbb", "topic": "orders"}, "c"),
        ({"ids": frozenset()}, ""),
        ({"topic": "nowhere"}, ""),
    ],
)
def test_letters_are_selected_by_every_criterion(mixed: LetterStore, criteria: dict[str, Any], ids: str) -> None:
    """All conditions of a filter must hold. The oldest dead letter comes first."""
    assert mixed.found(**criteria) == [f"{name}.3" for name in ids]


def test_a_letter_tells_its_whole_story(mixed: LetterStore) -> None:
    """A dead letter has its topic, the time and reason of its death, its headers and its message."""
    (letter,) = mixed.letters.select(DeadLetterFilter(key=b"k1"))
    assert (letter.id, letter.topic, letter.died_ms) == ("a.3", "orders", 1_000)
    assert letter.reason == "max-attempts: builtins.ValueError"
    assert (letter.state.attempt, letter.state.error_message) == (3, "text of a")
    assert letter.message is not None
    assert (letter.message.value, letter.message.topic) == (b"a", BACK)


def test_letters_are_grouped_by_topic_and_fingerprint(letter_store: LetterStore) -> None:
    """Dead letters are grouped by topic and fingerprint, the largest group first. Each group has the times of its first
    and last death and a sample."""
    for n in range(5):
        letter_store.bury(f"a{n}", died_ms=1_000 + n)
    for n in range(3):
        letter_store.bury(f"b{n}", died_ms=5_000 - n, print_="bbb")
    letter_store.bury("c", topic="payments")
    groups = letter_store.letters.groups()
    assert [(group.topic, group.fingerprint, group.count) for group in groups] == [
        ("orders", "aaa", 5),
        ("orders", "bbb", 3),
        ("payments", "aaa", 1),
    ]
    assert (groups[0].first_ms, groups[0].last_ms, groups[0].sample.id) == (1_000, 1_004, "a0.3")
    assert (groups[1].first_ms, groups[1].last_ms) == (4_998, 5_000)
    assert [group.count for group in letter_store.letters.groups(DeadLetterFilter(topic="payments"))] == [1]


def test_a_dry_run_changes_nothing(mixed: LetterStore) -> None:
    """A dry run returns the count, samples and the last due time. The store does not change."""
    before = mixed.store.counts()
    result = mixed.letters.replay(DeadLetterFilter(topic="orders"), dry_run=True, rate=1)
    assert (result.matched, result.replayed, result.guarded) == (3, 3, 0)
    assert [sample.id for sample in result.samples] == ["a.3", "c.3", "d.3"]
    assert result.last_due_ms is not None
    assert result.last_due_ms >= before.now_us // 1000 + 2_000
    after = mixed.store.counts()
    assert (after.now, after.ever, after.sizes) == (before.now, before.ever, before.sizes)
    assert AttemptCounts(mixed.store).raise_to([(f"{name}!", 0, 0) for name in "abcd"]) == [0, 0, 0, 0]


def test_a_replay_restarts_the_attempts(letter_store: LetterStore) -> None:
    """A replay keeps payload, key, other headers, id and origin. It resets the attempt count and the failure times."""
    letter_store.bury("m", key=b"k")
    assert letter_store.letters.replay().replayed == 1
    (found,) = letter_store.waiting()
    message = _sent(found)
    state = read(message.headers)
    assert (message.value, message.key, message.topic, message.header("trace")) == (b"m", b"k", BACK, b"1")
    assert (state.id, state.original_topic, state.original_offset) == ("m", "orders", "m")
    assert (state.attempt, state.replays, state.first_failed_ms, state.verdict) == (0, 1, None, None)
    assert letter_store.dead() == []


def test_a_rate_spreads_the_replay(letter_store: LetterStore) -> None:
    """With rate=100, due times are ten milliseconds apart, over all pages of the replay."""
    for n in range(1_200):
        letter_store.bury(f"m{n}", died_ms=1_000 + n)
    shown: list[int] = []
    before_ms = letter_store.store.now_ms()
    result = letter_store.letters.replay(rate=100, progress=shown.append)
    page, dues_ms = letter_store.store.list_items("due", limit=500), []
    while True:
        dues_ms += [found.score_ms for found in page.found]
        if page.cursor is None:
            break
        page = letter_store.store.list_items("due", limit=500, cursor=page.cursor)
    assert (result.matched, result.replayed, len(result.samples)) == (1_200, 1_200, 5)
    assert [due_ms - dues_ms[0] for due_ms in dues_ms] == [10 * n for n in range(1_200)]
    assert dues_ms[0] >= before_ms
    assert result.last_due_ms == dues_ms[-1]
    assert shown == [500, 1_000, 1_200]


def test_a_limit_takes_the_oldest(mixed: LetterStore) -> None:
    """With `limit`, the oldest dead letters are replayed and the others stay."""
    assert mixed.letters.replay(limit=2).replayed == 2
    assert mixed.dead() == ["c.3", "d.3"]


def test_the_loop_guard_holds_a_message_back_after_three_replays(letter_store: LetterStore) -> None:
    """The store counts the replays. Headers without a replay count do not help a message past the limit."""
    letter_store.bury("m")
    for expected in (1, 1, 1, 0):
        result = letter_store.letters.replay()
        assert (result.matched, result.replayed, result.guarded) == (1, expected, 1 - expected)
        letter_store.store.cancel([found.id for found in letter_store.waiting()])
        if expected:
            letter_store.bury("m")  # the letter died again, and its headers do not mention the replay
    assert letter_store.dead() == ["m.3"]
    assert letter_store.letters.replay(max_replays=10).replayed == 1


def test_an_edit_changes_what_is_sent(letter_store: LetterStore) -> None:
    """`edit` may change payload, key and headers, but no retry header."""
    letter_store.bury("m")
    letter_store.letters.replay(
        edit=lambda m: replace(m, value=b"fixed", key=b"new", headers=(("fixed", b"1"), ("retry-attempt", b"99")))
    )
    (found,) = letter_store.waiting()
    message = _sent(found)
    assert (message.value, message.key, message.header("fixed")) == (b"fixed", b"new", b"1")
    assert read(message.headers).attempt == 0


@pytest.mark.parametrize("edited", [None, "m", replace(Message("t", b""), headers=(("a", b""),) * 2_000)])
def test_an_edit_that_makes_nothing_sendable_is_refused(letter_store: LetterStore, edited: Any) -> None:
    """If `edit` returns nothing that can be sent, `replay` raises an error. The letter stays dead, and no replay is
    counted."""
    letter_store.bury("m")
    with pytest.raises(Rejected):
        letter_store.letters.replay(edit=lambda m: edited)
    assert letter_store.dead() == ["m.3"]
    assert AttemptCounts(letter_store.store).raise_to([("m!", 0, 0)]) == [0]


def test_a_target_is_another_topic(letter_store: LetterStore) -> None:
    """The target of a replay becomes the message's original topic, so that the target's consumer accepts the retry
    headers."""
    letter_store.bury("m")
    letter_store.bench.connection.broker.create_topic("repair")
    letter_store.letters.replay(target="repair")
    (found,) = letter_store.waiting()
    message = _sent(found)
    assert (message.topic, read(message.headers).original_topic) == ("repair", "repair")


def test_an_unknown_target_is_refused(letter_store: LetterStore) -> None:
    """`replay` raises `UnknownTopic`, and nothing is replayed."""
    letter_store.bury("m")
    with pytest.raises(UnknownTopic):
        letter_store.letters.replay(target="nowhere")
    assert letter_store.dead() == ["m.3"]


def test_a_replay_is_signed_where_headers_are(letter_store: LetterStore) -> None:
    """With secrets, a replayed message is signed. Consumers that verify signatures would not accept it otherwise."""
    letter_store.bury("m")
    DeadLetters(letter_store.bench.connection, secrets=(SECRET,)).replay()
    (found,) = letter_store.waiting()
    message = _sent(found)
    state = read(message.headers)
    assert verify(state, message, SECRET, "billing") is state


def test_an_edited_replay_is_signed_with_its_new_payload(letter_store: LetterStore) -> None:
    """If a replay edits a message, the signature covers the edited payload, which is sent."""
    letter_store.bury("m")
    letters = DeadLetters(letter_store.bench.connection, secrets=(SECRET,))
    letters.replay(edit=lambda message: replace(message, value=b"mended"))
    message = _sent(letter_store.waiting()[0])
    state = read(message.headers)
    assert (message.value, verify(state, message, SECRET, "billing") is state) == (b"mended", True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"rate": 0}, "rate"), ({"rate": -1.0}, "rate"), ({"limit": 0}, "limit"), ({"max_replays": 0}, "max_replays")],
)
def test_a_wrong_argument_is_told(letter_store: LetterStore, arguments: dict[str, Any], words: str) -> None:
    """The error for a wrong argument of `replay` names the argument, and nothing is replayed."""
    letter_store.bury("m")
    with pytest.raises(ConfigError, match=f"expected {words}"):
        letter_store.letters.replay(**arguments)
    assert letter_store.dead() == ["m.3"]


def test_all_wrong_arguments_are_told_at_once(letter_store: LetterStore) -> None:
    """One error lists all wrong arguments of `replay`."""
    with pytest.raises(ConfigError) as raised:
        letter_store.letters.replay(rate=0, limit=0, max_replays=0)
    assert len(raised.value.problems) == 3


def test_letters_are_deleted_by_selection(mixed: LetterStore) -> None:
    """`delete` removes only the selected letters, at most `limit`. With `dry_run` it only counts them."""
    assert mixed.letters.delete(DeadLetterFilter(topic="orders"), dry_run=True) == 3
    assert len(mixed.dead()) == 4
    assert mixed.letters.delete(DeadLetterFilter(topic="orders"), limit=1) == 1
    assert mixed.dead() == ["b.3", "c.3", "d.3"]
    assert mixed.letters.delete() == 3
    assert mixed.dead() == []


def test_a_letter_that_cannot_be_read_is_listed_and_left_alone(letter_store: LetterStore) -> None:
    """An unreadable letter has a reason and no message. `replay` counts it as unreadable. `delete` removes it."""
    letter_store.store.bury([(Item("junk", 1_000, b"\x00garbage", "orders"), "quarantine: no push form")])
    letter_store.bury("m")
    (letter, _) = letter_store.letters.select()
    assert (letter.message, letter.state, letter.topic) == (None, RetryState(), "orders")
    assert {group.fingerprint for group in letter_store.letters.groups()} == {"quarantine", "aaa"}
    result = letter_store.letters.replay()
    assert (result.matched, result.replayed, result.unreadable) == (2, 1, 1)
    assert letter_store.dead() == ["junk"]
    assert letter_store.letters.delete(DeadLetterFilter(ids=frozenset(["junk"]))) == 1


def test_a_store_without_letters_is_no_error(letter_store: LetterStore) -> None:
    """Without dead letters, `replay`, `delete` and `groups` return empty results."""
    assert letter_store.letters.replay() == Replayed()
    assert letter_store.letters.delete() == 0
    assert letter_store.letters.groups() == []


def test_a_replayed_message_gets_all_its_attempts_again(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """A replayed message that fails again has an id with `r1.3` at its end after the first replay, and `r2.3` after the
    second."""
    handle = handler(ValueError("x"))
    bench.serve(policy(max_attempts=3))
    consumer = bench.consume(handle)
    bench.publish(b"m")
    (letter,) = bench.dead()
    for replays in (1, 2):
        handle.calls.clear()
        assert DeadLetters(bench.connection).replay().replayed == 1
        bench.until(lambda: bench.waiting() == 0 and len(bench.letters()) == 1)
        (again,) = bench.letters()
        assert again.id == f"{letter.state.id}r{replays}.3"
        assert (handle.attempts, again.state.replays) == ([1, 2, 3], replays)
    handle.answers = (None,)
    assert DeadLetters(bench.connection).replay().replayed == 1
    bench.until(lambda: consumer.stats.acknowledged == 1)
    assert bench.letters() == []


def test_a_replay_to_another_topic_keeps_its_loop_guard(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """The replay count continues in the target topic, so the limit of replays holds there too."""
    handle = handler(ValueError("x"))
    bench.serve(policy(max_attempts=1))
    bench.consume(handle, ["orders", "repair"])
    bench.publish(b"m")
    bench.dead()
    for replays in (1, 2, 3):
        assert DeadLetters(bench.connection).replay(target="repair").replayed == 1
        bench.until(lambda n=replays: [one.state.replays for one in bench.letters()] == [n])  # type: ignore[misc]  # the loop's
    assert DeadLetters(bench.connection).replay(target="repair").guarded == 1
    assert [call.message.topic for call in handle.calls] == ["orders", "repair", "repair", "repair"]


def test_many_letters_of_many_shards_are_all_replayed() -> None:
    """`replay` reads pages over several shards. It skips and repeats no letter, although replayed letters leave the
    pages."""
    with connect("memory:", shards=7) as connection:
        ids = [f"m{n}" for n in range(1_300)]
        random.Random(1).shuffle(ids)
        body = encode_body(Message(BACK, b"m"))
        connection.store.bury([(Item(name, 1_000 + n // 10, body, "orders"), "why") for n, name in enumerate(ids)])
        assert DeadLetters(connection).replay().replayed == 1_300
        counts = connection.store.counts()
        assert (counts.total("dead"), counts.total("due")) == (0, 1_300)


def _sent(found: Found) -> Message:
    return decode_body(found.body)
