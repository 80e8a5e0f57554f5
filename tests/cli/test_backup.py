"""A backup or restore is complete or changes nothing, for a store in memory and on a real server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from wheel_sched.store import AttemptCounts, DelayStore, Item, open_store
from wheel_sched.store.core.items import STATES
from wheel_sched.store.documents import Documents
from wheel_sched.store.documents.operations import Document
from wheel_sched.store.fair_shares import FairSettings, FairShares, fair_ref
from wheel_sched.store.maintenance.backup import all_attempt_counts, all_documents, all_items, write_backup
from wheel_sched.store.maintenance.restoring import (
    BadBackup,
    NamespaceNotEmpty,
    restore_backup,
    verify_backup,
)

HOUR = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def contents(store: DelayStore) -> list[tuple[Any, ...]]:
    """All items of a store, without their shard numbers."""
    return sorted(
        (f.id, f.state, f.score_ms, f.version, f.topic, f.body, f.reason, f.refs, f.route or "")
        for state in STATES
        for f in all_items(store, state)
    )


def documents(store: DelayStore) -> list[tuple[str, Document]]:
    """All documents of a store, without their versions, newest first."""
    book = Documents(store)
    return [(name, replace(one, version=0)) for name in book.collections() for one in all_documents(book, name)]


def attempt_counts(store: DelayStore) -> set[tuple[str, int, int]]:
    return {(r.key, r.attempts, r.expiry_ms) for s in range(store.shards) for r in all_attempt_counts(store, s)}


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.real)])
def store(request: pytest.FixtureRequest) -> Iterator[DelayStore]:
    target = "memory:" if request.param == "memory" else request.getfixturevalue("redis_url")
    with open_store(target, shards=2) as opened:
        yield opened


@pytest.fixture
def filled(store: DelayStore) -> DelayStore:
    """A store with more than one page of items in every state, with refs, routes, any bytes and attempt counts."""
    now = now_ms()
    store.schedule([Item(f"i{n}", now + HOUR + n, b"\x00\xff%d" % n, f"t{n % 3}", (f"r{n % 5}",)) for n in range(700)])
    store.schedule([Item("routed", now + HOUR, b"x", route="elsewhere"), Item("parked", None, b"", "t1")])
    store.schedule([Item("Zoë\n\udcff", now + HOUR, b"x", "tøpic")])
    store.pause("t1")
    store.bury([(Item(f"d{n}", now + n, b"gone", "t0"), f"fatal: {n}") for n in range(30)])
    AttemptCounts(store).raise_to([(f"k{n}", n % 9 + 1, now + HOUR * n) for n in range(1, 600)])
    for n in range(120):
        Documents(store).put("audit", f"{n}", b"\xff%d" % n, ttl_ms=HOUR)
    Documents(store).put("notes", "a", b"a note")
    return store


def test_a_restore_equals_its_backup(filled: DelayStore, tmp_path: Path) -> None:
    """All contents are equal after a restore, even with another number of shards."""
    before, records, kept = contents(filled), attempt_counts(filled), documents(filled)
    written = write_backup(filled, tmp_path / "b", namespace="wheel")
    assert written.exact
    assert (written.items, written.attempt_counts, written.documents) == (733, len(records), 121)
    assert verify_backup(tmp_path / "b") == written
    with open_store("memory:", shards=3) as other:
        assert restore_backup(other, tmp_path / "b") == 733
        assert contents(other) == before
        assert attempt_counts(other) == records
        assert documents(other) == kept
        assert set(other.counts().paused) == {"t1"}
        assert sorted(other.find("r1")) == sorted(filled.find("r1"))
        counts = other.counts()
        assert all(counts.total(state) == counts.sizes[state] for state in STATES)


def test_items_that_wait_for_their_fair_share_are_kept(store: DelayStore, tmp_path: Path) -> None:
    """A backup has the items in the queues of fair keys and the items in flight, with their keys. After the restore
    they are shared again, as soon as their topic is fair there."""
    due, keys = now_ms() - 5_000, ["a"] * 40 + ["b"] * 3
    shares = FairShares(store)
    shares.configure("t", FairSettings(max_in_flight=2))
    store.schedule([Item(f"{key}.{n}", due + n, b"x", "t", (fair_ref(key),)) for n, key in enumerate(keys)])
    for shard in range(2):
        store.claim(1, shard=shard)
    found = shares.look("t")
    assert found is not None
    assert found.waiting > 0
    assert write_backup(store, tmp_path / "b", namespace="wheel").items == len(keys)
    with open_store("memory:") as other:
        assert restore_backup(other, tmp_path / "b") == len(keys)
        FairShares(other).configure("t", FairSettings())
        claimed = [item.id for item in other.claim(30).items]
        assert sum(item_id.startswith("b") for item_id in claimed) == 3
        assert len(claimed) + len(other.claim(100).items) == len(keys)


def test_items_in_flight_are_written_as_due_at_their_original_due(store: DelayStore, tmp_path: Path) -> None:
    """An item in flight is restored as due at its original due time, because its lease has no meaning in another
    store.

    An item that was cancelled in flight is not in the backup.
    """
    due = now_ms() - 5_000
    store.schedule([Item("flying", due, b"x"), Item("cancelled", due, b"x")])
    for shard in range(2):
        store.claim(10, shard=shard)
    store.cancel(["cancelled"])
    write_backup(store, tmp_path / "b", namespace="wheel")
    with open_store("memory:") as other:
        assert restore_backup(other, tmp_path / "b") == 1
        (found,) = other.list_items("due").found
    assert (found.id, found.score_ms) == ("flying", due)


def test_a_namespace_that_is_not_empty_takes_no_backup(filled: DelayStore, tmp_path: Path) -> None:
    """A restore into a namespace with items is refused. With `resume`, items of an earlier restore may be there."""
    write_backup(filled, tmp_path / "b", namespace="wheel")
    before = contents(filled)
    with pytest.raises(NamespaceNotEmpty, match="nothing was restored"):
        restore_backup(filled, tmp_path / "b")
    filled.cancel(["i0"])
    assert restore_backup(filled, tmp_path / "b", resume=True) == 1
    assert contents(filled) == before


def cut(lines: list[bytes]) -> list[bytes]:
    return lines[:-1]


def change(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[1].replace(b'"version":', b'"version":1'), *lines[2:]]


def leave_one_out(lines: list[bytes]) -> list[bytes]:
    return [*lines[:3], *lines[4:]]


def go_on(lines: list[bytes]) -> list[bytes]:
    return [*lines, lines[1]]


def tear(lines: list[bytes]) -> list[bytes]:
    return [*lines[:5], lines[5][:20]]


def headless(lines: list[bytes]) -> list[bytes]:
    return lines[1:]


def from_the_future(lines: list[bytes]) -> list[bytes]:
    return [lines[0].replace(b'"format":1', b'"format":2'), *lines[1:]]


@pytest.mark.parametrize("harm", [cut, change, leave_one_out, go_on, tear, headless, from_the_future])
def test_a_damaged_file_is_refused_before_anything_is_written(filled: DelayStore, tmp_path: Path, harm: Any) -> None:
    """A file that is shortened, changed or of another format is refused, and the namespace stays empty."""
    path = tmp_path / "b"
    write_backup(filled, path, namespace="wheel")
    path.write_bytes(b"".join(harm(path.read_bytes().splitlines(keepends=True))))
    with open_store("memory:") as other:
        with pytest.raises(BadBackup, match="nothing was restored"):
            restore_backup(other, path)
        assert contents(other) == []


def test_every_line_is_json_with_a_kind(filled: DelayStore, tmp_path: Path) -> None:
    """Each line of a backup is JSON for other tools: the header, items, attempt counts, documents and the footer."""
    write_backup(filled, tmp_path / "b", namespace="wheel")
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "b").read_bytes().splitlines()]
    assert (kinds[0], kinds[-1]) == ("wheel-sched-backup", "footer")
    assert set(kinds[1:-1]) == {"item", "attempt_count", "document"}


def test_a_backup_that_fails_leaves_the_earlier_one(filled: DelayStore, tmp_path: Path) -> None:
    """If a backup fails, the earlier file is unchanged, and no temporary file is left."""
    path = tmp_path / "b"
    path.write_text("the earlier one")

    def stop(count: int) -> None:
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="disk is full"):
        write_backup(filled, path, namespace="wheel", replace=True, progress=stop)
    assert path.read_text() == "the earlier one"
    assert [entry.name for entry in tmp_path.iterdir()] == ["b"]


def test_only_its_owner_can_read_a_backup_and_it_replaces_no_file(filled: DelayStore, tmp_path: Path) -> None:
    """A backup has all payloads, so only its owner may read it. Without `replace` it replaces no file, even one
    that appears while the backup is written."""
    path = tmp_path / "b"
    write_backup(filled, path, namespace="wheel")
    assert path.stat().st_mode & 0o777 == 0o600
    whole = path.read_bytes()
    with pytest.raises(FileExistsError, match="it was not changed"):
        write_backup(filled, path, namespace="wheel")
    other = tmp_path / "c"
    with pytest.raises(FileExistsError, match="it was not changed"):
        write_backup(filled, other, namespace="wheel", progress=lambda _: other.touch())
    assert (path.read_bytes(), other.read_bytes()) == (whole, b"")
    write_backup(filled, path, namespace="wheel", replace=True)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["b", "c"]


def test_an_empty_backup_replaces_none_with_items(filled: DelayStore, tmp_path: Path) -> None:
    """A backup without items does not replace one with items, even with `replace`: the namespace may be mistyped."""
    path = tmp_path / "b"
    write_backup(filled, path, namespace="wheel")
    whole = path.read_bytes()
    with open_store("memory:") as empty:
        with pytest.raises(FileExistsError, match="nothing was replaced"):
            write_backup(empty, path, namespace="wheel", replace=True)
        assert path.read_bytes() == whole
        path.write_text("no backup")
        assert write_backup(empty, path, namespace="wheel", replace=True).items == 0
        assert write_backup(empty, path, namespace="wheel", replace=True).items == 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["b"]


def test_a_backup_that_is_nested_too_deeply_is_refused_in_words(filled: DelayStore, tmp_path: Path) -> None:
    """If the JSON in a backup file is nested too deeply for Python, `verify_backup` raises `BadBackup`.

    A new backup may replace the file.
    """
    path = tmp_path / "b"
    path.write_bytes(b"[" * 200_000)
    with pytest.raises(BadBackup, match="nested too deeply; nothing was restored"):
        verify_backup(path)
    assert write_backup(filled, path, namespace="wheel", replace=True).items


def test_the_command_replaces_a_file_with_force(cli: Any, opened: Any, wait_for: Any) -> None:
    """Without --force the command refuses to replace a file, and the error names --force."""
    wait_for("w", now_ms() + HOUR)
    assert cli.json("backup", "b.jsonl")["items"] == 1
    refused = cli("backup", "b.jsonl", code=1)
    assert "b.jsonl exists: nothing was written" in refused.stderr
    assert "--force" in refused.stderr
    assert cli.json("backup", "b.jsonl", "--force")["items"] == 1


def test_an_item_that_moves_during_a_backup_is_written_once(filled: DelayStore, tmp_path: Path) -> None:
    """During a backup, an item is stored whose due time lies in the part that was read already. A second pass finds
    the item, and the backup is marked as not exact."""
    moved = []

    def move(count: int) -> None:
        if not moved:
            moved.append(True)
            filled.cancel(["i699"])
            filled.schedule([Item("late", now_ms() + 1, b"new")])  # due earlier than the items that were read

    written = write_backup(filled, tmp_path / "b", namespace="wheel", progress=move)
    assert not written.exact
    lines = [json.loads(line) for line in (tmp_path / "b").read_bytes().splitlines()]
    names = [line["id"] for line in lines if line["kind"] == "item"]
    assert names.count("late") == 1
    assert len(names) == len(set(names))


def test_a_missing_folder_is_an_error_without_a_traceback(cli: Any, opened: Any) -> None:
    """If the folder of the backup file does not exist, the command prints an error without a traceback, and exits
    with 1."""
    assert "there is no such folder" in cli("backup", "nowhere/b.jsonl", code=1).stderr
