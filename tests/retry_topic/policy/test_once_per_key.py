"""Collapse and debounce in a policy: where a message has its key, what is refused, and how the settings are dumped."""

from __future__ import annotations

import pytest

from retry_topic.message import Message
from retry_topic.policy import PolicySet, RetryPolicy, load_policies
from retry_topic.policy.dumping import content_hash, dump_policies
from retry_topic.policy.key_source import KeySource, parse_key_source
from retry_topic.policy.once_per_key import Collapse, Debounce
from wheel_sched.errors import ConfigError


@pytest.mark.parametrize(
    ("source", "key"),
    [
        ("key", b"k"),
        ("header:tenant", b"last"),
        ("header:none", None),
        ("json:/customer/id", b"7"),
        ("json:/names/1", b"b"),
        ("json:/a~1b", b"true"),
        ("json:/customer", None),
        ("json:/names/9", None),
        ("json:/names/x", None),
        ("json:/names/-1", None),
        ("json:/names/+1", None),
        ("json:/names/0_1", None),
        ("json:/null", None),
    ],
)
def test_a_key_comes_from_the_message(source: str, key: bytes | None) -> None:
    """The key is the message key, the last header with a given name, or one value in the JSON payload."""
    payload = b'{"customer": {"id": 7}, "names": ["a", "b"], "a/b": true, "null": null}'
    message = Message("t", payload, b"k", (("tenant", b"first"), ("tenant", b"last")))
    assert parse_key_source(source).of(message) == key
    assert str(parse_key_source(source)) == source


@pytest.mark.parametrize("payload", [b"", b"{", b"\xff", b"[" * 100_000, b"7", b'"a"'])
def test_a_strange_payload_has_no_key(payload: bytes) -> None:
    """A payload in which the key is not found raises no error. The message has no key."""
    assert KeySource("json", "/a").of(Message("t", payload)) is None


@pytest.mark.parametrize(
    "source",
    [
        "",
        "header",
        "header:",
        "json:a",
        "json",
        "key:x",
        "cookie:a",
        "header:a\n",
        "json:/a~2",
        "json:" + "/a" * 21,
        7,
        None,
    ],
)
def test_a_wrong_key_source_is_refused(source: object) -> None:
    with pytest.raises(ConfigError, match=r'expected key to be "key", "header:<name>" or "json:/<pointer>", got: '):
        parse_key_source(source)


def test_a_topic_overrides_what_the_default_says() -> None:
    """A topic that sets collapse does not inherit debounce, and the other way round. "off" switches both off."""
    policies = load_policies(
        '[default]\ncollapse = { key = "key" }\n'
        '[topic.a]\ndebounce = { key = "header:x", max_wait = "5m" }\n'
        '[topic.b]\ncollapse = "off"\n[topic.c]\nversion = 2\n'
    )
    assert policies.default.once_per_key == Collapse(KeySource("key"))
    assert policies.for_topic("a").once_per_key == Debounce(KeySource("header", "x"), 300_000)
    assert (policies.for_topic("a").collapse, policies.for_topic("b").once_per_key) == (None, None)
    assert policies.for_topic("c").once_per_key == policies.default.once_per_key
    assert load_policies(dump_policies(policies)) == policies


def test_wrong_settings_are_refused_with_their_places() -> None:
    """One error lists each mistake with its place, and nothing is loaded."""
    with pytest.raises(ConfigError) as refused:
        load_policies(
            '[topic.a]\ncollapse = { max_wait = "1h" }\n[topic.b]\ndebounce = { key = "x", max_wait = "0s" }\n'
            '[topic.c]\ncollapse = { key = "key" }\ndebounce = { key = "key" }\n'
        )
    assert refused.value.problems == [
        "[topic.a.collapse] expected keys key, got: max_wait",
        '[topic.a.collapse] expected key to be given, such as key = "header:order", got: none',
        '[topic.b.debounce] expected key to be "key", "header:<name>" or "json:/<pointer>", got: \'x\'',
        "[topic.c] expected collapse or debounce, got: both; the first or the last of a key goes out, not both",
    ]
    with pytest.raises(ConfigError, match=r"expected debounce.max_wait to be from 1ms"):
        Debounce(KeySource("key"), 0)


def test_a_policy_without_these_settings_is_dumped_as_before() -> None:
    """A policy without these settings is dumped without them. So a new release does not change its content hash."""
    assert "collapse" not in dump_policies(PolicySet())
    assert content_hash(RetryPolicy()) != content_hash(RetryPolicy(collapse=Collapse(KeySource("key"))))
