"""The lines about a message's failed attempts: they are bounded, and reading them never raises."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from retry_topic.message import Message
from retry_topic.message.headers import lighter, read
from retry_topic.message.headers.failed_attempts import (
    MOST,
    FailedAttempt,
    FailedAttempts,
    quoted,
    quoted_bytes,
    read_failed_attempts,
    with_failed_attempt,
)
from retry_topic.message.headers.state import MAX_ATTEMPTS_BYTES, MAX_MESSAGE_BYTES, cut
from wheel_sched.redacting import is_harmless, redacted_text

FIRST = FailedAttempt(1, 1_767_225_600_000, "web-3:41", "builtins.ValueError", "no such account", 4_000, "p@1")


def lines_of(count: int, attempt: FailedAttempt = FIRST) -> str:
    lines: str | None = None
    for number in range(1, count + 1):
        lines = with_failed_attempt(lines, replace(attempt, number=number))
    assert lines is not None
    return lines


def test_attempts_are_read_as_they_were_written() -> None:
    """Each attempt is one line of JSON, and is read back equal."""
    second = replace(
        FIRST, number=2, process=None, error_class=None, text=None, delay_ms=None, chosen_by="max-age, p@1"
    )
    lines = with_failed_attempt(with_failed_attempt(None, FIRST), second)
    assert lines.split("\n")[0] == ('[1,1767225600000,"web-3:41","builtins.ValueError","no such account",4000,"p@1"]')
    assert read_failed_attempts(lines) == FailedAttempts((FIRST, second))
    assert read_failed_attempts(None) == FailedAttempts()


def test_the_newest_attempts_stay_and_the_dropped_ones_are_counted() -> None:
    """Of 40 attempts the last ones are kept, and the number of the dropped ones is known."""
    known = read_failed_attempts(lines_of(40, replace(FIRST, text="x", error_class="E")))
    assert [one.number for one in known.attempts] == list(range(40 - MOST + 1, 41))
    assert known.dropped == 40 - MOST


def test_long_texts_leave_room_for_fewer_attempts() -> None:
    """The lines stay within their bound in bytes. Every attempt is kept or counted as dropped."""
    long = replace(FIRST, text='"\\' * 5_000, error_class="é" * 500, chosen_by="r" * 500, process="p" * 500)
    lines = lines_of(30, long)
    known = read_failed_attempts(lines)
    assert len(lines.encode()) <= MAX_ATTEMPTS_BYTES
    assert 2 <= len(known.attempts) < MOST
    assert known.dropped + len(known.attempts) == 30
    assert known.attempts[-1].number == 30


def test_texts_are_one_line_without_passwords() -> None:
    """Control characters become spaces, and the password of a URL is hidden, also in a text that is cut."""
    text = f"cannot\n\x1b[2Jreach redis://u:hunter2@host/0 {'x' * 500}"
    (found,) = read_failed_attempts(with_failed_attempt(None, replace(FIRST, text=text))).attempts
    assert found.text is not None
    assert found.text.startswith("cannot [2Jreach redis://u:***@host/0 xxx")
    assert len(found.text) == 120


@settings(deadline=None)
@given(
    st.text(max_size=300) | st.lists(st.sampled_from([lines_of(2), "[" * 900, "17", "[1,2]", "{}", ""])).map("\n".join)
)
def test_any_lines_can_be_read_and_continued(lines: str) -> None:
    """Reading leaves malformed lines out. The next attempt is appended within the bounds, and can be read."""
    known = read_failed_attempts(lines)
    assert len(known.attempts) <= MOST
    continued = with_failed_attempt(lines, FIRST)
    assert len(continued.encode()) <= MAX_ATTEMPTS_BYTES
    assert read_failed_attempts(continued).attempts[-1] == FIRST


def test_values_of_other_types_are_left_out() -> None:
    """A line with a wrong type or a number outside its bounds is no attempt."""
    good = with_failed_attempt(None, FIRST)
    bad = [
        good.replace("[1,", "[true,"),
        good.replace("[1,", "[-1,"),
        good.replace("1767225600000", "1e99"),
        good.replace('"p@1"', "null"),
        good.replace('"no such account"', "[1]"),
        good.replace("4000", "99999999999999999"),
    ]
    assert read_failed_attempts("\n".join([*bad, good])) == FailedAttempts((FIRST,))


def test_a_message_loses_its_traceback_first() -> None:
    """The first call of `lighter` removes the traceback, the second the failed attempts. The third returns None."""
    headers = (("retry-id", b"a"), ("retry-failed-attempts", b"[]"), ("retry-traceback", b"T"), ("b", b"2"))
    message = Message("t", b"v", b"k", headers)
    first = lighter(message)
    assert first is not None
    assert (read(first.headers).traceback, read(first.headers).failed_attempts) == (None, "[]")
    second = lighter(first)
    assert second == Message("t", b"v", b"k", (("retry-id", b"a"), ("b", b"2")))
    assert lighter(second) is None


HARMFUL = st.sampled_from(
    ["password=x", "a:Token", "s.secret: y", "jaas", "redis://u:p@h", "a:/b", "u@h", '"', "\\", "\n", "\x7f", "é", "%s"]
)


@given(st.lists(HARMFUL | st.text(max_size=20), max_size=6).map("".join))
@settings(max_examples=300)
def test_the_quick_way_writes_texts_as_the_long_way_does(text: str) -> None:
    """`quoted_bytes` writes a header's bytes in the same way as decoding, cutting and quoting them."""
    raw = text.encode(errors="surrogatepass")
    assert quoted_bytes(raw) == quoted(cut(raw.decode(errors="replace"), MAX_MESSAGE_BYTES))


@given(st.lists(HARMFUL | st.text(st.characters(max_codepoint=127), max_size=20), max_size=6).map("".join))
@settings(max_examples=300)
def test_a_harmless_text_is_not_changed(text: str) -> None:
    """If `is_harmless` is true for a text, `redacted_text` has nothing to hide in it."""
    if text.isascii() and is_harmless(text):
        assert redacted_text(text) == text
