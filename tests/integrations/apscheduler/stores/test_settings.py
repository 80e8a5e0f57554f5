"""Settings may be text, as in an ini file or the environment. An error names each wrong setting."""

from __future__ import annotations

from typing import Any

import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from wheel_sched_apscheduler import RedisWheelJobStore, WheelBackgroundScheduler, WheelJobStore

from wheel_sched.errors import ConfigError

TEXTS = {
    "shards": "2",
    "replicas": "2",
    "lease_s": "5",
    "max_sleep_s": "0.5",
    "batch": "100",
    "history": "10",
    "allow_pickle": "false",
    "max_instances_scope": "process",
    "quarantine_refusals": "3",
    "quarantine_after_s": "1.5",
    "announce_s": "0.5",
    "allow": "myapp, other:send",
    "aliases": "old.place:f=myapp:f, older:g = other:send",
    "triggers": f"{__name__}:Never",
    "secret": "a secret of some length",
}


class Never:
    """A trigger class of a user. It gives no run time."""

    def get_next_fire_time(self, *_: Any) -> None: ...


def test_every_setting_of_a_shared_store_may_be_text() -> None:
    """Settings such as `lease_s: "5"` and `allow_pickle: "false"` are converted."""
    store = RedisWheelJobStore("redis://localhost", **TEXTS)  # type: ignore[arg-type]
    settings, options = store.settings, store.connection.options
    assert (settings.lease_ms, settings.max_sleep_s, settings.batch) == (5000, 0.5, 100)
    assert (options["shards"], options["replicas"]) == (2, 2)
    assert (settings.quarantine_refusals, settings.quarantine_after_ms, settings.announce_s) == (3, 1500, 0.5)
    assert store.codec._values.allow_pickle is False
    allowed = store.codec.allowed
    assert [allowed.permits(ref) for ref in ("myapp.jobs:f", "other:send", "other:g")] == [True, True, False]
    assert allowed.aliases == {"old.place:f": "myapp:f", "older:g": "other:send"}
    assert f"{__name__}:Never" in store.codec._triggers._extra


def test_they_come_so_from_a_configuration() -> None:
    """Stores and schedulers accept settings as text from an APScheduler configuration."""
    given = {"type": "wheel-redis", "url": "redis://localhost", **TEXTS}
    scheduler = BackgroundScheduler({f"apscheduler.jobstores.default.{name}": text for name, text in given.items()})
    assert scheduler._jobstores["default"].settings.lease_ms == 5000
    assert WheelJobStore(batch="7", history="0")._batch == 7  # type: ignore[arg-type]
    assert WheelBackgroundScheduler({"apscheduler.batch": "3", "apscheduler.max_in_flight": "4"})._batch == 3


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("shards", "0"),
        ("lease_s", "soon"),
        ("lease_s", "nan"),
        ("lease_s", None),
        ("max_sleep_s", "0"),
        ("batch", "1.5"),
        ("batch", True),
        ("history", "-1"),
        ("allow_pickle", "maybe"),
        ("allow_pickle", None),
        ("max_instances_scope", "2"),
        ("quarantine_refusals", "0"),
        ("quarantine_after_s", "soon"),
        ("allow", "myapp,,"),
        ("aliases", "old"),
        ("triggers", "no.such:Trigger"),
        ("secret", "short"),
    ],
)
def test_what_cannot_be_read_is_named(name: str, text: Any) -> None:
    """The error names the setting. The store opens no connection."""
    with pytest.raises(ConfigError, match=name.removesuffix("s")):
        RedisWheelJobStore("redis://localhost", **{name: text})


@pytest.mark.parametrize("name", ["batch", "max_in_flight"])
def test_a_scheduler_names_what_it_cannot_read(name: str) -> None:
    """A scheduler's error names the setting. A batch of zero, for example, would never run a job."""
    for text in ("0", "many"):
        with pytest.raises(ConfigError, match=name):
            WheelBackgroundScheduler({f"apscheduler.{name}": text})
