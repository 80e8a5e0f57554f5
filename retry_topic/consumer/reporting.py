"""How attempts ended, told to the store: what budgets and circuits of flow control go by.

Once a second, and at most ten times a second while many fail, so that a circuit opens before many attempts are burnt.

What cannot be told within a few seconds is dropped: old results say nothing about a destination's state now.
Threads: `note` from any; one of ours tells.
"""

from __future__ import annotations

import threading

from retry_topic.message import Message
from retry_topic.release.flow import destination_of, flow_of
from wheel_sched.errors import WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched.reviving import RevivedThread
from wheel_sched.store import DelayStore
from wheel_sched.store.flow_control import FlowControl

logger = logger_of("retry_topic.consumer")

_EVERY_S, _AT_MOST_EVERY_S = 1.0, 0.1
_MANY = 10  # failures that are told at once
_DESTINATIONS = 500  # told at once of one topic; the rest is counted under the topic's own


class Reporter:
    """Counts results by topic and destination, and tells them.

    Args:
        store: whom.
        group: whose results they are.
        destination: header that names the destination; "" = the topic.
    """

    def __init__(self, store: DelayStore, group: str, destination: str) -> None:
        self._control = FlowControl(store)
        self._group = group
        self._destination = destination
        self._lock = threading.Lock()
        self._counts: dict[str, dict[str, list[int]]] = {}
        self._failed = 0
        self._stopping = threading.Event()
        self._hurry = threading.Event()
        self.thread = RevivedThread(self._run, f"{group}-report", self._stopping)

    def start(self) -> None:
        """Begin to tell."""
        self.thread.start()

    def stop(self) -> None:
        """Tell what there is, and end."""
        self._stopping.set()
        self._hurry.set()
        if self.thread.is_alive():
            self.thread.join(5)

    def note(self, message: Message, *, first: bool, succeeded: bool) -> None:
        """Count the end of an attempt."""
        destination = destination_of(message.headers, self._destination)
        with self._lock:
            counts = self._counts.setdefault(message.topic, {})
            if destination not in counts and len(counts) >= _DESTINATIONS:
                destination = ""
            row = counts.setdefault(destination, [0, 0, 0])
            row[0] += first
            row[1 if succeeded else 2] += 1
            self._failed += not succeeded
            if self._failed >= _MANY:
                self._hurry.set()

    def _run(self) -> None:
        while not self._stopping.wait(_AT_MOST_EVERY_S):
            self._hurry.wait(_EVERY_S - _AT_MOST_EVERY_S)
            self._hurry.clear()
            self.tell()
        self.tell()

    def tell(self) -> None:
        """Tell what was counted since the last time."""
        with self._lock:
            counts, self._counts, self._failed = self._counts, {}, 0
        for topic, rows in counts.items():
            try:
                self._control.report(
                    flow_of(self._group, topic),
                    [(name, *row) for name, row in rows.items()],  # type: ignore[misc]
                )
            except WheelSchedError as error:
                logger.warning("consumer.cannot_report: %s", error)
