"""Safeguards of retry topics on a broker whose topics are queues."""

from __future__ import annotations

from tests.simulation.safeguards.switching import Safeguard

STORE = "wheel_sched.store.core"
# with several shards, a producer asks before it stores a message under its own id
PRODUCER_ASKS = ("retry_topic.connection:Connection._send", "if asks and KnownIds", "if False and KnownIds")
SAFEGUARDS = [
    Safeguard(
        "settling compares the claim number",
        f"{STORE}.settle:settle_items",
        " or item.claim != claim:",
        ":",
        hidden="each attempt has an id of its own: a late settlement ends only what was published",
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
        f"{STORE}.storing:store_new",
        "return key in shard.items or key in gone or (is_known is not None and is_known(key, given))",
        "return False",
        also=(PRODUCER_ASKS,),
    ),
    Safeguard(
        "the server remembers the id of a message that was released",
        f"{STORE}.storing:store_new",
        " or (is_known is not None and is_known(key, given))",
        "",
        also=(PRODUCER_ASKS,),
    ),
    Safeguard(
        "a repeated call gets its first answer",
        f"{STORE}.first_answers:FirstAnswers.recall",
        "return self._answers.get(token)",
        "return None",
    ),
    Safeguard(
        "an earlier item writes the marker",
        f"{STORE}.shard:MemoryShard._came",
        "self._earlier_ms = due_ms if self._earlier_ms is None else min(due_ms, self._earlier_ms)",
        "pass",
    ),
    Safeguard(
        "a step back of the clock raises the epoch",
        f"{STORE}.shard:MemoryShard.jumped",
        "self.epoch += 1",
        "pass",
        hidden="each reply of the store has the store's time, and the dispatcher sets its clock by it",
    ),
    Safeguard(
        "an old lease is not published after it ran out",
        "wheel_sched.dispatcher.workers:Workers._publish",
        "if self._clock.monotonic_ns() < batch.lease_until_ns:",
        "if True:",
        hidden="a process that stood still may repeat what it holds; the checker cannot tell this from the fault",
    ),
    Safeguard(
        "the lease of a batch in flight is extended",
        "wheel_sched.dispatcher.in_flight:InFlightBatches._extend_lease",
        "if self._claim_source.extend(batch):",
        "if True:",
        hidden="none of the first thousand histories has shown it",
    ),
    Safeguard(
        "the dispatcher reads all shards anew after a reconnect",
        "wheel_sched.dispatcher.owner_loop:OwnerLoop.reconnected",
        "self.shards.read_anew(shards)",
        "pass",
        hidden="the listener reads the markers from the first one on",
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
        hidden="the records come again",
    ),
    Safeguard(
        "the intake keeps its records while it waits",
        "retry_topic.intake.worker:IntakeWorker._until_available",
        "beat()",
        "pass",
        hidden="records that come again are known by their ids",
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
        hidden="a broker that hands records out again may repeat what a consumer holds",
    ),
    Safeguard(
        "a refused record is forwarded again",
        "retry_topic.consumer.settling:Settler._forward",
        "left.append(outcome)",
        "done.append(outcome)",
        hidden="the simulated queue refuses no record",
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
        "what was not published is released again",
        "wheel_sched.dispatcher.in_flight:Backoff.settlement",
        "return Next(item.id, now_ms + delay_ms)",
        "return Done(item.id)",
    ),
    Safeguard(
        "after an error of the store all shards are read again",
        "wheel_sched.dispatcher.owner_loop:OwnerLoop._back_off",
        "self.shards.read_anew()",
        "pass",
    ),
    Safeguard(
        "a sweep finds what no alarm has shown",
        "wheel_sched.dispatcher.due_shards:DueShards.sweep_calls",
        "self._to_sweep - self.unread",
        "()",
    ),
    Safeguard(
        "a message has no more attempts than its policy allows",
        "retry_topic.policy.decision:decide_by",
        "attempt >= max_attempts",
        "attempt > max_attempts",
    ),
    Safeguard(
        "a copy of a message that has ended is not tried again",
        "retry_topic.intake.plan:is_copy",
        "    if count == ENDED:\n        return True",
        "    if count == ENDED:\n        return False",
        hidden="the greatest count marks a message that has ended, so the copy is known by its attempt, too",
    ),
    Safeguard(
        "a record that was taken in is known when it comes again",
        "retry_topic.intake.plan:_count",
        "not rules.from_log and known.counts[record.record_key] > 0",
        "False",
        hidden="the copy is known by its attempt",
    ),
    Safeguard(
        "a delivery is in flight until the broker has settled it",
        "retry_topic.consumer.settling:Settler._acknowledge",
        "self._consumer.ack([",
        "self._done(outcomes); self._consumer.ack([",
        hidden="none of the first thousand histories has shown it",
    ),
]
