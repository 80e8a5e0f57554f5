"""No page and no call about messages reads the whole store, for any number of messages and any search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from retry_topic import Connection, Message, connect
from retry_topic.management.filters import Filter, ListedMessage
from retry_topic.message.encoding import encode_body
from wheel_sched.store import Item

MOST = 2_000  # messages that a page reads, as docs/dashboard.md says
MANY = 2 * MOST + 500
WHOLE = {"keys", "scan", "hscan", "sscan", "zscan", "smembers", "hkeys", "hvals"}


@pytest.fixture(params=["memory", pytest.param("server", marks=pytest.mark.real)])
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A store in which more messages wait than two pages may read."""
    address = "memory:" if request.param == "memory" else request.getfixturevalue("redis_url")
    with connect(address) as opened:
        body, now_ms = encode_body(Message("orders", b"{}")), opened.store.now_ms() + 3_600_000
        items = [Item(f"m{number}", now_ms + number, body, "orders") for number in range(MANY)]
        for at in range(0, MANY, 500):
            opened.store.schedule(items[at : at + 500])
        yield opened


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that gets the id of each message that a search reads."""
    seen: list[str] = []
    matches = Filter.matches

    def counted(chosen: Filter, entry: ListedMessage) -> bool:
        seen.append(entry.id)
        return matches(chosen, entry)

    monkeypatch.setattr(Filter, "matches", counted)
    return seen


@pytest.mark.parametrize(
    "search",
    ["", "nowhere", "state:due error:*Timeout*", "topic:orders attempt>3", "topic:other", "due<2h key:k", "id:z"],
)
def test_the_list_of_messages_reads_a_bounded_part(
    see: Callable[..., Any], connection: Connection, read: list[str], search: str
) -> None:
    """The page and the API call read at most 2,000 messages, and the answer has a cursor. Neither of them sends a
    command that lists all keys of the server.
    """
    seen = see(connection=connection)
    seen.page("/items", search=search)
    read.clear()
    forget_commands(connection)
    found = seen.api("/items", search=search)
    assert len(read) <= MOST
    assert found["looked"] == len(read)
    assert found["cursor"] is not None or search == "topic:other"
    read.clear()
    seen.page("/items", search=search)
    assert len(read) <= MOST
    assert not commands(connection) & WHOLE


def forget_commands(connection: Connection) -> None:
    client: Any = getattr(connection.store.backend, "client", None)
    if client is not None:
        client.config_resetstat()
        assert "keys" not in commands(connection)


def commands(connection: Connection) -> set[str]:
    """The names of the commands that the server has performed so far; none for a store in memory."""
    client: Any = getattr(connection.store.backend, "client", None)
    return set() if client is None else {name.removeprefix("cmdstat_") for name in client.info("commandstats")}
