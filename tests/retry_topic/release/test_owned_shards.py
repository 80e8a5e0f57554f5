"""How the only owner of a shard sends its claims in broker transactions: a scripted sender, a store in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from retry_topic.brokers.protocol import BrokerInDoubt, Fenced, PublishFailure
from retry_topic.message import Message
from retry_topic.message.encoding import encode_body
from retry_topic.message.headers.state import FIELDS
from retry_topic.policy import load_policies
from retry_topic.release.flow import FlowPublisher
from retry_topic.release.shard_ownership import ShardOwner
from retry_topic.release.transactions import OwnedShards, TransactionalPublisher, transactional_config
from wheel_sched.dispatcher import Batch, Dispatcher, DispatcherConfig, Failed, Publisher
from wheel_sched.errors import BrokerError, BrokerUnavailable, StaleEpoch
from wheel_sched.store import Claim, Dead, DelayStore, Done, Item, Next, Settlement, Window, open_store
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.claim import ClaimDue
from wheel_sched.store.core.items import NO_LEASE_END_MS
from wheel_sched.store.core.settle import Settle, Settled
from wheel_sched.store.shard_ownership import Own, Resolve

PATIENCE_S = 30.0


class Cluster:
    """What the broker has: messages of committed transactions, and the number of the last committed claim."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.number: int | None = None


class Sender:
    """A sender that commits, or does the next of its `deeds`.

    The deeds are: "fenced"; "lost" (in doubt, committed); "aborted" (in doubt, not committed); "away" (no answer); or a
    message value that the broker refuses permanently.
    """

    def __init__(self, cluster: Cluster, *deeds: str | bytes) -> None:
        self.cluster = cluster
        self.deeds = list(deeds)

    def take_over(self, shard: int) -> int | None:
        return self.cluster.number

    def send(self, shard: int, number: int, messages: Sequence[Message]) -> list[PublishFailure | None]:
        deed = self.deeds.pop(0) if self.deeds and messages else None
        if deed == "fenced":
            raise Fenced("another has taken over")
        if deed == "away":
            raise BrokerUnavailable("nobody answers")
        if deed == "aborted":
            raise BrokerInDoubt("no answer")
        if isinstance(deed, bytes):
            return [
                PublishFailure("too large", transient=False) if message.value == deed else None for message in messages
            ]
        self.cluster.sent += [message.value for message in messages]
        self.cluster.number = number
        if deed == "lost":
            raise BrokerInDoubt("no answer")
        return [None] * len(messages)

    def stale(self, shard: int) -> bool:
        return False

    def close(self) -> None:
        """Do nothing."""


class Process:
    """One process: its shards, its claim source and its publisher."""

    def __init__(self, store: DelayStore, sender: Sender, lease_ms: int = 60_000) -> None:
        self.store = store
        self.ownership = ShardOwner(store, sender, lease_ms=lease_ms, lapse_cap=0)
        self.claims = OwnedShards(self.ownership)
        self.publisher = TransactionalPublisher(store, self.ownership, sender)

    def dispatcher(self, publisher: Publisher | None = None) -> Dispatcher:
        """Make a dispatcher with the claim source. It is not started."""
        config = transactional_config(DispatcherConfig(), 1)
        return Dispatcher(self.store, publisher or self.publisher, claims=self.claims, config=config)

    def ask(self, limit: int = 10) -> Claim | Window:
        """Execute one call of the claim source, and tell the claim source its answer, as a dispatcher does."""
        call = self.claims.claim(0, limit, None)
        (answer,) = self.store.execute([call])
        assert isinstance(answer, Claim | Window)
        if isinstance(answer, Claim):
            self.claims.claimed(call, answer)
        else:
            self.claims.looked(answer)
        return answer

    def look(self) -> Window:
        """Read the state of the shard, as a dispatcher does at its start."""
        (answer,) = self.store.execute([self.claims.look(0)])
        self.claims.looked(answer)
        assert isinstance(answer, Window)
        return answer

    def claim(self, limit: int = 10) -> Claim:
        """Take over the shard, then claim due items."""
        self.own()
        answer = self.ask(limit)
        assert isinstance(answer, Claim)
        return answer

    def own(self) -> None:
        """Take over the shard and claim nothing."""
        until_s = time.monotonic() + PATIENCE_S
        while self.ownership.acquire(0) is None:
            assert time.monotonic() < until_s
            time.sleep(0.005)  # a take-over runs in another thread

    def publish(self) -> list[Settlement | object]:
        """Claim and publish. Return the publisher's answer for each item."""
        claim = self.claim()
        self.batch = Batch(claim, claim.items)
        self.publisher.publish(self.batch)
        return list(self.batch.answers)

    def settle(self) -> list[str] | None:
        """Settle as a dispatcher does: items without an answer count as done. Return None if the claim stays open."""
        settlements: list[Settlement] = [
            answer if isinstance(answer, Done | Dead) else Done(item.id)
            for item, answer in zip(self.batch.items, self.batch.answers, strict=True)
        ]
        to_settle = self.claims.to_settle(self.batch, settlements)
        if to_settle is None:
            return None
        (answer,) = self.store.execute([Call(0, Settle(self.batch.claim.number, to_settle))])
        assert isinstance(answer, Settled)
        return [outcome.name for outcome in self.batch.outcomes_with(answer.outcomes)]


