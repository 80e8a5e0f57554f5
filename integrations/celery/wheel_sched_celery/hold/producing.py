"""The producer's side: this module replaces `AMQP.send_task_message` of an app, and so can hold each task that is sent.

Canvas, beat, `retry`, `send_task`, links and chords all call that method. This module decides at the moment at which
the method publishes the message. Celery sends the signal `before_task_publish` earlier, so a held message has the
changes of the signal's handlers. The signal `after_task_publish` and the event `task-sent` follow as in stock Celery.

To hold a task, this module lets kombu publish the message to a channel that only records it. kombu serializes and
compresses the message, so the record is what a broker would have received. This needs no connection to the broker, so
it works while the broker is away.
"""

from __future__ import annotations

import re
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from celery.app.amqp import AMQP
from kombu import Exchange, Producer, Queue

from wheel_sched.errors import Rejected
from wheel_sched_celery.hold.once_per_key import OncePerKey, once_per_key
from wheel_sched_celery.message.headers import FAIR_KEY, eta_of, plain_repr
from wheel_sched_celery.message.held_task import HeldTask
from wheel_sched_celery.message.stored_forms import values_of
from wheel_sched_celery.wheel import Wheel, wheel_of

# Celery 5.5 and later send ETA tasks for quorum queues through 28 exchanges of RabbitMQ with this name. The routing key
# begins with the delay in bits.
NATIVE_EXCHANGE = "celery_delayed_27"
_NATIVE_PREFIX = re.compile(r"(?:[01]\.){28}")


