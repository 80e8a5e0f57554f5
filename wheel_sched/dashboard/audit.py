"""The audit log: who changed what, and when, through the dashboard. The last 10,000 entries are kept in the store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import uuid4

from wheel_sched.store import DelayStore, Documents

_COLLECTION = "audit"
_KEPT = 10_000
_TEXT = 500  # characters of a text
_ARGUMENTS = 2_000


class AuditEntry(NamedTuple):
    """An entry: who did which action, when (epoch ms), what the preview showed and how the action ended."""

    at_ms: int
    who: str
    action: str
    words: str
    outcome: str
    arguments: str

    def as_dict(self) -> dict[str, Any]:
        return self._asdict()


class BegunEntry(NamedTuple):
    """The entry of an action that has begun and not ended."""

    id: str
    fields: dict[str, str]


class AuditLog:
    """The audit log of a namespace. Thread-safe.

    Args:
        store: the open store.
    """

    def __init__(self, store: DelayStore) -> None:
        self._documents = Documents(store)

    def begin(self, who: str, action: str, words: str, arguments: Mapping[str, Any]) -> BegunEntry:
        """Write down that an action begins, before it changes anything. Long texts are cut."""
        fields = {
            "who": who[:_TEXT],
            "action": action,
            "words": words[:_TEXT],
            "outcome": "begun; no end is on record",
            "arguments": json.dumps(dict(arguments), default=str)[:_ARGUMENTS],
        }
        begun = BegunEntry(uuid4().hex, fields)
        self._put(begun)
        return begun

    def end(self, begun: BegunEntry, outcome: str) -> None:
        """Write down how the action ended."""
        self._put(begun._replace(fields={**begun.fields, "outcome": outcome[:_TEXT]}))

    def _put(self, entry: BegunEntry) -> None:
        self._documents.put(_COLLECTION, entry.id, json.dumps(entry.fields).encode(), keep=_KEPT)

    def newest(self, limit: int = 50, behind: str | None = None) -> tuple[list[AuditEntry], str | None]:
        """The newest entries, and the cursor of the next page; None: there are no older ones."""
        page = self._documents.newest(_COLLECTION, limit, behind)
        entries = [AuditEntry(one.put_ms, **json.loads(one.value)) for one in page.documents]
        return entries, page.cursor
