"""Runs the demo: starts the processes, publishes the records, kills the retry service half-way, counts at the end."""

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
from retry_topic.demo.report import DemoReport, percentiles
from retry_topic.demo.webhooks import GROUP, TOPIC
from retry_topic.message.topic_names import redelivery_topic_of, retry_topic_of
from wheel_sched.errors import ConfigError, WheelSchedError
from wheel_sched.store.embedded import EmbeddedServer

LIMIT_S = 85.0  # then the demo stops and reports what is missing
FOLDER = Path(".wheel-sched/demo")
_MARK = "made-by-the-demo"  # an empty file: the demo may delete the folder in which it is

Progress = Callable[[int, int, str], None]


class DemoFailed(WheelSchedError):
    """A process of the demo ended too early, or the topic refused records."""


def run(
    *, input_path: str | None = None, count: int | None = None, folder: Path = FOLDER, progress: Progress | None = None
) -> DemoReport:
    """Run the demo from start to end.

    Args:
        input_path: a JSON Lines file with the records. Defaults to None: each record is an airport from the package
            `airportsdata`.
        count: how many records. Defaults to 2,500 airports, or to all lines of the file.
        folder: data folder of the embedded server. The default folder, or one that an earlier demo has made, is first
            deleted with everything in it.
        progress: called with (records that are delivered or dead, all records, a text).

    Raises:
        ConfigError: the input is wrong, or `folder` has files and is neither of these two; nothing was started.
        DemoFailed: a process died, or the topic refused records.
    """
    records = load_records(input_path, count)
    _empty(folder)
    say = progress or (lambda done, total, words: None)
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer.open(folder))
        (folder / _MARK).touch()
        connection = stack.enter_context(connect(server.url))
        port = int(_start(stack, "endpoint")[1])
        first, _ = _start(stack, "service", server.url)
        _start(stack, "webhooks", server.url, str(port))
        report = DemoReport(len(records), hand_over=connection.hand_over)
        for at in range(0, len(records), 250):
            messages = [Message(TOPIC, value, key.encode()) for key, value in records[at : at + 250]]
            if any(connection.broker.publish(messages)):
                raise DemoFailed("the topic refused some of the records that the demo published")
        _watch(stack, connection, first, port, report, say, server.url, started)
        _count(connection, records, _ask(port, full=True), report)
        report.seconds = round(time.monotonic() - started, 1)
    return report


def _empty(folder: Path) -> None:
    """Delete the folder of an earlier demo. Do nothing if the folder is absent or empty.

    Raises:
        ConfigError: the folder has files, and no demo has made it.
    """
    if folder.is_dir() and any(folder.iterdir()) and folder != FOLDER and not (folder / _MARK).exists():
        raise ConfigError(
            f"expected a new or empty folder, or one of an earlier demo, got: {folder}, which has other files; "
            "nothing was deleted or started: name another folder"
        )
    shutil.rmtree(folder, ignore_errors=True)


def _start(stack: contextlib.ExitStack, module: str, *args: str) -> tuple[subprocess.Popen[str], str]:
    """Start a process of the demo. Returns the process and its first line of output.

    The process ends when its stdin closes.

    Raises:
        DemoFailed: the process ended before it printed a line.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", f"retry_topic.demo.{module}", *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # only this process handles Ctrl-C
    )
    stack.callback(_end, process)
    assert process.stdout is not None  # noqa: S101  # stdout=PIPE
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
    connection: Connection,
    first: subprocess.Popen[str],
    port: int,
    report: DemoReport,
    say: Progress,
    url: str,
    started: float,
) -> None:
    """Wait until every record is delivered or dead, or until `LIMIT_S` have passed since `started`.

    When half of the records are delivered or dead, kill the first retry service and start a second one.
    """
    killed = False
    for snapshot, dead in _snapshots(connection, port):
        done = snapshot["accepted"] + dead
        retries = " ".join(f"{answer}:{count}" for answer, count in sorted(snapshot["answers"].items()))
        say(done, report.records, f"dead {dead}  answers {retries}")
        waiting = connection.store.counts().total("due")
        if not killed and done * 2 >= report.records and waiting:
            os.kill(first.pid, signal.SIGKILL)
            killed_at = time.monotonic()
            say(done, report.records, f"killed the retry service while {waiting} messages wait in the store")
            _start(stack, "service", url)
            report.takeover_ms = int((time.monotonic() - killed_at) * 1000)
            killed = True
        if done >= report.records or time.monotonic() - started > LIMIT_S:
            return


def _snapshots(connection: Connection, port: int) -> Iterator[tuple[dict[str, Any], int]]:
    while True:
        yield _ask(port), connection.store.counts().total("dead")
        time.sleep(0.1)


def _ask(port: int, *, full: bool = False) -> dict[str, Any]:
    endpoint = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        endpoint.request("GET", "/report?full" if full else "/report")
        answer: dict[str, Any] = json.loads(endpoint.getresponse().read())
        return answer
    finally:
        endpoint.close()


def _count(connection: Connection, records: list[tuple[str, bytes]], seen: dict[str, Any], report: DemoReport) -> None:
    """Fill the report: count the records that are accepted, those that are dead, and those that are lost."""
    letters = list(DeadLetters(connection).select())
    accepted = set(seen["accepted_ids"])
    dead = {letter.message.key.decode() for letter in letters if letter.message and letter.message.key}
    ids = {record_id for record_id, _ in records}
    report.delivered = len(accepted)
    report.delivered_by_attempt = {str(attempt): count for attempt, count in seen["by_attempt"].items()}
    report.dead = dict(Counter(letter.state.error_message or letter.reason for letter in letters).most_common())
    report.lost = len(ids - accepted - dead)
    report.duplicated = seen["duplicated"]
    lateness: list[int] = seen["lateness_ms"]
    report.returned = len(lateness)
    report.early = sum(late < 0 for late in lateness)
    report.lateness_ms = percentiles(lateness)
    report.answers = seen["answers"]
    left = connection.broker.topics()
    assert retry_topic_of(GROUP) in left  # noqa: S101  # the failures went through the retry topic
    assert redelivery_topic_of(GROUP) in left  # noqa: S101  # and came back
