"""Passwords are never shown and foreign text never acts: of any URL, on any stream, in any log line."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from wheel_sched_celery.cli import WheelGroup

from retry_topic.brokers.redis_streams import RedisStreamsBroker
from wheel_sched.cli.failing import guarded
from wheel_sched.cli.output import _MARK, note, paint, say, table
from wheel_sched.cli.program import cli
from wheel_sched.config import Settings
from wheel_sched.errors import ConfigError, StoreUnavailable, WheelSchedError
from wheel_sched.escaping import escaped, logger_of, safe
from wheel_sched.redacting import redacted, redacted_text
from wheel_sched.store import open_store
from wheel_sched.store.redis.asyncio_backend import async_client_for
from wheel_sched.store.redis.backend import client_for

URLS = [
    "redis://app:hunter2@h:6379/0",
    "redis://:hunter2@h",
    "redis://app:hun/hunter2@h:6379/0",
    "redis://app:a@hunter2@h:6379",
    "redis://app:a?hunter2@h:6379",
    "redis://app:a#hunter2@h:6379",
    "redis://app:my hunter2@h:6379",
    "rediss://app:hunter2@h:6379/0?ssl_cert_reqs=none",
    "redis://h/0?password=hunter2",
    "redis://h/0?db=1&password=hunter2",
    "redis://h/0?username=hunter2",
    "redis://h/0?p%61ssword=hunter2",
    "redis://h/0?credential_provider=hunter2",
    "unix:///run/redis.sock?password=hunter2",
    "unix://app:hunter2@/run/redis.sock",
    "redis:/app:hunter2@h",
    "redis:app:hunter2@h",
    "//app:hunter2@h",
    "app:hunter2@h:6379",
    "sentinel://:hunter2@s1:26379;sentinel://:hunter2@s2:26379",
    "redis+cluster://app:hunter2@h1:6379,app:hunter2@h2:6379",
    "postgresql://app:hunter2@db/jobs",
]
TAILS = [  # of a secret, or all of it, where a URL has another meaning for it
    "redis://h:1/0?password=hun#ter2",
    "redis://h:1/0?password=hun;ter2",
    "redis://h:1/0?password=hun&ter2",
    "redis://h:1/0?password=hun@ter2",
    "redis://h/0?password=hun&ter2=1",
    "redis://h/0?&password=a&hunter2",
    "redis://h/0?hunter2",
    "redis://h/0#hunter2",
    "redis://h/0#hun@ter2",
    "redis://h/hunter2",
    "redis://h/0;password=hunter2",
    "redis://h:hunter2/0",
    "redis://u%3Ahunter2%40h",
    "redis://h/0?max_connections=hunter2",
    "rediss://h/0?ssl_keyfile=hunter2",
    "redis://h/0?client_name=hunter2",
]
FOREIGN = [
    "a\nb",
    "\x1b[31mred",
    "\x9b31m",
    "\u202eevil",
    "\u2066x\u2069",
    "a\u200bb",
    "a\u2028b",
    "\udcff",
    "\x00",
    "\x7f",
]


@pytest.mark.parametrize("url", URLS)
def test_a_url_is_shown_without_what_is_secret(url: str) -> None:
    """However it is malformed, by itself and within a text; what is left says which server it is."""
    assert "hunter2" not in redacted(url)
    assert "***" in redacted(url)
    if " " not in url:
        assert "hunter2" not in redacted_text(f"no answer from {url}: repeat it")


@pytest.mark.parametrize("url", TAILS)
def test_no_part_of_a_secret_is_shown(url: str) -> None:
    """A character of a password ends a value, and what follows is part of the password all the same."""
    assert "ter2" not in redacted(url)
    assert "***" in redacted(url)
    assert redacted(redacted(url)) == redacted(url)
    assert "ter2" not in redacted_text(f"no answer from {url}: repeat it")
    assert "ter2" not in redacted_text(f"got: {url!r}; nothing was opened")


@pytest.mark.parametrize(
    "url",
    [
        "rediss://[::1]:6379/1?socket_timeout=1.5&ssl_cert_reqs=none&ssl_ca_certs=/etc/ssl/ca.pem",
        "embedded:./data#1",
        "https://example.org/page#place",
    ],
)
def test_parameters_that_look_harmless_are_shown(url: str) -> None:
    """Numbers, yes and no, files of certificates."""
    assert redacted(url) == redacted_text(url) == url


@pytest.mark.parametrize("url", ["redis://h:6379/0", "unix:///run/x.sock?db=2", "embedded:./folder", "redis://h?db=1"])
def test_what_is_not_secret_is_shown(url: str) -> None:
    """Or nobody would know what is meant."""
    assert redacted(url) == url
    assert redacted_text(f"from {url}, at 12:30") == f"from {url}, at 12:30"


@pytest.mark.parametrize(
    "text",
    [
        "sasl.password=hunter2",
        "'sasl.password': 'hunter2'",
        "client.secret = hunter2;",
        'sasl.jaas.config=org.example.PlainLoginModule required username="app" password="hunter2";',
        'sasl.jaas.config=org.example.PlainLoginModule required password="x \\" hunter2";',
        '{"sasl.jaas.config": "org.example.PlainLoginModule required password=\\"x hunter2\\";"}',
    ],
)
def test_settings_in_a_text_are_shown_without_their_secrets(text: str) -> None:
    """As Kafka's clients quote them."""
    assert "hunter2" not in redacted_text(text)
    assert redacted_text("give --secrets FILE or secrets = in wheel-sched.toml").endswith(
        "secrets = in wheel-sched.toml"
    )


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    "command",
    [
        ["config", "show"],
        ["config", "show", "--json"],
        ["ls"],
        ["doctor"],
        ["doctor", "--json"],
        ["serve", "g"],
        ["aps", "list"],
    ],
    ids=" ".join,
)
def test_no_command_shows_a_password(url: str, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """On either stream, in words or in JSON; nor does the traceback of whatever is raised."""

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
    """Also not the errors that an error came from, which a traceback would show."""
    assert "ter2" not in repr(Settings(store=url))
    for opening in (open_store, RedisStreamsBroker):
        try:
            opening(url).close()  # type: ignore[operator]  # either takes a URL
        except WheelSchedError as error:
            chain: BaseException | None = error
            while chain is not None:
                assert "ter2" not in str(chain)
                chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)


