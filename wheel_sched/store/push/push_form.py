"""Push form: a body that the server itself can push to a stream or a list, in the script that claims the item.

    <S|L>1[<length>,<length>,...]<target><piece><piece>...

S: the pieces are field, value, field, value ... of one stream entry. L: one piece, pushed to a list. Targets are names
relative to the prefix in the dispatcher's settings. A dispatcher that publishes the items itself, instead of the
server, parses the same form. The lengths are in one list because the server reads a short JSON list faster than
single lengths.

A *note* is the last field of a stream entry, if its name begins with `store-note:`. The store keeps it with the item,
and nobody pushes it. A form that has no other field has no note.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

from wheel_sched.errors import Rejected

_MAX_HEAD = 40_000  # a server could not take an entry with a longer list of lengths
_SHORT_HEAD = 200  # longer heads are not cached
_TEXTS = tuple(map(str, range(2048)))  # to look up the text of a length costs half of making it
_KINDS: dict[bytes, Literal["S", "L"]] = {b"S1[": "S", b"L1[": "L"}
MAX_PIECES = 2_998  # the limit of Lua's unpack, less the target
NOTE = b"store-note:"
"""The first bytes of the name of a field that stays in the store. `publish.lua` has the same text."""


class PushForm(NamedTuple):
    """The parts of a push-form body."""

    kind: Literal["S", "L"]
    target: str
    pieces: list[bytes]


def encode_push(kind: Literal["S", "L"], target: str, pieces: Sequence[bytes]) -> bytes:
    """Make the body that pushes `pieces` to `target`.

    Raises:
        Rejected: there is no target, the pieces for a stream are no pairs or too many, or a list has not one piece.
    """
    if not target:
        raise Rejected("expected a target to push to, got an empty name; nothing was stored")
    if (kind == "S" and (len(pieces) % 2 or not pieces)) or (kind == "L" and len(pieces) != 1):
        raise Rejected(f"expected field-value pairs for a stream or one piece for a list, got: {len(pieces)} pieces")
    if len(pieces) > MAX_PIECES:
        raise Rejected(f"at most {MAX_PIECES // 2} fields fit into one entry, got: {len(pieces) // 2}")
    parts = [target.encode("utf-8", "surrogateescape"), *pieces]
    try:
        lengths = ",".join([_TEXTS[len(part)] for part in parts])
    except IndexError:
        lengths = ",".join([str(len(part)) for part in parts])
    return b"%s1[%s]%s" % (kind.encode(), lengths.encode(), b"".join(parts))


def decode_push(body: bytes) -> PushForm:
    """Parse a push-form body.

    Raises:
        Rejected: the body is not in push form; nothing was changed.
    """
    stop = body.find(b"]", 0, _MAX_HEAD) + 1
    try:
        kind, target, cuts, size = (_known_layout if stop <= _SHORT_HEAD else _layout)(body[:stop])
    except ValueError as error:
        raise Rejected(f"the body ({len(body)} bytes) is not in push form; nothing was changed") from error
    if size != len(body):
        raise Rejected(f"the body ({len(body)} bytes) has an incomplete push form; nothing was changed")
    return PushForm(kind, _name(body[target]), [body[cut] for cut in cuts])


def split_note(form: PushForm) -> tuple[list[bytes], tuple[bytes, bytes] | None]:
    """The pieces that are pushed, and the note (its name without `NOTE`, and its content); None if there is no note."""
    pieces = form.pieces
    if form.kind == "L" or len(pieces) < 4 or not pieces[-2].startswith(NOTE):
        return pieces, None
    return pieces[:-2], (pieces[-2][len(NOTE) :], pieces[-1])


@lru_cache(maxsize=1024)
def _name(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _layout(head: bytes) -> tuple[Literal["S", "L"], slice, list[slice], int]:
    """Parse the head of a push-form body, such as `S1[4,2,3]`.

    Returns the kind ("S": stream, "L": list), the position of the target in the body, the positions of the pieces that
    are pushed to it, and the length of the whole body.
    """
    kind = _KINDS.get(head[:3])
    if kind is None:
        raise ValueError(head[:3])
    lengths = [*map(int, head[3:-1].split(b","))]
    if min(lengths) < 0 or not (len(lengths) == 2 if kind == "L" else len(lengths) % 2 and len(lengths) > 2):
        raise ValueError(len(lengths))
    ends = [*accumulate(lengths, initial=len(head))]
    target, *pieces = [slice(start, end) for start, end in pairwise(ends)]
    return kind, target, pieces, ends[-1]


_known_layout = lru_cache(maxsize=2048)(_layout)  # most messages of a topic have the same head
