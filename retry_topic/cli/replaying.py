"""Dead letters as they are sent through again: signed, where they were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from retry_topic.headers import RetryState, read, retry_id, sign, write
from retry_topic.message import Message
from wheel_sched.errors import ConfigError


def check_secrets(letters: Iterable[RetryState], secrets: Sequence[bytes]) -> None:
    """Raise `ConfigError` where letters were signed and there is no secret to sign them again."""
    if not secrets and any(state.signature is not None for state in letters):
        raise ConfigError(
            "these letters are signed, and what is not signed again is dead at its next failure: none of them was "
            "replayed; give the file of the group's secrets, --secrets FILE, WHEEL_SCHED_SECRETS or secrets = in "
            "wheel-sched.toml"
        )


def replayed(
    letter: Message, group: str, own: Mapping[str, str], to: str, dead_id: str, secrets: Sequence[bytes]
) -> Message:
    """The letter with its attempts anew, under an id of its own, or it would be taken for the message that died.

    Args:
        letter: as it lies in the dead topic.
        group: whose it is.
        own: the group's topics, by what they are for.
        to: where it goes; a topic that is not the group's redelivery topic is its origin from now on, or its consumers
            would take it for a stray copy.
        dead_id: of the dead topic; with the letter's place there it makes the id, the same however often it is sent.
        secrets: the first one signs. None: letters must not have been signed.

    Raises:
        ConfigError: it was signed, and there is no secret to sign it with: its next failure would be its last.
    """
    state = read(letter.headers)
    check_secrets([state], secrets)
    source = letter.source
    place = (0, "") if source is None else (source.partition, source.offset)
    origin = state.original_topic if to == own["redelivery"] else to
    fresh = RetryState(id=retry_id(group, dead_id, *place), original_topic=origin, consumer_group=group)
    return letter.to(to, write(letter.headers, sign(fresh, secrets[0]) if secrets else fresh))