@pytest.fixture
def store() -> Iterator[DelayStore]:
    """A store in memory with three due messages."""
    with open_store("memory:") as store:
        store.schedule([Item(name, 0, encode_body(Message("t", name.encode())), "t") for name in "abc"])
        yield store


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_a_claim_goes_out_with_its_number(store: DelayStore, cluster: Cluster) -> None:
    """All messages of the claim are sent once, with the claim's number. Then they are settled."""
    process = Process(store, Sender(cluster))
    assert process.publish() == [Done("a"), Done("b"), Done("c")]
    process.settle()
    assert (cluster.sent, cluster.number) == ([b"a", b"b", b"c"], process.batch.claim.number)
    assert store.counts().now == {}


def test_a_claim_has_no_lease_end(store: DelayStore, cluster: Cluster) -> None:
    """Only the broker knows whether the claim was sent. So no end of a lease gives the claim to another process."""
    process = Process(store, Sender(cluster))
    claim = process.claim()
    (found,) = store.get([claim.items[0].id])
    assert found is not None
    assert (found.state, found.score_ms) == ("leased", NO_LEASE_END_MS)


def test_what_is_refused_for_good_leaves_before_the_rest_goes_out(store: DelayStore, cluster: Cluster) -> None:
    """A message that the broker refuses permanently becomes a dead letter before the other messages of its claim are
    sent."""
    process = Process(store, Sender(cluster, b"b"))
    assert process.publish() == [Done("a"), Dead("b", "too large"), Done("c")]
    assert cluster.sent == [b"a", b"c"]
    assert store.counts().now == {("leased", "t"): 2, ("dead", "t"): 1}
    assert process.settle() == ["DONE", "DONE", "DONE"]
    assert store.counts().now == {("dead", "t"): 1}


def test_what_is_too_large_goes_without_its_failed_attempts(store: DelayStore, cluster: Cluster) -> None:
    """If the broker permanently refuses a message with the header of its failed attempts, the message is sent
    without this header, in the same claim."""
    headers = (("a", b"1"), ("retry-failed-attempts", b"[]"))
    store.schedule([Item("d", 0, encode_body(Message("t", b"d", headers=headers)), "t")])
    process = Process(store, Sender(cluster, b"d"))
    assert process.publish() == [Done("a"), Done("b"), Done("c"), Done("d")]
    assert cluster.sent == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("deed", ["lost", "aborted"])
def test_what_is_in_doubt_is_asked_for(store: DelayStore, cluster: Cluster, deed: str) -> None:
    """After a commit in doubt, the publisher asks the broker whether it happened. Each message is sent once in both
    cases."""
    process = Process(store, Sender(cluster, deed))
    assert process.publish() == [Done("a"), Done("b"), Done("c")]
    assert cluster.sent == [b"a", b"b", b"c"]


def test_a_fenced_claim_stays_open_for_the_next_owner(store: DelayStore, cluster: Cluster) -> None:
    """The fenced process does not settle its claim. The next owner sends the claim."""
    first = Process(store, Sender(cluster, "fenced"))
    assert first.publish() == [None, None, None]
    assert first.settle() is None
    assert store.counts().now == {("leased", "t"): 3}
    first.ownership.close()
    (answer,) = store.execute([Call(0, _released(first))])
    assert not isinstance(answer, Exception)
    second = Process(store, Sender(cluster))
    assert second.publish() == [Done("a"), Done("b"), Done("c")]
    assert cluster.sent == [b"a", b"b", b"c"]


