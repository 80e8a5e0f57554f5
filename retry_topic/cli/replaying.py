"""Dead letters as they are sent through again: signed, where they were, and not for ever."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import click

from retry_topic.brokers.protocol import BrokerConsumer, Delivery
from retry_topic.loop_guard import MAX_REPLAYS, LoopGuard
from retry_topic.message import Message
from retry_topic.message.headers import RetryState, read, retry_id, return_to_origin, sign, write
from wheel_sched.cli.output import amount, note, say
from wheel_sched.errors import ConfigError
from wheel_sched.store import DelayStore

max_replays_option = click.option(
    "--max-replays", type=click.IntRange(min=1), default=MAX_REPLAYS, show_default=True, help="Loop guard, per message."
)


def tell_guarded(count: int) -> None:
    """Say how many letters were not replayed because they had been too often."""
    if count:
        say(f"{amount(count, 'dead letter')} held back by the loop guard (--max-replays raises it)")


def check_secrets(letters: Iterable[RetryState], secrets: Sequence[bytes]) -> None:
    """Raise `ConfigError` where letters were signed and there is no secret to sign them again."""
    if not secrets and any(state.signature is not None for state in letters):
        raise ConfigError(
            "these letters are signed, and what is not signed again is not believed by the group's service: none was "
            "replayed; give the file of the group's secrets, --secrets FILE, WHEEL_SCHED_SECRETS or secrets = in "
            "wheel-sched.toml"
        )


@dataclass(frozen=True, slots=True)
class Reborn:
    """Makes messages of a group's dead letters: attempts anew, under an id of their own.

    Under their old one they would be taken for the message that died, where the store still knows that.

    Args:
        group: whose they are.
        own: the group's topics, by what they are for.
        to: where they go; a topic that is not the group's redelivery topic is their origin from now on, or its
            consumers would take them for stray copies.
        dead_id: of the dead topic; with the letter's place there it makes the id, the same however often it is sent.
        secrets: the first one signs. None: letters must not have been signed.
    """

    group: str
    own: Mapping[str, str]
    to: str
    dead_id: str
    secrets: Sequence[bytes] = ()

    def id_of(self, letter: Message) -> str:
        """The id of the message that a letter, as it lies in the dead topic, becomes."""
        source = letter.source
        return retry_id(self.group, self.dead_id, *((0, "") if source is None else (source.partition, source.offset)))

    def __call__(self, letter: Message, replays: int) -> Message:
        """The message, which is replayed for the `replays`th time.

        Raises:
            ConfigError: it was signed, and there is no secret to sign it with.
        """
        state = read(letter.headers)
        check_secrets([state], self.secrets)
        fresh = RetryState(id=self.id_of(letter), original_topic=self.to, consumer_group=self.group, replays=replays)
        if self.to == self.own["redelivery"]:  # it goes home, as a retry would
            fresh.original_topic = state.original_topic
            fresh.original_partition = state.original_partition
            fresh.original_timestamp_ms = state.original_timestamp_ms
        signed = sign(fresh, letter, self.secrets[0]) if self.secrets else fresh
        return return_to_origin(letter.to(self.to, write(letter.headers, signed)))


@dataclass(slots=True)
class TopicReplay:
    """A replay of what lies in a dead topic, and what it has done.

    Args:
        reborn: makes the messages.
        store: has the counts of the loop guard: the one that the group's service uses.
        max_replays: of one message; its count goes on under each new id.
    """

    reborn: Reborn
    store: DelayStore
    max_replays: int = MAX_REPLAYS
    replayed: int = 0
    guarded: int = 0
    failed: int = 0

    def send(self, consumer: BrokerConsumer, letters: Sequence[Delivery]) -> None:
        """Send letters on and settle them; those that were replayed too often are settled only.

        Raises:
            ConfigError: see `Reborn`; none of these was replayed.
            StoreError, BrokerError: what was not settled comes again.
        """
        guard = LoopGuard(self.store)
        states = [read(one.message.headers) for one in letters]
        counts = guard.counts(
            [
                self.reborn.id_of(one.message) if state.id is None else state.known_as
                for one, state in zip(letters, states, strict=True)
            ]
        )
        sent = [(one, count + 1) for one, count in zip(letters, counts, strict=True) if count < self.max_replays]
        pairs = [(one, self.reborn(one.message, replays)) for one, replays in sent]
        if sent:
            guard.count([(self.reborn.id_of(one.message), times) for one, times in sent], self.store.now_ms())
            failures = [failure for failure in consumer.forward(pairs) if failure is not None]
            for failure in failures:
                note(f"not replayed: {failure.reason}")
            self.failed += len(failures)
            self.replayed += len(pairs) - len(failures)
        held = [one for one, count in zip(letters, counts, strict=True) if count >= self.max_replays]
        if held:
            consumer.ack(held)
            self.guarded += len(held)
