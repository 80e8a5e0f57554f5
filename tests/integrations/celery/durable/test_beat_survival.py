"""Ten thousand occurrences of 250 entries, while workers and the server are killed and paused: each is sent once.

The test itself receives the tasks: it reads the queue in the broker. So it counts what workers would get. It tells
occurrences apart by the task's id and by the header with the due time, and asks the code under test for nothing.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
import redis
from wheel_sched_celery.beat.entries import BeatEntries

from wheel_sched.errors import StoreError

if TYPE_CHECKING:
    from conftest import Stage, Stages

pytestmark = [pytest.mark.proof, pytest.mark.real, pytest.mark.timeout(240)]

ENTRIES = 250
EVERY_MS = 1_000
ROUNDS = 40
QUEUE = "celery"
AWAY_S = 7.0  # longer than the lease of a dispatcher, 5 s


class Receiver:
    """Reads each message of the queue once, and notes those that came before their due time by the server's clock.

    The messages stay in the queue, so a lost reply loses none.
    """

    def __init__(self, url: str) -> None:
        self._client: Any = redis.Redis.from_url(url, socket_timeout=5)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="receiver", daemon=True)
        self.found: list[tuple[str, int, str]] = []
        self.early: list[tuple[str, int, str]] = []
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with suppress(redis.RedisError, OSError):
                self.read()
            self._stopping.wait(0.01)  # so a message that comes early by more than this is noticed

    def read(self) -> None:
        """Read the messages that are new. kombu adds them at the left end of the list."""
        size = self._client.llen(QUEUE)
        new = self._client.lrange(QUEUE, -size, -len(self.found) - 1) if size > len(self.found) else []
        now_s, micros = self._client.time()
        came = [occurrence_of(message) for message in reversed(new)]
        self.found += came
        self.early += [one for one in came if now_s * 1000 + micros // 1000 < one[1]]

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(10)
        self.read()
        self._client.close()


def occurrence_of(message: bytes) -> tuple[str, int, str]:
    """Name of the entry, due time in ms, and task id of a message."""
    headers = json.loads(message)["headers"]
    due = datetime.fromisoformat(headers["wheel-sched-due"])
    return headers["periodic_task_name"], round(due.timestamp() * 1000), headers["id"]


def add_entries(stage: Stage, count: int, begin_ms: int) -> BeatEntries:
    """Add entries that are all due at `begin_ms` and then once a second. None of their occurrences may be left out."""
    entries = BeatEntries(stage.app)
    for number in range(count):
        made = entries.make(f"entry {number}", "note", EVERY_MS / 1000, catch_up="all", catch_up_limit=1000)
        entries.add(replace(made, due_ms=begin_ms))
    return entries


def sleep_until(entries: BeatEntries, at_ms: int) -> None:
    """Wait until the store's clock shows this time."""
    while True:
        with suppress(StoreError):
            left_ms = at_ms - entries.store.now_ms()
            if left_ms <= 0:
                return
            time.sleep(min(0.2, left_ms / 1000))
            continue
        time.sleep(0.1)


def assert_each_once(found: list[tuple[str, int, str]], count: int, begin_ms: int, rounds: int) -> None:
    """Every occurrence of these rounds is there once; no occurrence and no task id is there twice."""
    times = Counter((name, due_ms) for name, due_ms, _ in found)
    ids = Counter(task_id for _, _, task_id in found)
    wanted = {(f"entry {number}", begin_ms + EVERY_MS * turn) for number in range(count) for turn in range(rounds)}
    assert sorted(wanted - set(times))[:10] == []
    assert [(one, n) for one, n in (times + Counter()).items() if n > 1][:10] == []
    assert [(one, n) for one, n in ids.items() if n > 1][:10] == []
    assert {(due_ms - begin_ms) % EVERY_MS for _, due_ms in times} == {0}


def test_ten_thousand_occurrences_while_everything_is_killed(stages: Stages) -> None:
    """Three workers. One is killed and replaced, one is stopped for longer than its leases, and the server, which is
    broker and store, is killed and started again. Nothing is missing, doubled or early."""
    server = stages.server(fsync="always")
    stage = stages.stage(server=server)
    workers = [stage.worker("-Q", "left") for _ in range(3)]  # they send; the test receives
    for worker in workers:
        worker.wait_ready()
    receiver = Receiver(server.tcp_url)
    store_ms = BeatEntries(stage.app).store.now_ms()
    begin_ms = store_ms - store_ms % 1000 + 6_000
    entries = add_entries(stage, ENTRIES, begin_ms)
    assert entries.store.now_ms() < begin_ms, "this machine is too slow to add the entries in time"
    sleep_until(entries, begin_ms + 2_300)
    workers[0].kill()
    workers.append(stage.worker("-Q", "left"))
    sleep_until(entries, begin_ms + 4_700)
    workers[1].send_all(signal.SIGSTOP)
    sleep_until(entries, begin_ms + 4_700 + int(AWAY_S * 1000))
    workers[1].send_all(signal.SIGCONT)
    sleep_until(entries, begin_ms + 20_400)
    server.sigkill()
    server.restart()
    end_ms = begin_ms + ROUNDS * EVERY_MS

    sleep_until(entries, end_ms)
    stage.wait_until(
        lambda: sum(due_ms < end_ms for _, due_ms, _ in receiver.found) >= ENTRIES * ROUNDS, "all were received"
    )
    for name in [one.name for one in entries.all()]:
        entries.remove(name)
    receiver.stop()
    assert_each_once(receiver.found, ENTRIES, begin_ms, ROUNDS)
    assert receiver.early == []
    workers[2].send(signal.SIGTERM)
    assert workers[2].wait_ended() == 0
