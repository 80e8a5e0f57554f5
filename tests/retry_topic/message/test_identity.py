"""Ids of messages and of attempts."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from retry_topic.brokers.protocol import Delivery
from retry_topic.intake.records import Decided, IntakeRecord
from retry_topic.message import Message
from retry_topic.message.headers import RetryState, content_id, content_print, retry_id


def test_an_id_is_sixteen_url_safe_characters() -> None:
    """An id begins with a letter, so that no command takes it for an option. The same place always gives
    the same id."""
    assert re.fullmatch(r"[A-Za-z0-9_-]{16}", retry_id("billing", "orders", 3, "42"))
    assert retry_id("billing", "orders", 3, "42") == "OBoUXvLOTHkS8gO7"
    # a command would take an id with a dash at its start for an option
    assert all(retry_id("billing", "orders", 0, str(offset))[0].isalpha() for offset in range(500))


PARTS = st.tuples(st.text(), st.text(), st.integers(0, 99), st.text())


@given(PARTS, PARTS)
def test_ids_are_equal_only_for_the_same_message_of_the_same_group(
    one: tuple[str, str, int, str], other: tuple[str, str, int, str]
) -> None:
    """Group, topic, partition and offset all change the id."""
    assert (retry_id(*one) == retry_id(*other)) is (one == other)


def test_parts_do_not_run_into_each_other() -> None:
    """Group "ab" with topic "c" and group "a" with topic "bc" have different ids."""
    assert retry_id("ab", "c", 0, "1") != retry_id("a", "bc", 0, "1")
    assert retry_id("a", "b", 1, "11") != retry_id("a", "b", 11, "1")


def test_the_id_of_an_attempt_names_message_and_attempt() -> None:
    """Each attempt of a message has its own id in the delay store. The attempts after a replay have other ids."""
    state = RetryState(id="abc", attempt=3)
    record = IntakeRecord(Delivery(Message("t", b""), None), state, state, "t", "g", repeated=False)
    assert Decided(record, state).member == "abc.3"
    assert Decided(record, replace(state, replays=1)).member == "abcr1.3"


def test_a_payload_has_one_id_and_one_print() -> None:
    """The id depends on payload and key. A missing key and an empty key are different."""
    parts = [(b"ab", None), (b"ab", b""), (b"a", b"b"), (b"b", b"a"), (b"", b"ab"), (b"", None), (b"", b"")]
    for made in (lambda value, key: content_id("g", value, key), content_print):
        assert len({made(*part) for part in parts}) == len(parts)
        assert made(b"ab", b"k") == made(b"ab", b"k")
    assert content_id("g", b"ab", None) != content_id("h", b"ab", None)
