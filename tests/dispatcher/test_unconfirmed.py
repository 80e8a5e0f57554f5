"""The store executes a settlement, but no replica confirms it. The dispatcher continues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wheel_sched.errors import InDoubt
from wheel_sched.store.core.call import CompletedCalls
from wheel_sched.store.core.settle import Settled

if TYPE_CHECKING:
    import pytest
    from conftest import World


def unconfirmed(answer: Any) -> Any:
    if not isinstance(answer, Settled):
        return answer
    doubt = InDoubt("written, but only 0 of 1 replicas confirmed within 5 s")
    doubt.answer = answer
    return doubt


def test_due_items_are_released_although_no_replica_confirms(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The dispatcher does not wait for a replica's confirmation, which would stop all releases.

    Each item is published once, and the log says that no replica confirmed.
    """
    store = world.handle()
    begin = store.begin
    monkeypatch.setattr(
        store, "begin", lambda calls: CompletedCalls([unconfirmed(one) for one in begin(calls).answers()])
    )
    dispatcher = world.dispatcher(store=store)
    world.put("first", in_ms=10)
    world.advance(10)
    world.received(1)
    world.put("second", in_ms=10)
    world.advance(10)
    world.received(2)
    world.until(lambda: dispatcher.stats.in_flight == 0)
    assert [world.state("first"), world.state("second")] == [None, None]
    assert dispatcher.stats.store_errors == 0
    assert "dispatcher.unconfirmed: the dispatcher continues" in caplog.text
