"""A failed message on its way through the intake, and what is told of it afterwards: values, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace

from retry_topic.brokers.protocol import Delivery
from retry_topic.headers import HEADER_NAMES, MAX_COUNT, SPRING_NAMES, RetryState, content_print
from retry_topic.history import Attempt, releasing_shard
from retry_topic.message import Message
from retry_topic.policy import Decision, explain
from retry_topic.wire import decode_body
from wheel_sched.errors import Rejected
from wheel_sched.store import ENDED, Found, Item, Tries


@dataclass(slots=True)
class Taken:
    """What the intake did with one failed message, for logs, metrics and tests; `decision` is None where nothing was
    to be decided."""

    id: str
    topic: str
    attempt: int
    due_ms: int | None
    dead: str | None
    decision: Decision | None = None
    duplicate: bool = False

    @property
    def why(self) -> str:
        """The reasons in words."""
        return "it was taken in before" if self.decision is None else explain(self.decision)


@dataclass(slots=True)
class Case:
    """One failed message on its way through the intake, filled in step by step.

    `given` is what its headers say, `state` the same with the counts and the id that hold; `message` is what everybody
    is told of the dead; `through` is a second copy whose message has succeeded.
    """

    delivery: Delivery
    given: RetryState
    state: RetryState
    topic: str
    repeated: bool
    due_ms: int | None = None
    dead: str | None = None
    decision: Decision | None = None
    now_ms: int = 0
    keep_until_ms: int = 0
    through: bool = False
    message: Message | None = None
    item: Item | None = None
    duplicate: bool = False
    head: str = ""

    @property
    def member(self) -> str:
        return f"{self.state.stem}.{self.state.attempt}"

    @property
    def offset(self) -> int:
        """Of its record in the log it was read from."""
        source = self.delivery.message.source
        return -1 if source is None else int(source.offset)

    def is_there_already(self) -> None:
        """Nothing of it is to be stored."""
        self.duplicate, self.decision, self.due_ms, self.dead = True, None, None, None

    def attempt(self, shards: int | None, now_ms: int) -> Attempt:
        """The row of the delivery that failed. Without its start nothing is said of how late it was."""
        state, started_ms, number = self.state, self.state.started_ms, self.state.attempt
        return Attempt(
            state.stem,
            self.topic,
            number,
            state.due_ms if started_ms is not None and number > 1 else None,
            next((ms for ms in (started_ms, state.last_failed_ms) if ms is not None), now_ms),
            "failed" if self.dead is None else "dead",
            state.error_class,
            releasing_shard(state, number, shards),
        )

    @property
    def gate(self) -> str | None:
        return self.state.gate

    @property
    def tries_key(self) -> str:
        return tries_of(self.state, self.delivery.message)

    @property
    def counted_attempt(self) -> int:
        """As its record has it: of those above the greatest it knows no more."""
        return min(self.state.attempt, ENDED - 1)

    def tries(self) -> tuple[Tries, Tries]:
        """The attempt records it is stored with: its attempts are raised, its replays must be these."""
        state = self.state
        return (self.tries_key, state.attempt, self.keep_until_ms), (replays_of(state), state.replays, None)

    def is_in(self, found: Found | None) -> bool:
        """Whether what the store has under this id is this very message."""
        if found is None:
            return False
        try:
            return is_same(decode_body(found.body), self.delivery.message)
        except Rejected:
            return False

    def taken(self) -> Taken:
        return Taken(self.member, self.topic, self.state.attempt, self.due_ms, self.dead, self.decision, self.duplicate)


def tries_of(state: RetryState, message: Message) -> str:
    """The key of the attempt record of a message: another payload under its id is another message."""
    return f"{state.known_as}:{state.replays}:{content_print(message.value, message.key)}"


def replays_of(state: RetryState) -> str:
    """The key of the record of how often a message was replayed."""
    return f"{state.known_as}!"


def count_on(case: Case, count: int, shared: dict[str, int]) -> None:
    """Give a case the next number of an id that several records may have, by the store's count and those before it."""
    key = case.tries_key
    shared[key] = max(count, shared.get(key, 0)) + 1
    case.state = replace(case.state, attempt=min(shared[key], MAX_COUNT))


def is_copy(state: RetryState, replays: int, count: int) -> bool:
    """Whether a failure is a second copy's: that attempt was counted, or the message has succeeded.

    A record of whoever hands failed messages on as they were says of no attempt that it is its own; a consumer that
    counts tells when its attempt was started, or that it was not. Only from these a number that is no news is believed.

    Args:
        state: what the headers say.
        replays: of the message, by the store's word.
        count: attempts of it, by the store's word.
    """
    if count == ENDED:
        return True
    if state.unsigned:
        return False
    counting = (state.started_ms is not None or state.verdict == "dead") and state.attempt > 0
    return counting and (state.replays < replays or (state.replays == replays and count >= state.attempt))


def counted(state: RetryState, replays: int) -> RetryState:
    """The state of a failed message that was replayed so often by the store's word."""
    attempt = max(1, state.attempt)
    if (state.attempt, state.replays) == (attempt, replays):
        return state
    return replace(state, attempt=attempt, replays=replays)


def is_same(one: Message, other: Message) -> bool:
    """Whether a message, as it lies in the store, is the same failure's as another, whatever is told of them."""
    same = one.value == other.value if one.reference is None else one.reference.fits(other.value)
    return same and (one.key, _others(one)) == (other.key, _others(other))


def _others(message: Message) -> tuple[tuple[str, bytes], ...]:
    return tuple(pair for pair in message.headers if pair[0] not in HEADER_NAMES | SPRING_NAMES)
