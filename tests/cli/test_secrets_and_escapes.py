"""Passwords are never shown, and foreign text never controls a terminal: on stdout, on stderr, and in log lines."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import pytest

from tests.cli.addresses import TAILS, URLS
from wheel_sched.cli.failing import guarded
from wheel_sched.cli.output import _MARK, note, paint, say, table
from wheel_sched.errors import ConfigError, WheelSchedError
from wheel_sched.escaping import escaped, logger_of, safe
from wheel_sched.redacting import redacted, redacted_text
from wheel_sched.store.redis.asyncio_backend import async_client_for
from wheel_sched.store.redis.backend import client_for

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
def test_a_url_is_shown_without_its_secrets(url: str) -> None:
    """The password of a URL is hidden, even if the URL is malformed or inside a text."""
    assert "hunter2" not in redacted(url)
    assert "***" in redacted(url)
    if " " not in url:
        assert "hunter2" not in redacted_text(f"no answer from {url}: repeat it")


@pytest.mark.parametrize("url", TAILS)
def test_no_part_of_a_secret_is_shown(url: str) -> None:
    """A password may contain a character such as # or ; that ends a part of a URL. Its part after that character is
    hidden too."""
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
    """`redacted` shows the parameters of a Redis URL whose value is a number, "none" or the path of a certificate file.

    It also shows the fragment of an embedded or https URL.
    """
    assert redacted(url) == redacted_text(url) == url


@pytest.mark.parametrize("url", ["redis://h:6379/0", "unix:///run/x.sock?db=2", "embedded:./folder", "redis://h?db=1"])
def test_harmless_parts_are_shown(url: str) -> None:
    """A URL without a password is shown unchanged, so that people can recognise it."""
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
    """Secrets of Kafka client settings are hidden, in all forms in which Kafka's clients print settings."""
    assert "hunter2" not in redacted_text(text)
    assert redacted_text("give --secrets FILE or secrets = in wheel-sched.toml").endswith(
        "secrets = in wheel-sched.toml"
    )


def test_the_error_of_an_address_still_shows_how_one_is_written() -> None:
    """The error of a malformed address hides the address's password and shows the correct form of an address.

    The correct form stays readable when the text of the error is redacted once more.
    """
    with pytest.raises(ConfigError) as raised:
        client_for("redis://h/0?password=hun#ter2")
    shown = redacted_text(str(raised.value))
    assert "@HOST:PORT/DB, " in shown
    assert "got: 'redis://h/0?password=***'; in a password" in shown


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
    """A correct address gives a client, which does not connect yet."""
    client_for(url).close()
    async_client_for(url)


@pytest.mark.parametrize("text", FOREIGN)
def test_foreign_text_is_escaped_on_both_streams(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """On stdout and stderr, text with foreign characters is one line without control characters."""
    say(f"id {text}")
    note(f"id {text}")
    table(("head",), [(f"id {text}",)])
    out, err = capsys.readouterr()
    assert (out + err).count("\n") == 4
    assert all(line.isprintable() for line in (out + err).split("\n"))


@pytest.mark.parametrize("text", ["plain", "größer", "日本語", "🙂", "a\\nb"])
def test_letters_of_any_script_are_left_as_they_are(text: str) -> None:
    """Letters are not escaped, only characters that control a terminal or hide text."""
    assert escaped(text) == text


def test_only_our_own_styles_reach_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program's own styles are printed. The same codes in a payload are shown as visible text."""
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
    """Text that an error quotes is escaped, and passwords in it are hidden."""

    def run() -> None:
        raise error

    with pytest.raises(SystemExit):
        guarded(run)
    shown = capsys.readouterr().err
    assert "pw" not in shown
    assert "a\\nb" in shown
    assert "\x1b" not in shown


def test_a_log_line_forges_no_second_one() -> None:
    """Neither the arguments of a log line nor the error in its traceback can forge a second line or show a password."""
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
    """No module makes a logger with `logging.getLogger`, because that logger would not escape foreign text."""
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
    """JSON output is ASCII, and parsing it gives the same value."""
    from wheel_sched.cli.output import emit

    emit(FOREIGN)
    out = capsys.readouterr().out
    assert out.isascii()
    assert out.strip().isprintable()
    assert json.loads(out) == FOREIGN


def test_safe_does_both() -> None:
    """`safe` hides passwords first and escapes then, because an escape could keep a password from being found."""
    assert safe("redis://u:p\x1bw@h") == "redis://u:***@h"
