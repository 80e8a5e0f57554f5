"""What the policy would decide if the next attempt of a message failed with the same error."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, NamedTuple

from retry_topic.management.filters import ListedMessage
from retry_topic.management.opening import policies_of
from retry_topic.management.policy_trials import explained_decision
from retry_topic.management.settings import RetrySettings
from retry_topic.policy.failure import failure_from
from wheel_sched.errors import ConfigError


class NextDecision(NamedTuple):
    """The decision about the next attempt: its number, the policy that decides, and the decision in words."""

    attempt: int
    policy: str
    words: str

    def as_dict(self) -> dict[str, Any]:
        """The decision as data for JSON."""
        return self._asdict()


def next_decision(settings: RetrySettings, entry: ListedMessage, now_ms: int) -> NextDecision | None:
    """The decision by the policies in the settings; None for a message that has no next attempt.

    If the policy has jitter, the delay is an example, drawn with the message's id as the seed. So a second call gives
    the same delay, unless something else has changed.

    Args:
        settings: name the policy file. The running retry service may have other policies.
        entry: the message.
        now_ms: the store's time, epoch ms.
    """
    state = entry.letter.state
    if entry.found.state == "dead" or entry.letter.message is None:
        return None
    attempt = state.attempt + 1
    try:
        policy = policies_of(settings).for_topic(entry.letter.topic)
    except ConfigError as error:
        return NextDecision(attempt, "", f"the policies cannot be read: {error}")
    at_ms = max(now_ms, entry.at_ms or 0)
    failed = replace(state, attempt=attempt, verdict=None, retry_after_ms=None)
    chance = random.Random(entry.id.encode("utf-8", "surrogatepass"))
    explained = explained_decision(policy, failure_from(failed, now_ms=at_ms), at_ms, chance)
    return NextDecision(attempt, policy.ident, explained.text)
