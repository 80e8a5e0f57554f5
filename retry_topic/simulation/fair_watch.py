"""Watches the claims of a simulated store: no fair key waits while another is served more than its share.

While two keys of a topic both have due items that may go, the store serves them in turn. So in this time neither key
gets more than `BOUND` items more than the other, whatever faults strike. The watch reads the items of the memory store
before and after each claim. It does not watch histories on scripts: the tests of the store prove that scripts and
memory do the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from retry_topic.simulation.drawing import TOPIC
from retry_topic.simulation.topic_owners import LeasingServer
from wheel_sched.simulation.scenario import FORGETTING
from wheel_sched.simulation.store_contents import MemoryContents
from wheel_sched.simulation.world import World
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.claim import ClaimDue
from wheel_sched.store.core.items import encode_text
from wheel_sched.store.core.shard import MemoryShard
from wheel_sched.store.fair_shares import fair_key_of

FAIR_TIMEOUT_MS = 4_000  # a message that was released this long ago counts as handled
BOUND = 2  # how many more items one waiting key may get than another: one turn of each; here a turn is one item


class FairWatch:
    """Counts, for each two fair keys of a shard, how many more items one got than the other while both waited.

    Args:
        server: the store server of the world.
        world: the world.
    """

    def __init__(self, server: LeasingServer, world: World) -> None:
        self._world = world
        self._capped = world.scenario.options["cap"] > 0
        self._ahead: dict[tuple[int, str, str], int] = {}
        self._found: list[str] = []
        self._tokens: set[tuple[int, str]] = set()  # of answered claims: a repeated claim takes no new items
        self.contents = server.contents
        if isinstance(self.contents, MemoryContents):
            self._execute = self.contents.execute
            self.contents.execute = self._watched  # type: ignore[method-assign]

    def violations(self) -> list[str]:
        """What the watch has found; nothing if the server has lost writes, because it has then lost the shares too."""
        forgotten = any(fault.kind in FORGETTING for fault, _ in self._world.struck)
        return [] if self._capped or forgotten else self._found

    def _watched(self, calls: Sequence[Call[Any]], wall_us: int) -> list[Any]:
        answers: list[Any] = []
        for call in calls:
            claims = isinstance(call.operation, ClaimDue) and (call.shard, call.operation.token) not in self._tokens
            before = self._waiting(call.shard, wall_us) if claims else Counter[str]()
            answers += self._execute([call], wall_us)
            if claims and not isinstance(answers[-1], Exception):
                if call.operation.token:
                    self._tokens.add((call.shard, call.operation.token))
                served = Counter(fair_key_of(item.refs) for item in answers[-1].items if item.topic == TOPIC)
                self._count(call.shard, before, served, self._waiting(call.shard, wall_us))
        return answers

    def _waiting(self, number: int, wall_us: int) -> Counter[str]:
        """How many items of the fair topic are due in a shard and not held, by key."""
        assert isinstance(self.contents, MemoryContents)  # noqa: S101  # only a memory store is watched
        shard: MemoryShard = self.contents.backend.shards[number]
        found = [item for item in shard.items.values() if item.state == "due" and item.topic == TOPIC]
        now_ms = max(wall_us // 1000, shard.now_ms)
        return Counter(fair_key_of(item.refs) for item in found if (shard.score_of(item) or 0) <= now_ms)

    def _count(self, shard: int, before: Counter[str], served: Counter[str], after: Counter[str]) -> None:
        for one, other in combinations(sorted({*before, *served}, key=encode_text), 2):
            pair = (shard, one, other)
            if not (before[one] and before[other] and after[one] and after[other]):
                self._ahead.pop(pair, None)
                continue
            ahead = self._ahead[pair] = self._ahead.get(pair, 0) + served[one] - served[other]
            if abs(ahead) > BOUND:
                self._found.append(
                    f"share: while keys {one!r} and {other!r} both waited in shard {shard}, one got {abs(ahead)} more"
                )
