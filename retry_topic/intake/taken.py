"""The result of the intake for one failed message."""

from __future__ import annotations

from dataclasses import dataclass

from retry_topic.policy import Decision, explain


@dataclass(slots=True)
class Taken:
    """The result of the intake for one failed message, for logs, metrics and tests.

    Args:
        id: the id of this attempt in the delay store.
        topic: the topic on which the message first failed.
        attempt: the number of the delivery that failed.
        due_ms: when it is delivered again; None if never.
        dead: why it is a dead letter; None if it is not.
        decision: the policy's decision; None if there was nothing to decide.
        duplicate: whether the failure was already known, so that nothing was stored.
        superseded_by: the id of the retry that goes out in place of this one, by collapse or debounce. Defaults to
            None.
    """

    id: str
    topic: str
    attempt: int
    due_ms: int | None
    dead: str | None
    decision: Decision | None = None
    duplicate: bool = False
    superseded_by: str | None = None

    @property
    def why(self) -> str:
        """The reasons of the decision, in words."""
        return "the failure was already known" if self.decision is None else explain(self.decision)
