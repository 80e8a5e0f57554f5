"""`fsync` on a machine that loses power: the test cuts the server's append-only file back to its synced length.

A SIGKILL does not lose data that the kernel has. So a preloaded library notes the file's length at each fsync and
fdatasync, and the test cuts the file back to that length. The library needs a C compiler.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from retry_topic import connect
from tests.servers.valkey import TemporaryServer, temporary_server
from wheel_sched.errors import StoreError, WheelSchedError
from wheel_sched.store import open_store
from wheel_sched.store.embedded.settings import Fsync

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("cc") is None, reason="the library that notes each sync needs a C compiler"),
]

TOPIC = "orders"
SYNC_NOTES = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int noted(int fd, const char *name) {
    char link[64], path[4096], line[4200];
    struct stat before;
    int (*sync)(int) = dlsym(RTLD_NEXT, name);
    fstat(fd, &before);
    int result = sync(fd);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (result == 0 && length > 0) {
        path[length] = 0;
        if (strstr(path, ".incr.aof")) {
            int log = open(getenv("SYNC_NOTES"), O_WRONLY | O_APPEND | O_CREAT, 0600);
            int size = snprintf(line, sizeof line, "%lld %s\n", (long long)before.st_size, path);
            if (write(log, line, size) != size) abort();
            close(log);
        }
    }
    return result;
}
int fsync(int fd) { return noted(fd, "fsync"); }
int fdatasync(int fd) { return noted(fd, "fdatasync"); }
"""


class Machine:
    """A server on a simulated machine that can lose its power."""

    def __init__(self, server: TemporaryServer, notes: Path) -> None:
        self.server = server
        self._notes = notes

    def lose_power(self) -> None:
        """Kill the server and keep only the synced part of its append-only file."""
        self.server.sigkill()
        synced = dict.fromkeys(map(str, self.server.folder.rglob("*.incr.aof")), 0)
        for note in self._notes.read_text().splitlines() if self._notes.exists() else ():
            size, _, path = note.partition(" ")
            synced[path] = int(size)
        for path, length in synced.items():
            assert Path(path).stat().st_size >= length
            os.truncate(path, length)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the library that notes each sync."""
    folder = tmp_path_factory.mktemp("sync")
    (folder / "notes.c").write_text(SYNC_NOTES)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "notes.so", "notes.c", "-ldl"], cwd=folder, check=True)
    return folder / "notes.so"


@contextlib.contextmanager
def machine(library: Path, notes: Path, fsync: Fsync) -> Iterator[Machine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(library))
        patch.setenv("SYNC_NOTES", str(notes))
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(temporary_server(fsync=fsync))
            patch.undo()
            yield Machine(server, notes)


def lost(machine: Machine, durability: str) -> list[str]:
    """Return the acknowledged writes that are lost after the power failure, by kind and number."""
    acknowledged: list[str] = []
    with connect(machine.server.url, durability=durability, create_topics=True) as connection:
        consumer = connection.broker.consumer([TOPIC], "group")
        connection.publish(TOPIC, b"first")
        (first,) = consumer.poll(1, 1_000)
        began_s = time.monotonic()
        power = threading.Timer(0.4, machine.lose_power)
        power.start()
        with contextlib.suppress(WheelSchedError):
            for n in range(1_000_000):
                connection.publish("later", b"", delay=3_600, id=f"delayed-{n}")
                acknowledged.append(f"delayed-{n}")
                connection.publish("now", b"published-%d" % n)
                acknowledged.append(f"published-{n}")
                if n == 3:
                    consumer.ack([first])
                    acknowledged.append("settled")
        power.join()
        assert time.monotonic() - began_s < 30
    machine.server.restart()
    with connect(machine.server.url) as connection:
        delayed = [one for one in acknowledged if one.startswith("delayed")]
        gone = [i for i, found in zip(delayed, connection.store.get(delayed), strict=True) if found is None]
        reader = connection.broker.consumer(["now", TOPIC], "reader")
        there: set[str] = set()
        while batch := reader.poll(500, 50):
            there |= {delivery.message.value.decode() for delivery in batch}
        gone += [one for one in acknowledged if one.startswith("published") and one not in there]
        again = connection.broker.consumer([TOPIC], "group", idle_ms=1)
        if "settled" in acknowledged and again.poll(1, 50):
            gone.append("settled")
    assert {one.partition("-")[0] for one in acknowledged} == {"delayed", "published", "settled"}
    return gone


def test_fsync_keeps_every_acknowledged_write_when_the_machine_dies(library: Path, tmp_path: Path) -> None:
    """With `fsync`, no acknowledged publish, delayed publish or ack is lost."""
    with machine(library, tmp_path / "notes", "always") as it:
        assert lost(it, "fsync") == []


def test_everysec_loses_what_was_not_synced_when_the_machine_dies(library: Path, tmp_path: Path) -> None:
    """With `everysec`, acknowledged publishes are lost. So the simulated power failure does lose unsynced writes.

    A store with the level `fsync` does not open on a server with `everysec`.
    """
    with machine(library, tmp_path / "notes", "everysec") as it:
        with pytest.raises(StoreError, match="CONFIG SET appendfsync always"):
            open_store(it.server.url, durability="fsync")
        gone = {one.partition("-")[0] for one in lost(it, "everysec")}
        assert {"delayed", "published"} <= gone
