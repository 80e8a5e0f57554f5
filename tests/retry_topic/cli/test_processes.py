"""Real `wheel-sched` processes: exit codes, signals, stdout and stderr, terminals, and a running service."""

from __future__ import annotations

import http.client
import json
import os
import pty
import signal
import subprocess
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.servers.valkey import temporary_server

pytestmark = [pytest.mark.real, pytest.mark.slow]

EMBEDDED = ("--store", "embedded:data")


def read_until(process: subprocess.Popen[bytes], words: bytes) -> bytes:
    """Read stderr up to a line that contains `words`, and return that line. Fail if the process ends before."""
    assert process.stderr is not None
    seen = b""
    while True:
        line = process.stderr.readline()
        assert line, seen
        seen += line
        if words in line:
            return line


def test_data_goes_to_stdout_and_narration_to_stderr(wheel_sched: Any) -> None:
    """`publish` prints only the id to stdout, and its notes to stderr. The first publish creates the data folder."""
    done = wheel_sched(*EMBEDDED, "publish", "orders", "-", "--create", "--delay", "1h", "--key", "k", stdin=b"hi")
    assert done.returncode == 0, done.stderr
    (message_id,) = done.stdout.split()
    assert done.stderr == b"1 message stored, to be published when due\n"
    listed = wheel_sched(*EMBEDDED, "list", "--json")
    assert json.loads(listed.stdout)["id"] == message_id.decode()
    assert listed.stderr == b""
    shown = wheel_sched(*EMBEDDED, "show", message_id.decode())
    assert b"\x1b" not in shown.stdout  # no terminal, no colour


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("--version",), 0),
        (("policy", "simulate", "default", "--attempts", "3"), 0),
        ((*EMBEDDED, "list"), 1),
        (("list", "--since", "5"), 2),
        (("nosuch",), 2),
        (("--store", "redis://127.0.0.1:1", "list"), 69),
        (("--store", "unix:///nowhere.sock", "stats"), 69),
        (("--store", "redis://127.0.0.1:1", "doctor"), 69),
    ],
)
def test_exit_codes(wheel_sched: Any, args: tuple[str, ...], code: int) -> None:
    """0: done. 1: failed. 2: wrong usage. 69: the server does not answer. No command prints a traceback."""
    done = wheel_sched(*args)
    assert done.returncode == code, done.stderr
    assert b"Traceback" not in done.stderr
    assert bool(done.stderr) == (code != 0 and "doctor" not in args)


def test_the_help_is_quick(wheel_sched: Any) -> None:
    """`--help` takes less than 3 times as long as a bare `import click`, plus 0.1 s. The best of five runs counts."""
    import sys

    def best(run: Any) -> float:
        times = []
        for _ in range(5):
            started = time.perf_counter()
            run()
            times.append(time.perf_counter() - started)
        return min(times)

    bare = best(lambda: subprocess.run([sys.executable, "-c", "import click"], check=True))
    assert best(lambda: wheel_sched("--help")) < 3 * bare + 0.1


def test_ctrl_c_is_130_and_says_so(started: Any) -> None:
    """Ctrl-C ends a command that waits for stdin with exit code 130 and without a traceback."""
    process = started(*EMBEDDED, "--namespace", "n", "publish", "orders", "-", "--create")
    until = time.monotonic() + 40
    while not (Path("data") / "server.log").exists() or b"Ready" not in (Path("data") / "server.log").read_bytes():
        assert time.monotonic() < until
        time.sleep(0.02)  # polls: the process prints nothing while it waits for stdin
    time.sleep(0.3)  # time until the process blocks in its read of stdin
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=40)
    assert process.returncode == 130
    assert out == b""
    assert b"interrupted" in err
    assert b"Traceback" not in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_serve_ends_on_a_signal_after_draining(started: Any, number: int, code: int) -> None:
    """`serve` ends with 0 on SIGTERM and with 130 on Ctrl-C. In both cases it prints its summary."""
    process = started(*EMBEDDED, "serve", "billing", "--json")
    read_until(process, b"serving billing")
    process.send_signal(number)
    out, err = process.communicate(timeout=40)
    assert process.returncode == code, err
    assert json.loads(out)["group"] == "billing"
    assert b"Traceback" not in err


