"""`wheel-sched exporter` serves the metrics of a namespace in which no service runs."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.running import WHEEL_SCHED, isolate
from wheel_sched.store import Item, open_store

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.real]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(tmp_path, monkeypatch)


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as reply:  # noqa: S310 - our own server
        text: str = reply.read().decode()
        return text


def test_it_serves_the_metrics_of_a_namespace_until_a_signal(tmp_path: Path) -> None:
    """The page has the items of the store and no dispatcher. After SIGTERM the exit code is 0."""
    with open_store("embedded:data", namespace="celery") as store:
        store.schedule([Item("a", store.now_ms() + 60_000, b"", "mails")])
        command = [WHEEL_SCHED, "--store", "embedded:data", "--namespace", "celery", "--log-format", "json"]
        process: subprocess.Popen[Any] = subprocess.Popen(
            [*command, "exporter", "--http", "0"], stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )
        with process:
            assert process.stderr is not None
            url = json.loads(process.stderr.readline())["message"].rpartition(" ")[2]
            assert 'wheel_sched_messages{state="due",topic="mails"} 1.0' in page(url).replace(
                'topic="mails",state="due"', 'state="due",topic="mails"'
            )
            assert page(url.replace("/metrics", "/livez")) == "ok\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


def test_an_absent_namespace_is_an_error(tmp_path: Path) -> None:
    """The exporter creates no namespace: a mistyped name is an error and not an empty page."""
    with open_store("embedded:data", namespace="celery"):
        command = [WHEEL_SCHED, "--store", "embedded:data", "--namespace", "cellery", "exporter", "--http", "0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=50, cwd=tmp_path)
    assert done.returncode == 1
    assert "there is no namespace 'cellery'" in done.stderr
