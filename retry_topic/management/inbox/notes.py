"""The notes of people about groups of dead letters: a mark (acknowledged or fixed), a text and a link.

The store keeps each note as a document. Each change names the version that its writer has seen. So nobody overwrites
what somebody else has written meanwhile. The 5,000 notes that were written last are kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from wheel_sched.errors import NotDone, Rejected
from wheel_sched.escaping import escaped
from wheel_sched.store import DelayStore, Document, Documents

Mark = Literal["", "acknowledged", "fixed"]
LONGEST_TEXT = 1_000
LONGEST_LINK = 500
_KEPT = 5_000
_COLLECTION = "group-notes"
_PAGE = 500


@dataclass(frozen=True, slots=True)
class GroupNote:
    """What people have noted about a group.

    Args:
        topic: the topic of the group.
        group: the name of the group: a fingerprint, or the code of a reason.
        mark: "acknowledged", "fixed", or "" for neither.
        marked_by: who has set the mark; "" for nobody.
        marked_ms: when the mark was set, epoch ms of the store's clock.
        text: at most 1,000 characters.
        link: an http or https address, or "".
        noted_by: who has written the text and the link; "" for nobody.
        noted_ms: when they were written, epoch ms of the store's clock.
        version: the version of the document; 0 if the store has no document.
    """

    topic: str
    group: str
    mark: Mark = ""
    marked_by: str = ""
    marked_ms: int = 0
    text: str = ""
    link: str = ""
    noted_by: str = ""
    noted_ms: int = 0
    version: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The note as data for JSON."""
        kept = asdict(self)
        return {name: kept[name] for name in kept if name not in ("topic", "group", "version")}


def checked_note(text: str, link: str) -> tuple[str, str]:
    """Text and link of a note, without spaces around them. Control characters and direction marks become escapes.

    Raises:
        Rejected: one of them is too long, or the link is no http address; nothing was changed.
    """
    text, link = "\n".join(map(escaped, text.strip().splitlines())), link.strip()
    if len(text) > LONGEST_TEXT:
        raise Rejected(f"a note has at most {LONGEST_TEXT:,} characters, got: {len(text):,}; nothing was changed")
    if len(link) > LONGEST_LINK:
        raise Rejected(f"a link has at most {LONGEST_LINK} characters, got: {len(link):,}; nothing was changed")
    try:
        parts = urlsplit(link)
    except ValueError:
        parts = urlsplit("")
    if link and (parts.scheme not in ("http", "https") or not parts.netloc or not link.isprintable() or " " in link):
        raise Rejected(f"expected a link that begins with https:// or http://, got: {link[:80]!r}; nothing was changed")
    return text, link


class GroupNotes:
    """The notes of a namespace. Thread-safe.

    Args:
        store: the open store.
    """

    def __init__(self, store: DelayStore) -> None:
        self._store = store
        self._documents = Documents(store)

    def get(self, topic: str, group: str) -> GroupNote:
        """The note about a group; an empty one when there is none."""
        (found,) = self._documents.get(_COLLECTION, [_id_of(topic, group)])
        note = None if found is None else _read(found)
        return GroupNote(topic, group) if note is None else note

    def all(self) -> Mapping[tuple[str, str], GroupNote]:
        """All notes, by topic and group."""
        notes: dict[tuple[str, str], GroupNote] = {}
        cursor = None
        for _ in range(_KEPT // _PAGE + 1):
            page = self._documents.newest(_COLLECTION, _PAGE, cursor)
            notes.update(((note.topic, note.group), note) for note in map(_read, page.documents) if note is not None)
            cursor = page.cursor
            if cursor is None:
                break
        return notes

    def mark(self, note: GroupNote, mark: Mark, who: str) -> GroupNote:
        """Mark a group, or remove its mark. `note` is the note that the person has seen.

        Raises:
            NotDone: somebody has changed the note meanwhile; nothing was changed.
        """
        return self._put(replace(note, mark=mark, marked_by=who[:200], marked_ms=self._store.now_ms()))

    def write(self, note: GroupNote, text: str, link: str, who: str) -> GroupNote:
        """Write the text and the link of a note. The mark stays.

        Raises:
            Rejected: see `checked_note`.
            NotDone: somebody has changed the note meanwhile; nothing was changed.
        """
        text, link = checked_note(text, link)
        return self._put(replace(note, text=text, link=link, noted_by=who[:200], noted_ms=self._store.now_ms()))

    def _put(self, note: GroupNote) -> GroupNote:
        kept = asdict(note)
        del kept["version"]
        version = self._documents.put(
            _COLLECTION,
            _id_of(note.topic, note.group),
            json.dumps(kept).encode(),
            expect=note.version,
            keep=_KEPT,
        )
        if version is None:
            raise NotDone("somebody has changed the note of this group meanwhile: nothing was changed; look again")
        return replace(note, version=version)


def _id_of(topic: str, group: str) -> str:
    return hashlib.sha256(json.dumps([topic, group]).encode()).hexdigest()


def _read(document: Document) -> GroupNote | None:
    """Read a note. Returns None when this release does not know its format."""
    kept = json.loads(document.value)
    known = {one.name for one in fields(GroupNote)}
    if kept.get("mark") not in get_args(Mark):
        return None
    return GroupNote(**{name: value for name, value in kept.items() if name in known}, version=document.version)