def test_serve_brings_back_what_is_due_on_time(started: Any, wheel_sched: Any, tmp_path: Path) -> None:
    """`serve`, the other commands and this test share one embedded server. `serve` delivers a delayed message."""
    from retry_topic import connect

    service = started(*EMBEDDED, "serve", "billing")
    read_until(service, b"serving billing")
    sent = wheel_sched(*EMBEDDED, "publish", "orders", "x", "--delay", "700ms", "--create")
    assert sent.returncode == 0, sent.stderr
    with connect(f"embedded:{tmp_path / 'data'}") as opened:
        consumer = opened.broker.consumer(["orders"], "g")
        (delivery,) = consumer.poll(1, 20_000)
        assert delivery.message.value == b"x"
        consumer.ack([delivery])
    doctor = wheel_sched(*EMBEDDED, "doctor")
    assert doctor.returncode == 0, doctor.stdout
    assert wheel_sched(*EMBEDDED, "reshard", "2", "--yes").returncode == 1  # a dispatcher runs


def test_serve_answers_probes_and_metrics(started: Any) -> None:
    """While the server is down, `serve` reports itself alive and not ready, and the metrics say that the
    store is down."""

    def get(page: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection(address, timeout=40)
        try:
            connection.request("GET", f"/{page}")
            reply = connection.getresponse()
            return reply.status, reply.read().decode()
        finally:
            connection.close()

    def wait_ready(expected: int) -> None:
        until_s = time.monotonic() + 40
        while get("readyz")[0] != expected:
            assert time.monotonic() < until_s, get("readyz")
            time.sleep(0.05)  # until the service has noticed

    with temporary_server() as server:
        service = started("--store", server.url, "serve", "billing", "--http", "0")
        address = read_until(service, b"metrics and probes at").split(b"//")[-1].strip().decode()
        wait_ready(200)
        assert get("livez") == (200, "ok\n")
        status, text = get("metrics")
        assert status == 200
        assert "wheel_sched_store_up 1.0" in text
        assert 'wheel_sched_fire_lateness_seconds_count{dispatcher="billing"} 0.0' in text
        assert 'wheel_sched_purgatory_delayed{purgatory="billing"} 0.0' in text
        server.sigkill()
        wait_ready(503)
        assert get("livez") == (200, "ok\n")
        assert "wheel_sched_store_up 0.0" in get("metrics")[1]


def test_serve_refuses_a_wrong_address(started: Any) -> None:
    """`serve` refuses a wrong --http address before it creates a data folder."""
    process = started(*EMBEDDED, "serve", "billing", "--http", "loopback")
    _, err = process.communicate(timeout=40)
    assert process.returncode == 2
    assert b"expected HOST:PORT" in err
    assert not Path("data").exists()


@pytest.mark.parametrize("way", ["flag", "environment"])
def test_with_json_logs_every_line_of_stderr_is_json(started: Any, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """From the start to the end of a service, its comments and its log records are JSON, one object a line."""
    if way == "environment":
        monkeypatch.setenv("WHEEL_SCHED_LOG_FORMAT", "json")
    flags = ("--log-format", "json") if way == "flag" else ()
    process = started(*EMBEDDED, *flags, "serve", "billing", "--log-level", "debug")
    first = json.loads(read_until(process, b"serving"))
    assert (first["level"], first["logger"]) == ("info", "wheel_sched.cli")
    assert first["message"].startswith("serving billing from embedded:data")
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate(timeout=40)
    assert process.returncode == 0
    messages = [json.loads(line)["message"] for line in rest.splitlines()]
    assert "billing: 0 published, 0 failed, 0 dead" in messages


def test_an_error_at_the_start_is_json_too(wheel_sched: Any) -> None:
    """A service that cannot reach its store ends with exit code 69, and says why in a JSON object."""
    done = wheel_sched("--store", "redis://ada:lovelace@127.0.0.1:1/0", "--log-format", "json", "serve", "billing")
    assert done.returncode == 69
    last = json.loads(done.stderr.splitlines()[-1])
    assert last["message"].startswith("wheel-sched: ")
    assert b"lovelace" not in done.stderr


def test_an_unknown_log_format_is_refused(wheel_sched: Any) -> None:
    """The error names the setting and the known log formats. Nothing is started."""
    done = wheel_sched(*EMBEDDED, "--log-format", "xml", "serve", "billing")
    assert done.returncode == 2
    assert b"log_format" in done.stderr
    assert b"json" in done.stderr
    assert not Path("data").exists()


def test_a_reader_that_has_seen_enough_ends_the_listing_quietly(wheel_sched: Any, started: Any, tmp_path: Path) -> None:
    """`list --json | head -1` ends with exit code 0 and prints no error."""
    (tmp_path / "lines").write_bytes(b"x" * 100 + b"\n" + b"y\n" * 3_000)
    assert wheel_sched(*EMBEDDED, "publish", "t", "--lines", "lines", "--delay", "1h", "--create").returncode == 0
    process = started(*EMBEDDED, "list", "--json")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(20) == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""


def test_a_terminal_that_knows_no_unicode_still_gets_the_numbers(wheel_sched: Any) -> None:
    """On a terminal without Unicode, the bars of the plot are escaped, and the numbers are readable."""
    env = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    done = wheel_sched("policy", "simulate", "default", "--attempts", "3", env=env)
    assert done.returncode == 0, done.stderr
    assert b"\\u259" in done.stdout


def test_settings_come_from_the_environment_and_the_file(wheel_sched: Any, tmp_path: Path) -> None:
    """The environment overrides the settings file, in a real process too."""
    (tmp_path / "wheel-sched.toml").write_text('namespace = "from-file"\nprefix = "p:"\n')
    done = wheel_sched("config", "show", "--origin", "--json", env={"WHEEL_SCHED_NAMESPACE": "from-env"})
    shown = json.loads(done.stdout)
    assert shown["namespace"] == {"value": "from-env", "origin": "env WHEEL_SCHED_NAMESPACE"}
    assert shown["prefix"]["value"] == "p:"


@pytest.mark.parametrize(("answer", "code", "left"), [(b"n\n", 1, 1), (b"y\n", 0, 0)])
def test_on_a_terminal_a_deletion_asks_first(
    wheel_sched: Any, tmp_path: Path, answer: bytes, code: int, left: int
) -> None:
    """`delete` asks on stderr. After the answer no, the exit code is 1 and nothing is changed."""
    assert wheel_sched(*EMBEDDED, "publish", "t", "x", "--delay", "1h", "--create").returncode == 0
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    command = [wheel_sched.program, *EMBEDDED, "delete", "--all"]
    done = subprocess.run(command, cwd=tmp_path, stdin=theirs, capture_output=True, timeout=50)
    os.close(theirs)
    os.close(ours)
    assert done.returncode == code, done.stderr
    assert b"Delete 1 message for good?" in done.stderr
    assert (b"nothing was changed" in done.stderr) == (code == 1)
    assert b"Delete" not in done.stdout
    assert len(wheel_sched(*EMBEDDED, "list", "--json").stdout.splitlines()) == left


def test_serve_starts_its_embedded_server_again(started: Any, tmp_path: Path) -> None:
    """After the embedded server was killed, `serve` starts it again and says so. With `fsync` no message is lost."""
    from retry_topic import connect
    from wheel_sched.store.embedded import EmbeddedServer

    process = started(*EMBEDDED, "--durability", "fsync", "serve", "billing")
    read_until(process, b"serving billing")
    with connect(f"embedded:{tmp_path / 'data'}", durability="fsync", create_topics=True) as opened:
        opened.publish("orders", b"x", delay=timedelta(seconds=2))
    with EmbeddedServer.open(tmp_path / "data") as server:
        pid = server.pid
        os.kill(pid, signal.SIGKILL)
    assert str(pid).encode() in read_until(process, b"it runs again")
    with connect(f"embedded:{tmp_path / 'data'}") as opened:
        (delivery,) = opened.broker.consumer(["orders"], "g").poll(1, 20_000)
        assert delivery.message.value == b"x"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=40)
    assert process.returncode == 0


def test_serve_ends_with_69_when_its_embedded_server_cannot_run(started: Any, tmp_path: Path) -> None:
    """`serve` reports that its embedded server did not start, and ends with exit code 69."""
    from wheel_sched.store.embedded import EmbeddedServer

    process = started(*EMBEDDED, "serve", "billing", "--log-level", "error")
    read_until(process, b"serving billing")
    server = EmbeddedServer.open(tmp_path / "data")
    (manifest,) = (tmp_path / "data" / "appendonlydir").glob("*.manifest")
    manifest.write_text("damaged\n")
    os.kill(server.pid, signal.SIGKILL)
    _, err = process.communicate(timeout=45)
    assert process.returncode == 69, err
    assert b"did not start" in err
    assert b"Traceback" not in err


def test_a_publish_to_nowhere_makes_no_folder(wheel_sched: Any, tmp_path: Path) -> None:
    """`publish` without --store and --create creates nothing."""
    done = wheel_sched("publish", "orders", "x")
    assert done.returncode == 1
    assert b"--create creates it" in done.stderr
    assert list(tmp_path.iterdir()) == []
