"""Round trips to a server, without any I/O: a generator yields commands to send and receives the replies.

Both backends drive the generator. Only this module knows how to load scripts, how to repeat a call under the same token
after a lost reply, and how to check the durability level.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis.exceptions

from wheel_sched.errors import InDoubt
from wheel_sched.store.core.call import Argument, Call
from wheel_sched.store.redis import faults
from wheel_sched.store.redis.durability import Durability, confirmation_key
from wheel_sched.store.redis.library import library, shard_keys

LOADS = 3  # how often a call loads the library: as functions, as scripts if these are refused, again after a flush
REPEATS = 2  # how often a call is repeated after a lost reply; the caller may then repeat it as well
REPEAT_AFTER_S = 0.05

Command = tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """Send these commands to the node of `key`, in order, and give the generator a reply or exception for each.

    `everywhere`: send each command to every primary. `together`: send them on one connection, also in a cluster,
    because a confirmation is valid only for its own connection.
    """

    commands: Sequence[Command]
    key: bytes
    everywhere: bool = False
    together: bool = False


@dataclass(frozen=True, slots=True)
class Sleep:
    """Sleep this long before the next step."""

    seconds: float


Step = Send | Sleep
RoundTrips = Generator[Step, list[Any], list[Any]]


@dataclass(slots=True)
class Dialect:
    """How the calls of a store become commands of a server.

    Args:
        namespace: prefix of all keys.
        durability: the level that a write waits for. Defaults to "everysec".
        replicas: number of replicas that confirm under "replicated". Defaults to 1.
        functions: whether FCALL is used; becomes False when the server refuses it. Defaults to True.
        variant: changes only the name of the function library, for tests. Defaults to "".
        shards: number of shards that the caller works with. The server refuses writes, except those that work while
            the namespace is frozen, when the namespace has another number. Defaults to 0: not checked.
        repeat_timeouts: whether a call is repeated after a timeout, as after a broken connection. False: a call takes
            one timeout at most. Defaults to True.
        client_repeats: whether the client retries commands by itself. Then its last error does not show what it sent
            before. Defaults to False.
    """

    namespace: str
    durability: str = "everysec"
    replicas: int = 1
    functions: bool = True
    variant: str = ""
    shards: int = 0
    repeat_timeouts: bool = True
    client_repeats: bool = False
    level: Durability = field(init=False)

    def __post_init__(self) -> None:
        self.level = Durability(self.durability, self.replicas)

    def command(self, call: Call[Any], now_ms: int | None) -> Command:
        """The command that performs a call."""
        operation = call.operation
        keys = shard_keys(self.namespace, call.shard)
        script = library(self.variant).scripts[operation.script]
        start: Command = ("FCALL", script.function) if self.functions else ("EVALSHA", script.sha)
        context = f"{'' if now_ms is None else now_ms}@{self.shards}"
        return (*start, len(keys), *keys, context, operation.token, *operation.argv())

    def confirmation(self, calls: Sequence[Call[Any]]) -> tuple[Command, ...]:
        """The commands that ask the server whether the writes of `calls` are safe; () if no call writes.

        They must follow the writes on the same connection.
        """
        if not any(call.operation.writes for call in calls):
            return ()
        return self.level.confirmation(confirmation_key(f"{self.namespace}:{calls[0].shard}"))

    def round_trips(self, calls: Sequence[Call[Any]], now_ms: int | None) -> RoundTrips:
        """Perform calls on one node. The generator returns a value or an exception for each call."""
        answers: list[Any] = [None] * len(calls)
        open_ = list(range(len(calls)))
        repeats = loads = 0
        sent: set[int] = set(open_) if self.client_repeats else set()  # calls that the server may have executed before
        while open_:
            batch = [calls[i] for i in open_]
            commands = [self.command(call, now_ms) for call in batch]
            confirmation = self.confirmation(batch)
            key = shard_keys(self.namespace, batch[0].shard)[0]
            replies = yield Send([*commands, *confirmation], key, together=bool(confirmation))
            doubt = self.level.doubt(replies[len(batch) :]) if confirmation else None
            again: list[int] = []
            missing = lost = False
            for i, call, reply in zip(open_, batch, replies, strict=False):
                if isinstance(reply, Exception):
                    answers[i] = faults.translate(reply, writes=call.operation.writes, sent=i in sent)
                    if faults.no_function(reply) or isinstance(reply, redis.exceptions.NoScriptError):
                        missing = True
                        again.append(i)
                    elif faults.functions_refused(reply) and self.functions:
                        self.functions = False
                        missing = True
                        again.append(i)
                    elif self._may_repeat(reply) and _repeatable(call):
                        lost = True
                        again.append(i)
                        if not faults.unsent(reply):
                            sent.add(i)
                elif doubt is not None and call.operation.writes:
                    answers[i] = InDoubt(*doubt.args)
                    answers[i].answer = call.operation.parse(reply, call.shard)
                else:
                    answers[i] = call.operation.parse(reply, call.shard)
            if missing:
                if loads == LOADS:
                    return answers
                loads += 1
                failure = yield from self._load([calls[i] for i in again], key)
                if failure is not None:
                    for i in again:
                        answers[i] = failure
                    return answers
            elif lost:
                if repeats == REPEATS:
                    return answers
                repeats += 1
                yield Sleep(REPEAT_AFTER_S * repeats)
            open_ = again
        return answers

    def _may_repeat(self, reply: Exception) -> bool:
        return faults.lost(reply) and (self.repeat_timeouts or not isinstance(reply, redis.exceptions.TimeoutError))

    def _load(self, calls: Sequence[Call[Any]], key: bytes) -> Generator[Step, list[Any], Exception | None]:
        lib = library(self.variant)
        if self.functions:
            (reply, *_) = yield Send([("FUNCTION", "LOAD", lib.source)], key, everywhere=True)
            if not isinstance(reply, Exception) or "already exists" in str(reply):
                return None
            if not faults.functions_refused(reply):
                return faults.translate(reply)
            self.functions = False
        sources = {lib.scripts[call.operation.script].source for call in calls}
        replies = yield Send([("SCRIPT", "LOAD", source) for source in sources], key, everywhere=True)
        for reply in replies:
            if isinstance(reply, Exception):
                return faults.translate(reply)
        return None


def _repeatable(call: Call[Any]) -> bool:
    operation = call.operation
    return bool(operation.token) or not operation.writes or operation.repeatable


def by_node(calls: Sequence[Call[Any]], cluster: bool) -> list[list[int]]:
    """Group the indices of calls: one group for a single server, one group for each shard in a cluster."""
    if not cluster:
        return [list(range(len(calls)))] if calls else []
    groups: dict[int, list[int]] = {}
    for i, call in enumerate(calls):
        groups.setdefault(call.shard, []).append(i)
    return list(groups.values())
