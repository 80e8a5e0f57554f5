"""Changes of selected messages: a message is changed only in the version that was selected. The other messages are
counted by outcome.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from retry_topic import Connection, Message, connect
from retry_topic.management import changing
from retry_topic.management.changing import RUN_NOW, ChangedMessages, ChangePace
from retry_topic.management.filters import Filter
from retry_topic.management.replaying import plan_replay
from retry_topic.management.selecting import Selected, check_choice, select, select_exactly
from retry_topic.message.encoding import encode_body
from retry_topic.message.headers import RetryState, write
from wheel_sched.errors import NotDone, Rejected
from wheel_sched.store import Dead, Item, Outcome

HOUR = 3_600_000
ANY = ChangePace()

Change = Callable[[Connection, Selected], ChangedMessages]
CHANGES: dict[str, Change] = {
    "run now": lambda connection, meant: changing.run_now(connection, meant, ANY),
    "reschedule": lambda connection, meant: changing.reschedule(connection, meant, 2 * HOUR, ANY),
    "delete": changing.delete,
}


@pytest.fixture(params=["memory", pytest.param("server", marks=pytest.mark.real)])
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A connection in memory, and one to a real server, on which a script makes the changes."""
    address = "memory:" if request.param == "memory" else request.getfixturevalue("redis_url")
    with connect(address) as opened:
        yield opened


def body(name: str, value: bytes = b"1") -> bytes:
    state = RetryState(id=name, attempt=2, original_topic="orders", error_class="shop.Timeout")
    return encode_body(Message("orders", value, None, write((), state)))


def wait(connection: Connection, *names: str, state: str = "due") -> None:
    """Store messages that wait, are held, or are in flight."""
    store = connection.store
    due_ms = store.now_ms() + (HOUR if state == "due" else 0)
    store.schedule([Item(name, None if state == "held" else due_ms, body(name), "orders") for name in names])
    if state == "leased":
        assert len(store.claim(limit=len(names), lease_ms=HOUR).items) == len(names)


def bury(connection: Connection, *names: str) -> None:
    store = connection.store
    store.bury([(Item(name, store.now_ms(), body(name), "orders"), "max-attempts") for name in names])


def rewrite(connection: Connection, name: str) -> None:
    """Give a stored message another record, as another process would do. This changes the message's version."""
    store = connection.store
    (found,) = store.get([name])
    assert found is not None
    if found.state == "dead":
        assert store.requeue([(name, 0, Item(name, 0, body(name, b"2"), "orders"))]) == [Outcome.DONE]
        claim = store.claim(limit=1, lease_ms=HOUR)
        assert store.settle(claim, [Dead(name, "max-attempts")]).outcomes == [Outcome.DONE]
    else:
        replaced = store.replace(Item(name, None, body(name, b"2"), "orders"), keep_due=True, in_flight=True)
        assert replaced == Outcome.DONE


def chosen(connection: Connection, *ids: str) -> Selected:
    return select(connection, ids, Filter(), False, RUN_NOW.searched)


