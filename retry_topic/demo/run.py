"""Runs the demo: starts the processes, publishes, kills the retry service half-way, counts at the end."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from retry_topic import Connection, DeadLetters, Message, connect
from retry_topic.demo.records import load_records
from retry_topic.demo.report import Report, percentiles
from retry_topic.demo.webhooks import GROUP, TOPIC
from retry_topic.message.topic_names import redelivery_topic_of, retry_topic_of
from wheel_sched.errors import WheelSchedError
from wheel_sched.store.embedded import EmbeddedServer

LIMIT_S = 85.0  # the demo gives up and says so rather than run on
FOLDER = Path(".wheel-sched/demo")

Progress = Callable[[int, int, str], None]


class DemoFailed(WheelSchedError):
    """A part of the demo ended early; its last words are in the message."""


def run(
    *, input_path: str | None = None, count: int | None = None, folder: Path = FOLDER, progress: Progress | None = None
) -> Report:
    """Run the demo from start to end.

    Args:
        input_path: a JSON Lines file instead of the airports.
        count: how many records. Defaults to 2,500, or all lines of the file.
        folder: data folder of the embedded server; what an earlier run left there is removed.
        progress: called with (accounted records, all records, words).

    Raises:
        ConfigError: the input is wrong; nothing was started.
        DemoFailed: a process died.
    """
    records = load_records(input_path, count)
    shutil.rmtree(folder, ignore_errors=True)
    say = progress or (lambda done, total, words: None)
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer.open(folder))
        home = stack.enter_context(connect(server.url))
        port = int(_start(stack, "endpoint")[1])
        first, _ = _start(stack, "dispatching", server.url)
        _start(stack, "webhooks", server.url, str(port))
        report = Report(len(records), hand_over=home.hand_over)
        for at in range(0, len(records), 250):
            messages = [Message(TOPIC, value, key.encode()) for key, value in records[at : at + 250]]
            if any(home.broker.publish(messages)):
                raise DemoFailed("the topic refused records that were to be published; see the answers of the broker")
        _watch(stack, home, first, port, report, say, server.url, started)
        _count(home, records, _ask(port, full=True), report)
        report.seconds = round(time.monotonic() - started, 1)
    return report


def _start(stack: contextlib.ExitStack, module: str, *args: str) -> tuple[subprocess.Popen[str], str]:
    """A process of the demo and the first line it printed; it ends with us, because its stdin does."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"retry_topic.demo.{module}", *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is ours to handle
    )
    stack.callback(_end, process)
    assert process.stdout is not None  # noqa: S101  # a pipe was asked for
    line = process.stdout.readline()
    if not line:
        raise DemoFailed(f"the {module} process ended with code {process.wait()} before it was ready")
    return process, line.strip()


def _end(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    try:
        process.wait(8)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _watch(
    stack: contextlib.ExitStack,
    home: Connection,
    first: subprocess.Popen[str],
    port: int,
    report: Report,
    say: Progress,
    url: str,
    started: float,
) -> None:
    """Wait until every record is delivered or dead; kill the first service once half of them are."""
    killed = False
    for snapshot, dead in _snapshots(home, port):
        done = snapshot["accepted"] + dead
        retries = " ".join(f"{mood}:{count}" for mood, count in sorted(snapshot["answers"].items()))
        say(done, report.records, f"dead {dead}  answers {retries}")
        waiting = home.store.counts().total("due")
        if not killed and done * 2 >= report.records and waiting:
            os.kill(first.pid, signal.SIGKILL)
            killed_at = time.monotonic()
            say(done, report.records, f"killed the retry service while {waiting} messages wait in the store")
            _start(stack, "dispatching", url)
            report.takeover_ms = int((time.monotonic() - killed_at) * 1000)
            killed = True
        if done >= report.records or time.monotonic() - started > LIMIT_S:
            return


def _snapshots(home: Connection, port: int) -> Iterator[tuple[dict[str, Any], int]]:
    while True:
        yield _ask(port), home.store.counts().total("dead")
        time.sleep(0.1)


def _ask(port: int, *, full: bool = False) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/report?full" if full else "/report")
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer
    finally:
        connection.close()


def _count(home: Connection, records: list[tuple[str, bytes]], books: dict[str, Any], report: Report) -> None:
    """The account: what the endpoint accepted, what is dead, and whether anything is missing from both."""
    letters = list(DeadLetters(home).select())
    accepted = set(books["accepted_ids"])
    dead = {letter.message.key.decode() for letter in letters if letter.message and letter.message.key}
    ids = {record_id for record_id, _ in records}
    report.delivered = len(accepted)
    report.delivered_by_attempt = {str(attempt): count for attempt, count in books["by_attempt"].items()}
    report.dead = dict(Counter(letter.state.error_message or letter.reason for letter in letters).most_common())
    report.lost = len(ids - accepted - dead)
    report.duplicated = books["duplicated"]
    lateness: list[int] = books["lateness_ms"]
    report.returned = len(lateness)
    report.early = sum(late < 0 for late in lateness)
    report.lateness_ms = percentiles(lateness)
    report.answers = books["answers"]
    left = home.broker.topics()
    assert retry_topic_of(GROUP) in left  # noqa: S101  # the run did go through the retry topic
    assert redelivery_topic_of(GROUP) in left  # noqa: S101  # and back
