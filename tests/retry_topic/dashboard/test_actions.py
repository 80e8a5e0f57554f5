"""The actions on messages. An action does what its preview says, and only to the versions that the preview selected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from retry_topic.dashboard.items import choosing
from retry_topic.management import changing
from wheel_sched.store import Dead, Item

HOUR = 3_600_000
# action -> (state of the messages, more arguments, their state afterwards)
ACTIONS: dict[str, tuple[str, dict[str, str], str | None]] = {
    "run-now": ("due", {}, "due"),
    "replay": ("dead", {}, "due"),
    "reschedule": ("due", {"in": "3h", "spread": "1m"}, "due"),
    "hold": ("due", {"reason": "look at it"}, "held"),
    "release": ("held", {}, "due"),
    "delete": ("due", {}, None),
}


def state_of(seen: Any, item_id: str) -> str | None:
    found = seen.found(item_id)
    return None if found is None else found.state


@pytest.mark.parametrize("by", ["ids", "search"])
@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_does_exactly_what_its_preview_said(seen: Any, action: str, by: str) -> None:
    """Messages are selected by ids or by a search. As many are changed as the preview counts, and the others stay as
    they are.
    """
    state, arguments, after = ACTIONS[action]
    for item_id in ("a.2", "b.2"):
        seen.message(item_id, state=state)
    seen.message("c.2", state=state, topic="mail")
    before = seen.found("c.2")
    chosen = {"ids": ["a.2", "b.2"]} if by == "ids" else {"search": f"topic:orders state:{state}"}
    done = seen.act(action, **chosen, **arguments)
    assert done["count"] == 2
    assert "2 messages" in done["words"]
    assert len(done["samples"]) == 2
    assert not done["left"]
    assert [state_of(seen, "a.2"), state_of(seen, "b.2")] == [after, after]
    assert seen.found("c.2") == before


def test_the_new_due_times_are_those_that_were_asked_for(seen: Any) -> None:
    """`run-now` makes messages due now, and `reschedule` at one time. With `spread`, due times are spread evenly."""
    ids = [seen.message(f"m{n}.2") for n in range(4)]
    seen.act("run-now", ids=ids[:1])
    assert seen.found(ids[0]).score_ms <= seen.store.now_ms()
    seen.act("reschedule", ids=ids, at="2100-01-01T00:00:00Z", spread="40s")
    start_ms = 4_102_444_800_000
    assert sorted(seen.found(one).score_ms - start_ms for one in ids) == [0, 10_000, 20_000, 30_000]
    seen.act("reschedule", ids=ids[:1], **{"in": "2h"})
    assert abs(seen.found(ids[0]).score_ms - seen.store.now_ms() - 2 * HOUR) < 60_000


@pytest.mark.parametrize("action", ACTIONS)
def test_what_changed_since_the_preview_is_refused(seen: Any, action: str) -> None:
    """If a selected message was changed after the preview, nothing at all is changed, and the new preview is shown."""
    state, arguments, _ = ACTIONS[action]
    for item_id in ("a.2", "b.2"):
        seen.message(item_id, state=state)
    asked = {"search": f"topic:orders state:{state}", **arguments}
    token = seen.preview(action, **asked)["token"]
    seen.message("c.2", state=state)
    before = [seen.found(one) for one in ("a.2", "b.2", "c.2")]
    answer = seen.execute(action, token, 409, **asked)
    assert answer["error"]["kind"] == "ChangedMeanwhile"
    assert answer["preview"]["count"] == 3
    assert [seen.found(one) for one in ("a.2", "b.2", "c.2")] == before


def test_another_due_time_is_a_change_too(seen: Any) -> None:
    """If someone gave a message another due time after the preview, the confirmation is refused."""
    seen.message("a.2")
    token = seen.preview("run-now", ids=["a.2"])["token"]
    seen.store.reschedule(["a.2"], seen.store.now_ms() + 2 * HOUR)
    assert seen.execute("run-now", token, 409, ids=["a.2"])["error"]["kind"] == "ChangedMeanwhile"


CHANGES = {
    "run-now": "run_now",
    "replay": "run_now",
    "reschedule": "reschedule",
    "hold": "hold",
    "release": "release",
    "delete": "delete",
}


@pytest.mark.parametrize("action", ACTIONS)
def test_a_message_that_changes_in_the_last_moment_stays_as_it_is(
    seen: Any, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that others change between the last check and the action is left alone, and is counted as "changed
    meanwhile".
    """
    state, arguments, after = ACTIONS[action]
    for item_id in ("a.2", "b.2"):
        seen.message(item_id, state=state)
    change = getattr(changing, CHANGES[action])

    def changed_first(*args: Any, **kwargs: Any) -> Any:
        found = seen.found("a.2")
        if state == "dead":
            seen.store.requeue([("a.2", 0, Item("a.2", 0, b"other", "orders"))])
            seen.store.settle(seen.store.claim(limit=1), [Dead("a.2", "again")])
        else:
            due_ms = None if state == "held" else found.score_ms
            seen.store.replace(Item("a.2", due_ms, b"other", "orders"), keep_due=True)
        return change(*args, **kwargs)

    monkeypatch.setattr(changing, CHANGES[action], changed_first)
    asked = {"ids": ["a.2", "b.2"], **arguments}
    token = seen.preview(action, **asked)["token"]
    done = seen.execute(action, token, **asked)
    assert done["done"] == 1
    assert done["left"] == {"changed meanwhile": 1}
    assert seen.found("a.2").body == b"other"
    assert state_of(seen, "b.2") == after


