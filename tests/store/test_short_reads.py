"""One round trip reads few items, because a server that reads them serves nobody else meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from wheel_sched.store import Item, open_store
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.get import FOUND_IDS, STEP_IDS, Find, Get


@pytest.mark.parametrize("shards", [1, 4])
def test_a_round_trip_reads_few_items(shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call by id, by listing or by ref reads few items a round trip, however many the caller asks for."""
    ids = [f"i{number}" for number in range(300)]
    with open_store("memory:", shards=shards) as store:
        store.schedule([Item(one, 1, b"x", "orders", ("r",)) for one in ids])
        read: list[int] = []
        execute = type(store.backend).execute

        def recorded(backend: Any, calls: Sequence[Call[Any]], now_ms: int | None = None) -> list[Any]:
            read.append(sum(len(call.operation.ids) for call in calls if isinstance(call.operation, Get)))
            assert all(call.operation.count <= FOUND_IDS for call in calls if isinstance(call.operation, Find))
            return execute(backend, calls, now_ms)

        monkeypatch.setattr(type(store.backend), "execute", recorded)
        assert [one.id for one in store.get(ids) if one is not None] == ids
        assert len(store.list_items("due", limit=300).found) == 300
        assert sorted(store.find("r", limit=100_000)) == sorted(ids)
    assert max(read) == STEP_IDS
