"""Replay of a dead topic: letters become messages again, a limited number of times, signed if there are secrets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from retry_topic.brokers.protocol import BrokerConsumer, Delivery
from retry_topic.dead_letters.loop_guard import MAX_REPLAYS, count_replays, replay_counts
from retry_topic.message import Message
from retry_topic.message.headers import RetryState, read, retry_id, return_to_origin, sign, write
from wheel_sched.errors import ConfigError
from wheel_sched.store import DelayStore


def check_secrets(letters: Iterable[RetryState], secrets: Sequence[bytes]) -> None:
    """Refuse to replay signed letters without a secret.

    Raises:
        ConfigError: a letter is signed, and there is no secret to sign the message with.
    """
    if not secrets and any(state.signature is not None for state in letters):
        raise ConfigError(
            "these letters are signed, and the group's service rejects unsigned messages: none was replayed; "
            "give the file of the group's secrets: --secrets FILE, WHEEL_SCHED_SECRETS or secrets = in wheel-sched.toml"
        )


@dataclass(frozen=True, slots=True)
class LetterToMessage:
    """Converts a group's dead letters to messages that start their attempts anew, each under a new id.

    Under the old id, the store could take the new message for the dead one.

    Args:
        group: the consumer group.
        own: the names of the group's topics, by purpose: "retry", "redelivery", "dead".
        to: the topic that receives the messages. If it is the group's redelivery topic, the header for the topic of the
            first failure keeps its value. For any other topic, this header gets the value `to`. With another value a
            consumer of `to` would ignore the retry headers, because a handler may have copied them from a message of
            another topic.
        dead_id: id of the dead topic. Together with the letter's position it makes the new id, so a repeated
            conversion gives the same id.
        secrets: the first one signs. Defaults to none: then a signed letter is refused.
    """

    group: str
    own: Mapping[str, str]
    to: str
    dead_id: str
    secrets: Sequence[bytes] = ()

    def id_of(self, letter: Message) -> str:
        """The id of the message that a letter of the dead topic becomes."""
        source = letter.source
        return retry_id(self.group, self.dead_id, *((0, "") if source is None else (source.partition, source.offset)))

    def __call__(self, letter: Message, replays: int) -> Message:
        """Convert a letter that is replayed for the `replays`th time.

        Raises:
            ConfigError: the letter is signed, and there is no secret to sign the message with.
        """
        state = read(letter.headers)
        check_secrets([state], self.secrets)
        fresh = RetryState(id=self.id_of(letter), original_topic=self.to, consumer_group=self.group, replays=replays)
        if self.to == self.own["redelivery"]:  # it returns to its origin, as a retry does
            fresh.original_topic = state.original_topic
            fresh.original_partition = state.original_partition
            fresh.original_timestamp_ms = state.original_timestamp_ms
        signed = sign(fresh, letter, self.secrets[0]) if self.secrets else fresh
        return return_to_origin(letter.to(self.to, write(letter.headers, signed)))


@dataclass(slots=True)
class TopicReplay:
    """A replay of a dead topic, and its counts so far.

    Args:
        convert: converts letters to messages.
        store: the store of the group's service, which holds the counts of the loop guard.
        max_replays: how often one message may be replayed, under all its ids together.
        replayed: how many letters were replayed.
        guarded: how many letters the loop guard held back, because each was replayed too often before.
        failed: how many letters could not be replayed.
    """

    convert: LetterToMessage
    store: DelayStore
    max_replays: int = MAX_REPLAYS
    replayed: int = 0
    guarded: int = 0
    failed: int = 0

    def send(self, consumer: BrokerConsumer, letters: Sequence[Delivery]) -> list[str]:
        """Publish letters as messages and settle them. Letters that were replayed too often are only settled.

        Returns:
            The reasons why letters could not be published; empty if there were none.

        Raises:
            ConfigError: a letter is signed, and there is no secret to sign with; no letter was replayed.
            StoreError, BrokerError: letters that were not settled will be read again.
        """
        states = [read(letter.message.headers) for letter in letters]
        roots = [
            self.convert.id_of(letter.message) if state.id is None else state.known_as
            for letter, state in zip(letters, states, strict=True)
        ]
        counted = [*zip(letters, replay_counts(self.store, roots), strict=True)]
        sent = [(letter, count + 1) for letter, count in counted if count < self.max_replays]
        failures: list[str] = []
        if sent:
            pairs = [(letter, self.convert(letter.message, replays)) for letter, replays in sent]
            ids = [(self.convert.id_of(letter.message), replays) for letter, replays in sent]
            count_replays(self.store, ids, self.store.now_ms())
            failures = [failure.reason for failure in consumer.forward(pairs) if failure is not None]
            self.failed += len(failures)
            self.replayed += len(pairs) - len(failures)
        if guarded := [letter for letter, count in counted if count >= self.max_replays]:
            consumer.ack(guarded)
            self.guarded += len(guarded)
        return failures