def test_a_claim_that_went_out_before_its_owner_died_is_not_sent_again(store: DelayStore, cluster: Cluster) -> None:
    """A process dies after its claim was committed. The next owner reads the number of the last committed claim and
    settles the claim."""
    first = Process(store, Sender(cluster))
    first.publish()  # the process dies before it settles
    store.execute([Call(0, _released(first))])
    second = Process(store, Sender(cluster))
    assert second.claim().items == []
    assert (store.counts().now, cluster.sent) == ({}, [b"a", b"b", b"c"])


def test_a_shard_is_owned_then_fenced_then_looked_into(store: DelayStore, cluster: Cluster) -> None:
    """The new owner raises the epoch, fences the old producer and reads the last committed number.

    Then it ends the open claims by that number, and only then it claims. In another order, the old owner could still
    send a claim that nobody notices.
    """
    first = Process(store, Sender(cluster))
    first.publish()  # the process dies before it settles
    store.execute([Call(0, _released(first))])
    store.schedule([Item("d", 0, encode_body(Message("t", b"d")), "t")])
    (before,) = store.windows(0)
    steps: list[str] = []

    class Noted(DelayStore):
        """A store that records its calls."""

        def execute(self, calls: Sequence[Call[Any]]) -> list[Any]:
            for call in calls:
                match call.operation:
                    case Own():
                        steps.append("own")
                    case Resolve() as resolve:
                        steps.append(f"resolve up to {resolve.committed} in epoch {resolve.epoch}")
                    case ClaimDue():
                        steps.append("claim")
            return super().execute(calls)

    class Fencing(Sender):
        def take_over(self, shard: int) -> int | None:
            steps.append("take over")
            return super().take_over(shard)

        def send(self, shard: int, number: int, messages: Sequence[Message]) -> list[PublishFailure | None]:
            steps.append(f"send {number}")
            return super().send(shard, number, messages)

    second = Process(Noted(store.backend), Fencing(cluster))
    claim = second.claim()
    number = first.batch.claim.number
    (after,) = store.windows(0)
    assert after.epoch > before.epoch
    resolved = f"resolve up to {number} in epoch {after.epoch}"
    assert steps == ["own", "take over", resolved, f"send {number}", "claim"]
    assert ([item.id for item in claim.items], claim.number) == (["d"], number + 1)


def test_a_store_that_has_lost_the_ownership_is_asked_again(store: DelayStore, cluster: Cluster) -> None:
    """A server that restarts without its last writes has an older epoch and no owner. The next claim fails. Then the
    process acquires the shard again and takes it over."""
    process = Process(store, Sender(cluster))
    process.own()
    store.execute([Call(0, _released(process))])  # the writes that are lost: owner and epoch
    (shard,) = store.backend.shards
    shard.epoch = 1
    process.ownership.suspect()
    with pytest.raises(StaleEpoch):
        process.claims.claim(0, 10, None)
    assert [item.id for item in process.claim().items] == ["a", "b", "c"]


def test_two_owners_never_have_the_same_epoch(store: DelayStore, cluster: Cluster) -> None:
    """The server loses the first owner's writes, and a second process acquires the shard. The first process can claim
    nothing more, although the epoch was raised once for each of them."""
    first, second = Process(store, Sender(cluster)), Process(store, Sender(cluster))
    first.own()
    (shard,) = store.backend.shards
    shard.epoch = 1
    store.execute([Call(0, _released(first))])
    second.own()
    call = first.claims.claim(0, 10, None)
    (refused,) = store.execute([call])
    assert isinstance(refused, StaleEpoch)
    assert [item.id for item in second.claim().items] == ["a", "b", "c"]


def test_without_a_number_open_claims_are_held(store: DelayStore, cluster: Cluster) -> None:
    """If the broker has forgotten the last committed number, the messages of open claims are held: neither sent nor
    dropped."""
    first = Process(store, Sender(cluster))
    first.publish()
    cluster.number = None
    store.execute([Call(0, _released(first))])
    second = Process(store, Sender(cluster))
    assert second.claim().items == []
    assert store.counts().now == {("held", "t"): 3}
    store.release(["a"], 0)
    assert second.publish() == [Done("a")]


