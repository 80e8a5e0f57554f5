"""Safeguards of Celery tasks that wait in the store."""

from __future__ import annotations

from tests.simulation.safeguards.switching import Safeguard

CELERY = "wheel_sched_celery"
SAFEGUARDS = [
    Safeguard(
        "a worker acknowledges a message after the store has it",
        f"{CELERY}.takeover.store_calls:TakenItems.take",
        'stored = self._wheel.call(lambda store: store.schedule(wanted, token="")) if wanted else None',
        'self._wheel.thread.submit(lambda: self._wheel.call(lambda store: store.schedule(wanted, token="")));'
        " return [item is not None for item in items]",
        "celery",
    ),
    Safeguard(
        "a message that the store did not take stays with the worker",
        f"{CELERY}.takeover.takeover:Takeover._carry_out",
        "if one.taken is not None:",
        "if True:",
        "celery",
    ),
    Safeguard(
        "the store's clock decides when a task in a worker's timer is due",
        f"{CELERY}.takeover.takeover:Takeover._by_the_store",
        "ahead_s = (self._wall_us() - now_us) / 1e6",
        "ahead_s = 0.0",
        "celery",
    ),
    Safeguard(
        "a wait in a worker's timer allows for a clock that runs fast",
        f"{CELERY}.takeover.takeover:Takeover._by_the_store",
        "max(0.0, due_s - time.monotonic()) * DRIFT",
        "0.0",
        "celery",
        hidden="none of the first thousand histories has shown it",
    ),
    Safeguard(
        "an old answer of the store's clock allows for a clock that runs fast",
        f"{CELERY}.takeover.store_calls:StoreClock.estimate_us",
        "math.ceil((local_us - self._answered_us) * DRIFT)",
        "0",
        "celery",
    ),
    Safeguard(
        "an entry of the worker's timer is never early",
        f"{CELERY}.worker_timer.timer:WheelTimer._enter",
        "_deadline_ms(eta)",
        "_deadline_ms(eta) - 5",
        "celery",
    ),
    Safeguard(
        "a task that the store did not take is sent as stock Celery does",
        f"{CELERY}.wheel:Wheel.hold_or_fall_back",
        "return item is not None and item.id not in self.not_held([item], error)",
        "return True",
        "celery",
    ),
    Safeguard(
        "a task that was not published is not settled",
        f"{CELERY}.release.publishing:TaskPublisher.publish",
        "failure or Done(",
        "Done(",
        "celery",
    ),
    Safeguard(
        "a broker's lost reply leaves the task in doubt",
        f"{CELERY}.release.broker_connection:BrokerConnection._send_all",
        'answers[place] = Failed("the broker went away while the task was sent", in_doubt=True)',
        "answers[place] = None",
        "celery",
    ),
    Safeguard(
        "the dispatcher drops a broken connection to the broker",
        f"{CELERY}.release.broker_connection:BrokerConnection.close",
        "connection, self._connection, self._channel = self._connection, None, None",
        "connection = None",
        "celery",
    ),
    Safeguard(
        "apply_async reads the store's answer to a held task",
        f"{CELERY}.wheel:Wheel._begin",
        "values_of(begun.answers())",
        "begun.answers()",
        "celery",
    ),
    Safeguard(
        "each message is carried out once",
        f"{CELERY}.takeover.takeover:Takeover._carry_out",
        "if one.over:",
        "if False:",
        "celery",
    ),
    Safeguard(
        "a revoke reaches held tasks",
        f"{CELERY}.remote_control.commands:_revoke_held",
        "wheel.call(revoke_all)",
        "pass",
        "celery",
    ),
]
