"""No command and no error shows a password. A mistyped parameter of an address is reported with a readable error."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from retry_topic.brokers.redis_streams import RedisStreamsBroker
from tests.cli.addresses import TAILS, URLS
from wheel_sched.cli.program import cli
from wheel_sched.config import Settings
from wheel_sched.errors import ConfigError, WheelSchedError
from wheel_sched.store import open_store
from wheel_sched.store.redis.asyncio_backend import async_client_for
from wheel_sched.store.redis.backend import client_for


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    "command",
    [
        ["config", "show"],
        ["config", "show", "--json"],
        ["list"],
        ["doctor"],
        ["doctor", "--json"],
        ["serve", "g"],
        ["aps", "list"],
    ],
    ids=" ".join,
)
def test_no_command_shows_a_password(url: str, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither stdout nor stderr of any command contains the password of the address."""

    def no_server(*_: object, **__: object) -> None:
        raise OSError(111, "Connection refused" if " " in url else f"Connection refused by {url}")

    monkeypatch.setattr("socket.socket.connect", no_server)
    monkeypatch.setattr("socket.getaddrinfo", no_server)
    result = CliRunner().invoke(cli, ["--store", url, *command])
    shown = result.stdout + result.stderr
    if command[0] != "config":
        assert result.exit_code != 0
    assert "hunter2" not in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    "url", [url for url in (*URLS, *TAILS) if url.startswith(("redis:", "rediss:", "//", "app:", "unix:"))]
)
def test_no_error_and_no_repr_quotes_a_password(url: str) -> None:
    """Neither an error nor any of its causes contains the password."""
    assert "ter2" not in repr(Settings(store=url))
    for opening in (open_store, RedisStreamsBroker):
        try:
            opening(url).close()  # type: ignore[operator]  # either takes a URL
        except WheelSchedError as error:
            chain: BaseException | None = error
            while chain is not None:
                assert "ter2" not in str(chain)
                chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("passwd=hunter2", "'passwd' in .* did you mean 'password'"),
        ("timeout=5", "got: 'timeout' in "),
        ("retry=5", "got: 'retry' in "),
        ("db=1&hunter2", "one without a value"),
        ("password=hun&ter2=1", "one behind 'password'"),
        ("ssl_cert_reqs=none", "parameters that redis:// has, got: 'ssl_cert_reqs'"),
        ("max_connections=hunter2", "max_connections=[*]{3}"),
    ],
)
def test_a_parameter_that_no_client_has_is_refused_at_once(query: str, says: str) -> None:
    """The error names the unknown parameter of an address, whichever function opens the address."""
    url = f"redis://127.0.0.1:1/0?{query}"
    for opening in (open_store, RedisStreamsBroker, client_for, async_client_for):
        with pytest.raises(ConfigError, match=says) as raised:
            opening(url)  # type: ignore[operator]  # each takes a URL
        assert "nothing was opened" in str(raised.value)
        assert "ter2" not in str(raised.value)


@pytest.mark.parametrize("command", [["list"], ["serve", "g"], ["doctor"], ["aps", "list"]], ids=" ".join)
def test_no_command_ends_in_a_traceback_for_a_mistyped_parameter(command: list[str]) -> None:
    """The command's error names the unknown parameter of the address and shows no password."""
    result = CliRunner().invoke(cli, ["--store", "redis://127.0.0.1:1/0?passwd=hunter2", *command])
    shown = result.stdout + result.stderr
    assert result.exit_code == (1 if command == ["doctor"] else 2), shown
    assert "'passwd'" in shown
    assert "hunter2" not in shown
    assert "Traceback" not in shown
