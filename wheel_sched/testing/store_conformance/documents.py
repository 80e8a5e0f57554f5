"""Conformance tests of the documents: versions, expectations, ends, caps and pages."""

# ruff: noqa: S101, S106 - assertions are what a test-suite is made of; the tokens are no passwords

from __future__ import annotations

from typing import Any

import pytest

from wheel_sched.errors import Rejected
from wheel_sched.store.core.call import Call
from wheel_sched.store.documents import MAX_VALUE_BYTES, SHARD
from wheel_sched.store.documents.operations import Document, ListDocuments
from wheel_sched.testing.store_conformance.bench import Bench


def ids_of(bench: Bench, limit: int = 100) -> list[str]:
    return [document.id for document in bench.documents.newest("notes", limit).documents]


class DocumentCases:
    """Tests of the documents: putting, reading, listing, removing, counting, and what is refused."""

    def test_a_document_is_read_as_it_was_put(self, bench: Bench) -> None:
        """`get` returns the last value of each id with its version and time, and None for an id without a document."""
        first = bench.documents.put("notes", "ä:1", b'{"a":1}')
        bench.clock.advance(5)
        assert first is not None
        second = bench.documents.put("notes", "ä:1", b"\x00:1:2:3:\n")
        other = bench.documents.put("notes", "b", b"")
        assert second is not None
        assert second > first
        assert other is not None
        assert bench.documents.get("notes", ["b", "none", "ä:1"]) == [
            Document("b", other, bench.now_ms, b""),
            None,
            Document("ä:1", second, bench.now_ms, b"\x00:1:2:3:\n"),
        ]
        assert bench.documents.get("other", ["b"]) == [None]
        assert bench.documents.get("notes", []) == []

    def test_a_put_can_expect_a_version(self, bench: Bench) -> None:
        """With `expect`, a put answers None if the document has another version. With 0 it must not exist."""
        documents = bench.documents
        assert documents.put("notes", "a", b"x", expect=7) is None
        first = documents.put("notes", "a", b"one", expect=0)
        assert documents.put("notes", "a", b"x", expect=0) is None
        second = documents.put("notes", "a", b"two", expect=first)
        assert documents.put("notes", "a", b"x", expect=first) is None
        assert documents.get("notes", ["a"]) == [Document("a", second or 0, bench.now_ms, b"two")]

    def test_a_version_never_comes_twice(self, bench: Bench) -> None:
        """A document that is put again after its removal has a greater version than before."""
        first = bench.documents.put("notes", "a", b"")
        assert bench.documents.remove("notes", "a")
        second = bench.documents.put("notes", "a", b"")
        assert (second or 0) > (first or 0) > 0

    def test_a_repeated_write_gives_the_first_answer(self, bench: Bench) -> None:
        """A repeat with the same token changes nothing: it is no conflict, and a removal still answers True."""
        documents = bench.documents
        first = documents.put("notes", "a", b"one", expect=0, token="p")
        assert documents.put("notes", "a", b"one", expect=0, token="p") == first
        assert documents.put("notes", "a", b"two", expect=9, token="q") is None
        documents.put("notes", "a", b"three")
        assert documents.put("notes", "a", b"two", expect=9, token="q") is None
        assert [documents.remove("notes", "a", token="r") for _ in range(2)] == [True, True]
        documents.put("notes", "a", b"four")
        assert documents.remove("notes", "a", token="r")
        assert documents.count("notes") == 1

    def test_a_removal_can_expect_a_version(self, bench: Bench) -> None:
        """`remove` returns whether the document was removed. A document of another version stays."""
        first = bench.documents.put("notes", "a", b"")
        second = bench.documents.put("notes", "a", b"")
        assert not bench.documents.remove("notes", "a", expect=first)
        assert not bench.documents.remove("notes", "b")
        assert bench.documents.remove("notes", "a", expect=second)
        assert not bench.documents.remove("notes", "a")
        assert bench.documents.get("notes", ["a"]) == [None]

    def test_a_document_ends(self, bench: Bench) -> None:
        """After `ttl_ms` a document counts as absent everywhere. A put without `ttl_ms` lets it stay."""
        documents = bench.documents
        for name in ("a", "b"):
            documents.put("notes", name, b"", ttl_ms=100)
        documents.put("notes", "b", b"")
        bench.clock.advance(99)
        assert documents.count("notes") == 2
        bench.clock.advance(1)
        assert documents.get("notes", ["a"]) == [None]
        assert (ids_of(bench), documents.count("notes")) == (["b"], 1)
        assert not documents.remove("notes", "a")
        assert documents.put("notes", "a", b"", expect=0) is not None
        assert ids_of(bench) == ["a", "b"]

    @pytest.mark.parametrize("how", ["put", "sweep"])
    def test_a_document_that_has_ended_leaves_memory(self, bench: Bench, how: str) -> None:
        """The next put into its collection, or the next sweep, removes a document that has ended.

        So the document does not come back when the clock steps back.
        """
        bench.documents.put("notes", "a", b"", ttl_ms=10)
        bench.documents.put("log", "a", b"", ttl_ms=10)
        bench.clock.advance(10)
        if how == "put":
            bench.documents.put("notes", "b", b"")
        else:
            bench.store.sweep()
        bench.clock.advance(-60_000)
        assert "a" not in ids_of(bench)
        assert bench.documents.count("log") == (1 if how == "put" else 0)

    def test_a_collection_keeps_its_newest_documents(self, bench: Bench) -> None:
        """With `keep`, a put removes the documents whose last put is the oldest: 500 at most in one call."""
        for name in "abcd":
            bench.documents.put("notes", name, b"")
        bench.documents.put("notes", "a", b"")
        bench.documents.put("notes", "e", b"", keep=3)
        assert ids_of(bench) == ["e", "a", "d"]
        for n in range(600):
            bench.documents.put("notes", f"{n}", b"")
        bench.documents.put("notes", "last", b"", keep=2)
        assert bench.documents.count("notes") == 104
        bench.documents.put("notes", "last", b"", keep=2)
        assert ids_of(bench) == ["last", "599"]

    def test_pages_are_stable(self, bench: Bench) -> None:
        """The pages contain each document that stays exactly once, although others are put and removed meanwhile."""
        for n in range(9):
            bench.documents.put("notes", f"{n}", b"")
        page = bench.documents.newest("notes", 3)
        assert [document.id for document in page.documents] == ["8", "7", "6"]
        bench.documents.put("notes", "new", b"")
        bench.documents.remove("notes", "6")
        bench.documents.remove("notes", "4")
        seen = []
        while page.cursor is not None:
            page = bench.documents.newest("notes", 3, page.cursor)
            seen += [document.id for document in page.documents]
        assert seen == ["5", "3", "2", "1", "0"]
        assert bench.documents.newest("none", 3).documents == []

    def test_a_page_has_a_megabyte_of_values_at_most(self, bench: Bench) -> None:
        """A page of large documents ends early, and its cursor leads to the others. `get` returns all of them."""
        names = [f"{n}" for n in range(20)]
        for name in names:
            bench.documents.put("notes", name, b"x" * MAX_VALUE_BYTES)
        page = bench.documents.newest("notes", 100)
        assert (len(page.documents), page.cursor is None) == (16, False)
        rest = bench.documents.newest("notes", 100, behind=page.cursor)
        assert ([document.id for document in rest.documents], rest.cursor) == (["3", "2", "1", "0"], None)
        assert len([one for one in bench.documents.get("notes", names * 3) if one is not None]) == 60

    def test_documents_are_restored_as_they_were(self, bench: Bench) -> None:
        """A restore puts back values, times, ends and order. The restored documents have new versions.

        Documents that exist are not changed, and documents that have ended are not stored.
        """
        documents = bench.documents
        documents.put("notes", "a", b"old")
        documents.put("notes", "brief", b"x", ttl_ms=5)
        bench.clock.advance(1)
        documents.put("notes", "long", b"y", ttl_ms=500)
        documents.put("other-notes", "z", b"z")
        saved = documents.newest("notes", 10).documents[::-1]
        assert documents.collections() == ["notes", "other-notes"]
        for name in ("brief", "long"):
            documents.remove("notes", name)
        documents.put("notes", "a", b"new")
        bench.clock.advance(10)
        assert documents.restore("notes", saved) == 1
        assert ids_of(bench) == ["long", "a"]
        long, kept = documents.newest("notes", 10).documents
        assert (long.value, long.put_ms, long.until_ms) == (b"y", saved[2].put_ms, saved[2].until_ms)
        assert kept.value == b"new"
        assert long.version > max(one.version for one in saved)
        bench.clock.advance(500)
        assert ids_of(bench) == ["a"]

    def test_documents_lie_in_one_shard(self, wide: Bench) -> None:
        """All documents of a namespace lie in the same shard, whatever their ids are."""
        for n in range(5):
            wide.documents.put("notes", f"{n}", b"")
        for shard in range(3):
            ((found, last),) = wide.store.execute([Call(shard, ListDocuments("notes"))])
            assert (len(found), last) == (5 if shard == SHARD else 0, 0)

    @pytest.mark.parametrize(
        ("wrong", "why"),
        [
            ({"collection": "Notes"}, "collection"),
            ({"collection": "n" * 41}, "collection"),
            ({"document_id": ""}, "id"),
            ({"value": "text"}, "bytes"),
            ({"value": b"x" * (MAX_VALUE_BYTES + 1)}, "65537 bytes, the limit is 65536"),
            ({"expect": -1}, "expect"),
            ({"ttl_ms": 0}, "ttl_ms"),
            ({"keep": 0}, "keep"),
        ],
    )
    def test_a_malformed_document_is_refused(self, bench: Bench, wrong: dict[str, Any], why: str) -> None:
        """`put` refuses malformed arguments and stores nothing."""
        given = {"collection": "notes", "document_id": "a", "value": b"", **wrong}
        collection, document_id, value = given.pop("collection"), given.pop("document_id"), given.pop("value")
        with pytest.raises(Rejected, match=why):
            bench.documents.put(collection, document_id, value, **given)
        assert bench.documents.count("notes") == 0

    def test_a_malformed_question_is_refused(self, bench: Bench) -> None:
        """`newest` refuses a wrong limit and a text that is no cursor. `remove` refuses an impossible version."""
        for limit in (0, 501):
            with pytest.raises(Rejected, match="limit"):
                bench.documents.newest("notes", limit)
        for cursor in ("", "0", "x", "1\n", "9" * 17):
            with pytest.raises(Rejected, match="cursor"):
                bench.documents.newest("notes", 5, cursor)
        with pytest.raises(Rejected, match="expect"):
            bench.documents.remove("notes", "a", expect=0)
