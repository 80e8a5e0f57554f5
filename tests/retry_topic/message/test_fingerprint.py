"""Fingerprints group errors of one kind."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from retry_topic.message.fingerprint import fingerprint, fingerprint_of, normalise

ORDER = "builtins.ValueError"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 17 not found", "order 93811 not found"),
        ("balance -3.50 below 1e3", "balance 12 below 7.5e-4"),
        ("id 6f1c7a52-0d7e-4bd5-9f0b-2b8a8f6f5f11 gone", "id 00000000-0000-4000-8000-ABCDEFABCDEF gone"),
        ("at 0xdeadBEEF", "at 0x7f00"),
        ("commit 9f86d081884c7d65 lost", "commit 2c26b46b68ffc68f lost"),
        ("no key 'alice@x'", "no key 'bob@y'"),
        ('no key "alice"', 'no key ""'),
        ("GET https://api/x/1?user=7&t=a", "GET https://api/x/22?user=8"),
        ("cannot open /var/spool/17/4.txt", "cannot open /var/spool/2/900.txt"),
        ("at 2026-01-01T10:00:00", "at 2025-12-31T23:59:59"),
        ("too   slow\n", "too slow"),
    ],
)
def test_the_same_mistake_with_other_values_is_one_group(one: str, other: str) -> None:
    """Texts that differ in numbers, ids, quoted text, queries or digits in paths have one fingerprint."""
    assert fingerprint(ORDER, one) == fingerprint(ORDER, other), (normalise(one), normalise(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 17 not found", "user 17 not found"),
        ("GET https://api/x?u=1", "GET https://other/x?u=1"),
        ("can't open it, won't wait", "can't close it, won't wait"),
        ("deadbeef", "feedface"),
    ],
)
def test_other_words_are_other_groups(one: str, other: str) -> None:
    """Texts that differ in words have different fingerprints. An apostrophe does not start quoted text."""
    assert fingerprint(ORDER, one) != fingerprint(ORDER, other)


def test_the_class_and_the_place_are_part_of_the_group() -> None:
    """The same text from another class or function has another fingerprint."""
    base = fingerprint(ORDER, "no", ("app:load",))
    assert base != fingerprint("builtins.KeyError", "no", ("app:load",))
    assert base != fingerprint(ORDER, "no", ("app:save",))
    assert base != fingerprint(ORDER, "no")


def raised(number: int) -> BaseException:
    try:
        raise ValueError(f"order {number} not found")
    except ValueError as error:
        return error


def test_an_exception_is_grouped_by_where_it_was_raised() -> None:
    """Errors from one function that differ in numbers have one fingerprint. Another place gives another fingerprint."""
    assert fingerprint_of(raised(1)) == fingerprint_of(raised(2))
    assert fingerprint_of(raised(1)) != fingerprint_of(ValueError("order 1 not found"))


def test_a_fingerprint_is_twelve_hex_characters_in_every_process() -> None:
    """The fingerprint does not depend on Python's hash randomisation."""
    here = fingerprint(ORDER, "order 17", ("a:b",))
    assert len(here) == 12
    code = f"from retry_topic.message.fingerprint import fingerprint as f; print(f({ORDER!r}, 'order 99', ('a:b',)))"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert there == here


def test_a_hostile_message_costs_no_time() -> None:
    """Seven texts of at least a million characters take less than two seconds together."""
    started = time.perf_counter()
    for text in (
        "'" * 10**6,
        "a" * 10**6,
        "0x" * 10**6,
        "1,1." * 10**6,
        "a-" * 10**6,
        "ab://" * 10**6,
        '"\ud800' * 10**6,
    ):
        fingerprint(ORDER, text)
    assert time.perf_counter() - started < 2.0
