"""The actions on topics: pause and resume. A preview stays valid when messages arrive in or leave the topic."""

from __future__ import annotations

from retry_topic.dashboard.items.times import spread_of
from retry_topic.dashboard.opening import connection_of
from retry_topic.management.topics import pause_topic, resume_topic, unknown_topic
from wheel_sched.dashboard import Action, ActionField, ActionResult, Dashboard, NotFound, Preview
from wheel_sched.dashboard.actions import digest_of
from wheel_sched.dashboard.parts import Arguments
from wheel_sched.dashboard.rendering import quote_path
from wheel_sched.management.wording import amount, instant

_TOPIC = ActionField("topic", "the name of the topic", required=True)
_SPREAD = ActionField("spread", "spread the overdue messages evenly over this duration, such as 10m")


def _pause_preview(dashboard: Dashboard, arguments: Arguments) -> Preview:
    topic, since_ms, _, due = _state(dashboard, arguments["topic"])
    digest = digest_of(["pause", topic, since_ms])
    if since_ms is not None:
        return Preview(0, f"leave {topic} as it is: it has been paused since {instant(since_ms)}", digest)
    words = f"hold {amount(due, 'message')} of {topic}, and all later ones until it is resumed"
    return Preview(1, words, digest, warning="Messages in flight finish their attempt.")


def _pause(dashboard: Dashboard, arguments: Arguments, _: Preview, __: str) -> ActionResult:
    topic = arguments["topic"]
    held = pause_topic(connection_of(dashboard), topic, force=True)
    return ActionResult(1, f"{amount(held, 'message')} of {topic} held; it is paused", link=_link(topic))


def _resume_preview(dashboard: Dashboard, arguments: Arguments) -> Preview:
    topic, since_ms, held, _ = _state(dashboard, arguments["topic"])
    spread_of(arguments)
    digest = digest_of(["resume", topic, since_ms])
    if since_ms is None:
        return Preview(0, f"leave {topic} as it is: it is not paused", digest)
    spread = f", those overdue spread over {arguments['spread']}" if arguments.get("spread") else ""
    return Preview(1, f"deliver {amount(held, 'message')} of {topic} again{spread}", digest)


def _resume(dashboard: Dashboard, arguments: Arguments, _: Preview, __: str) -> ActionResult:
    topic = arguments["topic"]
    done = resume_topic(connection_of(dashboard), topic, spread_ms=spread_of(arguments) or 0, force=True)
    words = f"{amount(done.released, 'message')} of {topic} waiting again; it is not paused"
    return ActionResult(int(done.was_paused), words, link=_link(topic))


def _state(dashboard: Dashboard, topic: str) -> tuple[str, int | None, int, int]:
    """The topic, the time since which it is paused or None, and the numbers of its held and of its waiting messages.

    Raises:
        NotFound: neither broker nor store knows the topic; nothing was changed.
    """
    words = unknown_topic(connection_of(dashboard), topic)
    if words is not None:
        raise NotFound(words)
    counts = dashboard.store.counts()
    return topic, counts.paused.get(topic), counts.now.get(("held", topic), 0), counts.now.get(("due", topic), 0)


def _link(topic: str) -> str:
    return f"/topics/{quote_path(topic)}"


ACTIONS: tuple[Action, ...] = (
    Action("pause-topic", "operate", "Hold all messages of a topic", (_TOPIC,), _pause_preview, _pause),
    Action(
        "resume-topic",
        "operate",
        "Deliver the messages of a paused topic again",
        (_TOPIC, _SPREAD),
        _resume_preview,
        _resume,
    ),
)
