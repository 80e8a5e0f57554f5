"""The beginning of a payload for people: as text, as indented JSON, or as bytes in hexadecimal."""

from __future__ import annotations

import json
from typing import Literal, NamedTuple

from retry_topic.management.explaining import payload_bytes
from retry_topic.management.filters import ListedMessage
from wheel_sched.dashboard.rendering import shown_lines
from wheel_sched.errors import Rejected

PayloadView = Literal["text", "json", "hex"]
VIEWS: tuple[PayloadView, ...] = ("text", "json", "hex")
SHOWN_BYTES = 4_096
_PARSED = 262_144  # bytes of the largest payload that is shown as JSON


class ShownPayload(NamedTuple):
    """A payload, ready for a page.

    Args:
        view: "text", "json" or "hex".
        size: the size of the payload in bytes, also when another record holds the payload.
        text: the payload as lines that are safe to show, or why it is not shown as JSON; "" if another record holds it.
        reference: the record that holds the payload; None when the store holds it.
        cut: whether the text is only the beginning of the payload.
    """

    view: PayloadView
    size: int
    text: str
    reference: str | None = None
    cut: bool = False


def shown_payload(entry: ListedMessage, view: str) -> ShownPayload:
    """Prepare the payload of a message.

    Args:
        entry: the message.
        view: "text", "json" or "hex"; "": JSON if it is JSON of at most 262,144 bytes, else text. Without effect for a
            payload that another record holds.

    Raises:
        Rejected: there is no such view.
    """
    message, value = entry.letter.message, payload_bytes(entry)
    if view and view not in VIEWS:
        raise Rejected(f"expected view to be one of {', '.join(VIEWS)}, got: {view[:40]!r}")
    if message is not None and message.reference is not None:
        return ShownPayload("text", message.reference.length, "", str(message.reference))
    if view == "hex":
        return ShownPayload("hex", len(value), _hex(value[:SHOWN_BYTES]), cut=len(value) > SHOWN_BYTES)
    if view != "text":
        indented = _indented(value)
        if indented is not None:
            return ShownPayload("json", len(value), shown_lines(indented, SHOWN_BYTES), cut=len(indented) > SHOWN_BYTES)
        if view == "json":
            why = "it is too large to be shown as JSON" if len(value) > _PARSED else "it is no JSON"
            return ShownPayload("json", len(value), why)
    text = value[:SHOWN_BYTES].decode("utf-8", "backslashreplace")
    return ShownPayload("text", len(value), shown_lines(text, 4 * SHOWN_BYTES), cut=len(value) > SHOWN_BYTES)


def _indented(value: bytes) -> str | None:
    """The payload as indented JSON; None when it is no JSON or too large."""
    if not value or len(value) > _PARSED:
        return None
    try:
        return json.dumps(json.loads(value), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def _hex(value: bytes) -> str:
    lines = []
    for at in range(0, len(value), 16):
        row = value[at : at + 16]
        letters = "".join(chr(one) if 0x20 <= one < 0x7F else "." for one in row)
        lines.append(f"{at:06x}  {row.hex(' '):47}  {letters}")
    return "\n".join(lines)