def test_the_error_of_an_address_still_shows_how_one_is_written() -> None:
    """What it quotes is hidden and the form is not, also where the whole text is looked through."""
    with pytest.raises(ConfigError) as raised:
        client_for("redis://h/0?password=hun#ter2")
    shown = redacted_text(str(raised.value))
    assert "@HOST:PORT/DB, " in shown
    assert "got: 'redis://h/0?password=***'; in a password" in shown


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
    """By its name, when the store is opened and by every other way to it; it was a traceback at the first call."""
    url = f"redis://127.0.0.1:1/0?{query}"
    for opening in (open_store, RedisStreamsBroker, client_for, async_client_for):
        with pytest.raises(ConfigError, match=says) as raised:
            opening(url)  # type: ignore[operator]  # each takes a URL
        assert "nothing was opened" in str(raised.value)
        assert "ter2" not in str(raised.value)


@pytest.mark.parametrize("command", [["ls"], ["serve", "g"], ["doctor"], ["aps", "list"]], ids=" ".join)
def test_no_command_ends_in_a_traceback_for_a_mistyped_parameter(command: list[str]) -> None:
    """It says which."""
    result = CliRunner().invoke(cli, ["--store", "redis://127.0.0.1:1/0?passwd=hunter2", *command])
    shown = result.stdout + result.stderr
    assert result.exit_code == (1 if command == ["doctor"] else 2), shown
    assert "'passwd'" in shown
    assert "hunter2" not in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "redis://:p%26w@h:1/3",
        "rediss://h/0?ssl_cert_reqs=none&socket_timeout=2.5&ssl_ca_certs=/ca.pem",
        "unix:///run/x.sock?db=2",
        "redis://u:p@[::1]:1/?client_name=me&max_connections=1&health_check_interval=5",
    ],
)
def test_an_address_that_is_right_is_opened(url: str) -> None:
    """Nothing is connected yet."""
    client_for(url).close()
    async_client_for(url)


