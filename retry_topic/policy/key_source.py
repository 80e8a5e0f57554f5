"""Where the key of a message comes from: its own key, a header, or a place in a JSON payload.

key = "key"                 the message key
key = "header:tenant"       the value of a header; if there are several, the last one
key = "json:/customer/id"   a JSON pointer (RFC 6901) into a JSON payload of at most 1 MiB; a text, a number, true or
                            false
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from retry_topic.message import Message
from wheel_sched.errors import ConfigError

_WANTED = 'expected key to be "key", "header:<name>" or "json:/<pointer>"'
_MAX_PAYLOAD = 1024 * 1024  # a larger payload is not read
_LONGEST_NAME = 200
_DEEPEST = 20  # steps of a JSON pointer
_WRONG_ESCAPE = re.compile(r"~(?![01])")


@dataclass(frozen=True, slots=True)
class KeySource:
    """Where the key of a message comes from.

    Args:
        kind: "key", "header" or "json".
        name: the name of the header, or the JSON pointer, of at most 200 characters. A pointer has at most 20 steps.
            Defaults to "".

    Raises:
        ConfigError: the kind and the name are no key source.
    """

    kind: Literal["key", "header", "json"]
    name: str = ""

    def __post_init__(self) -> None:
        sound = self.name.isprintable() and len(self.name) <= _LONGEST_NAME
        fits = {"key": not self.name, "header": bool(self.name), "json": _is_pointer(self.name)}
        if not (fits.get(self.kind, False) and sound):
            raise ConfigError(f"{_WANTED}, got: {str(self)!r}")

    def __str__(self) -> str:
        return self.kind if self.kind == "key" else f"{self.kind}:{self.name}"

    def of(self, message: Message) -> bytes | None:
        """The key of a message; None if it has none. No content of a message makes this raise an error."""
        if self.kind == "key":
            return message.key
        if self.kind == "header":
            return next((value for name, value in reversed(message.headers) if name == self.name), None)
        return None if message.reference is not None else _at(message.value, self.name)


def parse_key_source(text: object) -> KeySource:
    """Read a key source, such as "header:tenant".

    Raises:
        ConfigError: the text is no key source.
    """
    if not isinstance(text, str):
        raise ConfigError(f"{_WANTED}, got: {text!r}")
    kind, colon, name = text.partition(":")
    if kind not in ("key", "header", "json") or bool(colon) != (kind != "key"):
        raise ConfigError(f"{_WANTED}, got: {text!r}")
    return KeySource(kind, name)  # type: ignore[arg-type]  # checked above


def _is_pointer(name: str) -> bool:
    return name.startswith("/") and name.count("/") <= _DEEPEST and not _WRONG_ESCAPE.search(name)


def _at(payload: bytes, pointer: str) -> bytes | None:
    """The value at a JSON pointer, as text; None if there is none, or it is an object, an array or null."""
    if len(payload) > _MAX_PAYLOAD:
        return None
    try:
        found: Any = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    for part in pointer[1:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(name)
        elif (
            isinstance(found, list) and name.isdecimal() and name.isascii() and len(name) < 7 and int(name) < len(found)
        ):
            found = found[int(name)]
        else:
            return None
    if isinstance(found, str):
        return found.encode("utf-8", "surrogatepass")
    return json.dumps(found).encode() if isinstance(found, bool | int | float) else None