@pytest.mark.parametrize("begins", ["before", "after"])
def test_claims_that_a_dead_owner_left_open_are_taken_over_though_nothing_else_is_due(
    store: DelayStore, cluster: Cluster, begins: str
) -> None:
    """An owner dies before it sends its claim. After its lease, a waiting or a new process takes over the shard and
    sends the claim."""
    dead = Process(store, Sender(cluster), lease_ms=500)
    successor = Process(store, Sender(cluster), lease_ms=500)
    dispatcher = successor.dispatcher()
    claimed = dead.claim()
    assert len(claimed.items) == 3
    until_s = time.monotonic() + PATIENCE_S
    if begins == "after":
        store.execute([Call(0, _released(dead))])  # as at the end of the lease
    with dispatcher:
        while store.counts().now:
            assert time.monotonic() < until_s
            time.sleep(0.005)  # polls until the dispatcher's threads have finished
    assert sorted(cluster.sent) == [b"a", b"b", b"c"]


def test_a_claim_that_its_own_process_gave_up_is_taken_over_though_nothing_else_is_due(
    store: DelayStore, cluster: Cluster
) -> None:
    """The broker fences a process, so its claim stays open. The same process takes over its shard again and sends the
    claim."""
    process = Process(store, Sender(cluster, "fenced"))
    with process.dispatcher():
        until_s = time.monotonic() + PATIENCE_S
        while store.counts().now:
            assert time.monotonic() < until_s
            time.sleep(0.005)  # polls until the dispatcher's threads have finished
    assert sorted(cluster.sent) == [b"a", b"b", b"c"]


def test_another_process_stands_by(store: DelayStore, cluster: Cluster) -> None:
    """While one process owns the shard, another process gets no claim. The other process looks again when the owner's
    lease ends."""
    first = Process(store, Sender(cluster))
    first.claim()
    store.schedule([Item("d", 0, encode_body(Message("t", b"d")), "t")])
    standing_by = Process(store, Sender(cluster))
    window = standing_by.ask()
    assert isinstance(window, Window)
    now_ms = store.now_ms()
    again_ms = standing_by.claims.next_look_ms(0, window.due_head_ms, window.lease_head_ms, now_ms)
    assert again_ms is not None
    assert again_ms > now_ms + 50_000, "when the owner's lease ends"


def test_a_broker_that_is_away_is_waited_for(store: DelayStore, cluster: Cluster) -> None:
    """While the broker does not answer, the claim stays open. When the broker answers again, the claim is sent."""
    process = Process(store, Sender(cluster, "away", "away"))
    assert process.publish() == [Done("a"), Done("b"), Done("c")]
    assert cluster.sent == [b"a", b"b", b"c"]


class Barred(Sender):
    """A sender that has no permission for one of its calls until the test gives it."""

    def __init__(self, cluster: Cluster, what: str) -> None:
        super().__init__(cluster)
        self.what: str | None = what

    def take_over(self, shard: int) -> int | None:
        if self.what == "take over":
            raise BrokerError("needs a right")
        return super().take_over(shard)

    def send(self, shard: int, number: int, messages: Sequence[Message]) -> list[PublishFailure | None]:
        if self.what == "send" and messages:
            raise BrokerError("needs a right")
        return super().send(shard, number, messages)


@pytest.mark.parametrize("what", ["take over", "send"])
def test_what_the_broker_refuses_is_told_until_it_does_not(store: DelayStore, cluster: Cluster, what: str) -> None:
    """`refusals` lists what the broker refuses, until the call succeeds. A broker that does not answer
    changes nothing."""
    sender = Barred(cluster, what)
    process = Process(store, sender)
    assert process.ownership.refusals == []
    publishing = threading.Thread(target=process.publish)
    publishing.start()
    until_s = time.monotonic() + PATIENCE_S
    while process.ownership.refusals != ["needs a right"]:
        assert time.monotonic() < until_s
        time.sleep(0.005)  # polls until other threads have finished
    process.ownership.broker_failed(0, BrokerUnavailable("away"))
    assert process.ownership.refusals == ["needs a right"]
    sender.what = None
    publishing.join(PATIENCE_S)
    assert process.ownership.refusals == []
    process.ownership.broker_failed(0, BrokerUnavailable("away"))
    process.ownership.broker_failed(0, Fenced("another has taken over"))
    assert process.ownership.refusals == []
    assert cluster.sent == [b"a", b"b", b"c"]


def test_a_service_that_stops_releases_what_was_not_sent(store: DelayStore, cluster: Cluster) -> None:
    """A stopped publisher answers that the messages of a claim failed, because they were certainly not sent."""
    process = Process(store, Sender(cluster, *["away"] * 100))
    process.publisher.stop()
    answers = process.publish()
    assert all(type(answer).__name__ == "Failed" for answer in answers)
    assert cluster.sent == []


