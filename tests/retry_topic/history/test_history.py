"""The attempt history: what services and consumers write to the store, and how it is exported."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from retry_topic import ConsumerConfig, DeadLetters, Retry, RetryPolicy, ServiceConfig
from retry_topic.history import Attempt, Exported, HistoryWriter, attempts_in, export, read_attempt
from retry_topic.history.writer import _MOST_WAITING
from wheel_sched.cli.program import cli
from wheel_sched.errors import ConfigError, Rejected, StoreUnavailable
from wheel_sched.store import DelayStore, History, open_store

if TYPE_CHECKING:
    from conftest import Bench, Handler

Policy = Callable[..., RetryPolicy]
Handlers = Callable[..., "Handler"]

ROW = Attempt("m", "orders", 2, 1_000, 1_003, "ok", None, 0)


def rows_of(bench: Bench) -> list[Attempt]:
    store = bench.connection.store
    return sorted((row for shard in range(store.shards) for row in attempts_in(store, shard)), key=lambda r: r[:3])


@pytest.fixture
def store() -> Iterator[DelayStore]:
    with open_store("memory:") as opened:
        yield opened


def test_each_delivery_of_a_message_that_failed_leaves_a_row(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """The service writes a row for each failure, and the consumer writes a row for the success after it. No retry
    starts before its due time."""
    bench.serve(policy(max_attempts=5), history=1_000)
    consumer = bench.consume(handler(ValueError("a"), Retry(reason="b"), None), history=1_000)
    bench.publish(b"m")
    bench.until(lambda: len(rows_of(bench)) == 3)
    first, second, third = rows_of(bench)
    assert consumer.stats.acknowledged == 1
    assert [row.attempt for row in (first, second, third)] == [1, 2, 3]
    assert [row.outcome for row in (first, second, third)] == ["failed", "failed", "ok"]
    assert (first.error_class, second.error_class, third.error_class) == ("builtins.ValueError", None, None)
    assert {(row.id, row.topic) for row in (first, second, third)} == {(first.id, "orders")}
    assert (first.due_ms, first.shard) == (None, None)
    for row in (second, third):
        assert row.due_ms is not None
        assert row.shard == 0
        assert row.started_ms >= row.due_ms > first.started_ms


def test_a_message_that_is_given_up_ends_with_a_dead_row(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """If a message is given up, its last row has the outcome `dead`. A replay that succeeds at its first delivery adds
    no row."""
    handle = handler(ValueError("a"), ValueError("a"), None)
    bench.serve(policy(max_attempts=2), history=1_000)
    bench.consume(handle, history=1_000)
    bench.publish(b"m")
    bench.dead()
    bench.until(lambda: len(rows_of(bench)) == 2)
    assert [(row.attempt, row.outcome) for row in rows_of(bench)] == [(1, "failed"), (2, "dead")]
    assert DeadLetters(bench.connection).replay().replayed == 1
    bench.until(lambda: len(handle.calls) == 3)
    bench.quiet()
    assert len(rows_of(bench)) == 2  # after the replay, the message succeeded at its first delivery


def test_nothing_is_kept_unless_asked_for(memory: Bench, handler: Handlers, policy: Policy) -> None:
    """Without the setting `history`, service and consumer write no rows."""
    memory.serve(policy())
    consumer = memory.consume(handler(ValueError("a"), None))
    memory.publish(b"m")
    memory.until(lambda: consumer.stats.acknowledged == 1)
    assert rows_of(memory) == []


def test_what_goes_through_at_once_leaves_no_row(memory: Bench, handler: Handlers, policy: Policy) -> None:
    """A message that succeeds at its first delivery leaves no row."""
    memory.serve(policy(), history=1_000)
    consumer = memory.consume(handler(None), history=1_000)
    memory.publish(*[b"%d" % n for n in range(20)])
    memory.until(lambda: consumer.stats.acknowledged == 20)
    consumer.stop()
    assert rows_of(memory) == []


def test_rows_are_exported_once_and_what_is_no_row_is_counted(store: DelayStore, tmp_path: Path) -> None:
    """A repeated row is exported once, and unknown columns are ignored. Entries that are no rows are counted as
    unreadable."""
    newer = json.dumps([1, *ROW._replace(id="n"), "more"]).encode()
    entries = [ROW.encode(), ROW.encode(), newer, b"nonsense", b"[1, 2]", json.dumps([2, *ROW]).encode()]
    History(store).append([("m", entry) for entry in entries], keep=100)
    file = tmp_path / "attempts.jsonl"
    assert export(store, file) == Exported(2, 3, 1_003, 1_003)
    assert [json.loads(line) for line in file.read_text("utf-8").splitlines()] == [
        ROW._asdict(),
        ROW._replace(id="n")._asdict(),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["attempts.jsonl"]
    with pytest.raises(FileExistsError, match="it was not changed"):
        export(store, file)
    assert export(store, file, replace=True).rows == 2


def test_an_export_needs_a_name_that_says_what_it_is(store: DelayStore, tmp_path: Path) -> None:
    """A file name with the ending `.csv` is refused, and nothing is written."""
    with pytest.raises(ConfigError, match="ending with"):
        export(store, tmp_path / "attempts.csv")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "entry", [b"", b"{}", b"[]", b"[0]", b"[1]", b'["1", 2]', b"\xff", b"null", b"[1,1,2,3,4,5,6]"]
)
def test_bytes_that_are_no_row_are_refused(entry: bytes) -> None:
    """`read_attempt` raises `Rejected` for bytes that are no row."""
    with pytest.raises(Rejected):
        read_attempt(entry)


def test_a_row_survives_its_encoding() -> None:
    """A row with text beyond ASCII and a lone surrogate is equal after encoding and decoding."""
    row = Attempt("м\udcff", "t", 1, None, 5, "failed", "a.B")
    assert read_attempt(row.encode()) == row


class Away:
    """A store that is unavailable until `back` is set."""

    def __init__(self) -> None:
        self.back = threading.Event()
        self.store = open_store("memory:")
        self.plans = self.store.plans

    def run(self, plan: Any) -> Any:
        if not self.back.is_set():
            raise StoreUnavailable("away")
        return self.store.run(plan)


def test_a_store_that_is_away_costs_rows_and_nothing_else() -> None:
    """Rows are dropped and counted if too many wait or the store does not answer. When it answers, new rows are
    written."""
    away: Any = Away()
    writer = HistoryWriter(away, keep=10)
    writer.put([ROW] * (_MOST_WAITING + 5))
    assert writer.dropped == 5
    writer.start()
    deadline = threading.Event()
    for _ in range(6_000):
        if writer.dropped == _MOST_WAITING + 5:
            break
        deadline.wait(0.005)  # polls for half a minute at most
    assert writer.dropped == _MOST_WAITING + 5
    away.back.set()
    writer.put([ROW] * 3)
    writer.stop(30)
    writer.stop(30)
    assert (writer.written, len(History(away.store).read(0).entries)) == (3, 3)


@pytest.mark.parametrize("value", [-1, 1.5, True])
def test_a_history_that_is_no_number_is_refused(value: Any) -> None:
    """Service and consumer both refuse a wrong `history` setting."""
    with pytest.raises(ConfigError, match="expected history"):
        ServiceConfig(history=value)
    with pytest.raises(ConfigError, match="expected history"):
        ConsumerConfig(history=value)


def test_the_command_line_exports_a_history(redis_url: str, tmp_path: Path) -> None:
    """The export to JSON Lines needs no extra package. If there is no history, stderr says so."""
    with open_store(redis_url, shards=2) as store:
        file = str(tmp_path / "attempts.jsonl")
        empty = CliRunner().invoke(cli, ["--store", redis_url, "history", "export", file])
        assert (empty.exit_code, "there is no history" in empty.stderr) == (0, True)
        History(store).append([(f"m{n}", ROW._replace(id=f"m{n}").encode()) for n in range(30)], keep=1_000)
        done = CliRunner().invoke(cli, ["--store", redis_url, "history", "export", file, "--force", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {
        "file": file,
        "rows": 30,
        "unreadable": 0,
        "first_ms": 1_003,
        "last_ms": 1_003,
        "schema": 1,
    }
    assert len(Path(file).read_text("utf-8").splitlines()) == 30
