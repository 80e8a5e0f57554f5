"""Several processes that open one folder share one server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from wheel_sched.errors import EmbeddedServerError
from wheel_sched.store.embedded import EmbeddedServer

pytestmark = pytest.mark.real

RunOwner = Callable[[str], "subprocess.Popen[str]"]
WaitUntil = Callable[[Callable[[], bool]], None]

OPEN_AND_WAIT = (
    "server = EmbeddedServer.open(sys.argv[1])\n"
    "print(server.pid, server.started_here, flush=True)\n"
    "sys.stdin.read()\n"
    "server.close()\n"
)


def answer(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


def test_a_second_process_uses_the_first_one_s_server(folder: Path, run_owner: RunOwner) -> None:
    """A second process finds the running server of the folder. Its close() does not stop the server."""
    pid, started = answer(run_owner(OPEN_AND_WAIT))
    assert started == "True"
    with EmbeddedServer.open(folder) as found, redis.Redis.from_url(found.url) as client:
        assert (found.pid, found.started_here) == (int(pid), False)
        assert client.ping()
    assert found.alive


@pytest.mark.parametrize("turn", range(3))
def test_processes_that_open_at_the_same_instant_end_with_one_server(
    folder: Path, run_owner: RunOwner, turn: int
) -> None:
    """Four processes open the folder at the same time. One starts the server, and three find it."""
    processes = [run_owner("print('ready', flush=True)\nsys.stdin.readline()\n" + OPEN_AND_WAIT) for _ in range(4)]
    assert [answer(process) for process in processes] == [["ready"]] * 4
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [answer(process) for process in processes]
    assert len({pid for pid, _ in answers}) == 1
    assert sorted(started for _, started in answers) == ["False", "False", "False", "True"]
    with EmbeddedServer.open(folder) as found, redis.Redis.from_url(found.url) as client:
        assert client.info("server")["process_id"] == int(answers[0][0])


def test_after_the_owner_s_death_the_next_open_starts_over_the_same_data(
    folder: Path, run_owner: RunOwner, wait_until: WaitUntil
) -> None:
    """If the owner is killed, its server ends, even while another process uses it. The next open starts a server
    with the same data."""
    owner = run_owner(OPEN_AND_WAIT)
    answer(owner)
    with EmbeddedServer.open(folder) as found, redis.Redis.from_url(found.url) as client:
        client.set("k", "v")
        owner.kill()
        wait_until(lambda: not found.alive)
    with EmbeddedServer.open(folder) as server, redis.Redis.from_url(server.url) as client:
        assert server.started_here
        assert client.get("k") == b"v"


def test_who_shares_a_server_takes_it_over(folder: Path, run_owner: RunOwner, wait_until: WaitUntil) -> None:
    """After the owner's death, the first `take_over()` starts the server again with the same data and durability.

    A call on another object of the same process finds the new server. A further call, or one after close(), does
    nothing.
    """
    owner = run_owner(OPEN_AND_WAIT.replace("sys.argv[1]", "sys.argv[1], fsync='always'"))
    pid = int(answer(owner)[0])
    with EmbeddedServer.open(folder) as first, EmbeddedServer.open(folder) as second:
        with redis.Redis.from_url(first.url) as client:
            client.set("k", "v")
        assert not first.take_over()  # the owner lives
        owner.kill()
        wait_until(lambda: not first.alive)
        assert (first.take_over(), second.take_over(), second.take_over()) == (True, True, False)
        assert first.started_here
        assert first.pid == second.pid != pid
        with redis.Redis.from_url(second.url) as client:
            assert client.get("k") == b"v"
            assert client.config_get("appendfsync")["appendfsync"] == "always"
    assert not first.take_over()  # `first` was closed


def test_a_weaker_server_than_asked_for_is_refused(folder: Path) -> None:
    """`open` raises an error if the running server has a weaker `fsync` or another port than the caller wants."""
    with EmbeddedServer.open(folder, fsync="everysec") as first:
        with pytest.raises(EmbeddedServerError, match="at least 'always', got: 'everysec'"):
            EmbeddedServer.open(folder, fsync="always")
        with pytest.raises(EmbeddedServerError, match="expected port to be 29998, got: None"):
            EmbeddedServer.open(folder, port=29998)
        with EmbeddedServer.open(folder, fsync="no") as second:
            assert second.pid == first.pid
        assert first.alive


def test_a_server_that_does_not_answer_is_named_and_left_alone(folder: Path) -> None:
    """If the folder's server is frozen, the error names its pid, and no second server starts."""
    with EmbeddedServer.open(folder) as server:
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(EmbeddedServerError, match=rf"pid {server.pid}\) holds .* does not answer"):
                EmbeddedServer.open(folder, timeout_s=0.1)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert server.alive


def test_a_server_killed_alone_is_started_again_over_its_append_only_file(folder: Path) -> None:
    """If the server is killed and its owner still runs, the next `open` starts the server again. With
    `fsync="always"` no acknowledged write is lost."""
    with EmbeddedServer.open(folder, fsync="always") as server, redis.Redis.from_url(server.url) as client:
        client.set("k", "v")
        os.kill(server.pid, signal.SIGKILL)
    with EmbeddedServer.open(folder) as again, redis.Redis.from_url(again.url) as client:
        assert again.started_here
        assert again.pid != server.pid
        assert client.get("k") == b"v"


def test_a_stale_pid_file_of_a_recycled_pid_and_a_stale_socket_do_no_harm(folder: Path) -> None:
    """If the pid in an old pid file now belongs to another program, a server starts, and the program is not killed."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        (folder / "run").mkdir(parents=True)
        path = folder / "run" / "server.sock"
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
        (folder / "server.pid").write_text(f"{stranger.pid}\n{path}\n0\neverysec\n")
        with EmbeddedServer.open(folder) as server, redis.Redis.from_url(server.url) as client:
            assert server.started_here
            assert server.pid != stranger.pid
            assert client.ping()
        assert stranger.poll() is None
        stranger.communicate(b"\n")


@pytest.mark.parametrize("text", ["", "12", "12\n/x", "not a number\n/x\n0\nno\n", "12\n/x\n0\nno"])
def test_a_torn_pid_file_is_no_obstacle(folder: Path, text: str) -> None:
    """A server starts whatever the pid file contains, because only the lock on this file says that a server runs."""
    folder.mkdir()
    (folder / "server.pid").write_text(text)
    with EmbeddedServer.open(folder) as server:
        assert server.alive
