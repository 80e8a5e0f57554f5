"""A held task's message, once published, equals the message of stock Celery plus one header. Both are read from
Redis."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from kombu.utils.json import loads
from wheel_sched_celery.message.headers import MARK, is_marked
from wheel_sched_celery.message.stored_forms import decode as decode_held

from wheel_sched.store import ServerPush

if TYPE_CHECKING:
    from celery import Celery
    from conftest import Stage

pytestmark = [pytest.mark.real]

ETA = datetime(2100, 1, 1, tzinfo=UTC)
PLAIN: dict[str, Any] = {}
RICH: dict[str, Any] = {
    "priority": 6,
    "compression": "zlib",
    "headers": {"tenant": "t1", "née": "é"},
    "shadow": "another name",
    "root_id": "root",
    "parent_id": "parent",
    "group_id": "group",
    "time_limit": 30,
    "soft_time_limit": 20,
    "link": {"task": "add", "args": [1], "kwargs": {}, "options": {}, "subtask_type": None, "immutable": False},
}


def raw(stage: Stage, queue: str, priority: int = 0) -> Any:
    """The first element of a queue's list, without the random delivery tag."""
    element = stage.client.rpop(f"{queue}\x06\x16{priority}" if priority else queue)
    message = loads(element)
    message["properties"].pop("delivery_tag")
    return message


def send(app: Celery, protocol: int, options: dict[str, Any]) -> None:
    app.conf.task_protocol = protocol
    app.send_task(
        "note", ([1, "é"],), {"k": 2}, eta=ETA, task_id="an-id", reply_to="me", queue="celery", origin="here", **options
    )


@pytest.mark.parametrize("options", [PLAIN, RICH], ids=["plain", "rich"])
@pytest.mark.parametrize("protocol", [1, 2])
def test_held_and_published_it_is_what_stock_sends(stage: Stage, protocol: int, options: dict[str, Any]) -> None:
    """A held task is published. Its queue, priority, body, type, encoding, compression, headers and properties equal
    those of stock Celery, in the same order."""
    if protocol == 1:
        options = {name: options[name] for name in options if name not in ("root_id", "parent_id", "shadow")}
    priority = options.get("priority", 0)
    send(stage.stock, protocol, options)
    stock = raw(stage, "celery", priority)
    send(stage.app, protocol, options)
    (found,) = stage.store.list_items("due").found
    task = decode_held(found.body)
    assert (task.task_id, task.name, task.eta_ms) == ("an-id", "note", int(ETA.timestamp() * 1000))
    assert stage.queued() == 0
    stage.store.reschedule([found.id], 0, route="an-id")
    if protocol == 2:
        assert ServerPush(stage.store).push().refused == []
    else:
        stage.worker("-Q", "elsewhere").wait_ready()  # this worker's dispatcher publishes the task
        # neither waiting nor in flight: what is claimed is published after that, and only then settled
        stage.wait_until(lambda: stage.store.counts().sizes["body"] == 0, "it was published")
    ours = raw(stage, "celery", priority)
    assert is_marked(ours["headers"], {"id": "an-id"})
    del ours["headers"][MARK]
    assert ours == stock
    assert list(ours["headers"]) == list(stock["headers"])


def test_the_ttl_of_the_broker_is_shortened_by_the_time_held(stage: Stage) -> None:
    """`expires` keeps its instant. `expiration` is the time that is left when the message is published."""
    stage.app.send_task("note", countdown=100, expires=160)
    (found,) = stage.store.list_items("due").found
    message = loads(_element(found.body))
    assert 50_000 <= int(message["properties"]["expiration"]) <= 120_000  # unshortened it would be 160,000
    assert message["headers"]["expires"] is not None


def _element(body: bytes) -> bytes:
    return body[body.index(b"{") :]
