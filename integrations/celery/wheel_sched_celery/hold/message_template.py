"""A message template, which makes the messages of thousands of tasks of one kind.

Celery and kombu make one message. This message has known texts in the places where tasks differ: id, ETA, arguments and
delivery tag. The template finds these places by their texts. All other parts are the same for all tasks.

Invariant: the template makes, byte for byte, what `apply_async` would store for that task. This is not certain if, for
example, one of the known texts appears in another place. Then there is no template, and Celery makes each message.

Threads: any thread may call the functions; one thread at a time uses a template.
"""

from __future__ import annotations

import os
import random
import re
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Final

from celery.utils.saferepr import saferepr
from kombu.utils.json import JSONEncoder, dumps, loads

from wheel_sched.store.core.items import Item
from wheel_sched.store.push.push_form import decode_push, encode_push
from wheel_sched_celery.message.headers import fair_key_of, iso_of, plain_repr
from wheel_sched_celery.message.held_task import HeldTask, MessageKind, bounded, item_id_of, ref_of, release_ms

_YEAR_9998_MS: Final = 253_339_228_800_000  # no real task is due then, so its text occurs nowhere by chance
_VARIANT: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
_encode: Final[Callable[[Any], str]] = JSONEncoder().encode  # `dumps` would make a new encoder for each text


def random_uuids() -> Iterator[str]:
    """Make texts of random UUIDs, five times faster than `uuid4`. Do not use one iterator in two processes."""
    while True:
        raw = os.urandom(16 * 250).hex()
        for at in range(0, len(raw), 32):
            half, rest = raw[at : at + 12], raw[at + 20 : at + 32]
            third = f"{_VARIANT[raw[at + 16]]}{raw[at + 17 : at + 20]}"
            yield f"{half[:8]}-{half[8:]}-4{raw[at + 13 : at + 16]}-{third}-{rest}"


def mark_ms() -> int:
    """A due time for the message from which a template is made. The template finds the ETA by the text of this time.

    The time is a whole second, because a float of this size is not exact to the millisecond.
    """
    return _YEAR_9998_MS + 1000 * random.randrange(300 * 86_400)


class MessageTemplate:
    """Makes the items of tasks of one kind.

    Args:
        pattern: the example that Celery made for one task of this kind, with a random id and an ETA from `mark_ms()`.
            The template replaces the example's id, ETA and arguments by those of other tasks. So the example's id must
            occur in the message only as the task's id.
        render: makes the item of a message, as `Wheel.item_of` does.
        lead_ms: how long before the due time a task leaves the store, see `release_ms`.
        longest_repr: the greatest length of a text of arguments that Celery writes into a header.

    Raises:
        ValueError: no template can make the messages of this kind, for example because they are compressed.
    """

    def __init__(
        self, pattern: HeldTask, render: Callable[[HeldTask], Item | None], lead_ms: int, longest_repr: int
    ) -> None:
        headers = pattern.headers
        if pattern.content_type != "application/json" or "compression" in headers or pattern.ttl_until_ms is not None:
            raise ValueError("only plain JSON without compression and TTL")
        body = pattern.body.decode() if isinstance(pattern.body, bytes) else pattern.body
        if fair_key_of(headers) is not None:
            raise ValueError("tasks with a fair key are stored one by one")
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
        self._kind = MessageKind(
            pattern.name,
            (pattern.exchange, pattern.routing_key),
            pattern.priority,
            headers,
            pattern.stamps,
            pattern.properties.get("reply_to"),
        )
        self._eta_ms = self._release_ms = 0
        self._tags = random_uuids()
        self._target: str | None = None
        text = item.body
        if text.startswith(b"L1["):
            form = decode_push(item.body)
            self._target, text = form.target, form.pieces[0]
        self._cut(text.decode(), pattern, marks)

    def _cut(self, text: str, pattern: HeldTask, marks: dict[str, str]) -> None:
        """Split the text of the example's item at the known texts, and make a format text of the pieces.

        Args:
            text: the text of the item.
            pattern: the example; its id and ETA are known texts.
            marks: the known texts of "body", "args" and "kwargs".

        Raises:
            ValueError: a known text is missing, or occurs in another place.
        """
        wrapped = b64encode(marks["body"].encode()).decode()
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
        literals, names = pieces[::2], [found[piece] for piece in pieces[1::2]]
        if not {"body", "args", "kwargs", "id"} <= set(names) or "9998-" in "".join(literals):
            raise ValueError("a known text is missing, or occurs in another place")
        pieces[::2] = [literal.replace("%", "%%") for literal in literals]
        pieces[1::2] = [f"%({name})s" for name in names]
        self._text = "".join(pieces)

    def fill(self, task_id: str, args: Sequence[Any], kwargs: dict[str, Any], eta_ms: int, iso: str) -> Item:
        """Make the item of one task.

        Args:
            task_id: the task's id.
            args, kwargs: the task's arguments.
            eta_ms: when the task is due, in ms since 1970.
            iso: the same time as text, as Celery writes it into the header `eta`.
        """
        body = _encode([args, kwargs])[:-1] + self._embed
        values = {
            "body": b64encode(body.encode()).decode() if self._base64 else quoted(body)[1:-1],
            "args": quoted(self._repr(args or ()))[1:-1],
            "kwargs": quoted(self._repr(kwargs))[1:-1] if kwargs else "{}",
            "id": quoted(task_id)[1:-1],
            "iso": iso,
            "eta": eta_ms,
            "tag": "" if self._target is None else next(self._tags),
        }
        text = (self._text % values).encode()
        if eta_ms != self._eta_ms:  # mostly the same for all tasks
            self._eta_ms, self._release_ms = eta_ms, release_ms(eta_ms, self._lead_ms)
        route = bounded(task_id)
        return Item(
            item_id_of(route, 0, eta_ms, self._kind.digest(body)),
            self._release_ms,
            text if self._target is None else encode_push("L", self._target, [text]),
            self._topic,
            (ref_of(task_id),),
            route,
        )

    def _repr(self, value: Any) -> str:
        text = plain_repr(value, self._longest_repr)
        return saferepr(value, self._longest_repr) if text is None else text
