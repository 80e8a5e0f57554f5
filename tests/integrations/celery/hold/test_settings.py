"""Settings: where they come from, which values are refused, and what `install` requires."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from wheel_sched_celery import HeldTasks, install, wheel_of
from wheel_sched_celery.cli.doctor import _server
from wheel_sched_celery.settings import duration_ms, load_settings, url_of_broker

from wheel_sched.errors import ConfigError


def test_the_store_is_the_broker_when_that_is_a_redis() -> None:
    """With Redis as the broker, the integration needs no setting."""
    settings = load_settings({}, {}, "redis://host:6380/2")
    assert (settings.url, settings.horizon, settings.namespace) == ("redis://host:6380/2", 2_000, "celery")
    assert settings.holds


@pytest.mark.parametrize(
    ("broker", "store"),
    [
        ("redis+socket:///tmp/a.sock?virtual_host=3", "unix:///tmp/a.sock?db=3"),
        ("rediss://", "rediss://localhost:6379/0"),
        ("amqp://localhost", None),
        ("sentinel://a;sentinel://b", None),
        (None, None),
    ],
)
def test_a_store_is_derived_from_plain_redis_urls_alone(broker: str | None, store: str | None) -> None:
    """The store's URL is derived from a broker that is a single Redis server. With any other broker, the app must name
    the store."""
    assert url_of_broker(broker) == store


def test_an_argument_wins_over_the_configuration() -> None:
    """An argument None overrides the configuration too: it means no store or no horizon."""
    conf = {"wheel_url": "redis://conf", "wheel_horizon": 5, "wheel_lead": "20ms"}
    assert load_settings({"horizon": "1m"}, conf, None).horizon == 60_000
    assert load_settings({}, conf, None).lead == 20
    assert load_settings({"url": None}, conf, None).holds is False
    assert load_settings({"horizon": None}, conf, None).holds is False


@pytest.mark.parametrize(
    ("options", "horizon", "lead"),
    [
        ({"visibility_timeout": 3600}, 2_000, 1_000),
        ({"visibility_timeout": 5}, 2_000, 1_000),
        ({"visibility_timeout": 1}, 500, 250),
        ({"visibility_timeout": 0.001}, 1, 0),
        ({"visibility_timeout": None}, 2_000, 1_000),
        (None, 2_000, 1_000),
    ],
)
def test_nothing_waits_in_a_worker_until_the_broker_takes_it_back(options: Any, horizon: int, lead: int) -> None:
    """By default, the horizon is at most half of the visibility timeout, and the lead at most a quarter of it."""
    settings = load_settings({}, {"broker_transport_options": options}, "redis://x")
    assert (settings.horizon, settings.lead) == (horizon, lead)


def test_a_horizon_that_is_given_stays_and_held_tasks_are_fetched_in_time_all_the_same() -> None:
    """A given horizon does not change, even if it exceeds the visibility timeout. The lead is still at most a quarter
    of the timeout."""
    conf = {"broker_transport_options": {"visibility_timeout": 1}}
    settings = load_settings({"horizon": 10}, conf, "redis://x")
    assert (settings.horizon, settings.lead) == (10_000, 250)


def test_one_error_names_every_wrong_setting() -> None:
    """One error names all wrong settings, and suggests the right name for a misspelled setting."""
    given: dict[str, Any] = {"horizon": "soon", "on_outage": "hope", "dispatch": "yes"}
    with pytest.raises(ConfigError) as caught:
        load_settings(given, {"wheel_horizn": 1}, "amqp://x")
    text = str(caught.value)
    for part in ("wheel_horizon?", '"2s"', '"refuse"', "True or False"):
        assert part in text
    with pytest.raises(ConfigError, match="needs an address"):
        load_settings({}, {}, "amqp://x")
    with pytest.raises(ConfigError, match="lives in one process"):
        load_settings({"url": "memory:"}, {}, None)
    with pytest.raises(ConfigError, match="shorter than horizon"):
        load_settings({"url": "redis://x", "horizon": "50ms", "lead": "50ms"}, {}, None)


def test_as_many_replicas_confirm_as_the_app_says() -> None:
    """The setting `replicas` reaches the store and `doctor`. A value below 1 or of another type is refused."""
    app = Celery("replicated", broker="redis://h/1", set_as_current=False)
    wheel = install(app, durability="replicated", replicas=2)
    given: dict[str, Any] = {}

    def opened(_target: str, **settings: Any) -> None:
        given.update(settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wheel_sched_celery.wheel.open_store", opened)
        wheel.open_store()
        assert (given["durability"], given["replicas"]) == ("replicated", 2)
        asked: list[Any] = []
        patch.setattr("wheel_sched_celery.cli.doctor.server_findings", lambda settings: asked.append(settings) or [])
        list(_server(HeldTasks(app)))
    assert [(each.durability, each.replicas) for each in asked] == [("replicated", 2)]
    for wrong in (0, "2", True):
        with pytest.raises(ConfigError, match="replicas to be a whole number from 1 up"):
            load_settings({"url": "redis://x", "replicas": wrong}, {}, None)


@pytest.mark.parametrize(("horizon", "lead_ms"), [("2s", 1_000), ("1m", 1_000), ("50ms", 25), (None, 1_000)])
def test_the_lead_follows_a_short_horizon(horizon: str | None, lead_ms: int) -> None:
    """The lead (the time before its ETA at which a task leaves the store) is half of the horizon, at most a second."""
    assert load_settings({"url": "redis://x", "horizon": horizon}, {}, None).lead == lead_ms


@pytest.mark.parametrize(
    ("value", "ms"),
    [("2s", 2_000), (1.5, 1_500), (timedelta(minutes=1), 60_000), (True, None), (-1, None), ("x", None)],
)
def test_durations_are_texts_seconds_or_timedeltas(value: Any, ms: int | None) -> None:
    """The result is in milliseconds. It is None if the value is no duration."""
    assert duration_ms(value) == ms


def test_settings_are_read_late_and_with_the_apps_own_prefix() -> None:
    """Settings may be given after `install`, and with the prefix of the app's configuration."""
    app = Celery("late", set_as_current=False)
    wheel = install(app)
    app.config_from_object({"CELERY_BROKER_URL": "redis://h/1", "CELERY_WHEEL_HORIZON": "10s"}, namespace="CELERY")
    assert (wheel.settings.url, wheel.settings.horizon) == ("redis://h/1", 10_000)


def test_install_refuses_what_would_go_past_it() -> None:
    """`install` refuses a second call, a call after the app has created its `amqp` object, and unknown settings."""
    app = Celery("twice", broker="memory://", set_as_current=False)
    with pytest.raises(ConfigError, match="unknown settings horizont"):
        install(app, None, horizont=1)
    install(app, None)
    with pytest.raises(ConfigError, match="already"):
        install(app, None)
    used = Celery("used", broker="memory://", set_as_current=False)
    assert used.amqp is not None
    with pytest.raises(ConfigError, match="right after"):
        install(used, None)
    assert wheel_of(used) is None
