"""An embedded server ends with the process that started it, its owner, however the owner ends, and not before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from wheel_sched.store.embedded import EmbeddedServer
from wheel_sched.store.embedded.folder import DataFolder

pytestmark = pytest.mark.real

RunOwner = Callable[[str], "subprocess.Popen[str]"]
Occupied = Callable[[], bool]
WaitUntil = Callable[[Callable[[], bool]], None]

OPEN_AND_WAIT = "server = EmbeddedServer.open(sys.argv[1])\nprint(server.url, flush=True)\nsys.stdin.read()\n"


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def ended_cleanly(folder: Path) -> bool:
    return "bye bye" in (folder / "server.log").read_text()


def test_sigkill_of_the_owner_stops_the_server_with_its_data_synced(
    folder: Path, run_owner: RunOwner, occupied: Occupied, wait_until: WaitUntil
) -> None:
    """After SIGKILL of the owner the server gets SIGTERM, writes all data to disk, and ends."""
    owner = run_owner(OPEN_AND_WAIT)
    with redis.Redis.from_url(line(owner)) as client:
        client.set("k", "v")
    owner.kill()
    wait_until(lambda: not occupied())
    assert "Received SIGTERM" in (folder / "server.log").read_text()
    assert ended_cleanly(folder)
    with EmbeddedServer.open(folder) as server, redis.Redis.from_url(server.url) as client:
        assert client.get("k") == b"v"


def test_a_server_opened_by_a_short_lived_thread_outlives_the_thread_but_not_the_process(
    run_owner: RunOwner, occupied: Occupied, wait_until: WaitUntil
) -> None:
    """A server runs until its owner's process ends, even if the thread that opened it ends earlier."""
    owner = run_owner(
        "import threading\n"
        "thread = threading.Thread(target=lambda: print(EmbeddedServer.open(sys.argv[1]).url, flush=True))\n"
        "thread.start(); thread.join(); print('thread is gone', flush=True)\n"
        "sys.stdin.read()\n"
    )
    url = line(owner)
    assert line(owner) == "thread is gone"
    with redis.Redis.from_url(url) as client:
        for _ in range(20):
            assert client.ping()
    assert occupied()
    owner.kill()
    wait_until(lambda: not occupied())


@pytest.mark.parametrize("deed", ["pass", "server.close()"])
def test_a_forked_child_neither_stops_nor_keeps_its_parent_s_server(
    folder: Path, run_owner: RunOwner, occupied: Occupied, wait_until: WaitUntil, deed: str
) -> None:
    """A forked child cannot stop its parent's server. The server ends with the parent, even while the child still
    runs."""
    owner = run_owner(
        "server = EmbeddedServer.open(sys.argv[1])\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        f"    {deed}; print(server.started_here, server.alive, flush=True)\n"
        "    sys.stdin.read(); os._exit(0)\n"
        "print(child, flush=True)\n"
        "sys.stdin.read()\n"
    )
    lines = {line(owner), line(owner)}
    assert "False True" in lines, "the child may not stop its parent's server"
    (child,) = (int(text) for text in lines if text.isdigit())
    assert occupied()
    owner.kill()
    wait_until(lambda: not occupied())
    os.kill(child, 0)  # the child is still there
    assert ended_cleanly(folder)


@pytest.mark.parametrize("ending", ["", "sys.exit(3)", "raise RuntimeError('oops')"])
def test_an_owner_that_forgets_to_close_stops_its_server_at_exit(folder: Path, occupied: Occupied, ending: str) -> None:
    """If the owner exits without calling `close()`, even by an error, its server has ended when the owner has."""
    code = "import sys\nfrom wheel_sched.store.embedded import EmbeddedServer\nEmbeddedServer.open(sys.argv[1])\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code + ending, str(folder)], capture_output=True, text=True
    )
    assert not occupied()
    assert ended_cleanly(folder)
    assert "ResourceWarning" not in done.stderr


def test_ctrl_c_in_the_terminal_leaves_the_server_to_its_owner(folder: Path) -> None:
    """A terminal sends Ctrl-C to the whole process group. The server ignores it, because the owner may still need
    the server."""
    code = (
        "import sys, time\nfrom wheel_sched.store.embedded import EmbeddedServer\n"
        "server = EmbeddedServer.open(sys.argv[1])\n"
        "try:\n    print('ready', flush=True); sys.stdin.read()\n"
        "except KeyboardInterrupt:\n"
        "    time.sleep(0.3)\n"  # a server that obeys a signal ends within 0.1 s
        "    print(server.alive, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as owner:
        assert line(owner) == "ready"
        os.killpg(owner.pid, signal.SIGINT)
        assert line(owner) == "True"


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's own")
def test_sigkill_of_the_supervisor_stops_the_server(folder: Path, occupied: Occupied, wait_until: WaitUntil) -> None:
    """If the supervisor, the server's parent process, is killed, the kernel sends SIGTERM to the server."""
    with EmbeddedServer.open(folder) as server:
        status = Path(f"/proc/{server.pid}/status").read_text()
        (supervisor,) = (int(row.split()[1]) for row in status.splitlines() if row.startswith("PPid:"))
        os.kill(supervisor, signal.SIGKILL)
        wait_until(lambda: not occupied())
    assert ended_cleanly(folder)
    with EmbeddedServer.open(folder) as again:
        assert again.started_here


def test_the_server_lives_on_when_the_handle_is_dropped(folder: Path) -> None:
    """If a program keeps only the URL and drops the `EmbeddedServer` object, the server runs on."""
    url = EmbeddedServer.open(folder).url
    with redis.Redis.from_url(url) as client:
        assert client.ping()
        client.shutdown(nosave=True)
    assert DataFolder(folder).log_path.exists()
