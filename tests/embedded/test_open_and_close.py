"""A process opens, uses and closes an embedded server of its own."""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from wheel_sched.errors import ConfigError
from wheel_sched.store.embedded import EmbeddedServer
from wheel_sched.store.embedded.folder import SOCKET_PATH_LIMIT
from wheel_sched.store.embedded.settings import Fsync

pytestmark = pytest.mark.real


def setting(client: redis.Redis, name: str) -> str | None:
    return client.config_get(name)[name]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_url_is_one_that_redis_py_connects_to(folder: Path) -> None:
    """redis-py connects to `url`, and the process that answers has the pid that the `EmbeddedServer` object names."""
    with EmbeddedServer.open(folder) as server, redis.Redis.from_url(server.url) as client:
        assert client.ping()
        assert client.info("server")["process_id"] == server.pid
        assert server.started_here
        assert server.alive
        assert server.folder == folder
        assert server.socket_path == folder / "run" / "server.sock"


def test_the_server_runs_with_the_settings_that_keep_messages(folder: Path) -> None:
    """The server has an append-only file, evicts no keys, writes no snapshots and listens on no port."""
    with EmbeddedServer.open(folder) as server, redis.Redis.from_url(server.url, decode_responses=True) as client:
        assert setting(client, "appendonly") == "yes"
        assert setting(client, "appendfsync") == "everysec"
        assert setting(client, "maxmemory-policy") == "noeviction"
        assert setting(client, "save") == ""
        assert setting(client, "port") == "0"
        assert server.port is None


@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
def test_fsync_is_passed_on(folder: Path, fsync: Fsync) -> None:
    """The server runs with the `fsync` that the caller gives."""
    with (
        EmbeddedServer.open(folder, fsync=fsync) as server,
        redis.Redis.from_url(server.url, decode_responses=True) as client,
    ):
        assert setting(client, "appendfsync") == fsync


def test_extra_lines_reach_the_server(folder: Path) -> None:
    """The server uses the settings of `extra`, also values of several words."""
    extra = {"hz": "25", "client-output-buffer-limit": "pubsub 64mb 16mb 90"}
    with (
        EmbeddedServer.open(folder, extra=extra) as server,
        redis.Redis.from_url(server.url, decode_responses=True) as client,
    ):
        assert setting(client, "hz") == "25"
        assert f"pubsub {64 << 20} {16 << 20} 90" in str(setting(client, "client-output-buffer-limit"))


def test_only_the_owner_may_reach_the_data(folder: Path) -> None:
    """Other users of the machine have no access to the folder, the socket and the files."""
    with EmbeddedServer.open(folder) as server:
        assert mode(folder) == 0o700
        assert mode(server.socket_path.parent) == 0o700
        assert mode(server.socket_path) == 0o700
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert {"server.pid", "server.log", "server.conf"} <= {path.name for path in files}
        assert {path.name: mode(path) & 0o077 for path in files} == {path.name: 0 for path in files}


def test_what_was_written_is_there_after_close_and_open(folder: Path) -> None:
    """close() syncs the append-only file, even if `fsync` leaves syncing to the kernel."""
    with EmbeddedServer.open(folder, fsync="no") as server, redis.Redis.from_url(server.url) as client:
        client.set("k", "v")
    with EmbeddedServer.open(folder, fsync="no") as server, redis.Redis.from_url(server.url) as client:
        assert client.get("k") == b"v"


def test_close_stops_the_server_cleanly_and_twice_is_once(folder: Path, occupied: Callable[[], bool]) -> None:
    """After close() no process is left, and the log shows an orderly end. A second close() does nothing."""
    server = EmbeddedServer.open(folder)
    assert occupied()
    server.close()
    assert not occupied()
    assert not server.alive
    assert "bye bye" in (folder / "server.log").read_text().splitlines()[-1]
    assert not server.socket_path.parent.exists()
    server.close()
    assert "closed" in repr(server)


