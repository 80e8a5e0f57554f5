"""Runs a dispatcher in its own process, which can kill or stop itself at a named point.

argv[1] is JSON: `url`, `receiver` (the server to which messages are published), `name`, `push` (the server itself
pushes to `<name>:out`), `instant` (the publisher never waits, so the next batch is claimed ahead), `durability`,
`config` (of the dispatcher), `pause_ms` (how long each batch takes), and `at`, `signal` and `marker`: when the process
first reaches the point `at`, it writes the file `marker` and sends itself the signal. It prints "ready" when it runs.
On SIGTERM it finishes its batches, prints its counters as JSON, and ends.

Points: after_claim, second_claim_sent, before_publish, half_publish, after_publish, before_settle, settle_sent,
after_settle, before_push, after_push.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from wheel_sched.dispatcher import Batch, Dispatcher, DispatcherConfig, PublisherTraits, PushTarget
from wheel_sched.store.connect import open_store
from wheel_sched.store.core.call import Call, SentCalls
from wheel_sched.store.core.claim import Claim, ClaimDue, Claimed
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.core.settle import Dead, Done, Settle
from wheel_sched.store.push import PushDue, Pushed
from wheel_sched.store.redis.backend import client_for

settings: dict[str, Any] = json.loads(sys.argv[1])
name: str = settings["name"]


def reach(point: str, detail: object = "") -> None:
    """If `point` equals `settings["at"]`, write `point` and `detail` to a file, then send a signal to this thread.

    The settings `marker` and `signal` name the file and the signal. Only the first such call does this.
    """
    if point == settings.get("at"):
        settings["at"] = None
        Path(settings["marker"]).write_text(f"{point} {detail}")
        # the signal goes to this thread; another thread of the process could get it while this one continues
        signal.pthread_kill(threading.get_ident(), settings["signal"])


class Watched:
    """Wraps the method `begin` of `store`. It calls `reach` around each call that claims, settles or pushes a batch."""

    def __init__(self, store: DelayStore) -> None:
        self._claims = 0
        self._begin = store.begin
        store.begin = self.begin  # type: ignore[method-assign]  # a double of one method of one object

    def begin(self, calls: Sequence[Call[Any]]) -> Sent:
        for call in calls:
            if isinstance(call.operation, Settle):
                reach("before_settle", len(call.operation.settlements))
            elif isinstance(call.operation, PushDue):
                reach("before_push")
        begun = self._begin(calls)
        for call in calls:
            if isinstance(call.operation, Settle):
                reach("settle_sent", len(call.operation.settlements))
            elif isinstance(call.operation, ClaimDue):
                self._claims += 1
                if self._claims == 2:
                    reach("second_claim_sent", call.operation.limit)
        return Sent(calls, begun)


class Sent(NamedTuple):
    """The calls that were sent to the store together. `answers` waits for their answers and then calls `reach`."""

    calls: Sequence[Call[Any]]
    begun: SentCalls

    def answers(self) -> list[Any]:
        answers = self.begun.answers()
        for call, answer in zip(self.calls, answers, strict=True):
            if isinstance(call.operation, Settle):
                reach("after_settle", len(call.operation.settlements))
            elif isinstance(answer, Claim) and answer.items:
                reach("after_claim", len(answer.items))
            elif isinstance(answer, Pushed) and answer.dues_ms:
                reach("after_push", len(answer.dues_ms))
        return answers


class StreamPublisher:
    """Writes each message to the stream `out` of the receiver. The ids of the entries are the times of arrival."""

    def __init__(self) -> None:
        self.traits = PublisherTraits(never_waits=bool(settings.get("instant")))
        self._client = client_for(settings["receiver"])

    def publish(self, batch: Batch) -> None:
        reach("before_publish")
        half = len(batch.items) // 2
        self._write(batch, range(half))
        reach("half_publish", half)
        time.sleep(settings.get("pause_ms", 0) / 1000)  # a broker that takes its time
        self._write(batch, range(half, len(batch.items)))
        reach("after_publish", len(batch.items))

    def _write(self, batch: Batch, places: range) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for place in places:
            item = batch.items[place]
            pipeline.xadd("out", {"id": item.id, "due": item.due_ms, "by": name})
        pipeline.execute()
        for place in places:
            batch.answers[place] = Done(batch.items[place].id)

    def refuse(self, item: Claimed, reason: str) -> Dead:
        return Dead(item.id, reason)


def main() -> None:
    # blocked in every thread: after a stop any thread could get the signal, but only the main thread waits for it
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    store = open_store(settings["url"], durability=settings.get("durability", "everysec"))
    Watched(store)
    push = PushTarget(prefix=f"{name}:", create=True) if settings.get("push") else None
    config = DispatcherConfig(**settings.get("config", {}))
    with Dispatcher(store, StreamPublisher(), push=push, config=config) as dispatcher:
        print("ready", flush=True)  # noqa: T201  # the test waits for it
        signal.sigwait({signal.SIGTERM})
    print(json.dumps(asdict(dispatcher.stats)), flush=True)  # noqa: T201  # the test reads it


main()
