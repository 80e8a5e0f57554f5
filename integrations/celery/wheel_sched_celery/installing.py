"""`install`: adds the integration to a Celery app."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from celery.utils.imports import symbol_by_name

from wheel_sched.errors import ConfigError
from wheel_sched_celery.announcing import AnnounceStep
from wheel_sched_celery.hold.producing import HoldingAMQP, holding
from wheel_sched_celery.release.dispatcher_step import DispatcherStep
from wheel_sched_celery.remote_control import commands  # noqa: F401  # the import registers the commands with the `celery` program
from wheel_sched_celery.settings import NAMES, UNSET
from wheel_sched_celery.takeover.step import TakeoverStep
from wheel_sched_celery.wheel import Wheel, wheel_of
from wheel_sched_celery.worker_timer import CollectorStep, WheelTimerStep

SCHEDULER = "wheel_sched_celery.beat.scheduler:BeatScheduler"
_STOCK_SCHEDULER = "celery.beat:PersistentScheduler"


def install(
    app: Any,
    url: Any = UNSET,
    horizon: str | float | timedelta | None = UNSET,
    *,
    beat: bool = UNSET,
    **settings: Any,
) -> Wheel:
    """Let an app's ETA, countdown and retry tasks wait in a delay store instead of in workers.

    Call it where the app is made, in producers and workers alike, before the app sends anything. `app.conf` can contain
    the settings too, as `wheel_url`, `wheel_horizon`, ... An argument wins over `app.conf`.

    Args:
        app: the Celery app.
        url: address of the store; None = no store, only a better timer in the worker. Defaults to `app.conf.wheel_url`,
            else to the broker's URL if the broker is a Redis.
        horizon: a task is held if more than this time is left until it is due; None = Celery's own behaviour. Defaults
            to "2s", or to half of the broker's visibility timeout if that is shorter.
        beat: whether workers bring the app's periodic tasks into the store, so that no `celery beat` is necessary. All
            workers with `dispatch` send those in the store. Defaults to `app.conf.wheel_beat`, else False.
        settings: the other fields of `WheelSettings`.

    Raises:
        ConfigError: an argument is unknown, the app has the integration already, or it has used `app.amqp` already.
    """
    unknown = sorted(set(settings) - set(NAMES))
    if unknown:
        raise ConfigError(f"install: unknown settings {', '.join(unknown)}; known are {', '.join(NAMES)}")
    if wheel_of(app) is not None:
        raise ConfigError("install: this app has it installed already; nothing was changed")
    if "amqp" in app.__dict__ and not isinstance(app.amqp, HoldingAMQP):
        raise ConfigError(
            "install: app.amqp is in use already, so tasks could not be held; call install(app) right after the app is "
            "made"
        )
    wheel = Wheel(app, {"url": url, "horizon": horizon, "beat": beat, **settings})
    app.wheel = wheel
    app.amqp_cls = holding(symbol_by_name(app.amqp_cls))
    app.steps["consumer"].add(TakeoverStep)
    app.steps["worker"].update((WheelTimerStep, CollectorStep, DispatcherStep, AnnounceStep))
    if app.configured:
        _choose_scheduler(app)
    else:
        app.on_after_configure.connect(_choose_scheduler, weak=False)
    return wheel


def _choose_scheduler(sender: Any, **_: Any) -> None:
    """If the setting `beat` is True, let `celery beat` and `worker -B` use the entries in the store, as workers do.

    Celery's own scheduler would send every periodic task a second time. A scheduler that the app has chosen stays.
    """
    given = sender.wheel.given("beat")
    if given is True and sender.conf.beat_scheduler == _STOCK_SCHEDULER:
        sender.conf.beat_scheduler = SCHEDULER
