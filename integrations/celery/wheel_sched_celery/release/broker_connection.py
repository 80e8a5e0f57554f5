"""A separate connection to the broker, which publishes due tasks and waits for the broker's confirms.

It does not use the app's connection pools: a fork could copy their locks in a locked state.

With RabbitMQ it sends a whole batch, then waits for all confirms. RabbitMQ returns a message that no queue accepts,
because it is sent as `mandatory`. The connection then declares the queue again and sends the message once more. With
every other transport, the broker has the message when the call returns, except with `gcpubsub`: it sends in the
background, and nobody waits for its answer.

Threads: only one thread at a time may use a connection.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kombu.common import maybe_declare
from kombu.exceptions import OperationalError

from wheel_sched.dispatcher import Failed
from wheel_sched.escaping import logger_of
from wheel_sched_celery.message.headers import marked
from wheel_sched_celery.message.held_task import HeldTask
from wheel_sched_celery.message.stored_forms import entity_of

logger = logger_of("wheel_sched.celery")

CONFIRM_S = 20.0  # a message without a confirm is in doubt after this time; the dispatcher's own timeout is longer
CONNECT_S: Final = 5.0  # how long connecting may take


class BrokerConnection:
    """Publishes held tasks.

    Args:
        app: the app whose broker is used.
        marks: whether messages get the mark of messages that the store has sent. Defaults to True.
    """

    def __init__(self, app: Any, *, marks: bool = True) -> None:
        self._app = app
        self._marks = marks
        self._connection: Any = None
        self._channel: Any = None
        self._tag = 0  # delivery tag of the last message on this channel
        # delivery tag -> place in the batch; confirms arrive while later messages are sent
        self._sent: dict[int, int] = {}
        self._waiting: set[int] = set()
        self._refused: set[int] = set()
        self._returned: dict[str, str] = {}  # correlation id -> why
        self._undeclarable: set[str] = set()

    def send(self, tasks: Sequence[HeldTask]) -> list[Failed | None]:
        """Publish tasks. Returns None for each task that the broker has, else the failure.

        If a failure is transient, another attempt may succeed. If it is `in_doubt`, the broker may have the task.
        """
        answers: list[Failed | None] = [Failed("not sent: the broker is away") for _ in tasks]
        try:
            self._connect()
        except Exception as error:  # every client library raises its own errors
            self.close()
            return [Failed(f"the broker is away: {error}") for _ in tasks]
        self._send_all(tasks, range(len(tasks)), answers)
        for place in [place for place, answer in enumerate(answers) if answer is _SUSPECT]:
            answers[place] = Failed("the broker went away", in_doubt=True)
            with contextlib.suppress(Exception):  # as above
                self._connect()
                self._send_all(tasks, [place], answers)
        again = [place for place, answer in enumerate(answers) if answer is _RETURNED]
        if again:
            for place in again:
                self._forget_declared(tasks[place])
            self._send_all(tasks, again, answers)
            for place in again:
                if answers[place] is _RETURNED:
                    task = tasks[place]
                    where = f"exchange {task.exchange!r} with key {task.routing_key!r}"
                    answers[place] = Failed(f"no queue takes messages to {where}", transient=False)
        return answers

    def close(self) -> None:
        """Close the connection; the next `send` opens another. Idempotent."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):  # a broken connection may raise anything; it is dropped
                connection.collect(socket_timeout=1)

    # -- connection

    def _connect(self) -> None:
        if self._connection is not None and not self._connection.connected:
            self.close()
        if self._connection is None:
            self._connection = connection = short_connection(self._app, CONFIRM_S)
            if self.confirms:
                options = {"write_timeout": CONFIRM_S, **(connection.transport_options or {})}
                options["confirm_publish"] = False  # else py-amqp would wait after each message
                connection.transport_options = options
            connection.connect()
        if self._channel is None or getattr(self._channel, "is_open", True) is False:
            self._open_channel()

    def _open_channel(self) -> None:
        self._channel = channel = self._connection.channel()
        self._tag = 0
        self._sent.clear()
        self._waiting.clear()
        self._refused.clear()
        self._returned.clear()
        if self.confirms:
            channel.confirm_select()
            channel.events["basic_ack"].add(self._acked)
            channel.events["basic_nack"].add(self._nacked)
            channel.events["basic_return"].add(self._came_back)

    @property
    def confirms(self) -> bool:
        """Whether the broker confirms messages."""
        return bool(self._connection.transport.driver_type == "amqp")

    # -- sending

    def _send_all(self, tasks: Sequence[HeldTask], places: Sequence[int], answers: list[Failed | None]) -> None:
        places = list(places)
        try:
            while places:
                place = places[0]
                answers[place] = Failed("the broker went away while the task was sent", in_doubt=True)
                self._declare(tasks[place].declare)
                self._publish(tasks[place], place)
                places.pop(0)
                answers[place] = Failed("the broker has not confirmed it", in_doubt=True) if self.confirms else None
            self._await_confirms()
            self._note_confirmed(tasks, answers)
            if self._waiting:
                self.close()  # a late confirm would count for the next batch
        except Exception as error:  # as in `send`
            self._note_confirmed(tasks, answers)
            self._broken(error, places, answers)
            self.close()

    def _publish(self, task: HeldTask, place: int) -> None:
        channel = self._channel
        message = channel.prepare_message(
            task.body,
            task.priority,
            task.content_type,
            task.content_encoding,
            marked(task.headers, task.task_id, task.retries) if self._marks else dict(task.headers),
            task.properties_at(time.time_ns() // 1_000_000),
        )
        if self.confirms:
            self._tag += 1
            self._sent[self._tag] = place
            self._waiting.add(self._tag)
            channel.basic_publish(message, exchange=task.exchange, routing_key=task.routing_key, mandatory=True)
        else:
            channel.basic_publish(message, exchange=task.exchange, routing_key=task.routing_key)

    def _await_confirms(self) -> None:
        until_s = time.monotonic() + CONFIRM_S
        while self._waiting and (left_s := until_s - time.monotonic()) > 0:
            try:
                self._connection.drain_events(timeout=left_s)
            except TimeoutError:
                return

    def _note_confirmed(self, tasks: Sequence[HeldTask], answers: list[Failed | None]) -> None:
        """Note the answers for all messages that the broker has confirmed, refused or returned."""
        for tag in [tag for tag in self._sent if tag not in self._waiting]:
            place = self._sent.pop(tag)
            if tag in self._refused:
                answers[place] = Failed("the broker refused the message (nack)")
            elif (why := self._returned.pop(_identity(tasks[place].properties), None)) is not None:
                logger.warning("celery.unroutable: task %s: %s", tasks[place].task_id, why)
                answers[place] = _RETURNED
            else:
                answers[place] = None
        self._refused.clear()

    def _broken(self, error: Exception, places: Sequence[int], answers: list[Failed | None]) -> None:
        """Decide the answers of tasks that have none, after the channel or the connection was closed.

        A broker closes a channel because of one message. To find that message, `send` sends each task without an answer
        once more, alone. A lost connection says nothing about the messages, so the tasks stay in doubt.
        """
        logger.warning("celery.publish_failed: %r", error)
        if isinstance(error, (OSError, OperationalError, *self._recoverable())):
            return
        undecided = sorted({*self._sent.values(), *places})
        for place in undecided:
            refused = Failed(f"the broker refused the message: {error}", transient=False)
            answers[place] = refused if len(undecided) == 1 else _SUSPECT

    def _recoverable(self) -> tuple[type[Exception], ...]:
        return tuple(self._connection.recoverable_connection_errors) if self._connection is not None else ()

    # -- callbacks of RabbitMQ

    def _acked(self, delivery_tag: int, multiple: bool) -> None:
        self._settled(delivery_tag, multiple)

    def _nacked(self, delivery_tag: int, multiple: bool) -> None:
        self._refused.update(self._settled(delivery_tag, multiple))

    def _settled(self, delivery_tag: int, multiple: bool) -> list[int]:
        tags = [tag for tag in self._waiting if tag == delivery_tag or (multiple and tag < delivery_tag)]
        self._waiting.difference_update(tags)
        return tags

    def _came_back(self, error: Exception, _exchange: str, _routing_key: str, message: Any) -> None:
        self._returned[_identity(message.properties)] = str(error)

    # -- declaring

    def _declare(self, entities: Sequence[Mapping[str, Any]]) -> None:
        for value in entities:
            name = f"{value['kind']} {value['name']}"
            if name in self._undeclarable:
                continue
            try:
                maybe_declare(entity_of(value), self._channel)
            except self._connection.channel_errors as error:
                # The queue exists with other properties. Publishing to it works, or reports an error of its own.
                logger.warning("celery.not_declared: %s: %s", name, error)
                self._undeclarable.add(name)
                if self._waiting:
                    raise
                self._open_channel()

    def _forget_declared(self, task: HeldTask) -> None:
        for value in task.declare:
            self._undeclarable.discard(f"{value['kind']} {value['name']}")
        if self._connection is not None:
            self._connection.declared_entities.clear()


def _identity(properties: Mapping[str, Any]) -> str:
    """The id by which `_came_back` and `_note_confirmed` recognize a returned message."""
    return str(properties.get("correlation_id") or properties.get("message_id") or "")


_SUSPECT = Failed("one of a batch was refused")
_RETURNED = Failed("no queue takes it")


def short_connection(app: Any, answer_s: float = CONNECT_S) -> Any:
    """Make a connection with short timeouts, for a broker that may hang. It connects at its first use.

    The caller releases the connection. The app's own `broker_transport_options` take precedence.

    Args:
        app: the app whose broker is used.
        answer_s: how long to wait for each answer of a Redis. Defaults to 5 s.
    """
    connection = app.connection_for_write(heartbeat=0)
    connection.connect_timeout = min(connection.connect_timeout or CONNECT_S, CONNECT_S)
    if connection.transport.driver_type == "redis":
        limits = {"socket_timeout": answer_s, "socket_connect_timeout": min(answer_s, CONNECT_S)}
        connection.transport_options = {**limits, **(connection.transport_options or {})}
    return connection
