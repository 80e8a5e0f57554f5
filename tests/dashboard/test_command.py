"""`wheel-sched dashboard` and `wheel-sched dashboard-password`, as users start them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner

from tests.cli.running import Cli, isolate
from wheel_sched.cli.program import cli
from wheel_sched.dashboard import PasswordFile
from wheel_sched.store import Item, open_store

PATIENCE_S = 60
PAGE = Path(__file__).resolve().parents[2] / "docs" / "dashboard.md"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(tmp_path, monkeypatch)


def password(*args: str, stdin: str = "", code: int = 0) -> Any:
    done = CliRunner().invoke(cli, ["dashboard-password", *args], input=stdin)
    assert done.exit_code == code, done.output
    return done


def test_a_line_is_printed() -> None:
    done = password("ada", "--right", "operate", "--stdin", stdin="lovelace 1815\n")
    assert re.fullmatch(r"ada:operate:scrypt\$16384\$8\$1\$\S+\n", done.stdout)


def test_a_file_is_made_and_a_user_replaced(tmp_path: Path) -> None:
    """Only its owner can read the file that the command writes. Replacing a user keeps comments and other users."""
    path = tmp_path / "users"
    path.write_text("# our users\n", "utf-8")
    path.chmod(0o644)
    password("ada", "--file", "users", "--stdin", stdin="lovelace 1815\n")
    password("bob", "--file", "users", "--stdin", stdin="builder 1998\n")
    password("ada", "--right", "delete", "--file", "users", "--stdin", stdin="another one\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    lines = path.read_text("utf-8").splitlines()
    assert [line.partition(":")[0] for line in lines] == ["# our users", "bob", "ada"]
    users = PasswordFile(path)
    assert users.check("ada", "lovelace 1815") is None
    assert users.check("bob", "builder 1998") is not None
    found = users.check("ada", "another one")
    assert found is not None
    assert found.right == "delete"
    assert [one.name for one in tmp_path.iterdir()] == ["users"]


@pytest.mark.parametrize(
    ("args", "stdin", "message"),
    [
        (["a:b", "--stdin"], "lovelace 1815\n", "expected a name"),
        (["ada", "--stdin"], "short\n", "8 to 1,000 characters"),
        (["ada"], "", "no terminal"),
        (["ada", "--right", "admin", "--stdin"], "lovelace 1815\n", "'admin' is not one of"),
    ],
)
def test_a_wrong_line_is_not_written(tmp_path: Path, args: list[str], stdin: str, message: str) -> None:
    done = password(*args, "--file", "users", stdin=stdin, code=2)
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("listen", ["0.0.0.0:8500", "[::]:8500", "192.0.2.1:8500", "example.org:8500"])
def test_an_address_that_others_reach_needs_a_password_file(listen: str) -> None:
    """Without one the command fails. The error says what is wrong, what was not done, and what to do."""
    done = CliRunner().invoke(cli, ["dashboard", "--listen", listen])
    assert done.exit_code == 2
    assert f"expected --password-file with --listen {listen}" in done.stderr
    assert "nothing was started" in done.stderr
    assert "dashboard-password NAME --file FILE" in done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--listen", "8500"], "expected --listen to be HOST:PORT"),
        (["--listen", "localhost:99999"], "expected --listen to be HOST:PORT"),
        (["--root-path", "wheel/"], "expected --root-path"),
        (["--password-file", "absent"], "No such file"),
        (["--secret-file", "absent"], "No such file"),
        (["--right", "admin"], "'admin' is not one of"),
    ],
)
def test_a_wrong_option_starts_nothing(args: list[str], message: str) -> None:
    done = CliRunner().invoke(cli, ["dashboard", *args])
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"s" * 32)
    (tmp_path / "secret").chmod(0o644)
    done = CliRunner().invoke(cli, ["dashboard", "--secret-file", "secret"])
    assert done.exit_code == 2
    assert "chmod 600" in done.stderr


def test_a_taken_port_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = CliRunner().invoke(cli, ["dashboard", "--listen", address])
    assert done.exit_code == 1
    assert f"cannot listen on {address}: Address already in use" in done.stderr
    assert "choose another port" in done.stderr


@contextmanager
def served(url: str, *args: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A dashboard in a process of its own, and its address."""
    command = [sys.executable, "-m", "wheel_sched.cli", "--store", url, "dashboard", "--listen", "127.0.0.1:0", *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found is not None, process.stderr and process.stderr.read()
            yield process, found[0].rstrip("/")
        finally:
            process.kill()


@pytest.mark.slow
def test_with_json_logs_an_error_is_an_object() -> None:
    """The error that ends the program is one line of JSON on stderr."""
    command = [sys.executable, "-m", "wheel_sched.cli", "--log-format", "json", "dashboard", "--listen", "0.0.0.0:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["message"].startswith("wheel-sched: expected --password-file")


@pytest.mark.real
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_it_serves_until_a_signal(redis_url: str, sent: signal.Signals, code: int) -> None:
    """The program ends on a signal, even while a browser has a page with live updates open."""
    with open_store(redis_url) as store:
        store.schedule([Item("order-42", 9_000_000_000_000, b"x", "orders")])
    with served(redis_url) as (process, address):
        answer = httpx2.get(f"{address}/")
        assert answer.status_code == 200
        assert ">orders<" in answer.text
        assert "server" not in answer.headers
        assert httpx2.get(f"{address}/api/v1/session").json()["right"] == "operate"
        assert httpx2.get(f"{address}/", headers={"Host": "evil.example"}).status_code == 421
        with httpx2.stream("GET", f"{address}/live") as stream:
            next(stream.iter_lines())
            process.send_signal(sent)
            assert process.wait(PATIENCE_S) == code
        assert process.stderr is not None
        assert process.stderr.read().strip() == ("interrupted" if code else "")


@pytest.mark.real
def test_it_serves_users_behind_a_proxy(redis_url: str) -> None:
    """With a password file, requests for every host name are answered. Links have the proxy's path, and cookies follow
    the proxy's scheme.
    """
    with open_store(redis_url):
        pass
    password("ada", "--right", "delete", "--file", "users", "--stdin", stdin="lovelace 1815\n")
    Path("secret").write_bytes(os.urandom(32))
    Path("secret").chmod(0o600)
    with served(redis_url, "--password-file", "users", "--secret-file", "secret", "--root-path", "/wheel") as (_, url):
        root = url.removesuffix("/wheel")
        proxied = {"Host": "ops.example", "X-Forwarded-Proto": "https", "Origin": "https://ops.example"}
        body = {"name": "ada", "password": "lovelace 1815"}
        answer = httpx2.post(f"{root}/sign-in", data=body, headers=proxied)
        assert answer.headers["location"] == "/wheel/"
        assert "Secure" in answer.headers["set-cookie"]
        assert "Path=/wheel;" in answer.headers["set-cookie"]
        session = httpx2.get(f"{root}/api/v1/session", auth=("ada", "lovelace 1815")).json()
        assert session["right"] == "delete"
        page = httpx2.get(f"{root}/", auth=("ada", "lovelace 1815")).text
        assert 'href="/wheel/assets/dashboard.css"' in page


@pytest.mark.real
@pytest.mark.skipif(shutil.which("curl") is None, reason="the example of the page calls curl")
def test_the_example_of_the_api_previews_and_executes(redis_url: str) -> None:
    """The test runs the lines of docs/dashboard.md as a reader would paste them."""
    with open_store(redis_url) as store:
        store.schedule([Item("order-42", 9_000_000_000_000, b"x", "orders")])
        with served(redis_url) as (_, address):
            (example,) = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
            lines = example.replace("http://127.0.0.1:8500", address)
            done = subprocess.run(["bash", "-euc", lines], capture_output=True, text=True, timeout=PATIENCE_S)
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["words"] == "1 message of orders held; it is paused"
        assert list(store.counts().paused) == ["orders"]


@pytest.mark.real
@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="the example of the page calls both")
def test_the_example_of_a_message_runs_it_now(redis_url: str) -> None:
    """The test runs the lines that a message's page shows, as a visitor with a password would paste them. The id needs
    quotes.
    """
    password("ada", "--right", "operate", "--file", "users", "--stdin", stdin="lovelace 1815\n")
    with open_store(redis_url) as store:
        store.schedule([Item('it\'s "42"', 9_000_000_000_000, b"x", "orders")])
        with served(redis_url, "--password-file", "users") as (_, address):
            page = httpx2.get(f"{address}/items/it%27s%20%2242%22", auth=("ada", "lovelace 1815")).text
            (example,) = re.findall(r"<pre>(API=.*?)</pre>", page, re.DOTALL)
            lines = f"NAME='ada:lovelace 1815'\n{unescape(example)}"
            done = subprocess.run(["bash", "-euc", lines], capture_output=True, text=True, timeout=PATIENCE_S)
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["done"] == 1, done.stdout
        (found,) = store.get(['it\'s "42"'], anywhere=True)
        assert found is not None
        assert found.score_ms <= store.now_ms()


@pytest.mark.real
def test_a_mistyped_namespace_is_an_error(redis_url: str) -> None:
    done = Cli(redis_url)("--namespace", "mistyped", "dashboard", "--listen", "127.0.0.1:0", code=1)
    assert "there is no namespace 'mistyped'" in done.stderr
