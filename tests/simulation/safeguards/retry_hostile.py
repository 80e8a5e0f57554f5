"""Safeguards of retry topics against hostile messages and against delays without end."""

from __future__ import annotations

from tests.simulation.safeguards.switching import Safeguard

SAFEGUARDS = [
    Safeguard(
        "a message that has killed too many consumers is given up",
        "retry_topic.consumer.consumer:Consumer._give",
        "delivery.deliveries > self.config.crash_cap",
        "False",
    ),
    Safeguard(
        "a service that cannot reach the store tries again soon",
        "retry_topic.intake.worker:IntakeWorker._until_available",
        "_AWAY_S[min(failures, len(_AWAY_S) - 1)]",
        "60.0",
    ),
    Safeguard(
        "a settlement that failed is tried again soon",
        "retry_topic.consumer.settling:Settler._settle",
        "AWAY_S[min(self._failures, len(AWAY_S)) - 1]",
        "60.0",
    ),
    Safeguard(
        "a header that is no number is ignored",
        "retry_topic.message.headers.state:_decode_integer",
        "if not _INTEGER.fullmatch(data):",
        "if False:",
    ),
    Safeguard(
        "a header that is no text is ignored",
        "retry_topic.message.headers.state:_decode_label",
        "except UnicodeDecodeError:",
        "except KeyError:",
    ),
    Safeguard(
        "a failed message that is too large to wait is a dead letter",
        "retry_topic.intake.records:_item",
        '"oversized" if len(item.body) > MAX_BODY_BYTES else None',
        "None",
    ),
    Safeguard(
        "a record waits no longer than the policy lets it ask for",
        "retry_topic.policy.decision:decide_by",
        "min(max(0, asked_ms), policy.retry_after_max_ms)",
        "max(0, asked_ms)",
    ),
    Safeguard(
        "a forged attempt counts only for its own payload",
        "retry_topic.message.headers.state:content_print",
        'return f"',
        'return "" and f"',
        hidden="none of the first thousand histories has shown it",
    ),
    Safeguard(
        "a message with the id of another message is not taken for it",
        "retry_topic.intake.records:is_same",
        "return same and",
        "return True or",
        hidden="none of the first thousand histories has shown it",
    ),
    Safeguard(
        "a second copy of a failed attempt is not counted again",
        "retry_topic.intake.plan:is_copy",
        "return counting and",
        "return False and",
    ),
]
