"""How many items a claim takes: as many as keep the server busy for a given time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from wheel_sched.dispatcher import Batch, Dispatcher, DispatcherConfig, PublisherTraits, PushTarget
from wheel_sched.dispatcher.batch_size import FIRST, GREATEST, LEAST, BatchSize
from wheel_sched.store.connect import open_store
from wheel_sched.store.core.items import Item
from wheel_sched.store.core.settle import Done
from wheel_sched.store.push import ServerPush
from wheel_sched.store.push.push_form import encode_push

if TYPE_CHECKING:
    from conftest import World


def sizes_over(us_per_item: float, claims: int = 60, script_us: int = 1_000) -> list[int]:
    """The sizes of full claims, one after the other, when each item takes the server so long."""
    size = BatchSize(0, script_us)
    sizes = []
    for _ in range(claims):
        sizes.append(size.limit)
        size.claimed(size.limit, round(size.limit * us_per_item))
    return sizes


@pytest.mark.parametrize("us_per_item", [9, 15, 25, 60])
def test_a_claim_takes_about_the_given_time(us_per_item: int) -> None:
    """On quick and slow servers, the time of a claim settles within 10 % of the time that it may take."""
    sizes = sizes_over(us_per_item)
    assert sizes[0] == FIRST
    assert sizes[-1] * us_per_item == pytest.approx(1_000, rel=0.1)


def test_the_size_has_bounds() -> None:
    """A very quick server gets no endless batch, and a very slow one still gets a few items at a time."""
    assert sizes_over(0.5)[-1] == GREATEST
    assert sizes_over(900)[-1] == LEAST


def test_one_slow_claim_changes_little() -> None:
    """After a claim that took a hundred times as long, the next claim is only a quarter smaller."""
    size = BatchSize(0, 1_000)
    size.claimed(FIRST, 100_000)
    assert size.limit == round(FIRST * 0.75)


def test_claims_that_say_nothing_are_ignored() -> None:
    """A claim that was not full, or whose time the store did not measure, does not change the size."""
    size = BatchSize(0, 1_000)
    size.claimed(FIRST - 1, 1)
    size.claimed(FIRST, 0)
    assert size.limit == FIRST


def test_a_size_that_was_set_stays() -> None:
    """With `batch`, every claim has this size, however quick the server is."""
    size = BatchSize(7, 1_000)
    size.claimed(7, 1)
    size.claimed(7, 1_000_000)
    assert size.limit == 7


def test_a_memory_store_measures_nothing(world: World) -> None:
    """A store in memory keeps no other client waiting: each claim has the first size."""
    world.put(*(f"m{n}" for n in range(3 * FIRST)))
    world.dispatcher()
    world.received(3 * FIRST)
    assert [len(batch.items) for batch in world.receiver.batches] == [FIRST] * 3


class _Recorder:
    """A publisher that records how many items each batch has."""

    traits = PublisherTraits(never_waits=True)

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def publish(self, batch: Batch) -> None:
        self.sizes.append(len(batch.items))
        batch.answers[:] = [Done(item.id) for item in batch.items]

    def refuse(self, item: object, reason: str) -> Done:
        raise AssertionError(f"{item} was refused: {reason}")


@pytest.mark.parametrize("push", [None, PushTarget(create=True)], ids=("claim", "push"))
def test_a_real_server_says_how_long_a_claim_took(redis_url: str, push: PushTarget | None) -> None:
    """If a claim may take a microsecond, the size falls to the least one. If it may take a second, the size rises to
    the greatest."""
    for script_us, last in ((1, LEAST), (1_000_000, GREATEST)):
        publisher = _Recorder()
        with open_store(redis_url, namespace=f"size{script_us}") as store:
            body = encode_push("S", "out", [b"field", b"value"])
            for part in range(4):
                store.schedule([Item(f"m{part}-{n}", 0, body) for n in range(500)])
            config = DispatcherConfig(script_us=script_us)
            with Dispatcher(store, publisher, push=push, config=config) as dispatcher:
                until_s = time.monotonic() + 40
                while store.counts().sizes["body"]:
                    assert time.monotonic() < until_s, "items wait in vain"
                    time.sleep(0.002)  # the dispatcher makes it true, in real time
            if push is None:
                assert (publisher.sizes[0], sum(publisher.sizes)) == (FIRST, 2_000)
                assert (max if last == GREATEST else min)(publisher.sizes[:-1]) == last
            else:
                least, most = (2_000 // GREATEST, 30) if last == GREATEST else (2_000 // FIRST, 2_000 // LEAST + 1)
                assert least < dispatcher.stats.claims <= most


def test_the_time_of_a_call_is_known(redis_url: str) -> None:
    """A claim and a push answer with the processor time that the server needed, in microseconds."""
    with open_store(redis_url) as store:
        body = encode_push("S", "out", [b"field", b"value"])
        store.schedule([Item(f"m{n}", 0, body) for n in range(400)])
        assert 10 < store.claim(200).script_us < 1_000_000
        assert 10 < ServerPush(store).push(200, create=True).script_us < 1_000_000
