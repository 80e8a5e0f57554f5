"""Signatures of retry headers cover the payload and every field that influences a decision. Unsigned headers have no
influence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from retry_topic.message import Message, Source
from retry_topic.message.headers import RetryState, content_id, read, sign, verify, write
from wheel_sched.errors import Rejected

SECRET = b"0123456789abcdef"
OTHER = b"fedcba9876543210"
STATE = RetryState(
    id="id",
    attempt=3,
    first_failed_ms=1_000,
    replays=1,
    error_message="boom",
    consumer_group="g",
    original_topic="orders",
    original_partition=2,
    original_offset="7",
    key_lock="abcdefghijkl.abcdefghijklmnop",
    published_ms=900,
)
MESSAGE = Message("g.retry", b"payload", b"key")


def received(state: RetryState) -> RetryState:
    return read(write((), state))


def signed(secret: bytes = SECRET) -> RetryState:
    return sign(STATE, MESSAGE, secret)


def check(state: RetryState, message: Message = MESSAGE, secrets: Any = SECRET) -> RetryState:
    return verify(state, message, secrets, "g")


def test_a_signed_state_is_believed() -> None:
    """Verifying a signed state returns an equal state."""
    state = check(received(signed()))
    assert replace(state, signature=None) == STATE
    assert (state.oddities, state.unsigned) == ((), False)


@pytest.mark.parametrize(
    "forged",
    [
        {"attempt": 0},
        {"attempt": 4},
        {"first_failed_ms": 9_000},
        {"first_failed_ms": None},
        {"replays": 0},
        {"id": "other"},
        {"consumer_group": "other"},
        {"consumer_group": None},
        {"original_topic": "archive"},
        {"original_partition": 3},
        {"original_offset": "8"},
        {"key_lock": None},
        {"published_ms": None},
        {"published_ms": 901},
        {"item_id": "other.1"},
    ],
)
def test_nothing_that_decides_can_be_changed(forged: dict[str, Any]) -> None:
    """A state that was changed counts as unsigned: it has an id made from the payload, and no attempt count."""
    state = check(received(replace(signed(), **forged)))
    assert (state.unsigned, state.id) == (True, content_id("g", b"payload", b"key"))
    assert (state.attempt, state.replays, state.published_ms, state.signature) == (0, 0, None, None)
    assert any(oddity.startswith("unsigned: ") for oddity in state.oddities)


def test_the_item_of_a_replay_is_signed() -> None:
    """A signature with an item fits this item only."""
    replayed = sign(replace(STATE, item_id="id.3"), MESSAGE, SECRET)
    assert check(received(replayed)) == replayed
    for forged in ("id.4", None):
        assert check(received(replace(replayed, item_id=forged))).unsigned
    assert check(received(replace(replayed, item_id="id.4"))).item_id is None


@pytest.mark.parametrize("other", [{"value": b"another"}, {"value": b""}, {"key": b"other"}, {"key": None}])
def test_a_signature_fits_one_payload_and_key(other: dict[str, Any]) -> None:
    """With another payload or key the same headers count as unsigned."""
    assert check(received(signed()), replace(MESSAGE, **other)).unsigned


def test_no_field_can_be_moved_into_another() -> None:
    """Moving signed text from one field to another makes the state unsigned."""
    one = sign(RetryState(id="ab", consumer_group="c"), MESSAGE, SECRET)
    assert check(received(replace(one, id="a", consumer_group="bc"))).unsigned
    assert check(received(replace(one, id="ab", consumer_group=None, original_topic="c"))).unsigned


def test_a_payload_by_reference_is_signed_as_what_it_refers_to() -> None:
    """A message that is stored as a reference gets the same signature as with its payload. The payload is not read."""
    stored = MESSAGE.by_reference(Source("g.retry", 0, "1"))
    assert not check(received(sign(STATE, stored, SECRET))).unsigned


def test_what_is_not_signed_may_change() -> None:
    """Error text and due time may change without making the state unsigned."""
    state = received(replace(signed(), error_message="other", due_ms=5))
    assert check(state) is state


@pytest.mark.parametrize("signature", [None, "", "forged", "žluťoučký"])
def test_a_missing_or_strange_signature_is_none(signature: str | None) -> None:
    """A state without a signature, or with a malformed one, counts as unsigned. Verifying raises no error."""
    assert check(received(replace(STATE, signature=signature))).unsigned


def test_records_alike_have_one_id_and_others_another() -> None:
    """An unsigned record's id is made from group, payload and key, whatever its headers are."""
    alike = {check(read(headers)).id for headers in ((), (("trace", b"1"),), write((), STATE))}
    assert len(alike) == 1
    others = [replace(MESSAGE, value=b"x"), replace(MESSAGE, key=None), replace(MESSAGE, key=b"")]
    assert len(alike | {check(read(()), other).id for other in others}) == 4
    assert verify(read(()), MESSAGE, SECRET, "other").id not in alike


def test_secrets_can_be_rolled() -> None:
    """With several secrets, a signature of any of them is valid. So a secret can be replaced."""
    old, new = received(signed(OTHER)), received(signed())
    assert check(old, secrets=[SECRET, OTHER]) is old
    assert check(new, secrets=[SECRET, OTHER]) is new
    assert check(old, secrets=[SECRET]).unsigned


def test_no_secret_at_all_believes_nothing() -> None:
    """With an empty list of secrets, every state counts as unsigned."""
    assert check(received(signed()), secrets=[]).unsigned


def test_what_cannot_be_written_is_not_signed() -> None:
    """A field that is too long for its header is left out, by the signer and by the verifier."""
    state = sign(replace(STATE, consumer_group="g" * 300), MESSAGE, SECRET)
    assert check(received(state)).consumer_group is None
    assert not check(received(state)).unsigned


def test_a_state_without_id_is_not_signed() -> None:
    """`sign` refuses a state without id."""
    with pytest.raises(Rejected, match="expected a state with an id"):
        sign(RetryState(attempt=1), MESSAGE, SECRET)


def test_a_short_secret_is_refused() -> None:
    """`sign` refuses a secret of less than 16 bytes, which could be guessed."""
    with pytest.raises(Rejected, match="at least 16 bytes"):
        sign(STATE, MESSAGE, b"short")
