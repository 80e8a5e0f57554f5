"""The addresses of the pages of groups. A part of an address cannot be empty or hold a slash; topics and groups can.

So an address has `~1` for a slash, `~0` for a tilde, and `~` for an empty text. A name of dots only, such as `..`, has
`~2` for each dot. Other texts are only percent-encoded.
"""

from __future__ import annotations

from urllib.parse import quote

from starlette.requests import Request

_ESCAPES = (("~2", "."), ("~1", "/"), ("~0", "~"))


def segment(text: str) -> str:
    """A topic or group as one part of an address, not yet percent-encoded."""
    if not text:
        return "~"
    if not text.strip("."):
        return "~2" * len(text)
    return text.replace("~", "~0").replace("/", "~1")


def text_of(part: str) -> str:
    """The topic or group that a part of an address stands for."""
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
    """The topic and the group in the address of a request."""
    return text_of(request.path_params["topic"]), text_of(request.path_params["group"])
