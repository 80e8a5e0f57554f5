"""PollLoop: the thread that owns a group member's Kafka client, from joining the group to leaving it.

The loop polls the client, puts records into the offset tracker's buffer, and pauses fetching when the buffer is full.
Rebalances happen inside `client.poll`. No other thread uses the client, because a running poll blocks all other calls
of the client. A thread that needs the client gives the loop a function to call (`run_in_loop`).

The loop polls the client even when nobody uses the member, so the cluster would never expel a member whose user hangs.
Therefore a member leaves the group when no thread has called its `poll`, `ack`, `forward` or `beat` for `idle_ms`. Then
other members get its partitions. The member joins again at the next `poll`. A member that the group has expelled joins
again with a new client, because the old client would keep its partitions and report nothing. From joining the group to
leaving it, the member uses one client. The tracker's attribute `life` is the number of this stay in the group.

The argument `connect` makes the client, so a test can pass a fake one. The attribute `changed` is the lock of the
tracker and of all attributes of the loop. It is notified when records, failures or requests come.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from retry_topic.brokers.kafka.faults import EXPELLED
from retry_topic.brokers.kafka.offset_tracker import OffsetTracker, Place
from retry_topic.brokers.kafka.records import from_record
from retry_topic.brokers.kafka.topology import TopicIds
from wheel_sched.errors import BrokerError
from wheel_sched.escaping import logger_of

logger = logger_of("retry_topic.kafka")

FULL, LOW = 1_000, 250  # fetching pauses at FULL records in the buffer and resumes at LOW
_STILL_S = 0.2  # when the buffer is full for longer, the loop pauses the client
_AT_ONCE = 100  # records taken from the client before their size is checked
POLL_S = 0.05  # how soon the loop sees a request while no record is handed out
_SHORT_S = 0.002  # how soon the loop sees a request while records are handed out
CLOSE_S = 15.0
_LEAVE_S = 5.0

Committed = Callable[[list[TopicPartition]], list[TopicPartition]]


class PollLoop:
    """The thread that owns the Kafka client of one group member.

    Args:
        connect: makes a client.
        group: the consumer group, for names and log lines.
        topics: the topics to subscribe to.
        idle_ms: see `Broker.consumer`.
        committed: reads the group's committed offsets, with their metadata.
        topic_ids: tells whether a topic was recreated.
        full_bytes: the size of the buffer at which fetching pauses.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        group: str,
        topics: Sequence[str],
        idle_ms: int,
        committed: Committed,
        topic_ids: TopicIds,
        full_bytes: int,
    ) -> None:
        self._connect = connect
        self._topics = list(topics)
        self._idle_ms = idle_ms
        self._committed = committed
        self._topic_ids = topic_ids
        self.changed = threading.Condition()
        self.sending = threading.Lock()  # held during a transaction: the loop must not commit at the same time
        self.tracker = OffsetTracker(idle_ms, now_ms)
        self.back_pressure = BackPressure(self.tracker, full_bytes)
        self.failure: Exception | None = None  # raised to the next caller of `poll`
        self.alive_ms = now_ms()  # when a caller last polled, settled or kept deliveries alive
        self.polling = 0  # callers that are inside `poll`
        self.closed = False
        self._rejoin = False
        self._client: Any = None
        self._requests: deque[tuple[Callable[[Any], Any], Future[Any]]] = deque()
        self._thread = threading.Thread(target=self._run, name=f"kafka-{group}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def run_in_loop(self, call: Callable[[Any], Any]) -> Any:
        """Let the loop's thread call `call(client)`. Returns or raises what `call` does; None if no client is open."""
        asked: Future[Any] = Future()
        with self.changed:
            if self._client is None:
                return None
            self._requests.append((call, asked))
            self.changed.notify_all()
        return asked.result()

    def rejoin(self, life: int | None = None) -> None:
        """Forget all partitions and join the group again. Any thread may call it.

        `life`: the number of a stay in the group (`OffsetTracker.life`). If the member has left the group since, this
        method does nothing. Defaults to None: the present stay.
        """
        with self.changed:
            if life is None or life == self.tracker.life:
                self.tracker.begin()
                self._rejoin = True
                self.changed.notify_all()

    def close(self) -> None:
        """Leave the group immediately. Idempotent."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S)

    # -- the thread

    def _run(self) -> None:
        while not self.closed:
            try:
                self._membership()
            except Exception as error:
                if not isinstance(error, KafkaException):
                    logger.exception("kafka.member_failed")
                with self.changed:
                    self.failure = error
                    self.changed.notify_all()
                    self.changed.wait(1.0)

    def _membership(self) -> None:
        """One stay in the group, from joining it to leaving it."""
        with self.changed:
            # a member that nobody polls has no reason to join, except for the first time
            while self.tracker.life and not self.polling and not self.closed:
                self.changed.wait()
            if self.closed:
                return
            self.tracker.begin()
            self._rejoin = False
            self.back_pressure.paused.begin()
            self.alive_ms = now_ms()
        client = self._client = self._connect()
        try:
            client.subscribe(self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
            while not self.closed and not self._rejoin and not self._silent():
                self._turn(client)
        finally:
            self._leave(client)

    def _silent(self) -> bool:
        with self.changed:
            silent_ms = now_ms() - self.alive_ms
            return not self.polling and bool(self.tracker.partitions) and silent_ms > self._idle_ms

    def _leave(self, client: Any) -> None:
        with self.sending:
            with self.changed:
                # A silent member may be dead, so its records count as handed out once more. A member that closes gives
                # its records back.
                held = self.tracker.to_commit(set(self.tracker.partitions), counted=not self.closed)
                offsets = [] if self._rejoin else self._topic_ids.marked(held)
                self._client = None
                self.tracker.begin()
                self._topic_ids.begin()
                while self._requests:
                    self._requests.popleft()[1].set_result(None)
            if offsets:
                with contextlib.suppress(KafkaException, RuntimeError):
                    client.commit(offsets=offsets, asynchronous=False)
        closing = threading.Thread(target=client.close, name="kafka-close", daemon=True)
        closing.start()  # it may never return when the cluster does not answer
        closing.join(_LEAVE_S)

    def _turn(self, client: Any) -> None:
        """Call the functions that callers gave to `run_in_loop`, then poll once."""
        tracker, back_pressure = self.tracker, self.back_pressure
        with self.changed:
            if tracker.busy and not self._requests:
                self.changed.wait(_SHORT_S)  # a request will come soon, and a request cannot interrupt a poll
            requests, self._requests = self._requests, deque()
            timeout_s = 0.0 if requests or tracker.busy else POLL_S
        for call, asked in requests:
            try:
                asked.set_result(call(client))
            except BaseException as error:
                asked.set_exception(error)
        with self.changed:
            if self._topic_ids.look(topic for topic, _ in tracker.partitions):
                self.rejoin()
                return
        if back_pressure.waits():
            return
        back_pressure.apply(client)
        record = client.poll(timeout_s)
        records = [] if record is None else [record]
        while records:
            self._keep(records)
            records = [] if back_pressure.full else client.consume(_AT_ONCE, 0)

    def _keep(self, records: Sequence[Any]) -> None:
        with self.changed:
            for found in records:
                error = found.error()
                if error is None:
                    self.tracker.fetch(found.offset(), from_record(found))
                    self.back_pressure.paused.came([(found.topic(), found.partition())])
                elif error.code() in EXPELLED:
                    self.rejoin()
                elif error.fatal() or not error.retriable():
                    self.failure = KafkaException(error)
            self.changed.notify_all()

    # -- rebalances; in the loop's thread, called by `client.poll`

    def _assigned(self, client: Any, partitions: list[TopicPartition]) -> None:
        if not partitions:
            return
        if self.back_pressure.paused.are_deaf((place.topic, place.partition) for place in partitions):
            self.rejoin()
            return
        try:
            found = self._topic_ids.look_up(place.topic for place in partitions)
            known = self._committed(partitions)
        except BrokerError as error:  # librdkafka cannot handle an exception from this callback
            with self.changed:
                self.failure = error
                self.rejoin()
            return
        starts = []
        with self.changed:
            if self._topic_ids.changed(found, (topic for topic, _ in self.tracker.partitions)):
                self.rejoin()  # the earlier partitions belong to another topic with this name
                return
            self._topic_ids.take(found)
            own = self._topic_ids.own(known)
            for topic, partition in ((place.topic, place.partition) for place in partitions):
                offset, text = own.get((topic, partition), (-2, ""))
                self.tracker.open((topic, partition), max(0, offset), text)
                starts.append(TopicPartition(topic, partition, offset))
        client.incremental_assign(starts)

    def _revoked(self, client: Any, partitions: list[TopicPartition]) -> None:
        with self.sending:
            with self.changed:
                places = {(place.topic, place.partition) for place in partitions}
                offsets = self._topic_ids.marked(self.tracker.to_commit(places, counted=False))
                self._lost(client, partitions)
            if offsets and client is self._client:
                with contextlib.suppress(KafkaException):
                    client.commit(offsets=offsets, asynchronous=False)

    def _lost(self, client: Any, partitions: list[TopicPartition]) -> None:
        places = {(place.topic, place.partition) for place in partitions}
        with self.changed:
            if client is self._client:  # otherwise the loop has replaced this client, which closes late
                self.tracker.drop(places)
                self.back_pressure.paused.lose(places)


def now_ms() -> int:
    """The monotonic clock in ms."""
    return time.monotonic_ns() // 1_000_000


class BackPressure:
    """Stops fetching when a group member's buffer has too many records or bytes, and resumes it when there is room.

    After a pause, a client needs about half a second until it fetches again (librdkafka's broker threads sleep
    meanwhile). So when the buffer is full, the poll loop first waits a moment without polling: busy handlers soon take
    records from the buffer, and the client's own queue still has more. Only when the buffer stays full, the loop pauses
    the client and continues to poll. So the client stays in its group and takes part in rebalances.

    Only the polling thread may use it.

    Args:
        tracker: the owner of the buffer.
        full_bytes: the buffer is full at this size, independently of the number of records.
    """

    def __init__(self, tracker: OffsetTracker, full_bytes: int) -> None:
        self._tracker = tracker
        self._full_bytes = full_bytes
        self._full_s: float | None = None
        self.paused = PausedPartitions()

    @property
    def full(self) -> bool:
        """Whether no more records may be taken from the client."""
        return self._tracker.fetched >= FULL or self._tracker.fetched_bytes >= self._full_bytes

    def waits(self) -> bool:
        """Whether the poll loop should wait a moment for room instead of polling."""
        if not self.full or self.paused:
            self._full_s = None
            return False
        if self._full_s is None:
            self._full_s = time.monotonic()
        return time.monotonic() - self._full_s < _STILL_S

    def apply(self, client: Any) -> None:
        """Pause fetching while the buffer is full, and resume it when there is room again."""
        tracker = self._tracker
        if self.full:
            self.paused.pause(client)
        elif self.paused and tracker.fetched <= LOW and tracker.fetched_bytes <= self._full_bytes // 4:
            self.paused.resume(client)


class PausedPartitions:
    """Which partitions of a client are paused.

    Two bugs of librdkafka (its issues 2190 and 5591) make a client deaf: it never reads a partition again. First, a
    partition that is paused when the client loses it is still paused when the client gets it back. Second, a client
    that pauses or resumes a newly assigned partition forgets the offset to begin at. So a partition is paused only
    after one of its records has come. A client that lost a paused partition and gets it back must be replaced by a new
    client, which knows of no pause.

    Only the client's thread may use it.
    """

    def __init__(self) -> None:
        self._reading: set[Place] = set()
        self._paused: set[Place] = set()
        self._went_paused: set[Place] = set()

    def __bool__(self) -> bool:
        """Whether a partition is paused."""
        return bool(self._paused)

    def begin(self) -> None:
        """Forget all partitions, because a new client replaces the old one."""
        for places in (self._reading, self._paused, self._went_paused):
            places.clear()

    def came(self, places: Iterable[Place]) -> None:
        """Note that records of these partitions have come: from now on `pause` pauses them."""
        self._reading.update(places)

    def pause(self, client: Any) -> None:
        """Pause all partitions whose records have come."""
        fresh = self._reading - self._paused
        if fresh:
            client.pause([TopicPartition(*place) for place in fresh])
            self._paused |= fresh

    def resume(self, client: Any) -> None:
        """Resume all paused partitions."""
        client.resume([TopicPartition(*place) for place in self._paused])
        self._paused.clear()

    def lose(self, places: Iterable[Place]) -> None:
        """Note that the client has lost these partitions."""
        gone = {*places}
        self._went_paused |= self._paused & gone
        self._paused -= gone
        self._reading -= gone

    def are_deaf(self, places: Iterable[Place]) -> bool:
        """Whether this client would never read one of these newly assigned partitions."""
        return not self._went_paused.isdisjoint(places)