def test_a_second_handle_of_the_same_process_finds_the_first_one_s_server(folder: Path) -> None:
    """If a process opens a folder twice, both objects use one server. Only closing the first object stops the
    server."""
    with EmbeddedServer.open(folder) as first:
        with EmbeddedServer.open(folder) as second:
            assert (second.pid, second.url, second.started_here) == (first.pid, first.url, False)
            assert "found running" in repr(second)
        assert first.alive


@pytest.mark.parametrize("name", ["a b", "a'b\"c\\d", "100%?x=1#y", "Füße"])
def test_any_name_of_a_folder_will_do(tmp_path: Path, name: str) -> None:
    """A folder's name may have blanks, quotes and other special characters. The server starts, and its URL works."""
    with EmbeddedServer.open(tmp_path / name) as server, redis.Redis.from_url(server.url) as client:
        assert client.ping()
        assert (tmp_path / name / "appendonlydir").is_dir()


def test_a_path_too_long_for_a_socket_gets_a_private_one_elsewhere(tmp_path: Path) -> None:
    """If the path of the folder is too long for a socket, the server's socket is in a private folder elsewhere.

    A second `EmbeddedServer` object finds the socket, and closing the server removes it.
    """
    folder = tmp_path / ("long" * 20) / ("longer" * 10)
    with EmbeddedServer.open(folder) as server:
        assert len(str(server.socket_path)) <= SOCKET_PATH_LIMIT
        assert folder not in server.socket_path.parents
        assert mode(server.socket_path.parent) == 0o700
        with EmbeddedServer.open(folder) as second, redis.Redis.from_url(second.url) as client:
            assert client.ping()
    assert not server.socket_path.parent.exists()


def test_a_folder_that_exists_keeps_its_mode_and_its_files(folder: Path) -> None:
    """Only a folder that open() creates is made private. An existing folder keeps its mode and its files."""
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    (folder / "notes.txt").write_text("mine")
    with EmbeddedServer.open(folder) as server:
        assert mode(folder) == 0o755
        assert mode(server.socket_path.parent) == 0o700
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_large_log_is_moved_aside(folder: Path) -> None:
    """If server.log is large when a server starts, it is renamed to server.log.1, so that it does not grow for ever."""
    folder.mkdir()
    with (folder / "server.log").open("wb") as log:
        log.truncate(9 * 1024 * 1024)
    EmbeddedServer.open(folder).close()
    assert (folder / "server.log.1").stat().st_size == 9 * 1024 * 1024
    assert (folder / "server.log").stat().st_size < 100_000


def test_opening_is_quick(folder: Path) -> None:
    """The fastest of five starts takes less than 0.3 s."""
    took_s = []
    for _ in range(5):
        begun_s = time.perf_counter()
        with EmbeddedServer.open(folder):
            took_s.append(time.perf_counter() - begun_s)
    assert min(took_s) < 0.3


def test_every_wrong_argument_is_named_at_once(folder: Path) -> None:
    """One error lists all wrong arguments, and no folder is created."""
    with pytest.raises(ConfigError) as caught:
        EmbeddedServer.open(
            folder,
            fsync="sometimes",  # type: ignore[arg-type]
            port=70_000,
            extra={"appendonly": "no", "hz": "10\nappendonly no", "Not A Name": "1"},
        )
    assert len(caught.value.problems) == 5
    assert "expected port to be None or 1 to 65535, got: 70000" in caught.value.problems
    assert not folder.exists()


def test_many_threads_may_open_and_close_one_folder(folder: Path, occupied: Callable[[], bool]) -> None:
    """Ten threads open and close a folder five times each. No call raises, no server is left, and no write is lost."""
    errors: list[BaseException] = []
    written: list[str] = []

    def work(thread: int) -> None:
        for turn in range(5):
            try:
                with EmbeddedServer.open(folder) as server:
                    if server.started_here:
                        with redis.Redis.from_url(server.url) as client:
                            client.set(f"{thread}:{turn}", 1)
                        written.append(f"{thread}:{turn}")
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert not occupied()
    with EmbeddedServer.open(folder) as server, redis.Redis.from_url(server.url) as client:
        assert client.exists(*written) == len(written) > 0
