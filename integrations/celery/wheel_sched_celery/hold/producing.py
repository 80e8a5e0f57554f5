"""The producer's hook: every send of an app passes through `AMQP.send_task_message`, and this module may hold it there.

Canvas, beat, `retry`, `send_task`, links and chords all end in that method. The decision falls at the publish, after
`before_task_publish`, so that changes by its handlers are held too. `after_task_publish` and the `task-sent` event
follow as in stock Celery.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from celery.app.amqp import AMQP
from kombu import Exchange

from wheel_sched_celery.hold.recording import eta_of, record
from wheel_sched_celery.message.argument_text import plain_repr
from wheel_sched_celery.wheel import Wheel, wheel_of

# Celery 5.5 and later send ETA tasks for quorum queues through 28 exchanges of RabbitMQ with this name. The routing key
# begins with the delay in bits.
NATIVE_EXCHANGE = "celery_delayed_27"
_NATIVE_PREFIX = re.compile(r"(?:[01]\.){28}")


class HoldingProducer:
    """Replaces the producer inside `send_task_message`.

    Args:
        producer: the real producer.
        wheel: holds tasks.
    """

    def __init__(self, producer: Any, wheel: Wheel) -> None:
        self._producer = producer
        self._wheel = wheel
        self._held = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:
        """Hold the task, or publish it as the real producer does."""
        if self._held:  # this is the task-sent event, which Celery buffers when it cannot be sent
            return self._producer.publish(body, **options)
        eta_ms = eta_of(body, options.get("headers"), lambda: self._wheel.app.timezone)
        if eta_ms is not None and self._hold(body, options, eta_ms):
            self._held = True
            return None
        return self._producer.publish(body, **options)

    def _hold(self, body: Any, options: dict[str, Any], eta_ms: int) -> bool:
        horizon_ms = self._wheel.settings.horizon
        if horizon_ms is None or eta_ms - time.time_ns() // 1_000_000 <= horizon_ms:
            return False
        if options.get("exchange") == "":  # the key names the queue, as for most tasks
            target: dict[str, Any] | None = {}
        else:
            target = self._target(options)
        return target is not None and self._wheel.hold_or_fall_back(
            record(self._producer, body, {**options, **target}, eta_ms)
        )

    def _target(self, options: dict[str, Any]) -> dict[str, Any] | None:
        """Where to publish when due; None for a broadcast, and for native delayed delivery with an unknown target."""
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
    """Mixed into the app's `AMQP` class; see `holding`."""

    app: Any
    argsrepr_maxsize: int
    kwargsrepr_maxsize: int

    def as_task_v2(
        self, task_id: str, name: str, args: Any = None, kwargs: Any = None, *more: Any, **options: Any
    ) -> Any:
        """Celery's own message, with the texts of plain arguments given: making them takes a tenth of `apply_async`."""
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
    """Celery's own `AMQP`, with holding."""


def holding(amqp_class: type[Any]) -> type[Any]:
    """`amqp_class` with holding; unchanged when it has it already."""
    if issubclass(amqp_class, HoldingAMQP):
        return amqp_class
    if amqp_class is AMQP:
        return WheelAMQP
    return type(f"Wheel{amqp_class.__name__}", (HoldingAMQP, amqp_class), {})