def test_what_is_answered_before_leaves_before_the_rest_goes_out(store: DelayStore, cluster: Cluster) -> None:
    """Messages that flow control has already answered go back to the store and are not sent. The others are sent."""
    process = Process(store, Sender(cluster))
    claim = process.claim()
    process.batch = Batch(claim, claim.items)
    later_ms = store.now_ms() + 60_000
    process.batch.answers[:2] = [Next("a", later_ms), Failed("nobody knows")]
    process.publisher.publish(process.batch)
    assert process.batch.answers == [Next("a", later_ms), Failed("nobody knows"), Done("c")]
    assert (cluster.sent, cluster.number) == ([b"c"], claim.number)
    assert store.counts().now == {("due", "t"): 2, ("leased", "t"): 1}
    process.settle()
    assert store.counts().now == {("due", "t"): 2}
    assert {found.id for found in store.get(["a", "b"]) if found is not None} == {"a", "b"}


@pytest.mark.parametrize("held_back", [2, 3])
def test_flow_control_holds_back_what_its_limits_say(cluster: Cluster, held_back: int) -> None:
    """A rate limit lets one message of a claim through, or none. The other messages wait in the store. The claim does
    not stay open, even if it has nothing to send."""
    policies = load_policies('[topic.t]\nrate = "1/h"\nburst = 1')
    headers = [(FIELDS["id"].header, b"i"), (FIELDS["consumer_group"].header, b"g")]
    with open_store("memory:") as store:
        process = Process(store, Sender(cluster))
        publisher = FlowPublisher(process.publisher, store, policies)
        names = "abc"
        if held_back == len(names):  # the only release of this hour is used
            store.schedule([Item("z", 0, encode_body(Message("t", b"z", headers=headers)), "t")])
            claim = process.claim()
            publisher.publish(Batch(claim, claim.items))
            store.execute([Call(0, Settle(claim.number, [Done("z")]))])
            cluster.sent.clear()
        store.schedule(
            [Item(name, 0, encode_body(Message("t", name.encode(), headers=headers)), "t") for name in names]
        )
        with process.dispatcher(publisher) as dispatcher:
            until_s, stats = time.monotonic() + PATIENCE_S, dispatcher.stats
            while (
                stats.claims == stats.empty_claims
                or stats.in_flight
                or store.counts().now.get(("due", "t")) != held_back
            ):
                assert time.monotonic() < until_s
                time.sleep(0.005)  # polls until the dispatcher's threads have finished
        assert len(cluster.sent) == len(names) - held_back
        assert store.counts().now == {("due", "t"): held_back}
        assert ("lapsed", "t") not in store.counts().ever, "the publisher gave its claim up"


def test_a_settled_item_that_is_due_again_is_claimed_under_a_new_number(store: DelayStore, cluster: Cluster) -> None:
    """Items that were settled as due again are in the next claim. Until that claim is known to be sent, its items stay
    claimed, and the dispatcher settles none of them."""
    process = Process(store, Sender(cluster))
    first = process.claim()
    process.ownership.closed(0, first.number)
    batch = Batch(first, first.items)
    settlements: list[Settlement] = [Done("a"), Next("b", 0), Next("c", 0)]
    assert process.claims.to_settle(batch, settlements) == settlements
    store.execute([Call(0, Settle(first.number, settlements))])
    claim = process.claim()
    assert ([item.id for item in claim.items], claim.number) == (["b", "c"], first.number + 1)
    assert process.ownership.is_open(0, claim.number)
    assert process.claims.to_settle(Batch(claim, claim.items), [Done("b"), Done("c")]) is None
    assert store.counts().total("leased") == 2


def _two_claims(process: Process) -> tuple[Batch, Batch]:
    """Make two claims, of one message and of two, before the first is sent."""
    claims = [process.claim(limit) for limit in (1, 10)]
    first, second = (Batch(claim, claim.items) for claim in claims)
    assert (len(first.items), len(second.items)) == (1, 2)
    return first, second


def test_claims_go_out_in_the_order_of_their_numbers(store: DelayStore, cluster: Cluster) -> None:
    """The second claim is sent before the first is settled. The number of the second shows that both were sent."""
    process = Process(store, Sender(cluster))
    first, second = _two_claims(process)
    process.publisher.publish(first)
    process.publisher.publish(second)
    assert (cluster.sent, cluster.number) == ([b"a", b"b", b"c"], second.claim.number)
    store.execute([Call(0, _released(process))])
    assert Process(store, Sender(cluster)).claim().items == []
    assert store.counts().now == {}


