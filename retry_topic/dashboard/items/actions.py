"""The actions on messages: run now, replay, give another due time, hold, release, delete.

An action changes exactly the versions of messages that its preview selected. If a message has changed since the
preview, the action leaves it as it is. The answer counts such messages by what happened to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from retry_topic.connection import Connection
from retry_topic.dashboard.items.choosing import FIELDS, ChosenMessages, choose, messages
from retry_topic.dashboard.items.times import delay_of, spread_of, start_of
from retry_topic.dashboard.opening import connection_of, settings_of
from retry_topic.management import changing
from retry_topic.management.changing import ChangedMessages, ChangePace, Reach, outcome_words
from retry_topic.management.opening import secrets_of
from wheel_sched.dashboard import Action, ActionField, ActionResult, Dashboard, Preview, Right
from wheel_sched.dashboard.parts import Arguments
from wheel_sched.store import Outcome

_SPREAD = ActionField("spread", "spread the due times evenly over this duration, such as 10m")
_IN = ActionField("in", "due this long from now, such as 5m")
_AT = ActionField("at", "due at this instant, such as 2030-01-01T06:00:00Z; instead of `in`")
_REASON = ActionField("reason", "why the messages are held, for people who look at them")


class Deed(NamedTuple):
    """What an action does to messages.

    Args:
        words: what the action would do, such as "make {} due now". The number of messages replaces the braces.
        done: what the action did, such as "{} due now".
        reach: the states of messages that the action can change.
        change: called as `change(dashboard, arguments, selection, name of the visitor)`.
    """

    words: Callable[[Arguments], str]
    done: str
    reach: Reach
    change: Callable[[Dashboard, Arguments, ChosenMessages, str], ChangedMessages]


def action_of(name: str, right: Right, summary: str, deed: Deed, *fields: ActionField) -> Action:
    """Make an action of the dashboard from what it does to messages."""

    def preview(dashboard: Dashboard, arguments: Arguments) -> Preview:
        connection = connection_of(dashboard)
        words = deed.words(arguments)  # comes first, because it refuses wrong times
        chosen = choose(connection, arguments, deed.reach)
        count = len(chosen.meant)
        samples = chosen.samples(connection.store.now_ms())
        return Preview(count, words.format(messages(count)), chosen.digest, samples, chosen.warning, chosen)

    def execute(dashboard: Dashboard, arguments: Arguments, found: Preview, who: str) -> ActionResult:
        changed = deed.change(dashboard, arguments, found.selected, who)
        cut = changed.outcomes.get(Outcome.CANCELLED, 0)
        words = deed.done.format(messages(changed.done))
        if cut:
            words += f"; {messages(cut)} {outcome_words(Outcome.CANCELLED)}"
        if changed.paused:
            words += f"; {messages(changed.paused)} stay held because their topic is paused: resume it"
        return ActionResult(changed.done + cut, words, _left(changed))

    return Action(name, right, summary, (*FIELDS, *fields), preview, execute)


def _left(changed: ChangedMessages) -> dict[str, int]:
    others = {outcome: count for outcome, count in changed.others.items() if outcome != Outcome.CANCELLED}
    left = {outcome_words(outcome): count for outcome, count in others.items()}
    if changed.guarded:
        left["that were replayed too often before"] = changed.guarded
    return left


def _connected(change: Callable[[Connection, ChosenMessages], ChangedMessages]) -> Callable[..., ChangedMessages]:
    """Make the `change` of a `Deed` from a function that needs only the connection and the messages."""
    return lambda dashboard, _arguments, chosen, _who: change(connection_of(dashboard), chosen)


def _run_now(dashboard: Dashboard, arguments: Arguments, chosen: ChosenMessages, _: str) -> ChangedMessages:
    pace = ChangePace(None, spread_of(arguments))
    secrets = secrets_of(settings_of(dashboard))
    return changing.run_now(connection_of(dashboard), chosen.meant, pace, secrets=secrets)


def _reschedule(dashboard: Dashboard, arguments: Arguments, chosen: ChosenMessages, _: str) -> ChangedMessages:
    connection = connection_of(dashboard)
    start_ms = start_of(arguments, connection.store.now_ms())
    return changing.reschedule(connection, chosen.meant, start_ms, ChangePace(None, spread_of(arguments)))


def _hold(dashboard: Dashboard, arguments: Arguments, chosen: ChosenMessages, who: str) -> ChangedMessages:
    reason = arguments.get("reason") or f"by {who} in the dashboard"
    return changing.hold(connection_of(dashboard), chosen.meant, reason)


def _spread_words(words: str) -> Callable[[Arguments], str]:
    def said(arguments: Arguments) -> str:
        spread_of(arguments)
        return words + (f", spread over {arguments['spread']}" if arguments.get("spread") else "")

    return said


def _reschedule_words(arguments: Arguments) -> str:
    start_of(arguments, 0)
    when = f"{arguments['in']} after you confirm" if delay_of(arguments) is not None else f"at {arguments['at']}"
    return _spread_words("make {} due " + when)(arguments)


ACTIONS: tuple[Action, ...] = (
    action_of(
        "run-now",
        "operate",
        "Make messages due now",
        Deed(_spread_words("make {} due now"), "{} due now", changing.RUN_NOW, _run_now),
        _SPREAD,
    ),
    action_of(
        "replay",
        "operate",
        "Deliver dead letters again",
        Deed(_spread_words("deliver {} again"), "{} replayed", changing.REPLAY, _run_now),
        _SPREAD,
    ),
    action_of(
        "reschedule",
        "operate",
        "Give messages another due time",
        Deed(_reschedule_words, "{} rescheduled", changing.RESCHEDULE, _reschedule),
        _IN,
        _AT,
        _SPREAD,
    ),
    action_of(
        "hold",
        "operate",
        "Hold messages that wait",
        Deed(lambda _: "hold {}", "{} held", changing.HOLD, _hold),
        _REASON,
    ),
    action_of(
        "release",
        "operate",
        "Let held messages wait again",
        Deed(
            lambda _: "release {}",
            "{} released",
            changing.RELEASE,
            _connected(lambda connection, chosen: changing.release(connection, chosen.meant)),
        ),
    ),
    action_of(
        "delete",
        "delete",
        "Delete messages for good",
        Deed(
            lambda _: "delete {} for good; of messages in flight the present attempt is the last",
            "{} deleted",
            changing.DELETE,
            _connected(lambda connection, chosen: changing.delete(connection, chosen.meant)),
        ),
    ),
)