def test_messages_that_an_action_cannot_change_are_named_and_left(seen: Any) -> None:
    """The preview warns of messages in other states and of ids that do not exist. None of them is changed."""
    seen.message("a.2")
    seen.message("b.2", state="dead")
    found = seen.preview("hold", ids=["a.2", "b.2", "gone.1"])
    assert found["count"] == 1
    assert "1 dead, which this does not change" in found["warning"]
    assert "1 gone, or never stored here" in found["warning"]
    assert seen.execute("hold", found["token"], ids=["a.2", "b.2", "gone.1"])["done"] == 1
    assert state_of(seen, "b.2") == "dead"


def test_a_message_in_flight_is_not_tried_again_after_it_was_deleted(seen: Any) -> None:
    """If a message in flight is deleted, its present attempt continues, and no other attempt follows. The answer says
    so, and counts the message as done.
    """
    seen.message("a.2", in_ms=-1)
    seen.store.claim(limit=1)
    done = seen.act("delete", ids=["a.2"])
    assert done["words"] == ("0 messages deleted; 1 message in flight: will not be tried again after this attempt")
    assert not done["left"]


@pytest.mark.parametrize(
    ("action", "arguments", "status", "words"),
    [
        ("run-now", {}, 400, "either ids or a search"),
        ("run-now", {"ids": ["a.2"], "search": "a"}, 400, "either ids or a search"),
        ("run-now", {"search": "  "}, 400, "chooses every message"),
        ("run-now", {"search": "topik:a"}, 400, "did you mean topic:orders?"),
        ("run-now", {"ids": ["gone.1"]}, 404, "there is no message gone.1: nothing was changed"),
        ("run-now", {"ids": ["a.2"], "spread": "soon"}, 400, "spread: expected a duration"),
        ("reschedule", {"ids": ["a.2"]}, 400, "When? Give in or at; nothing was changed."),
        (
            "reschedule",
            {"ids": ["a.2"], "in": "1h", "at": "2100-01-01T00:00:00Z"},
            400,
            "Give in or at, not both; nothing was changed.",
        ),
        ("reschedule", {"ids": ["a.2"], "at": "2100-01-01"}, 400, "with a time zone"),
        ("reschedule", {"ids": ["a.2"], "at": "{0}"}, 400, "with a time zone"),
        ("reschedule", {"ids": ["a.2"], "in": "-1h"}, 400, "expected a duration"),
    ],
)
def test_a_request_that_makes_no_sense_changes_nothing(
    seen: Any, action: str, arguments: dict[str, Any], status: int, words: str
) -> None:
    """The error says what is wrong, and the message stays as it is."""
    seen.message("a.2")
    before = seen.found("a.2")
    assert words in seen.preview(action, status, **arguments)["error"]["message"]
    assert seen.found("a.2") == before


def test_too_many_messages_are_refused_with_the_way(seen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If too many messages are selected, the preview refuses them. For dead letters it names the replay operation."""
    monkeypatch.setattr(choosing, "MOST", 2)
    for number in range(3):
        seen.message(f"m{number}.2", state="dead")
    for chosen in ({"search": "state:dead"}, {"ids": [f"m{number}.2" for number in range(3)]}):
        message = seen.preview("replay", 400, **chosen)["error"]["message"]
        assert "more than 2 messages: nothing was changed" in message
        assert "replay operation on the page Dead letters" in message
    monkeypatch.setattr(choosing, "_LOOKED_AT", 40)
    for number in range(50):
        seen.message(f"w{number}.2")
    assert "would have to be read" in seen.preview("hold", 400, search="nowhere")["error"]["message"]


def test_messages_of_a_paused_topic_stay_held_and_this_is_said(seen: Any) -> None:
    """Releasing messages of a paused topic leaves them held until the topic is resumed, and the answer says so."""
    seen.message("a.2", state="held")
    seen.store.pause("orders")
    done = seen.act("release", ids=["a.2"])
    assert "1 message stay held because their topic is paused" in done["words"]


@pytest.mark.parametrize(("right", "refused"), [("read", list(ACTIONS)), ("operate", ["delete"])])
def test_actions_need_their_right(see: Callable[..., Any], right: str, refused: list[str]) -> None:
    """Without the right, an action is refused and changes nothing."""
    one = see(right)
    one.message("a.2")
    before = one.found("a.2")
    for action in refused:
        assert one.preview(action, 403, ids=["a.2"])["error"]["kind"] == "NotAllowed"
    assert one.found("a.2") == before


def test_the_forms_of_the_pages_work_as_a_browser_sends_them(seen: Any) -> None:
    """The forms of the pages work without scripts. They change one message, selected messages, or all that match."""
    seen.message("a b.2")
    seen.message("c.2", in_ms=2 * HOUR)
    assert "1 message rescheduled" in seen.submit("reschedule", {"ids%": ["a%20b.2"], "in": "5m"})
    page = seen.page("/items", search="due<90m topic:orders")
    assert 'name="search%" value="due%3C' in page
    assert "2 messages held" in seen.submit("hold", {"search%": "topic%3Aorders"})
    assert "1 message deleted" in seen.submit("delete", {"ids%": ["c.2"]})
    assert seen.found("c.2") is None
