"""The addresses of groups. A topic or a group may be empty or hold a slash, which an address may not.

In an address `~1` stands for a slash, `~0` for a tilde, `~2` for a dot of a name that has nothing but dots, and `~` for
an empty text. Other texts stand for themselves, so a link from a fingerprint needs no more than the usual quoting.
"""

from __future__ import annotations

from urllib.parse import quote

from starlette.requests import Request

_ESCAPES = (("~2", "."), ("~1", "/"), ("~0", "~"))


def segment(text: str) -> str:
    """A text as one part of an address, before it is quoted."""
    if not text:
        return "~"
    if not text.strip("."):
        return "~2" * len(text)
    return text.replace("~", "~0").replace("/", "~1")


def text_of(part: str) -> str:
    """The text that a part of an address stands for."""
    if part == "~":
        return ""
    for escape, sign in _ESCAPES:
        part = part.replace(escape, sign)
    return part


def group_path(topic: str, group: str) -> str:
    """The address of a group's page, below the dashboard's root."""
    parts = (quote(segment(one), safe="~", errors="surrogateescape") for one in (topic, group))
    return "/dead-letters/" + "/".join(parts)


def group_in(request: Request) -> tuple[str, str]:
    """The topic and the group that a request names."""
    return text_of(request.path_params["topic"]), text_of(request.path_params["group"])
