"""Push form: a body that the server itself can push to a stream or a list, in the script that claims it.

    <S|L>1;<length>:<target><length>:<piece><length>:<piece>...

S: the pieces are field, value, field, value ... of one stream entry. L: one piece, pushed to a list. Targets are names
relative to the prefix the dispatcher is given. A body in this form can be taken apart on the client as well, for the
claim-publish-settle way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from wheel_sched.errors import Rejected

MAX_PIECES = 2_998  # what Lua's unpack carries, less the target


class PushForm(NamedTuple):
    """A push-form body taken apart."""

    kind: Literal["S", "L"]
    target: str
    pieces: list[bytes]


def encode_push(kind: Literal["S", "L"], target: str, pieces: Sequence[bytes]) -> bytes:
    """The body that pushes `pieces` to `target`.

    Raises:
        Rejected: a stream entry needs pairs, a list exactly one piece.
    """
    if not target:
        raise Rejected("expected a target to push to, got an empty name; nothing was stored")
    if (kind == "S" and (len(pieces) % 2 or not pieces)) or (kind == "L" and len(pieces) != 1):
        raise Rejected(f"expected field-value pairs for a stream or one piece for a list, got: {len(pieces)} pieces")
    if len(pieces) > MAX_PIECES:
        raise Rejected(f"at most {MAX_PIECES // 2} fields fit into one entry, got: {len(pieces) // 2}")
    raw = target.encode("utf-8", "surrogateescape")
    parts = [b"%s1;%d:%s" % (kind.encode(), len(raw), raw)]
    parts += [b"%d:%s" % (len(piece), piece) for piece in pieces]
    return b"".join(parts)


def decode_push(body: bytes) -> PushForm:
    """Take a push-form body apart.

    Raises:
        Rejected: it is not in push form; nothing was changed.
    """
    kind, stop, at = body[:1], len(body), 3
    pieces: list[bytes] = []
    try:
        if body[1:3] != b"1;" or kind not in (b"S", b"L"):
            raise ValueError(body[:8])
        while at < stop:
            colon = body.index(b":", at)
            end = colon + 1 + int(body[at:colon])
            if end > stop:
                raise ValueError(end)
            pieces.append(body[colon + 1 : end])
            at = end
        target = pieces.pop(0).decode("utf-8", "surrogateescape")
    except (ValueError, IndexError) as error:
        raise Rejected(f"the body ({stop} bytes) is not in push form; it was left as it is") from error
    return PushForm("S" if kind == b"S" else "L", target, pieces)