class HoldingProducer:
    """Holds or publishes tasks. `send_task_message` gets it in place of the real producer.

    Args:
        producer: the real producer.
        wheel: the integration of the app, which stores held tasks.
    """

    def __init__(self, producer: Any, wheel: Wheel) -> None:
        self._producer = producer
        self._wheel = wheel
        self._held = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:
        """Hold the task if it is due later than the horizon. Otherwise, or if it cannot be held, publish it.

        A task with a key (see `once_per_key`) is held even if it is due within the horizon.

        Raises:
            Rejected: the task has a wrong key or fair key, or has a key and cannot wait in the store (see
                `Wheel.hold_or_fall_back`), for example without an ETA; it was not sent.
            HoldRefused: the store is away and `on_outage` is "refuse".
        """
        if self._held:  # then this is the task-sent event, which Celery buffers if it cannot be sent
            return self._producer.publish(body, **options)
        once = once_per_key(options)
        self._set_fair_key(body, options)
        eta_ms = eta_of(body, options.get("headers"), lambda: self._wheel.app.timezone)
        if once is not None and (eta_ms is None or self._wheel.settings.horizon is None):
            raise Rejected(
                "with wheel_collapse or wheel_debounce, expected a countdown or an ETA, and a setting `horizon` other "
                "than None: the task must wait in the store; the task was not sent"
            )
        if eta_ms is not None and self._hold(body, options, eta_ms, once):
            self._held = True
            return None
        return self._producer.publish(body, **options)

    def _set_fair_key(self, body: Any, options: dict[str, Any]) -> None:
        """Write the fair key into the headers: the option `wheel_fair_key`, else the task's attribute of this name.

        The header goes with the message, so a retry and a message that a worker takes over have the same key.

        Raises:
            Rejected: the key is no text; the task was not sent.
        """
        key = options.pop("wheel_fair_key", None)
        headers = options.get("headers")
        if key is None and isinstance(headers, dict) and FAIR_KEY not in headers:
            task = self._wheel.app.tasks.get(headers.get("task"))
            key = getattr(task, "wheel_fair_key", None)
        if key is None:
            return
        if not isinstance(key, str):
            raise Rejected(f"expected wheel_fair_key to be text, got: {key!r}; the task was not sent")
        options["headers"] = {**(headers or {}), FAIR_KEY: key}

    def _hold(self, body: Any, options: dict[str, Any], eta_ms: int, once: OncePerKey | None) -> bool:
        horizon_ms = self._wheel.settings.horizon
        if horizon_ms is None or (once is None and eta_ms - time.time_ns() // 1_000_000 <= horizon_ms):
            return False
        if options.get("exchange") == "":  # the key names the queue, as for most tasks
            target: dict[str, Any] | None = {}
        else:
            target = self._target(options)
        if target is None:
            return False
        task = record(self._producer, body, {**options, **target}, eta_ms)
        return self._wheel.hold_or_fall_back(task if once is None else once.marked(task))

    def _target(self, options: dict[str, Any]) -> dict[str, Any] | None:
        """The options that must replace those in `options` before the message is stored.

        Celery sends ETA tasks for quorum queues through exchanges of RabbitMQ that delay them. The replacements lead
        such a message straight to its queue's exchange, because the store delays it. For any other message they are
        empty.

        None: do not hold the message, because its exchange is a fanout, or its queue is unknown.
        """
        exchange, key = options.get("exchange") or "", options.get("routing_key")
        name = exchange.name if isinstance(exchange, Exchange) else exchange
        queues = self._wheel.app.amqp.queues.values()
        if name == NATIVE_EXCHANGE:
            match = _NATIVE_PREFIX.match(key or "")
            plain = key[match.end() :] if match and key else None
            for queue in queues:
                if queue.routing_key == plain and queue.exchange.type != "direct":
                    return {"exchange": queue.exchange.name, "routing_key": plain, "declare": [queue]}
            return None
        known = [exchange, *(getattr(entity, "exchange", entity) for entity in options.get("declare") or ())]
        known += [queue.exchange for queue in queues] if name else []
        if any(isinstance(each, Exchange) and each.name == name and each.type == "fanout" for each in known):
            return None
        return {}


class HoldingAMQP:
    """The methods that make an `AMQP` class hold tasks. The function `holding` adds them to the class of the app."""

    app: Any
    argsrepr_maxsize: int
    kwargsrepr_maxsize: int

    def as_task_v2(
        self, task_id: str, name: str, args: Any = None, kwargs: Any = None, *more: Any, **options: Any
    ) -> Any:
        """Make Celery's own message, but write plain `argsrepr` and `kwargsrepr` here, in a tenth of Celery's time."""
        if options.get("argsrepr") is None:
            options["argsrepr"] = plain_repr(args or (), self.argsrepr_maxsize)
        if options.get("kwargsrepr") is None:
            options["kwargsrepr"] = plain_repr(kwargs or {}, self.kwargsrepr_maxsize)
        return super().as_task_v2(task_id, name, args, kwargs, *more, **options)  # type: ignore[misc]  # as above

    def _create_task_sender(self) -> Callable[..., Any]:
        send: Callable[..., Any] = super()._create_task_sender()  # type: ignore[misc]  # of celery.app.amqp.AMQP
        wheel = wheel_of(self.app)
        if wheel is None or not wheel.settings.holds:
            return send

        def send_task_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
            return send(HoldingProducer(producer, wheel), name, message, **options)

        return send_task_message


class WheelAMQP(HoldingAMQP, AMQP):
    """Celery's own `AMQP` class, which also holds tasks."""


def holding(amqp_class: type[Any]) -> type[Any]:
    """A subclass of `amqp_class` that holds tasks. If `amqp_class` already holds tasks: `amqp_class` itself."""
    if issubclass(amqp_class, HoldingAMQP):
        return amqp_class
    if amqp_class is AMQP:
        return WheelAMQP
    return type(f"Wheel{amqp_class.__name__}", (HoldingAMQP, amqp_class), {})


# -- recording a publish, on a channel that notes the message instead of sending it


class RecordingChannel:
    """A channel that records a message instead of sending it. It has the two methods that a publish calls."""

    def __init__(self) -> None:
        self.message: dict[str, Any] = {}

    def prepare_message(
        self,
        body: Any,
        priority: int | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: dict[str, Any] | None = None,
        properties: dict[str, Any] | None = None,
    ) -> None:
        self.message.update(
            body=body,
            priority=priority,
            content_type=content_type,
            content_encoding=content_encoding,
            headers=dict(headers or {}),
            properties=dict(properties or {}),
        )

    def basic_publish(self, _message: None, exchange: str, routing_key: str, **_options: Any) -> None:
        self.message.update(exchange=exchange, routing_key=routing_key)


def record(producer: Any, body: Any, options: dict[str, Any], eta_ms: int) -> HeldTask:
    """Make a held task from the message that `producer.publish(body, **options)` would send.

    Raises:
        Exception: whatever the serializer raises; a publish would raise the same.
    """
    options = dict(options)
    declare = options.pop("declare", None) or ()
    for name in ("retry", "retry_policy", "timeout", "confirm_timeout"):
        options.pop(name, None)
    recorder, channel = _recorder_of(producer)
    recorder.publish(body, **options)
    message, channel.message = channel.message, {}
    properties = message["properties"]
    if isinstance(properties.get("reply_to"), Queue):
        properties["reply_to"] = properties["reply_to"].name
    identity = message["headers"] if "task" in message["headers"] else body
    ttl = properties.get("expiration")
    return HeldTask(
        task_id=identity["id"],
        name=identity["task"],
        retries=identity.get("retries") or 0,
        eta_ms=eta_ms,
        queue=next((entity.name for entity in declare if isinstance(entity, Queue)), ""),
        declare=values_of(declare),
        ttl_until_ms=None if ttl is None else time.time_ns() // 1_000_000 + int(ttl),
        **message,
    )


class _Recorders(threading.local):
    """This thread's recorders (see `_recorder_of`), one for each producer.

    They are kept, because making a recorder takes as long as recording a message.
    """

    def __init__(self) -> None:
        self.known: weakref.WeakKeyDictionary[Any, tuple[list[Any], Any, RecordingChannel]]
        self.known = weakref.WeakKeyDictionary()


_recorders = _Recorders()


def _recorder_of(producer: Any) -> tuple[Any, RecordingChannel]:
    """A recorder, which is a producer with the defaults of `producer`, and its recording channel."""
    defaults = [producer.exchange, producer.routing_key, producer.serializer, producer.compression]
    known = _recorders.known.get(producer)
    if known is None or known[0] != defaults:  # not `is`: a pooled producer binds its exchange anew
        channel = RecordingChannel()
        exchange, routing_key, serializer, compression = defaults
        recorder: Any = Producer(
            channel,
            exchange=exchange,
            routing_key=routing_key,
            serializer=serializer,
            compression=compression,
            auto_declare=False,
        )
        known = _recorders.known[producer] = (defaults, recorder, channel)
    return known[1], known[2]
