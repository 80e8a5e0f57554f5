"""Push form: a body that the server itself can push to a stream or a list, in the script that claims it.

    <S|L>1[<length>,<length>,...]<target><piece><piece>...

S: the pieces are field, value, field, value ... of one stream entry. L: one piece, pushed to a list. Targets are names
relative to the prefix the dispatcher is given. A body in this form can be taken apart on the client as well, for the
claim-publish-settle way. The lengths stand together because the server reads a short JSON list faster than it
reads lengths one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

from wheel_sched.errors import Rejected

_MAX_HEAD = 40_000  # a longer list of lengths is no entry a server could take
_SHORT_HEAD = 200  # longer ones are not worth remembering
_TEXTS = tuple(map(str, range(2048)))  # looked up, a length costs half of what it costs to write it
_KINDS: dict[bytes, Literal["S", "L"]] = {b"S1[": "S", b"L1[": "L"}
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
    parts = [target.encode("utf-8", "surrogateescape"), *pieces]
    try:
        lengths = ",".join([_TEXTS[len(part)] for part in parts])
    except IndexError:
        lengths = ",".join([str(len(part)) for part in parts])
    return b"%s1[%s]%s" % (kind.encode(), lengths.encode(), b"".join(parts))


def decode_push(body: bytes) -> PushForm:
    """Take a push-form body apart.

    Raises:
        Rejected: it is not in push form; nothing was changed.
    """
    stop = body.find(b"]", 0, _MAX_HEAD) + 1
    try:
        kind, target, cuts, size = (_known_layout if stop <= _SHORT_HEAD else _layout)(body[:stop])
    except ValueError as error:
        raise Rejected(f"the body ({len(body)} bytes) is not in push form; it was left as it is") from error
    if size != len(body):
        raise Rejected(f"the body ({len(body)} bytes) is no whole push form; it was left as it is")
    return PushForm(kind, _name(body[target]), [body[cut] for cut in cuts])


@lru_cache(maxsize=1024)
def _name(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _layout(head: bytes) -> tuple[Literal["S", "L"], slice, list[slice], int]:
    """What a head says: the kind, where the target and the pieces lie, and how long the body is."""
    kind = _KINDS.get(head[:3])
    if kind is None:
        raise ValueError(head[:3])
    lengths = [*map(int, head[3:-1].split(b","))]
    if min(lengths) < 0 or not (len(lengths) == 2 if kind == "L" else len(lengths) % 2 and len(lengths) > 2):
        raise ValueError(len(lengths))
    ends = [*accumulate(lengths, initial=len(head))]
    target, *pieces = [slice(start, end) for start, end in pairwise(ends)]
    return kind, target, pieces, ends[-1]


_known_layout = lru_cache(maxsize=2048)(_layout)  # messages of a topic are mostly alike
