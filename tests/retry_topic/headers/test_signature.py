"""Signatures: forged counts cost the forger."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from retry_topic.headers import MAX_COUNT, RetryState, read, sign, verify, write
from retry_topic.policy import Dead, RetryPolicy, decide, failure_from
from wheel_sched.errors import Rejected

SECRET = b"0123456789abcdef"
OTHER = b"fedcba9876543210"
STATE = RetryState(id="id", attempt=3, first_failed_ms=1_000, replays=1, error_message="boom")


def received(state: RetryState) -> RetryState:
    return read(write((), state))


def test_a_signed_state_is_believed() -> None:
    """What was signed comes back as it was."""
    state = verify(received(sign(STATE, SECRET)), SECRET)
    assert replace(state, signature=None) == STATE
    assert state.oddities == ()


@pytest.mark.parametrize(
    "forged", [{"attempt": 0}, {"first_failed_ms": 9_000}, {"first_failed_ms": None}, {"replays": 0}, {"id": "other"}]
)
def test_a_changed_count_is_forged_and_taken_as_used_up(forged: dict[str, int | str | None]) -> None:
    """A lower count, a later first failure and another id all fall to the side that costs the forger."""
    state = verify(received(replace(sign(STATE, SECRET), **forged)), SECRET)  # type: ignore[arg-type]
    assert (state.attempt, state.replays, state.first_failed_ms) == (MAX_COUNT, MAX_COUNT, 0)
    assert any(oddity.startswith("forged: ") for oddity in state.oddities)


@pytest.mark.parametrize("policy", [RetryPolicy(max_attempts=None), RetryPolicy(max_age_ms=None)])
def test_a_forged_message_dies_at_its_next_failure_under_either_cap(policy: RetryPolicy) -> None:
    """Used-up counts reach the cap by count and the cap by age alike."""
    state = verify(received(STATE), SECRET)
    decision = decide(policy, failure_from(state, now_ms=1_700_000_000_000), 1_700_000_000_000, random.Random(1))
    assert isinstance(decision, Dead)


def test_what_is_not_signed_may_change() -> None:
    """The error text is for people; it limits nothing."""
    state = received(replace(sign(STATE, SECRET), error_message="other", due_ms=5))
    assert verify(state, SECRET) is state


def test_a_missing_signature_is_forged_unless_allowed() -> None:
    """Stripping the signature is no way around it; adopting a foreign topic is a choice."""
    assert verify(received(STATE), SECRET).attempt == MAX_COUNT
    assert verify(received(STATE), SECRET, allow_unsigned=True).attempt == 3
    wrong = received(replace(sign(STATE, OTHER)))
    assert verify(wrong, SECRET, allow_unsigned=True).attempt == MAX_COUNT


def test_a_fresh_message_claims_nothing() -> None:
    """Without retry headers there is nothing to believe or not."""
    state = read((("traceparent", b"1"),))
    assert verify(state, SECRET) is state


def test_secrets_can_be_rolled() -> None:
    """While two secrets are in force a signature of either fits."""
    old, new = received(sign(STATE, OTHER)), received(sign(STATE, SECRET))
    assert verify(old, [SECRET, OTHER]) is old
    assert verify(new, [SECRET, OTHER]) is new
    assert verify(old, [SECRET]).attempt == MAX_COUNT


def test_no_secret_at_all_believes_nothing() -> None:
    """An empty list of secrets is not "no check"."""
    assert verify(received(sign(STATE, SECRET)), []).attempt == MAX_COUNT


def test_a_state_without_id_is_not_signed() -> None:
    """Such a signature would fit any message."""
    with pytest.raises(Rejected, match="expected a state with an id"):
        sign(RetryState(attempt=1), SECRET)


def test_a_short_secret_is_refused() -> None:
    """A secret that can be searched for protects nothing."""
    with pytest.raises(Rejected, match="at least 16 bytes"):
        sign(STATE, b"short")


def test_a_signature_of_strange_characters_is_only_wrong() -> None:
    """Comparing never raises, whatever the header says."""
    assert verify(received(replace(STATE, signature="žluťoučký")), SECRET).attempt == MAX_COUNT
