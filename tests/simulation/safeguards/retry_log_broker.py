"""Safeguards of retry topics against faults of a log broker."""

from __future__ import annotations

from tests.simulation.safeguards.switching import Safeguard

SAFEGUARDS = [
    Safeguard(
        "offsets of a deleted topic do not count for its successor",
        "retry_topic.brokers.kafka.topology:TopicIds.own",
        'if topic_id in ("", self.of(place.topic)):',
        "if True:",
        "retry-log",
        hidden="none of the first thousand histories has shown it",
    ),
    Safeguard(
        "records are handed out only if their topic is still the same",
        "retry_topic.brokers.kafka.topology:TopicIds.same",
        "return all(",
        "return True or all(",
        "retry-log",
        hidden="none of the first thousand histories has shown it",
    ),
    Safeguard(
        "the name of a source has the topic's id",
        "retry_topic.message.topic_names:source_of",
        "{topic_id}/",
        "",
        "retry-log",
    ),
    Safeguard(
        "a delivery of an assignment that has ended settles nothing",
        "retry_topic.brokers.kafka.offset_tracker:OffsetTracker.held",
        "and offsets.assignment == assignment",
        "",
        "retry-log",
        hidden="none of the first thousand histories has shown it",
    ),
    Safeguard(
        "a successor knows which records were settled out of order",
        "retry_topic.brokers.kafka.offset_tracker:PartitionOffsets.admit",
        "settled=state == 0",
        "settled=False",
        "retry-log",
        hidden="none of the first thousand histories has shown it",
    ),
    Safeguard(
        "a record that was handed out counts before it is handled",
        "retry_topic.brokers.kafka.offset_tracker:PartitionOffsets._state_runs",
        "max(1, entry.deliveries + counted)",
        "max(1, entry.deliveries)",
        "retry-log",
    ),
    Safeguard(
        "a record that is given back is not settled",
        "retry_topic.brokers.kafka.offset_tracker:PartitionOffsets._state_runs",
        "max(1, entry.deliveries + counted)",
        "entry.deliveries + counted",
        "retry-log",
    ),
    Safeguard(
        "an aborted transaction settles nothing",
        "retry_topic.brokers.kafka.offset_tracker:PartitionOffsets.unsettle",
        "entry.settled = False",
        "pass",
        "retry-log",
    ),
    Safeguard(
        "a record that our headers make too large is sent without them",
        "retry_topic.consumer.settling:Settler._refused",
        "lighter(outcome.forward) or outcome.delivery.message.to(topic)",
        "outcome.forward",
        "retry-log",
    ),
]