def test_nothing_goes_out_behind_a_claim_whose_fate_is_not_known(store: DelayStore, cluster: Cluster) -> None:
    """A committed number means that all earlier claims were sent. So a later claim is not sent before an
    earlier one."""
    process = Process(store, Sender(cluster))
    first, second = _two_claims(process)
    process.publisher.publish(second)
    assert (cluster.sent, second.answers) == ([], [None, None])
    process.batch = second
    assert process.settle() is None
    process.publisher.publish(first)
    assert (cluster.sent, first.answers) == ([], [None]), "the shard was to be taken over anew"


def test_an_old_number_is_not_sent_again_while_a_claim_is_open(
    store: DelayStore, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner sends its last number again, so that the broker does not forget it. It does not do so while a claim is
    open. The claim may be committed, and the old number would say the opposite, so its messages would be sent twice."""
    sender = Sender(cluster)
    process = Process(store, sender)
    monkeypatch.setattr(sender, "stale", lambda shard: True)
    claim = process.claim()
    cluster.number = claim.number  # the broker has committed the claim, and its reply was lost
    process.ownership.refresh()
    assert cluster.number == claim.number
    process.ownership.committed(0, claim.number)
    process.ownership.closed(0, claim.number)
    cluster.number = None  # the broker is about to forget it
    process.ownership.refresh()
    assert cluster.number == claim.number


def test_what_was_claimed_before_a_shard_was_lost_goes_nowhere(store: DelayStore, cluster: Cluster) -> None:
    """Another process has taken over the shard and sent its open claims. The first process does not send these claims,
    even when it owns the shard again."""
    process = Process(store, Sender(cluster, "fenced"))
    first, second = _two_claims(process)
    process.publisher.publish(first)
    store.execute([Call(0, _released(process))])
    other = Process(store, Sender(cluster))
    other.publish()
    other.settle()
    store.execute([Call(0, _released(other))])
    assert process.claim().items == []
    for batch in (first, second):
        process.publisher.publish(batch)
        process.batch = batch
        assert process.settle() is None
    assert sorted(cluster.sent) == [b"a", b"b", b"c"]
    assert store.counts().now == {}


def test_what_a_stopping_service_did_not_send_leaves_before_a_later_claim_goes_out(
    store: DelayStore, cluster: Cluster
) -> None:
    """A stopping service puts the unsent messages of a claim back into the store before it sends a later claim.
    Otherwise the later claim's number would say that these messages were sent."""
    process = Process(store, Sender(cluster, "away"))
    first, second = _two_claims(process)
    process.publisher.stop()
    process.publisher.publish(first)
    process.publisher.publish(second)
    assert cluster.sent == [b"b", b"c"]
    store.execute([Call(0, _released(process))])  # the process dies before it settles anything
    assert Process(store, Sender(cluster)).claim().items == []
    assert store.counts().now == {("due", "t"): 1}


def test_a_shard_in_which_something_waits_is_taken_over_before_that_is_due(cluster: Cluster) -> None:
    """The takeover does not delay the first message, because it happens before the message is due."""
    with open_store("memory:") as store:
        store.schedule([Item("a", store.now_ms() + 3_600_000, encode_body(Message("t", b"a")), "t")])
        process = Process(store, Sender(cluster))
        process.look()
        until_s = time.monotonic() + PATIENCE_S
        while not process.ownership.is_settled(0):
            assert time.monotonic() < until_s
            time.sleep(0.005)  # a take-over runs in another thread


def test_an_empty_shard_is_left_to_others(cluster: Cluster) -> None:
    """A process does not acquire an empty shard, so another process can acquire it without waiting for a lease to
    end."""
    with open_store("memory:") as store:
        process = Process(store, Sender(cluster))
        process.look()
        (answer,) = store.execute([Call(0, Own("another", 1_000))])
        assert answer.new


def test_settings_of_a_dispatcher_transactional_config() -> None:
    """The dispatcher has one worker for each shard, and larger batches unless their size was set."""
    plain = transactional_config(DispatcherConfig(workers=4), 1)
    assert (plain.workers, plain.batch) == (1, 500)
    assert transactional_config(DispatcherConfig(), 3).workers == 3
    assert transactional_config(DispatcherConfig(batch=7), 1).batch == 7


def _released(process: Process) -> Own:
    """Make the call that gives up the shard, as the end of the lease would."""
    return Own(process.ownership.name, 0)
