"""Fair shares in policy files, and where a message has its fair key."""

from __future__ import annotations

import pytest

from retry_topic.management.policies import described_policy
from retry_topic.message import Message
from retry_topic.policy import Fair, Rate, RetryPolicy, content_hash, dump_policies, load_policies
from retry_topic.policy.fair import key_of, settings_of
from retry_topic.release.flow import is_limited, limits_of
from wheel_sched.errors import ConfigError

GOOD = """
[topic.orders]
rate = "2000/s"
[topic.orders.fair]
key = "header:tenant"
weights = { gold = 4, iron = 0.5 }
default_weight = 2
max_in_flight = 10
in_flight_timeout = "5m"
rate = "5/s"
[topic.plain]
"""


def test_settings_are_read() -> None:
    policies = load_policies(GOOD)
    assert policies.for_topic("orders").fair == Fair(
        "header:tenant", (("gold", 4), ("iron", 0.5)), 2, 10, 300_000, Rate(5)
    )
    assert policies.for_topic("plain").fair is None


def test_what_was_written_is_read_back() -> None:
    policies = load_policies(GOOD)
    assert load_policies(dump_policies(policies)) == policies
    bare = load_policies('[topic.a]\nfair = { key = "key" }')
    assert load_policies(dump_policies(bare)) == bare
    assert content_hash(policies.topics["orders"]) != content_hash(policies.topics["plain"])


def test_fair_can_be_off() -> None:
    assert load_policies('[topic.a]\nfair = "off"').for_topic("a").fair is None


def test_every_mistake_is_listed() -> None:
    """The error names the place and what was expected."""
    with pytest.raises(ConfigError) as caught:
        load_policies("""
[topic.a.fair]
key = "tenant"
weights = { gold = 0, x = "y" }
max_in_flight = -1
rate = "fast"
wieghts = {}
[topic.b.fair]
max_in_flight = 1
[topic.c]
fair = 5
[default.fair]
key = "key"
""")
    text = "\n".join(caught.value.problems)
    for words in (
        '[topic.a.fair] expected fair.key to be "key", "header:<name>"',
        "expected fair.weights.gold to be a number from 0.01 to 100.0, got: 0",
        "expected fair.weights.x to be a number",
        "expected fair.max_in_flight to be an integer",
        "did you mean weights?",
        "[topic.a.fair] expected rate to be a rate",
        "[topic.b.fair] expected key to be given",
        "[topic.c.fair] expected a table, got: 5",
        "[default] expected fair in the table of a topic",
    ):
        assert words in text


@pytest.mark.parametrize("key", ["", "header:", "json:", "json:id", "json:/a~2", "Header:x", "json:/" + "a/" * 30, 5])
def test_a_key_that_names_no_place_is_refused(key: object) -> None:
    with pytest.raises(ConfigError, match=r"fair\.key"):
        Fair(key)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("where", "key"),
    [
        ("key", b"k"),
        ("header:tenant", b"acme"),
        ("header:other", b""),
        ("json:/customer/id", "7"),
        ("json:/customer/names/1", "b"),
        ("json:/customer/a~1b~0", "x"),
        ("json:/customer", ""),
        ("json:/customer/none", ""),
        ("json:/customer/names/9", ""),
        ("json:/customer/names/-1", ""),
        ("json:/customer/names/+1", ""),
        ("json:/absent/id", ""),
    ],
)
def test_the_key_of_a_message(where: str, key: str | bytes) -> None:
    """The fair key is the last header with the given name, the message key, or a value in the JSON payload."""
    payload = b'{"customer": {"id": 7, "names": ["a", "b"], "a/b~": "x", "none": null}}'
    assert key_of(where, Message("t", payload, b"k", (("tenant", b"old"), ("tenant", b"acme")))) == key


@pytest.mark.parametrize("payload", [b"", b"{", b"\xff", b"[" * 100_000, b'"\\ud800"', b"NaN", b" " * 2_000_000])
def test_a_hostile_payload_has_some_key(payload: bytes) -> None:
    ref = Fair("json:/id").ref_of(Message("t", payload))
    assert ref.startswith("fair:")
    assert len(ref) <= 249


def test_a_lone_surrogate_is_no_error() -> None:
    assert Fair("json:/id").ref_of(Message("t", b'{"id": "\\ud800"}')) == "fair:?"


def test_the_rate_of_a_fair_topic_is_kept_by_the_store() -> None:
    """The store applies the rate of a fair topic, so the publisher does not apply it again. Therefore the server may
    push these messages."""
    policies = load_policies(GOOD)
    assert not is_limited(policies)
    assert limits_of(policies.topics["orders"]).interval_us == 0
    fair = policies.topics["orders"].fair
    assert fair is not None
    settings = settings_of(fair, Rate(2000), 100, 2, by_key=False)
    assert (settings.interval_us, settings.burst, settings.key_interval_us, settings.max_in_flight) == (
        1000,
        50,
        400_000,
        5,
    )
    assert settings_of(fair, None, 0, 2, by_key=True).max_in_flight == 10


def test_it_is_explained_in_words() -> None:
    lines = "\n".join(described_policy(load_policies(GOOD).topics["orders"]).lines)
    for words in (
        "fair: due messages are shared between the keys in the header tenant",
        "fair weights: gold 4, iron 0.5, every other key 2",
        "at most 10 messages of a key are released and not yet handled",
        "at most 5/s of each key",
    ):
        assert words in lines


def test_a_service_refuses_fair_for_all_topics() -> None:
    from retry_topic import connect
    from retry_topic.service import RetryService

    with connect("memory:") as connection, pytest.raises(ConfigError, match=r"\[default\]"):
        RetryService(connection, "g", RetryPolicy(fair=Fair("key")))
