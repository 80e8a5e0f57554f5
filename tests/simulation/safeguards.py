"""Safeguards of the product, each with the change of its source that switches it off.

A change names a function and a text in its source. If the text is not there any more, applying the change fails: then
the safeguard has moved, and its line here moves too.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Safeguard:
    """A safeguard and how to switch it off.

    Args:
        name: what is switched off, in plain words.
        where: "module:function" or "module:Class.method".
        old: a text in the function's source.
        new: what stands there instead.
        world: the kind of world whose histories show it.
    """

    name: str
    where: str
    old: str
    new: str
    world: str = "retry"


STORE = "wheel_sched.store.core"
SAFEGUARDS = [
    Safeguard(
        "settling compares the claim number",
        f"{STORE}.settle:Settle.in_memory",
        " or item.claim != self.claim:",
        ":",
    ),
    Safeguard(
        "a claim takes only what is due",
        f"{STORE}.claim:ClaimDue.in_memory",
        "taken = shard.take(self.limit, until_ms)",
        "taken = shard.take(self.limit, until_ms + 400)",
    ),
    Safeguard(
        "a claimed item whose lease ran out is claimed again",
        f"{STORE}.shard:MemoryShard.recover",
        "expired = self.leased.up_to(self.now_ms, limit)",
        "expired = []",
    ),
    Safeguard(
        "a claimed item is recovered only when its lease has run out",
        f"{STORE}.shard:MemoryShard.recover",
        "self.leased.up_to(self.now_ms, limit)",
        "self.leased.up_to(self.now_ms + 10_000, limit)",
    ),
    Safeguard(
        "an id that is stored is not stored again",
        f"{STORE}.shard:MemoryShard.store_new",
        "if key in self.items or (is_known is not None and is_known(key, given)):",
        "if False:",
    ),
    Safeguard(
        "the server remembers the id of a message that was released",
        f"{STORE}.shard:MemoryShard.store_new",
        " or (is_known is not None and is_known(key, given))",
        "",
    ),
    Safeguard(
        "a repeated call gets its first answer",
        f"{STORE}.shard:MemoryShard.recall",
        "return self._answers.get(token)",
        "return None",
    ),
    Safeguard(
        "an earlier item writes the marker",
        f"{STORE}.shard:MemoryShard.put_due",
        "self._earlier_ms = due_ms",
        "pass",
    ),
    Safeguard(
        "a step back of the clock raises the epoch",
        f"{STORE}.shard:MemoryShard.jumped",
        "self.epoch += 1",
        "pass",
    ),
    Safeguard(
        "an old lease is not published after it ran out",
        "wheel_sched.dispatcher.workers:Workers._publish",
        "if self._clock.monotonic_ns() < batch.lease_until_ns:",
        "if True:",
    ),
    Safeguard(
        "the lease of a batch in flight is extended",
        "wheel_sched.dispatcher.in_flight:InFlightBatches._extend_lease",
        "if self._claim_source.extend(batch):",
        "if True:",
    ),
    Safeguard(
        "the dispatcher reads all shards anew after a reconnect",
        "wheel_sched.dispatcher.owner_loop:OwnerLoop.reconnected",
        "self.shards.read_anew(shards)",
        "pass",
    ),
    Safeguard(
        "the listener starts at the first marker after a reconnect",
        "wheel_sched.dispatcher.listener:Listener._listen",
        "self._marks = dict.fromkeys(self._marks, FIRST_MARK)",
        "pass",
    ),
    Safeguard(
        "the dispatcher's clock never runs ahead of the server's",
        "wheel_sched.dispatcher.store_calls:ServerTime.now_us",
        "return local_us + self._offset_us",
        "return local_us + self._offset_us + 3_000_000",
    ),
    Safeguard(
        "settlements that failed are sent again",
        "wheel_sched.dispatcher.owner_loop:OwnerLoop._handle_error",
        "self.in_flight.answered.append(reply.batch)",
        "pass",
    ),
    Safeguard(
        "the intake stores a record before it acknowledges it",
        "retry_topic.intake.worker:IntakeWorker._take",
        "entries = intake.store(",
        "consumer.ack(deliveries); entries = intake.store(",
    ),
    Safeguard(
        "the intake repeats its call until the store answers",
        "retry_topic.intake.worker:IntakeWorker._until_available",
        "except (StoreError, BrokerError) as error:",
        "except ZeroDivisionError as error:",
    ),
    Safeguard(
        "the intake keeps its records while it waits",
        "retry_topic.intake.worker:IntakeWorker._until_available",
        "beat()",
        "pass",
    ),
    Safeguard(
        "the consumer acknowledges after the handler",
        "retry_topic.consumer.consumer:Consumer._give",
        "message = delivered_message(",
        "self._consumer.ack([delivery]); message = delivered_message(",
    ),
    Safeguard(
        "the consumer renews what it handles",
        "retry_topic.consumer.settling:Settler._beat",
        "if not deliveries:",
        "if True:",
    ),
    Safeguard(
        "a delivery in flight is not handled twice",
        "retry_topic.consumer.settling:InFlightDeliveries.add",
        "return fresh",
        "return True",
    ),
    Safeguard(
        "a refused record is forwarded again",
        "retry_topic.consumer.settling:Settler._forward",
        "left.append(outcome)",
        "done.append(outcome)",
    ),
    Safeguard(
        "settling that failed is tried again",
        "retry_topic.consumer.settling:Settler._settle",
        "left += part",
        "pass",
    ),
    Safeguard(
        "successes are remembered",
        "retry_topic.consumer.settling:Successes.remember",
        "if not keys or",
        "if True or",
    ),
    Safeguard(
        "publishing with an id sends once",
        "retry_topic.brokers.memory:MemoryBroker.publish_once",
        "if sent.get(place, now_ms) > now_ms:",
        "if False:",
    ),
    Safeguard(
        "a stopped consumer settles what it has handled",
        "retry_topic.consumer.consumer:Consumer._drain",
        "self._in_flight.wait_until_at_most(0, left_s())",
        "pass",
    ),
    Safeguard(
        "a claim is refused in every epoch but the shard's own",
        f"{STORE}.claim:ClaimDue.in_memory",
        "self.epoch != shard.epoch",
        "False",
        "retry-log",
    ),
    Safeguard(
        "two owners never have the same epoch",
        "wheel_sched.store.shard_ownership:Own.in_memory",
        "shard.epoch += self._step()",
        "shard.epoch += 1",
        "retry-log",
    ),
    Safeguard(
        "a shard has one owner at a time",
        "wheel_sched.store.shard_ownership:Own.in_memory",
        "(room.owner and room.until_ms > shard.now_ms)",
        "False",
        "retry-log",
    ),
    Safeguard(
        "open claims end by the number that the broker has",
        "wheel_sched.store.shard_ownership:Resolve.in_memory",
        "item.claim <= self.committed",
        "True",
        "retry-log",
    ),
    Safeguard(
        "a claim that the broker has is not released again",
        "wheel_sched.store.shard_ownership:Resolve.in_memory",
        "item.claim <= self.committed",
        "False",
        "retry-log",
    ),
    Safeguard(
        "the number of a new claim is above all that were sent",
        "retry_topic.release.transactions:OwnedShards.claim",
        "above=above",
        "above=0",
        "retry-log",
    ),
    Safeguard(
        "a stale epoch makes the owner ask again",
        "retry_topic.release.shard_ownership:ShardOwner.acquire",
        "self.outdated(shard)",
        "pass",
        "retry-log",
    ),
    Safeguard(
        "a restarted server makes an owner look at its open claims",
        "retry_topic.release.shard_ownership:ShardOwner._compare_server",
        "owned.suspect or owned.server != identity",
        "owned.suspect",
        "retry-log",
    ),
    Safeguard(
        "a new owner fences the one before",
        "retry_topic.simulation.log_server:LogServer.check_producer",
        "self.epochs.get(name) != epoch",
        "False",
        "retry-log",
    ),
    Safeguard(
        "a claim is sent after the claims before it",
        "retry_topic.release.shard_ownership:ShardOwner.sending",
        "number == min(ours, default=None)",
        "True",
        "retry-log",
    ),
    Safeguard(
        "after a send in doubt the broker is asked",
        "retry_topic.release.transactions:TransactionalPublisher._send",
        "went_out = self._ask(claim)",
        "went_out = False",
        "retry-log",
    ),
    Safeguard(
        "a log batch is stored at its position",
        "wheel_sched.store.log_intake:AcceptLogBatch.store",
        "there != self.position.expected",
        "False",
        "retry-log",
    ),
    Safeguard(
        "a log batch and its position are one step",
        "retry_topic.intake.from_log:IntakeFromLog.positions",
        "return self._intake.positions(sources)",
        "return [None] * len(sources)",
        "retry-log",
    ),
    Safeguard(
        "the intake looks back after a reconnect",
        "retry_topic.intake.from_log:IntakeFromLog.look_back",
        "if there != here:",
        "if False:",
        "retry-log",
    ),
    Safeguard(
        "a group's member commits only what it owns",
        "retry_topic.simulation.log_server:LogServer.commit",
        "held.owners.get(place) != (member, number)",
        "False",
        "retry-log",
    ),
]


@contextmanager
def switched_off(safeguard: Safeguard) -> Iterator[None]:
    """Switch a safeguard off while the block runs."""
    module_name, _, path = safeguard.where.partition(":")
    module = importlib.import_module(module_name)
    *classes, name = path.split(".")
    owner: Any = module
    for part in classes:
        owner = getattr(owner, part)
    original = inspect.getattr_static(owner, name)
    source = textwrap.dedent(inspect.getsource(original))
    assert source.count(safeguard.old) >= 1, f"{safeguard.where} has no {safeguard.old!r} any more"
    made: dict[str, Any] = {}
    code = compile(source.replace(safeguard.old, safeguard.new), f"<{safeguard.where}>", "exec", dont_inherit=False)
    exec(code, module.__dict__, made)  # noqa: S102
    setattr(owner, name, made[name])
    try:
        yield
    finally:
        setattr(owner, name, original)