@pytest.mark.parametrize("state", ["due", "held"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_message_that_changed_since_it_was_selected_is_left_alone(
    connection: Connection, change: str, state: str
) -> None:
    """A message that got another record after the selection keeps it, and counts as `OTHER_VERSION`. The other
    messages are changed."""
    wait(connection, "a", "b", state=state)
    meant = chosen(connection, "a", "b")
    rewrite(connection, "a")
    before = connection.store.get(["a"])
    done = CHANGES[change](connection, meant)
    assert done.outcomes == {Outcome.OTHER_VERSION: 1, Outcome.DONE: 1}
    assert connection.store.get(["a"]) == before
    assert not done.complete


@pytest.mark.parametrize("change", ["run now", "delete"])
def test_a_dead_letter_that_changed_since_it_was_selected_is_left_alone(connection: Connection, change: str) -> None:
    """A dead letter that died again after the selection stays dead, and counts as `OTHER_VERSION`."""
    bury(connection, "a", "b")
    meant = chosen(connection, "a", "b")
    rewrite(connection, "a")
    before = connection.store.get(["a"])
    assert CHANGES[change](connection, meant).outcomes == {Outcome.OTHER_VERSION: 1, Outcome.DONE: 1}
    assert connection.store.get(["a"]) == before


@pytest.mark.real
def test_an_unreadable_dead_letter_can_be_deleted(redis_url: str) -> None:
    """A dead letter whose record cannot be read has version 0, and `delete` deletes it."""
    with connect(redis_url) as connection:
        bury(connection, "a")
        backend: Any = connection.store.backend
        (key,) = [key for key in backend.client.scan_iter() if key.endswith(b":deadbody")]
        backend.client.hset(key, "a", b"4:oops?")
        assert changing.delete(connection, chosen(connection, "a")).outcomes == {Outcome.DONE: 1}


def test_a_message_in_flight_that_changed_is_tried_again(connection: Connection) -> None:
    """`delete` does not mark a message in flight that got another record after the selection."""
    wait(connection, "a", "b", state="leased")
    meant = chosen(connection, "a", "b")
    rewrite(connection, "a")
    done = changing.delete(connection, meant)
    assert done.outcomes == {Outcome.OTHER_VERSION: 1, Outcome.CANCELLED: 1}


@pytest.mark.parametrize("change", CHANGES)
def test_exact_changes_apply_to_the_given_versions_only(connection: Connection, change: str) -> None:
    """`select_exactly` selects messages in the versions of an earlier selection. A message that has another version now
    is not changed. A message that is gone counts as `ABSENT`."""
    wait(connection, "a", "b", "gone")
    versions = {member.id: member.version or 0 for member in chosen(connection, "a", "b", "gone").members}
    rewrite(connection, "a")
    connection.store.cancel(["gone"])
    meant = select_exactly(connection, versions)
    assert list(meant.absent) == ["gone"]
    done = CHANGES[change](connection, meant)
    assert done.outcomes == {Outcome.OTHER_VERSION: 1, Outcome.ABSENT: 1, Outcome.DONE: 1}
    assert done.as_dict() == {"done": 1, "absent": 1, "other_version": 1}


def test_a_replay_keeps_a_letter_that_died_again_meanwhile(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A letter that another process replaces between the replay's read and its write stays dead with its new record."""
    bury(connection, "a", "b")
    store = connection.store
    change, changed = type(store).change, []

    def after_another(self: Any, alterations: Any, **kwargs: Any) -> Any:
        if not changed:
            changed.append(True)
            rewrite(connection, "a")
        return change(self, alterations, **kwargs)

    monkeypatch.setattr(type(store), "change", after_another)
    planned = plan_replay(connection, ["a", "b"], Filter(), False)
    done = planned.run(ANY)
    states = [found.state for found in store.get(["a", "b"]) if found is not None]
    assert (done.matched, done.replayed, states) == (2, 1, ["dead", "due"])


def test_a_change_counts_held_back_letters(connection: Connection) -> None:
    """`run_now` counts the dead letters that the loop guard holds back."""
    bury(connection, "a")
    store = connection.store
    for _ in range(3):
        assert changing.run_now(connection, chosen(connection, "a"), ANY).done == 1
        store.settle(store.claim(limit=1, lease_ms=HOUR), [Dead("a", "max-attempts")])
    done = changing.run_now(connection, chosen(connection, "a"), ANY)
    assert (done.done, done.guarded, done.outcomes) == (0, 1, {Outcome.WRONG_STATE: 1})


def test_a_change_counts_messages_of_paused_topics(connection: Connection) -> None:
    """`run_now` counts the messages that stay held because their topic is paused."""
    wait(connection, "a")
    connection.store.pause("orders")
    assert changing.run_now(connection, chosen(connection, "a"), ANY).paused == 1


def test_progress_counts_the_messages_so_far(connection: Connection) -> None:
    """`progress` is called after each step with the number of messages changed so far."""
    wait(connection, "a", "b")
    seen: list[int] = []
    changing.delete(connection, chosen(connection, "a", "b"), progress=seen.append)
    assert seen[-1] == 2


@pytest.mark.parametrize(
    ("ids", "filter_", "everything"),
    [((), Filter(), False), (("a",), Filter(topic="orders"), False), (("a",), Filter(), True)],
    ids=["nothing", "ids and a filter", "ids and all"],
)
def test_a_request_names_messages_in_one_way(ids: tuple[str, ...], filter_: Filter, everything: bool) -> None:
    """A request must select messages in exactly one way: by ids, by a filter, or all of them."""
    with pytest.raises(Rejected, match="Give ids"):
        check_choice(ids, filter_, everything)


def test_an_id_that_stands_for_another_is_returned(connection: Connection) -> None:
    """If the store has the message under another id, the selection returns that id."""
    wait(connection, "a.2")
    assert chosen(connection, "a").stored_as == {"a": "a.2"}
    with pytest.raises(NotDone, match="there is no message b: nothing was changed"):
        chosen(connection, "b")


def test_a_message_in_flight_that_will_not_be_tried_again_counts_as_changed() -> None:
    """A message in flight that gets a cancel mark (`CANCELLED`) counts as changed. Any outcome but `DONE` and
    `CANCELLED` makes a change incomplete."""
    assert ChangedMessages(Counter({Outcome.DONE: 1, Outcome.CANCELLED: 2})).complete
    assert not ChangedMessages({Outcome.ABSENT: 1}).complete
