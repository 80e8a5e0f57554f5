"""Documents: small values (bytes) in named collections, each with a version. For notes, operations and an audit log.

Each put gives the document a version that is greater than all earlier ones of its collection. A put or a removal can
require that the document has a given version, so that two writers do not overwrite each other's work.

All documents lie in the memory of shard 0, so give `ttl_ms` or `keep` wherever the number of documents grows. A
document that has expired is no longer returned. The next put into its collection, or a sweep, removes it from memory.

A reshard leaves documents where they are: shard 0 always exists. A backup holds them; restored documents have new
versions. Writes are as durable as other writes of the store, and a frozen namespace refuses them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from wheel_sched.errors import Rejected
from wheel_sched.store.core.call import Call, Plan, new_token
from wheel_sched.store.core.delay_store import AsyncCapability, Capability, awaited, blocking
from wheel_sched.store.core.items import MAX_BATCH, MAX_DUE_MS, check_id
from wheel_sched.store.core.plans import Plans
from wheel_sched.store.documents.operations import (
    CountDocuments,
    Document,
    GetDocuments,
    ListCollections,
    ListDocuments,
    PutDocument,
    RemoveDocument,
    RestoreDocuments,
)

SHARD = 0
"""The shard that holds the documents."""
MAX_VALUE_BYTES = 64 * 1024
MAX_PAGE = MAX_BATCH
"""How many documents `newest` returns at most in one page."""

_COLLECTION = re.compile(r"[a-z-]{1,40}")
_IDS = 50  # how many ids one call reads, so that an answer has at most 3 MiB of values
_VERSION = re.compile(r"[1-9][0-9]{0,15}")


@dataclass(frozen=True, slots=True)
class DocumentPage:
    """A page of a collection.

    Args:
        documents: the documents, in order of their last put, newest first.
        cursor: pass it as `behind` for the next page. None: there are no more documents.
    """

    documents: list[Document]
    cursor: str | None


def put_document(
    plans: Plans,
    collection: str,
    document_id: str,
    value: bytes,
    *,
    expect: int | None = None,
    ttl_ms: int | None = None,
    keep: int | None = None,
    token: str | None = None,
) -> Plan[int | None]:
    """Store a document, or replace it. Returns its new version; None when it does not have the version `expect`.

    Args:
        collection: the name of the collection, 1 to 40 of a-z and "-".
        document_id: the id in this collection.
        value: at most 64 KiB.
        expect: the version that the document must have; 0: it must not exist. Defaults to None: any.
        ttl_ms: how long the document is kept, from now. Defaults to None: for ever.
        keep: how many documents of the collection remain at most. The call removes those with the oldest last put, 500
            at most. Defaults to None: all remain.
        token: a repeat with the same token within a minute changes nothing and returns the first answer. Defaults to a
            new token.

    Raises:
        Rejected: one of the arguments is malformed; nothing was stored.
    """
    _check(collection, [document_id])
    if not isinstance(value, bytes):
        raise Rejected(f"expected the value to be bytes, got: {type(value).__name__}; nothing was stored")
    if len(value) > MAX_VALUE_BYTES:
        raise Rejected(
            f"the value of document {document_id!r} has {len(value)} bytes, the limit is {MAX_VALUE_BYTES}; "
            "nothing was stored"
        )
    _check_number("expect", expect, 0, "stored")
    _check_number("ttl_ms", ttl_ms, 1, "stored")
    _check_number("keep", keep, 1, "stored")
    put = PutDocument(collection, document_id, value, expect, ttl_ms or 0, keep or 0, token or new_token())
    return (yield from plans.one(SHARD, put))


def get_documents(plans: Plans, collection: str, ids: Sequence[str]) -> Plan[list[Document | None]]:
    """Documents by their ids, in the order of `ids`. None stands for an id without a document."""
    _check(collection, ids)
    calls = [Call(SHARD, GetDocuments(collection, ids[at : at + _IDS])) for at in range(0, len(ids), _IDS)]
    replies: list[list[Document | None]] = (yield calls) if calls else []
    return [document for reply in replies for document in reply]


def newest_documents(plans: Plans, collection: str, limit: int, behind: str | None = None) -> Plan[DocumentPage]:
    """One page of a collection, in order of the last put, newest first.

    A page may be shorter than `limit` although more documents follow: `cursor` says whether they do. A document that
    is put between two pages does not appear on the later one, because it is then newer than the first page.

    Args:
        collection: the name of the collection.
        limit: how many documents at most, 1 to 500.
        behind: the `cursor` of the page before. Defaults to None: from the newest document.

    Raises:
        Rejected: one of the arguments is malformed; nothing was read.
    """
    _check(collection, ())
    if type(limit) is not int or not 1 <= limit <= MAX_PAGE:
        raise Rejected(f"expected the limit to be from 1 to {MAX_PAGE}, got: {limit!r}; nothing was read")
    if behind is not None and not (isinstance(behind, str) and _VERSION.fullmatch(behind)):
        raise Rejected(
            f"expected the cursor of a page before, got: {behind!r:.80}; nothing was read; start without a cursor"
        )
    documents, last = yield from plans.one(SHARD, ListDocuments(collection, int(behind or 0), limit))
    return DocumentPage(documents, str(last) if last else None)


def remove_document(
    plans: Plans, collection: str, document_id: str, *, expect: int | None = None, token: str | None = None
) -> Plan[bool]:
    """Remove a document. Returns whether it was removed.

    Args:
        collection: the name of the collection.
        document_id: the id in this collection.
        expect: the version that the document must have; with another version it stays. Defaults to None: any.
        token: as for `put`.

    Raises:
        Rejected: one of the arguments is malformed; nothing was removed.
    """
    _check(collection, [document_id])
    _check_number("expect", expect, 1, "removed")
    return (yield from plans.one(SHARD, RemoveDocument(collection, document_id, expect, token or new_token())))


def count_documents(plans: Plans, collection: str) -> Plan[int]:
    """How many documents a collection has."""
    _check(collection, ())
    return (yield from plans.one(SHARD, CountDocuments(collection)))


def list_collections(plans: Plans) -> Plan[list[str]]:
    """The names of all collections that ever had a document, sorted."""
    return sorted((yield from plans.one(SHARD, ListCollections())))


def restore_documents(plans: Plans, collection: str, documents: Sequence[Document]) -> Plan[int]:
    """Put documents back as they were, in this order, each under a new version. Returns how many were put back.

    Give the oldest document first. An id that exists is not changed, and a document that has expired is left out.
    """
    _check(collection, [document.id for document in documents])
    calls = [
        Call(SHARD, RestoreDocuments(collection, documents[at : at + _IDS])) for at in range(0, len(documents), _IDS)
    ]
    return sum((yield calls) if calls else [])


def _check(collection: str, ids: Sequence[str]) -> None:
    if not (isinstance(collection, str) and _COLLECTION.fullmatch(collection)):
        raise Rejected(
            f'expected a collection of 1 to 40 of the letters a-z and "-", got: {collection!r:.80}; nothing was changed'
        )
    for document_id in ids:
        check_id(document_id)


def _check_number(name: str, number: int | None, least: int, done: str) -> None:
    if number is not None and (type(number) is not int or not least <= number <= MAX_DUE_MS):
        raise Rejected(f"expected {name} to be a whole number from {least} up, got: {number!r:.80}; nothing was {done}")


class Documents(Capability):
    """The documents of a namespace: stores, reads, lists, removes and counts them. See the module's docstring."""

    put = blocking(put_document)
    get = blocking(get_documents)
    newest = blocking(newest_documents)
    remove = blocking(remove_document)
    count = blocking(count_documents)
    collections = blocking(list_collections)
    restore = blocking(restore_documents)


class AsyncDocuments(AsyncCapability):
    """The asyncio twin of `Documents`."""

    put = awaited(put_document)
    get = awaited(get_documents)
    newest = awaited(newest_documents)
    remove = awaited(remove_document)
    count = awaited(count_documents)
    collections = awaited(list_collections)
    restore = awaited(restore_documents)
