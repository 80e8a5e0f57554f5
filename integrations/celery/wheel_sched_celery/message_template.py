"""One message as a form to be filled in: how thousands of tasks of one kind are put on hold for the price of a few.

A message is made once, by Celery and kombu themselves, with marks where tasks differ: id, ETA, arguments and delivery
tag. What lies between the marks is the same for all of them and is never made again.

Invariant: a filled-in form is, byte for byte, what a send of its own would have put into the store. Where that cannot
be promised (a mark appears elsewhere, another serializer) there is no form, and each task is sent by itself.

Pure; any thread.
"""

from __future__ import annotations

import base64
import random
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Final

from celery.utils.saferepr import saferepr
from kombu.utils.json import dumps, loads

from wheel_sched.store.items import Item
from wheel_sched.store.push_form import decode_push, encode_push
from wheel_sched_celery.due import iso_of
from wheel_sched_celery.held_task import HeldTask, bounded, ref_of, release_ms

_YEAR_9998_MS: Final = 253_339_228_800_000  # no real task is due then, so its text stands nowhere by chance
_PLAIN: Final = (int, float, bool, type(None))
_SHORT: Final = 64  # characters of a text whose repr Celery surely leaves whole


def mark_ms() -> int:
    """A due time to send the pattern with; its texts are looked for in what was made.

    Whole seconds: a float that far away has no exact milliseconds.
    """
    return _YEAR_9998_MS + 1000 * random.randrange(300 * 86_400)


class MessageTemplate:
    """The form of one kind of task.

    Args:
        pattern: the message made for `mark_ms()`, whose id occurs nowhere else.
        render: what the store would be given for a message, see `Wheel.item_of`.
        lead_ms: see `release_ms`.
        longest_repr: how long Celery lets the texts of arguments get.

    Raises:
        ValueError: no form can be made of it.
    """

    def __init__(
        self, pattern: HeldTask, render: Callable[[HeldTask], Item | None], lead_ms: int, longest_repr: int
    ) -> None:
        headers = pattern.headers
        if pattern.content_type != "application/json" or "compression" in headers or pattern.ttl_until_ms is not None:
            raise ValueError("neither plain JSON nor without a TTL")
        body = pattern.body.decode() if isinstance(pattern.body, bytes) else pattern.body
        embed = loads(body)[2]
        if any(embed.values()) or pattern.task_id not in pattern.item_id:
            raise ValueError("links, chains and chords are sent one by one")
        self._embed = f", {dumps(embed)}]"
        self._bytes = isinstance(pattern.body, bytes)
        self._longest_repr = longest_repr
        marks = {name: f"mark{uuid.uuid4().hex}" for name in ("body", "args", "kwargs")}
        marked = replace(
            pattern,
            body=marks["body"].encode() if self._bytes else marks["body"],
            headers={**headers, "argsrepr": marks["args"], "kwargsrepr": marks["kwargs"]},
        )
        item = render(marked)
        if item is None:
            raise ValueError("the store cannot take it")
        self._topic, self._lead_ms = item.topic, lead_ms
        self._target: str | None = None
        text = item.body
        if text.startswith(b"L1["):
            form = decode_push(item.body)
            self._target, text = form.target, form.pieces[0]
        self._cut(text.decode(), pattern, marks)

    def _cut(self, text: str, pattern: HeldTask, marks: dict[str, str]) -> None:
        """Take the text apart at its marks."""
        wrapped = base64.b64encode(marks["body"].encode()).decode()
        self._base64 = wrapped in text
        found = {
            wrapped if self._base64 else marks["body"]: "body",
            marks["args"]: "args",
            marks["kwargs"]: "kwargs",
            pattern.task_id: "id",
            iso_of(pattern.eta_ms): "iso",
            str(pattern.eta_ms): "eta",
        }
        if self._target is not None:
            found[loads(text)["properties"]["delivery_tag"]] = "tag"
        pieces = re.split("(" + "|".join(map(re.escape, found)) + ")", text)
        self._literals, self._names = pieces[::2], [found[piece] for piece in pieces[1::2]]
        if not {"body", "args", "kwargs", "id"} <= set(self._names) or "9998-" in "".join(self._literals):
            raise ValueError("what differs cannot be told from what does not")

    def fill(self, task_id: str, args: Sequence[Any], kwargs: dict[str, Any], eta_ms: int, iso: str) -> Item:
        """The item of one task.

        Args:
            task_id: its id.
            args, kwargs: for the task.
            eta_ms: when it is due.
            iso: the same as Celery writes it into the header.
        """
        body = dumps([args, kwargs])[:-1] + self._embed
        values = {
            "body": base64.b64encode(body.encode()).decode() if self._base64 else quoted(body)[1:-1],
            "args": quoted(self._repr(args))[1:-1],
            "kwargs": quoted(self._repr(kwargs))[1:-1],
            "id": quoted(task_id)[1:-1],
            "iso": iso,
            "eta": str(eta_ms),
            "tag": str(uuid.uuid4()) if self._target is not None else "",
        }
        parts = [self._literals[0]]
        for name, literal in zip(self._names, self._literals[1:], strict=True):
            parts.append(values[name])
            parts.append(literal)
        text = "".join(parts).encode()
        route = bounded(task_id)
        return Item(
            f"{route}:0:{eta_ms}",
            release_ms(eta_ms, self._lead_ms),
            text if self._target is None else encode_push("L", self._target, [text]),
            self._topic,
            (ref_of(task_id),),
            route,
        )

    def _repr(self, value: Any) -> str:
        if not value:
            return "{}" if isinstance(value, dict) else "()"
        if type(value) is tuple and all(_is_plain(each) for each in value) and len(value) < 10:
            return repr(value)  # what saferepr says of these, at a tenth of its cost
        text: str = saferepr(value, self._longest_repr)
        return text


def _is_plain(value: Any) -> bool:
    kind = type(value)
    return kind in _PLAIN or (kind is str and len(value) < _SHORT and value.isalnum() and value.isascii())
