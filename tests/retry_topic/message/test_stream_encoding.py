"""The stream encoding of messages, which a Lua script of the store relies on too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retry_topic.brokers.redis_streams import from_entry, to_fields
from retry_topic.message import Message, Source
from retry_topic.message.encoding import decode_body, encode_body, from_fields
from wheel_sched.store import decode_push
from wheel_sched.store.push.push_form import split_note

field_names = st.one_of(
    st.binary(max_size=12), st.sampled_from([b"value", b"key", b"h:", b"h:key", b"h:h:value", b"store-note:x"])
)
foreign_entries = st.lists(st.tuples(field_names, st.binary(max_size=20)), max_size=8)


def test_fields_are_value_then_key_then_headers() -> None:
    """The fields are in this fixed order, as a flat list for XADD."""
    message = Message("t", b"v", b"k", (("a", b"1"), ("b", b"2"), ("a", b"3")))
    assert to_fields(message) == [b"value", b"v", b"key", b"k", b"a", b"1", b"b", b"2", b"a", b"3"]


def test_no_key_is_not_an_empty_key() -> None:
    """A missing key (None) and an empty key (b"") are different."""
    assert to_fields(Message("t", b"")) == [b"value", b""]
    assert to_fields(Message("t", b"", b"")) == [b"value", b"", b"key", b""]
    assert from_entry("t", b"1-0", [b"value", b""]).key is None
    assert from_entry("t", b"1-0", [b"value", b"", b"key", b""]).key == b""


@pytest.mark.parametrize("name", ["value", "key", "h:", "h:value", "h:x"])
def test_headers_that_look_like_our_fields_are_escaped(name: str) -> None:
    """A header whose name is also the name of a field is written with the prefix `h:`."""
    message = Message("t", b"v", None, ((name, b"1"),))
    assert to_fields(message)[2] == b"h:" + name.encode()
    assert from_entry("t", b"1-0", to_fields(message)).to("t") == message


def test_an_entry_of_another_producer_is_read() -> None:
    """Without a field `value` the payload is empty. A second `key` becomes a header. Names that are not
    text are kept."""
    fields = [b"temp", b"21", b"key", b"k", b"key", b"k2", b"\xff\xfe", b"x"]
    message = from_entry("t", b"1700000000123-7", fields)
    assert (message.value, message.key) == (b"", b"k")
    assert message.headers == (("temp", b"21"), ("key", b"k2"), ("\udcff\udcfe", b"x"))
    assert message.source == Source("t", 0, "1700000000123-7", 1_700_000_000_123)
    again = to_fields(message)
    assert again == [b"value", b"", b"key", b"k", b"temp", b"21", b"h:key", b"k2", b"\xff\xfe", b"x"]


@given(foreign_entries)
def test_any_entry_round_trips_as_a_message(entry: list[tuple[bytes, bytes]]) -> None:
    """A message read from any entry is equal after it was written and read again."""
    message = from_entry("t", b"5-1", [part for pair in entry for part in pair])
    assert from_entry("t", b"5-1", to_fields(message)) == message


def test_a_header_name_that_is_no_text_is_refused() -> None:
    """A header name with an unpaired surrogate cannot be encoded."""
    with pytest.raises(UnicodeEncodeError):
        to_fields(Message("t", b"", None, (("\ud800", b""),)))


def test_the_traceback_is_the_note_of_a_body() -> None:
    """A body has the traceback as its last field, which is not sent. A header with the name of such a field is sent."""
    forged = ("store-note:retry-traceback", b"mine")
    message = Message("t", b"v", b"k", (("retry-traceback", b"T"), forged, ("a", b"1")))
    form = decode_push(encode_body(message))
    assert form.pieces[-2:] == [b"store-note:retry-traceback", b"T"]
    sent = from_fields("t", split_note(form)[0])
    assert sent == Message("t", b"v", b"k", (forged, ("a", b"1")))
    assert decode_body(encode_body(message)) == Message(
        "t", b"v", b"k", (forged, ("a", b"1"), ("retry-traceback", b"T"))
    )
    assert decode_body(encode_body(sent)) == sent
