"""The owner of a shared embedded server dies. Then a store in another process starts the server again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from wheel_sched.dispatcher.listener import Listener
from wheel_sched.store import DelayStore, Item, open_store
from wheel_sched.store.redis.embedded_backend import EmbeddedBackend

pytestmark = pytest.mark.real

RunOwner = Callable[[str], "subprocess.Popen[str]"]
WaitUntil = Callable[[Callable[[], bool]], None]

OWN = """
from wheel_sched.store import Item, open_store
store = open_store(f"embedded:{sys.argv[1]}")
store.schedule([Item("old", 1, b"")])
print(store.backend.server.pid, flush=True)
sys.stdin.read()
"""


def server_of(store: DelayStore) -> Any:
    assert isinstance(store.backend, EmbeddedBackend)
    return store.backend.server


@pytest.fixture
def shared(folder: Path, run_owner: RunOwner) -> Any:
    """A process that owns a folder's server and has stored an item there, and two stores opened on the same server."""
    owner = run_owner(OWN)
    assert owner.stdout is not None
    owner.stdout.readline()
    with ExitStack() as stack:
        stores = [open_store(f"embedded:{folder}") for _ in range(2)]
        for store in stores:
            stack.callback(store.close)
        yield owner, stores


def test_a_call_after_the_owner_s_death_succeeds(shared: Any, wait_until: WaitUntil) -> None:
    """The owner of a shared server dies. A call of one store starts the server again, and another store finds all items
    there."""
    owner, (one, other) = shared
    assert not server_of(one).started_here
    owner.kill()
    wait_until(lambda: not server_of(one).alive)
    assert one.schedule([Item("new", 2, b"")]).accepted == 1
    assert [item.id for item in other.claim(10, lease_ms=60_000).items] == ["old", "new"]
    assert [server_of(store).started_here for store in (one, other)].count(True) == 1
    assert one.counts().sizes["leased"] == 2


def test_many_threads_end_with_one_server(shared: Any, wait_until: WaitUntil) -> None:
    """Eight threads of two stores call after the owner's death. All calls succeed, and only one server runs."""
    owner, stores = shared
    owner.kill()
    wait_until(lambda: not server_of(stores[0]).alive)
    found: list[int] = []

    def store_some(store: DelayStore, number: int) -> None:
        for n in range(5):
            found.append(store.schedule([Item(f"{number}.{n}", 2, b"")]).accepted)

    threads = [threading.Thread(target=store_some, args=(stores[n % 2], n)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 40
    assert stores[0].counts().sizes["due"] == 41
    assert [server_of(store).started_here for store in stores].count(True) == 1


def test_who_only_waits_takes_over_as_well(shared: Any, wait_until: WaitUntil) -> None:
    """A listener whose only call is a blocking read also starts the server again after the owner's death."""
    owner, (one, other) = shared
    again = threading.Event()
    marks = {window.shard: window.mark for window in one.windows(0)}
    listener = Listener(one.backend, marks, lambda *_: None, lambda _: again.set(), 20_000)
    listener.start()
    try:
        owner.kill()
        assert again.wait(20)
        wait_until(lambda: bool(server_of(one).alive))
        assert server_of(one).started_here
        assert other.counts().sizes["due"] == 1
    finally:
        listener.stop()


def test_the_owner_itself_starts_a_crashed_server_again(folder: Path) -> None:
    """If the server is killed and its owner still runs, the owner's next call starts the server again. With
    `durability="fsync"` nothing is lost."""
    with open_store(f"embedded:{folder}", durability="fsync") as store:
        store.schedule([Item("a", 1, b"")])
        pid = server_of(store).pid
        os.kill(pid, signal.SIGKILL)
        assert store.counts().sizes["due"] == 1
        assert server_of(store).pid != pid


def test_a_socket_that_moved_is_followed(tmp_path: Path, wait_until: WaitUntil) -> None:
    """If the folder's path is too long for a socket, each start of the server makes a socket at a new path. The store
    connects to the new socket."""
    folder = tmp_path / ("deep" * 30)
    owner = subprocess.Popen(
        [sys.executable, "-c", "import sys\n" + OWN, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        with open_store(f"embedded:{folder}") as store:
            client: Any = store.backend.client  # type: ignore[attr-defined]
            owner.kill()
            wait_until(lambda: not server_of(store).alive)
            assert store.counts().sizes["due"] == 1
            assert client.ping()


def test_a_closed_store_starts_nothing(shared: Any, occupied: Callable[[], bool], wait_until: WaitUntil) -> None:
    """A closed store does not start the server again after the owner's death."""
    owner, stores = shared
    for store in stores:
        store.close()
    owner.kill()
    wait_until(lambda: not occupied())
    assert not server_of(stores[0]).take_over()
    assert not occupied()
