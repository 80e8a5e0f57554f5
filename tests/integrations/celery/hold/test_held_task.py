"""A held task and its two stored forms: the neutral form and the push form."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kombu import Connection, Exchange, Queue
from kombu.compression import compress
from wheel_sched_celery.message.headers import instant_ms, iso_of
from wheel_sched_celery.message.held_task import HeldTask, bounded, release_ms
from wheel_sched_celery.message.stored_forms import RedisQueue, decode, encode_neutral, entity_of, values_of

from wheel_sched.errors import Rejected

ETA_MS = 1_800_000_000_123


def task(**changes: Any) -> HeldTask:
    values: dict[str, Any] = {
        "task_id": "an-id",
        "name": "note",
        "retries": 2,
        "eta_ms": ETA_MS,
        "exchange": "",
        "routing_key": "work",
        "queue": "work",
        "body": b'[[1], {}, {"chain": null}]',
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": {"task": "note", "id": "an-id", "eta": iso_of(ETA_MS), "retries": 2},
        "properties": {"correlation_id": "an-id", "delivery_mode": 2},
        "priority": 0,
    }
    return HeldTask(**{**values, **changes})


@settings(max_examples=25)
@given(
    st.binary(max_size=40) | st.text(max_size=40),
    st.dictionaries(
        st.text(max_size=8),
        st.none()
        | st.integers()
        | st.text(max_size=20)
        | st.binary(max_size=9)
        | st.just(datetime(2030, 1, 1, tzinfo=UTC)),
        max_size=4,
    ),
    st.text(min_size=1, max_size=20) | st.just("é" * 600),
)
def test_the_neutral_form_gives_back_what_went_in(body: bytes | str, headers: dict[str, Any], task_id: str) -> None:
    """A task is read as it was stored, for bodies of any bytes, headers of every type, and ids of any length."""
    before = task(body=body, headers=headers, task_id=task_id, ttl_until_ms=5, declare=({"kind": "exchange"},))
    assert decode(encode_neutral(before)) == before
    before.item(b"", 50).check()


def test_the_push_form_is_read_like_the_neutral_one() -> None:
    """A reader gets the same task from both forms. The push form does not have the declaration of the queue."""
    queue = RedisQueue(Connection("redis://"))
    before = task(priority=6)
    form = queue.push_form(before, 0)
    assert form is not None
    assert form.startswith(b"L1[7,")
    assert decode(form) == before
    steps = RedisQueue(Connection("redis://", transport_options={"priority_steps": [0, 5], "global_keyprefix": "p:"}))
    prefixed = steps.push_form(before, 0)
    assert prefixed is not None
    assert b"]p:work\x06\x165{" in prefixed


@pytest.mark.parametrize(
    "changes",
    [
        {"exchange": "wide"},
        {"headers": {}},
        {"headers": {"task": "note", "id": "an-id", "eta": "2030-01-01T00:00:00"}},
        {"declare": values_of([Queue("work", Exchange("work"), routing_key="work", expires=60)])},
    ],
    ids=["exchange", "protocol 1", "naive eta", "queue with a lifetime"],
)
def test_what_a_list_cannot_carry_has_no_push_form(changes: dict[str, Any]) -> None:
    """An element of a Redis list cannot hold a task for an exchange, of protocol 1, with an ETA without a zone, or for
    a queue with a lifetime. A publisher sends these tasks."""
    assert RedisQueue(Connection("redis://")).push_form(task(**changes), 0) is None


def test_an_id_tells_different_messages_apart() -> None:
    """Messages with one task id and ETA get different ids if arguments, queue, retry count or other parts differ."""
    one = task()
    others = [
        one,
        replace(one, retries=3),
        replace(one, eta_ms=ETA_MS + 1),
        replace(one, name="another"),
        replace(one, body=b'[[2], {}, {"chain": null}]'),
        replace(one, routing_key="other", queue="other"),
        replace(one, exchange="wide"),
        replace(one, priority=3),
        replace(one, headers={**one.headers, "expires": iso_of(ETA_MS + 5)}),
        *(replace(one, one_of_many=True, queue=name) for name in ("left", "right")),
    ]
    assert len({each.item_id for each in others}) == len(others)


@pytest.mark.parametrize(
    "headers",
    [
        {"compression": "rot13"},
        {"compression": "zlib"},
        {"stamped_headers": 5, "stamps": {}},
        {"stamped_headers": ["tenant"], "stamps": "gone"},
        {"stamped_headers": ["tenant", ["x"]], "stamps": {"tenant": [None, {}]}},
        {"expires": 5},
    ],
    ids=str,
)
def test_odd_headers_of_foreign_producers_make_an_item_all_the_same(headers: dict[str, Any]) -> None:
    """A message with malformed headers becomes an item, so a worker that receives the message does not fail."""
    odd = task(headers={**task().headers, **headers}, body="not compressed")
    odd.item(b"", 50).check()


def test_an_id_is_the_same_each_time_a_message_is_seen() -> None:
    """The producer and a worker that takes the message over compute one id, with compressed and text bodies too."""
    one = task()
    body, headers = compress(one.body, "zlib")[0], {**one.headers, "compression": compress(one.body, "zlib")[1]}
    seen = [
        replace(one, body=bytes(one.body).decode()),
        replace(one, body=body, headers=headers),
        replace(one, priority=None, headers={**one.headers, "origin": "another process", "x-death": []}),
        replace(one, taken_over=True, declare=({"kind": "queue"},), ttl_until_ms=1),
        replace(one, exchange="", routing_key="its queue", queue="its queue", sent_to=("", "work")),
    ]
    assert {each.item_id for each in seen} == {one.item_id}


@settings(max_examples=50)
@given(st.integers(0, 2**48), st.integers(0, 5_000))
def test_tasks_leave_the_store_within_the_lead_and_together(eta_ms: int, lead_ms: int) -> None:
    """A task is released between 7/8 of the lead and the whole lead before its ETA. Tasks with near ETAs share a
    release time."""
    release = release_ms(eta_ms, lead_ms)
    assert max(0, eta_ms - lead_ms) <= release <= max(0, eta_ms - lead_ms) + lead_ms // 8
    later = [release_ms(eta_ms + i, lead_ms) for i in range(0, max(lead_ms, 1), max(1, lead_ms // 50))]
    assert later == sorted(later)
    assert len(set(later)) <= 18 or lead_ms < 8


def test_another_eta_stands_in_the_message_too() -> None:
    """`with_eta` changes the ETA in the header, or in the JSON body of protocol 1. For any other body it raises an
    error."""
    later = task().with_eta(ETA_MS + 60_000)
    assert instant_ms(later.headers["eta"], None) == later.eta_ms == ETA_MS + 60_000
    old = task(headers={}, body='{"task": "note", "eta": null}').with_eta(ETA_MS)
    assert iso_of(ETA_MS) in str(old.body)
    with pytest.raises(Rejected, match="nothing was changed"):
        task(headers={}, content_type="application/x-python-serialize").with_eta(ETA_MS)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "has neither the neutral form nor the push form"),
        (b"\xff", "has neither the neutral form nor the push form"),
        (b"L1[1,2]aa", "has neither the neutral form nor the push form"),
        (b"C1{", "is no held task: JSONDecodeError"),
        (b"C1[]", "is no held task: TypeError"),
        (b"C1{}", "is no held task: KeyError"),
        (b"L1[1,2]aab", "is no held task: JSONDecodeError"),
        (b"L1[1,2]a{}", "is no held task: KeyError"),
    ],
)
def test_a_body_of_something_else_is_refused(body: bytes, why: str) -> None:
    """The error says what is wrong with the body, and that nothing was changed."""
    with pytest.raises(Rejected) as refused:
        decode(body)
    text = str(refused.value)
    assert text.startswith(f"the body ({len(body)} bytes) {why}")
    assert text.endswith("; nothing was changed")


def test_names_that_the_store_could_not_take_become_digests() -> None:
    """A name that is too long for the store is replaced by its digest. Short names do not change."""
    assert bounded("plain") == "plain"
    assert bounded("x" * 500) != bounded("x" * 501)
    assert bounded("two\nlines").startswith("sha256-")


def test_queues_and_exchanges_are_declared_as_they_were() -> None:
    """Queues and exchanges keep their declarations, except exclusive queues: those belong to one connection."""
    queue = Queue("q", Exchange("e", type="topic"), routing_key="a.*", queue_arguments={"x-queue-type": "quorum"})
    mine = Queue("mine", exclusive=True)
    values = values_of([queue, Exchange("alone", type="fanout"), mine])
    assert [value["name"] for value in values] == ["q", "alone"]
    again = entity_of(values[0])
    assert (again, again.exchange, again.queue_arguments) == (queue, queue.exchange, queue.queue_arguments)
    assert entity_of(values[1]).type == "fanout"
