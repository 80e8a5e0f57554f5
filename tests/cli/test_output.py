"""Output of the command line: times, amounts, tables, and what reaches a terminal."""

from __future__ import annotations

import pytest

from wheel_sched.cli.output import _shown, blame, paint, say, table
from wheel_sched.errors import EmbeddedServerError, StoreError
from wheel_sched.management.wording import amount, instant, one_line, relative, span


@pytest.mark.parametrize(
    ("delay_ms", "text"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (1_000, "1s"),
        (2_790, "2.7s"),
        (59_999, "59s"),
        (60_000, "1m"),
        (192_000, "3m12s"),
        (3_600_000, "1h"),
        (7_199_999, "1h59m"),
        (187_200_000, "2d4h"),
    ],
)
def test_spans_have_at_most_two_units(delay_ms: int, text: str) -> None:
    """A length of time is shown with at most two units and rounded down."""
    assert span(delay_ms) == text


@pytest.mark.parametrize(("at_ms", "text"), [(5_000, "now"), (65_000, "in 1m"), (0, "5s ago")])
def test_instants_relative_to_now(at_ms: int, text: str) -> None:
    """A future time is shown as "in 1m", and a past one as "5s ago"."""
    assert relative(at_ms, 5_000) == text


@pytest.mark.parametrize(
    ("at_ms", "text"),
    [(1_795_275_951_824, "2026-11-21T15:45:51.824Z"), (253_402_300_799_999, "9999-12-31T23:59:59.999Z")],
)
def test_instants_are_rfc_3339_with_milliseconds(at_ms: int, text: str) -> None:
    """Times are shown in RFC 3339, up to the last time that the store can hold."""
    assert instant(at_ms) == text


def test_one_line_flattens_and_cuts() -> None:
    """`one_line` replaces line breaks by blanks and cuts long text, so that a row of a table is one line."""
    assert one_line("a\n  b\tc") == "a b c"
    assert one_line("x" * 20, 10) == "xxxxxxx..."


def test_amounts_agree_with_their_thing() -> None:
    """A noun is singular or plural as its number requires: "1 message", "2,000 messages"."""
    assert (amount(1, "message"), amount(2_000, "message")) == ("1 message", "2,000 messages")


def test_control_characters_of_a_payload_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences, control characters and lone surrogates are shown as visible text."""
    say("\x1b[2Jgone\x07 \udcff")
    assert capsys.readouterr().out == "\\x1b[2Jgone\\x07 \\udcff\n"


def test_tables_are_aligned_and_numbers_stand_right(capsys: pytest.CaptureFixture[str]) -> None:
    """Columns are aligned, numbers at the right. Lines do not end with blanks."""
    table(("topic", "due"), [("orders", "5"), ("o", "1,000")], right=(1,))
    assert capsys.readouterr().out == "topic     due\norders      5\no       1,000\n"


class Terminal:
    """A stream that says it is a terminal."""

    @staticmethod
    def isatty() -> bool:
        return True


def test_colour_only_on_a_terminal_that_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With NO_COLOR or TERM=dumb there is no colour, even on a terminal."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    terminal: object = Terminal()
    assert _shown(paint("x", "red", terminal)) == "\x1b[31mx\x1b[0m"  # type: ignore[arg-type]
    monkeypatch.setenv("TERM", "dumb")
    assert paint("x", "red", terminal) == "x"  # type: ignore[arg-type]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert paint("x", "red", terminal) == "x"  # type: ignore[arg-type]


def test_each_part_of_an_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """An error is one line. Each line that the server wrote last follows as a line of its own. A line break inside a
    text is escaped."""
    blame("wheel-sched", EmbeddedServerError("no start over a\nb:", last_words=["one", "two\x1b[31m"]))
    assert capsys.readouterr().err == "wheel-sched: no start over a\\nb:\n  one\n  two\\x1b[31m\n"
    blame("wheel-sched", StoreError("he said:\nforged"))
    assert capsys.readouterr().err == "wheel-sched: he said:\\nforged\n"