@pytest.mark.parametrize("text", FOREIGN)
def test_foreign_text_is_escaped_on_both_streams(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line stays one line, of characters that a terminal only shows."""
    say(f"id {text}")
    note(f"id {text}")
    table(("head",), [(f"id {text}",)])
    out, err = capsys.readouterr()
    assert (out + err).count("\n") == 4
    assert all(line.isprintable() for line in (out + err).split("\n"))


@pytest.mark.parametrize("text", ["plain", "größer", "日本語", "🙂", "a\\nb"])
def test_letters_of_any_script_are_left_as_they_are(text: str) -> None:
    """What is escaped is what has power, and no more."""
    assert escaped(text) == text


def test_only_our_own_styles_reach_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A payload that carries the codes of ours is shown as text, beside ours."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    say(paint("\x1b[31mred", "bold") + " \x1b[1mforged")
    assert capsys.readouterr().out == "\x1b[1m\\x1b[31mred\x1b[0m \\x1b[1mforged\n"
    assert len(_MARK) == 32


@pytest.mark.parametrize(
    "error", [WheelSchedError("a\nb \x1b[2J redis://u:pw@h"), ConfigError(["a\nb", "redis://u:pw@h"])]
)
def test_errors_are_escaped_and_redacted(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever they quote."""

    def run() -> None:
        raise error

    with pytest.raises(SystemExit):
        guarded(run)
    shown = capsys.readouterr().err
    assert "pw" not in shown
    assert "a\\nb" in shown
    assert "\x1b" not in shown


def test_a_log_line_forges_no_second_one() -> None:
    """Neither by its arguments nor by the error of a traceback; and it quotes no password."""
    logger, stream = logger_of("wheel_sched.test"), io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("LOG %(message)s"))
    logger.addHandler(handler)
    logger.propagate = False
    try:
        raise ValueError("x\nLOG forged \x1b[2J redis://u:pw@h")
    except ValueError as error:
        logger.exception("failed: %s, %d, %r", error, 7, "\u202e")
    finally:
        logger.removeHandler(handler)
    lines = stream.getvalue().split("\n")
    assert lines[0].startswith("LOG failed: x\\nLOG forged")
    assert not any(line.startswith("LOG") for line in lines[1:])
    assert "pw" not in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_every_logger_of_ours_is_a_safe_one() -> None:
    """A module that makes its logger by hand would log what it is given."""
    root = Path(__file__).parents[2]
    folders = [root / "wheel_sched", root / "retry_topic", root / "integrations"]
    found = [
        str(path.relative_to(root))
        for folder in folders
        for path in folder.rglob("*.py")
        if "logger = logging.getLogger(" in path.read_text() and path.name != "escaping.py"
    ]
    assert found == []


def test_json_is_exact_and_in_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is lost by escaping: it reads back as it was."""
    from wheel_sched.cli.output import emit

    emit(FOREIGN)
    out = capsys.readouterr().out
    assert out.isascii()
    assert out.strip().isprintable()
    assert json.loads(out) == FOREIGN


def test_safe_does_both() -> None:
    """Redacted first: an escape must not hide a password from the look for it."""
    assert safe("redis://u:p\x1bw@h") == "redis://u:***@h"


@pytest.mark.parametrize(
    "error", [StoreUnavailable("a\nb \x1b[2J redis://u:pw@h"), click.UsageError("a\nb redis://u:pw@h")]
)
def test_the_commands_of_celery_show_errors_as_ours_do(error: Exception) -> None:
    """They have a group of their own, whose errors go the same way."""

    @click.command()
    def fail() -> None:
        raise error

    group = WheelGroup(name="wheel", lazy={})
    group.get_command = lambda *_: fail  # type: ignore[method-assign]  # a command that is in no module
    group._lazy["fail"] = None  # type: ignore[assignment]
    result = CliRunner().invoke(group, ["fail"])
    assert result.exit_code != 0
    assert "pw" not in result.stderr
    assert "a\\nb" in result.stderr
    assert "\x1b" not in result.stderr
