"""The operations on documents, and the documents of a store in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from wheel_sched.store.core.call import Argument, Operation, new_token
from wheel_sched.store.core.items import MAX_BATCH, decode_text, encode_text
from wheel_sched.store.core.memory_item import check_batch
from wheel_sched.store.core.shard import MemoryShard

_PAGE_BYTES = 1_048_576  # a page of a listing ends when its values have this many bytes


@dataclass(frozen=True, slots=True)
class Document:
    """A document.

    Args:
        id: its id in its collection.
        version: the number that its last put gave it.
        put_ms: when its last put was, in epoch ms of the store's clock.
        value: its value.
        until_ms: when it expires. Defaults to 0: never.
    """

    id: str
    version: int
    put_ms: int
    value: bytes
    until_ms: int = 0


class _Kept(NamedTuple):
    version: int
    put_ms: int
    until_ms: int  # 0 = never expires
    value: bytes


class DocumentsInMemory:
    """The documents of one shard of a store in memory."""

    def __init__(self, shard: MemoryShard) -> None:
        self._shard = shard
        self.versions: dict[str, int] = {}
        self.collections: dict[str, dict[bytes, _Kept]] = {}  # each in order of the last put
        shard.on_sweep.append(self._forget_old)

    def live(self, collection: str) -> dict[bytes, _Kept]:
        """The documents of a collection that have not expired."""
        now_ms = self._shard.now_ms
        kept = self.collections.get(collection, {})
        return {key: one for key, one in kept.items() if not 0 < one.until_ms <= now_ms}

    def store(self, collection: str, key: bytes, put_ms: int, until_ms: int, value: bytes) -> int:
        """Store a document under a new version. Returns the version."""
        version = self.versions[collection] = self.versions.get(collection, 0) + 1
        kept = self.collections.setdefault(collection, {})
        kept.pop(key, None)
        kept[key] = _Kept(version, put_ms, until_ms, value)
        return version

    def forget_old(self, collection: str, limit: int) -> int:
        """Remove documents of a collection that have expired, `limit` at most. Returns how many."""
        kept, now_ms = self.collections.get(collection, {}), self._shard.now_ms
        old = sorted((one.until_ms, key) for key, one in kept.items() if 0 < one.until_ms <= now_ms)[:limit]
        for _, key in old:
            del kept[key]
        return len(old)

    def _forget_old(self) -> None:
        left = MAX_BATCH
        for collection in self.versions:
            left -= self.forget_old(collection, left)
            if left < 1:
                return


@dataclass(slots=True)
class PutDocument(Operation[int | None]):
    """Store or replace a document. Returns its version, None when it has another version than `expect`."""

    script = "put_document"
    writes = True
    collection: str
    document_id: str
    value: bytes
    expect: int | None = None
    ttl_ms: int = 0
    keep: int = 0
    token: str = field(default_factory=new_token)

    def argv(self) -> list[Argument]:
        expect = "" if self.expect is None else self.expect
        return [self.collection, encode_text(self.document_id), expect, self.ttl_ms, self.keep, self.value]

    def parse(self, reply: Any, shard: int) -> int | None:
        return int(reply) or None

    def in_memory(self, shard: MemoryShard) -> int | None:
        said = shard.answers.recall(self.token)
        if said is not None:
            return int(said) or None
        room, key = shard.room(DocumentsInMemory), encode_text(self.document_id)
        found = room.live(self.collection).get(key)
        if self.expect is not None and self.expect != (found.version if found else 0):
            shard.answers.record(self.token, 0)
            return None
        room.forget_old(self.collection, MAX_BATCH)
        until_ms = shard.now_ms + self.ttl_ms if self.ttl_ms else 0
        version = room.store(self.collection, key, shard.now_ms, until_ms, self.value)
        kept = room.collections[self.collection]
        over = min(len(kept) - self.keep, MAX_BATCH) if self.keep else 0
        for old in list(kept)[: max(0, over)]:
            del kept[old]
        shard.answers.record(self.token, version)
        return version


@dataclass(slots=True)
class RemoveDocument(Operation[bool]):
    """Remove a document, if it has the version `expect`. Returns whether it was removed."""

    script = "remove_document"
    writes = True
    collection: str
    document_id: str
    expect: int | None = None
    token: str = field(default_factory=new_token)

    def argv(self) -> list[Argument]:
        return [self.collection, encode_text(self.document_id), "" if self.expect is None else self.expect]

    def parse(self, reply: Any, shard: int) -> bool:
        return bool(reply)

    def in_memory(self, shard: MemoryShard) -> bool:
        said = shard.answers.recall(self.token)
        if said is not None:
            return bool(said)
        room, key = shard.room(DocumentsInMemory), encode_text(self.document_id)
        found = room.live(self.collection).get(key)
        removes = found is not None and self.expect in (None, found.version)
        if removes:
            del room.collections[self.collection][key]
        shard.answers.record(self.token, removes)
        return removes


@dataclass(slots=True)
class GetDocuments(Operation[list[Document | None]]):
    """Read documents by their ids."""

    script = "get_documents"
    reads = True
    writes = False
    collection: str
    ids: Sequence[str]
    token: str = ""

    def argv(self) -> list[Argument]:
        return [self.collection, *map(encode_text, self.ids)]

    def parse(self, reply: Any, shard: int) -> list[Document | None]:
        return [Document(i, *row) if row else None for i, row in zip(self.ids, reply, strict=True)]

    def in_memory(self, shard: MemoryShard) -> list[Document | None]:
        check_batch(len(self.ids))
        live = shard.room(DocumentsInMemory).live(self.collection)
        found = [live.get(encode_text(i)) for i in self.ids]
        return [
            Document(i, one.version, one.put_ms, one.value, one.until_ms) if one else None
            for i, one in zip(self.ids, found, strict=True)
        ]


@dataclass(slots=True)
class ListDocuments(Operation[tuple[list[Document], int]]):
    """Read a page of a collection, newest first, behind the version `last` (0 = from the newest).

    The answer is the page, and the version behind which the next page starts (0 = there is none).
    """

    script = "list_documents"
    reads = True
    writes = False
    collection: str
    last: int = 0
    limit: int = 100
    token: str = ""

    def argv(self) -> list[Argument]:
        return [self.collection, self.last or "", self.limit]

    def parse(self, reply: Any, shard: int) -> tuple[list[Document], int]:
        last, *rows = reply
        return [Document(decode_text(key), *row) for key, *row in rows], int(last)

    def in_memory(self, shard: MemoryShard) -> tuple[list[Document], int]:
        room = shard.room(DocumentsInMemory)
        live, kept = room.live(self.collection), room.collections.get(self.collection, {})
        page: list[Document] = []
        size = looked = before = 0
        for key, one in reversed(kept.items()):
            if self.last and one.version >= self.last:
                continue
            if looked == min(self.limit, MAX_BATCH) or size >= _PAGE_BYTES:
                return page, before
            looked, before = looked + 1, one.version
            if key in live:
                page.append(Document(decode_text(key), one.version, one.put_ms, one.value, one.until_ms))
                size += len(one.value)
        return page, 0


@dataclass(slots=True)
class CountDocuments(Operation[int]):
    """Count the documents of a collection."""

    script = "count_documents"
    reads = True
    writes = False
    collection: str
    token: str = ""

    def argv(self) -> list[Argument]:
        return [self.collection]

    def parse(self, reply: Any, shard: int) -> int:
        return int(reply)

    def in_memory(self, shard: MemoryShard) -> int:
        return len(shard.room(DocumentsInMemory).live(self.collection))


@dataclass(slots=True)
class ListCollections(Operation[list[str]]):
    """The names of all collections that ever had a document, in no particular order."""

    script = "list_collections"
    reads = True
    writes = False
    token: str = ""

    def argv(self) -> list[Argument]:
        return []

    def parse(self, reply: Any, shard: int) -> list[str]:
        return [decode_text(name) for name in reply]

    def in_memory(self, shard: MemoryShard) -> list[str]:
        return list(shard.room(DocumentsInMemory).versions)


@dataclass(slots=True)
class RestoreDocuments(Operation[int]):
    """Put documents back, with the times of their puts and their expiries. An id that exists is not changed.

    A document that has expired is left out. Each document gets a new version. The answer is how many were put back.
    """

    script = "restore_documents"
    writes = True
    collection: str
    documents: Sequence[Document]
    token: str = ""

    def argv(self) -> list[Argument]:
        args: list[Argument] = [self.collection]
        for one in self.documents:
            args += [encode_text(one.id), one.put_ms, one.until_ms, one.value]
        return args

    def parse(self, reply: Any, shard: int) -> int:
        return int(reply)

    def in_memory(self, shard: MemoryShard) -> int:
        check_batch(len(self.documents))
        room, put = shard.room(DocumentsInMemory), 0
        for one in self.documents:
            key = encode_text(one.id)
            if key not in room.live(self.collection) and (not one.until_ms or one.until_ms > shard.now_ms):
                room.store(self.collection, key, one.put_ms, one.until_ms, one.value)
                put += 1
        return put
