"""The pages of topics: the list, and one topic with its numbers, its policy and its readers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from retry_topic.connection import Connection
from retry_topic.dashboard.opening import connection_of, settings_of
from retry_topic.dashboard.topics.unread import unread
from retry_topic.management.filters import ListedMessage, entry_of
from retry_topic.management.policies import chosen_policy, described_policy
from retry_topic.management.search import Search
from retry_topic.management.topics import ListedTopic, listed_topic, listed_topics, unknown_topic
from wheel_sched.dashboard import Dashboard, NotFound
from wheel_sched.errors import ConfigError
from wheel_sched.extensions import OwnTopic, installed
from wheel_sched.management.members import as_dict
from wheel_sched.store import LiveMember, Members, State
from wheel_sched.store.core.items import STATES
from wheel_sched.store.fair_shares.numbers import FairTopicNumbers, fair_topic

_MOST = 500  # topics on a page
_BARS = 60
_EVENTS = ("accepted", "completed", "died")


def show(dashboard: Dashboard, request: Request) -> Response:
    """The page of all topics."""
    dashboard.sampler.now()
    found, now_ms = listed_topics(connection_of(dashboard))
    rows = [
        (one, dashboard.sampler.rate("accepted", topic=one.topic), dashboard.sampler.rate("died", topic=one.topic))
        for one in found[:_MOST]
    ]
    values = {
        "rows": rows,
        "more": len(found) - _MOST,
        "states": STATES,
        "problems": unread(dashboard),
        "now_ms": now_ms,
        "nameless": str(Search().with_topic("")),
    }
    return dashboard.page(request, "retry_topic/topics.html", values)


def answer(dashboard: Dashboard, request: Request) -> Any:
    """The topics as data for the JSON API."""
    found, now_ms = listed_topics(connection_of(dashboard))
    return {
        "topics": [one.as_dict() for one in found],
        "problems": [one._asdict() for one in unread(dashboard)],
        "now_ms": now_ms,
    }


@dataclass(frozen=True, slots=True)
class LookedAtTopic:
    """What the page of one topic shows.

    Args:
        listed: the numbers of the topic.
        policy: the name and version of the topic's policy; "" when the policies cannot be read.
        policy_words: the policy in one line, or why it cannot be read.
        next_due: the topic's message that is due next. None if no message waits, or none was found because many
            messages of other topics are due before it.
        oldest_dead: the topic's message that died first. None if the topic has no dead letter, or none was found
            because many messages of other topics died before it.
        readers: the live members that read the topic, as its consumers or as the intake of a retry topic.
        fair: which fair keys have overdue messages; None if the topic is not a fair topic.
        dropped, replaced: how many messages of the topic were superseded, by collapse and by debounce.
        own: what an installed package stores under this topic, such as tasks; None if the topic holds messages.
        now_ms: the store's time, epoch ms.
    """

    listed: ListedTopic
    policy: str
    policy_words: str
    next_due: ListedMessage | None
    oldest_dead: ListedMessage | None
    readers: Sequence[LiveMember]
    fair: FairTopicNumbers | None
    dropped: int
    replaced: int
    own: OwnTopic | None
    now_ms: int


def look_at(dashboard: Dashboard, topic: str) -> LookedAtTopic:
    """Read from the store and the broker what the page of one topic shows.

    Raises:
        NotFound: neither broker nor store knows the topic.
    """
    connection = connection_of(dashboard)
    words = unknown_topic(connection, topic)
    if words is not None:
        raise NotFound(words)
    counts = connection.store.counts()
    listed = listed_topic(topic, connection.broker.topics(), counts)
    own = _own_topic(listed)
    if own is not None:
        policy, policy_words = "", f"none: the topic holds {own.things}, and a policy decides about messages"
    else:
        policy, policy_words = _policy_of(dashboard, topic)
    members = Members(connection.store).live()
    readers = [one for one in members if topic in (*one.member.topics, *one.member.takes_in)]
    next_due, oldest_dead = (_first(connection, state, listed) for state in ("due", "dead"))
    fair, now_ms = fair_topic(connection.store, topic, counts), counts.now_us // 1000
    dropped, replaced = (counts.ever.get((event, topic), 0) for event in ("dropped", "replaced"))
    looked = (next_due, oldest_dead, readers, fair, dropped, replaced, own, now_ms)
    return LookedAtTopic(listed, policy, policy_words, *looked)


def _own_topic(listed: ListedTopic) -> OwnTopic | None:
    """What an installed package stores under this topic. None for a topic of the broker, which holds messages."""
    if listed.records is not None:
        return None
    found = (one.topics[listed.topic] for one in installed().extensions if listed.topic in one.topics)
    return next(found, None)


def _policy_of(dashboard: Dashboard, topic: str) -> tuple[str, str]:
    """The name and version of a topic's policy, and the policy in one line. If it cannot be read: "" and the reason."""
    try:
        described = described_policy(chosen_policy(settings_of(dashboard), topic=topic))
    except ConfigError as error:
        return "", f"the policies cannot be read: {error}"
    return described.policy, described.lines[0]


def _first(connection: Connection, state: State, listed: ListedTopic) -> ListedMessage | None:
    """The first message of a topic in a state, by due time or time of death.

    None if there is none, or if too many messages of other topics come before it.
    """
    if not listed.messages[state]:
        return None
    found = connection.store.list_items(state, topic=listed.topic, limit=1).found
    return entry_of(found[0]) if found else None


def show_one(dashboard: Dashboard, request: Request) -> Response:
    """The page of one topic."""
    dashboard.sampler.now()
    topic = request.path_params["topic"]
    found = look_at(dashboard, topic)
    sampler = dashboard.sampler
    values = {
        "found": found,
        "listed": found.listed,
        "states": STATES,
        "rates": [
            (event, sampler.rate(event, topic=topic), sampler.series(event, topic)[-_BARS:]) for event in _EVENTS
        ],
        "search": str(Search().with_topic(topic)),
        "searches": {state: str(Search().with_topic(topic).only(state)) for state in STATES},
        "now_ms": found.now_ms,
    }
    return dashboard.page(request, "retry_topic/topic.html", values)


def answer_one(dashboard: Dashboard, request: Request) -> Any:
    """The topic as data for the JSON API."""
    found = look_at(dashboard, request.path_params["topic"])
    return {
        **found.listed.as_dict(),
        "policy": found.policy,
        "policy_words": found.policy_words,
        "next_due_ms": None if found.next_due is None else found.next_due.at_ms,
        "oldest_dead_ms": None if found.oldest_dead is None else found.oldest_dead.at_ms,
        "readers": [as_dict(one, found.now_ms) for one in found.readers],
        "fair": None if found.fair is None else found.fair.as_dict(),
        "dropped": found.dropped,
        "replaced": found.replaced,
        "now_ms": found.now_ms,
    }
