"""`wheel_fair_key`: due tasks of a queue are shared between keys, such as tenants."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from wheel_sched_celery.release.dispatcher_step import EmbeddedDispatcher

from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.store.fair_shares import FairSettings, FairShares, fair_key_of

if TYPE_CHECKING:
    from conftest import InstalledApp


def keys(installed: InstalledApp) -> list[str]:
    return [fair_key_of(found.refs) for found in installed.store.list_items("due").found]


def test_the_key_comes_from_the_call_or_the_task(installed: InstalledApp) -> None:
    """The option wins over the header, and the header over the task's attribute. The sent message has the header."""

    @installed.app.task(name="keyed", wheel_fair_key="by task")
    def keyed() -> None: ...

    keyed.apply_async(countdown=60)
    keyed.apply_async(countdown=61, headers={"wheel-fair-key": "by header"})
    keyed.apply_async(countdown=62, wheel_fair_key="by option", headers={"wheel-fair-key": "by header"})
    installed.send("plain", countdown=63)
    assert keys(installed) == ["by task", "by header", "by option", ""]
    sent = [message.headers.get("wheel-fair-key") for message in installed.dispatch(installed.claim())]
    assert {*sent} == {"by task", "by header", "by option", None}


def test_a_task_that_is_not_held_keeps_the_header(installed: InstalledApp) -> None:
    """A retry of it then waits in the store under its key."""
    installed.send("now", wheel_fair_key="a")
    (message,) = installed.published()
    assert message.headers["wheel-fair-key"] == "a"
    assert "wheel_fair_key" not in message.properties


def test_a_key_that_is_no_text_is_refused(installed: InstalledApp) -> None:
    with pytest.raises(Rejected, match="expected wheel_fair_key to be text, got: 7; the task was not sent"):
        installed.send(countdown=60, wheel_fair_key=7)
    assert (installed.held(), installed.published()) == ([], [])


def test_a_worker_writes_the_settings_of_fair_queues(make_installed: Callable[..., InstalledApp]) -> None:
    """A queue with settings becomes fair, one with None is fair no more."""
    installed = make_installed(fair={"slow": {"weights": {"gold": 4}}, "old": None})
    FairShares(installed.store).configure("old", FairSettings())
    embedded = EmbeddedDispatcher(installed.wheel)
    embedded.share_queues(installed.store)
    assert FairShares(installed.store).topics() == ["slow"]


@pytest.mark.parametrize(
    ("fair", "problem"),
    [
        (["slow"], "expected fair to be queues with their settings"),
        ({"slow": {"rate": 7}}, "expected fair to be queues with their settings"),
        ({"slow": {"default_weight": 0}}, "fair, queue slow: expected the weight 'default_weight'"),
    ],
)
def test_wrong_settings_are_refused(make_installed: Callable[..., InstalledApp], fair: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        _ = make_installed(fair=fair).wheel.settings
