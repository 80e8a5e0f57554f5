"""The search language: what each condition selects, how a search is written as text again, and the errors."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retry_topic import Message
from retry_topic.management.filters import Filter, ListedMessage, entry_of
from retry_topic.management.search import NAMES, Search, SearchError, parse_search
from retry_topic.message.encoding import encode_body
from retry_topic.message.headers import RetryState, write
from wheel_sched.errors import Rejected
from wheel_sched.store import Found

NOW = 1_800_000_000_000
HOUR, DAY = 3_600_000, 86_400_000


def entry(state: str = "due", at_ms: int = NOW, **more: object) -> ListedMessage:
    """A message in this state, with two failed attempts. `at_ms` is its due time or the time of its death."""
    fields = {"error_class": "TimeoutError", "error_message": "no Answer", "error_fingerprint": "3f2a00", "attempt": 2}
    retry = replace(RetryState(id="abc", policy="payments@3"), **{**fields, **more})  # type: ignore[arg-type]
    body = encode_body(Message("orders", b"{}", b"customer-7", write((), retry)))
    return entry_of(Found("abc.2", state, at_ms, 1, "orders", body))  # type: ignore[arg-type]


def chosen(text: str, one: ListedMessage) -> bool:
    """Whether the search selects the message, also by its state."""
    wanted = parse_search(text).filter(NOW)
    return wanted.matches(one) and (not wanted.states or one.found.state in wanted.states)


def read(text: str) -> tuple[Search, SearchError | None]:
    """Parse a text. Return the search and None, or an empty search and the error."""
    try:
        return parse_search(text), None
    except SearchError as error:
        return Search(), error


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        ("topic:orders", entry(), None),
        ("topic:order", None, entry()),
        ("error:*Time*", entry(), entry(error_class="ValueError")),
        ("error:Time", None, entry()),
        ("attempt>2", entry(attempt=3), entry()),
        ("attempt>=2", entry(), entry(attempt=1)),
        ("attempt<2", entry(attempt=1), entry()),
        ("attempt<=2", entry(), entry(attempt=3)),
        ("attempt:2", entry(), entry(attempt=3)),
        ("attempt>1 attempt<3", entry(), entry(attempt=3)),
        ("state:held", entry("held"), entry()),
        ("state:waiting", entry(), entry("dead")),
        ("state:held state:dead", entry("dead"), entry()),
        ("key:customer-7", entry(), None),
        ("key:customer", None, entry()),
        ("fp:3F2A", entry(), entry(error_fingerprint="4f2a00")),
        ("policy:payments", entry(), entry(policy="other@3")),
        ("policy:payments@3", entry(), entry(policy="payments@4")),
        ("id:ab", entry(), None),
        ("id:bc", None, entry()),
        ("ANSWER", entry(), entry(error_message="other")),
        ("bc.2 timeout", entry(), entry(error_class="ValueError")),
        ('"no answer"', entry(), entry(error_message="no  answer")),
        ("due<1h", entry(at_ms=NOW + HOUR - 1), entry(at_ms=NOW + HOUR)),
        ("due<=1h", entry(at_ms=NOW + HOUR), entry(at_ms=NOW + HOUR + 1)),
        ("due>1h", entry(at_ms=NOW + HOUR + 1), entry(at_ms=NOW + HOUR)),
        ("due>=1h", entry(at_ms=NOW + HOUR), entry(at_ms=NOW + HOUR - 1)),
        ("due<1h", entry(at_ms=NOW - DAY), entry("dead", NOW - DAY)),
        ("died>2d", entry("dead", NOW - 2 * DAY - 1), entry("dead", NOW - 2 * DAY)),
        ("died>=2d", entry("dead", NOW - 2 * DAY), entry("dead", NOW - 2 * DAY + 1)),
        ("died<2d", entry("dead", NOW - 2 * DAY + 1), entry("dead", NOW - 2 * DAY)),
        ("died<2d", entry("dead"), entry("due")),
        ("died<2027-01-15T08:00:00Z", entry("dead", NOW - 1), entry("dead", NOW)),
        ("died>2027-01-15T08:00:00Z", entry("dead", NOW + 1), entry("dead", NOW)),
        ("due<2027-01-15T09:00:00+01:00", entry(at_ms=NOW - 1), entry(at_ms=NOW)),
        ("", entry(), None),
    ],
)
def test_each_part_chooses_what_it_says(text: str, yes: ListedMessage | None, no: ListedMessage | None) -> None:
    """A condition selects exactly the messages that it describes, up to its bound."""
    assert yes is None or chosen(text, yes)
    assert no is None or not chosen(text, no)


@pytest.mark.parametrize(
    ("text", "token", "advice"),
    [
        ("topik:orders", "topik:orders", "did you mean topic:orders?"),
        ("a topik:x", "topik:x", "did you mean topic:orders?"),
        ("fingerprint:3f", "fingerprint:3f", "did you mean fp:3f2a?"),
        ("http://x", "http://x", 'in quotes: "http://x"'),
        ("topic:", "topic:", "needs a value, such as topic:orders"),
        ('key:""', 'key:""', "needs a value"),
        ("topic>orders", "topic>orders", "cannot be compared; write topic:orders"),
        ("attempt>many", "attempt>many", "expected a whole number"),
        ("due:1h", "due:1h", "compare it with < or >, such as due<1h"),
        ("due<soon", "due<soon", "expected a duration such as due<1h, or due<2026-01-01T12:00:00Z"),
        ("due<2026-01-01", "due<2026-01-01", "expected a duration"),
        ("died<1960-01-01T00:00:00Z", "died<1960-01-01T00:00:00Z", "expected a duration"),
        ("state:ded", "state:ded", "did you mean state:dead?"),
        ("fp:xyz", "fp:xyz", "hexadecimal"),
        ("topic:a topic:b", "topic:b", "topic:a is given too"),
        ("due<1h died<1h", "died<1h", "remove one of them"),
        ("state:dead due<1h", "due<1h", "dead letters are not due"),
        ("died<1h state:held", "state:held", "only dead letters have died"),
        ('error:"no end', '"no end', "the quote is not closed"),
        ('error:"a"b', '"a"b', "a space must follow"),
        ('""', '""', "write a word"),
        ("key:\ud800", "key:\ud800", "half of a character"),
        ("x" * 1001, "x" * 20, "at most 1,000 characters"),
    ],
)
def test_a_wrong_part_is_named_with_advice(text: str, token: str, advice: str) -> None:
    """The error has the wrong part of the text, its position, and what to write instead."""
    with pytest.raises(SearchError) as raised:
        parse_search(text)
    assert raised.value.token == token
    assert text[raised.value.at :].startswith(token)
    assert advice in raised.value.why
    assert "nothing was searched" in str(raised.value)


@given(st.text() | st.from_regex(rf"((({'|'.join(NAMES)})(:|<|>|<=|>=|=))?[\"a-f0-9hd\\\\* ]{{0,6}} ){{0,4}}"))
def test_every_text_is_a_search_or_an_error_that_points_into_it(text: str) -> None:
    """Any text is a search or an error. A search is equal after it is written and read again, and its filter works. An
    error names a part of the text."""
    found, wrong = read(text)
    if wrong is not None:
        assert text[wrong.at :].startswith(wrong.token)
        return
    assert parse_search(str(found)) == found
    assert found.filter(NOW).matches(entry()) in (True, False)


TIMES = st.sampled_from(["1h", "90m", "0s", "2027-01-15T08:00:00.001Z", "2d"])
TERMS = st.one_of(
    st.tuples(st.sampled_from(["topic", "key", "id", "policy", "error"]), st.just(":"), st.text(min_size=1)),
    st.tuples(st.sampled_from(["due", "attempt"]), st.sampled_from(["<", "<=", ">", ">="]), st.just("7")),
    st.tuples(st.just("died"), st.sampled_from(["<", "<=", ">", ">="]), TIMES),
)


@given(TERMS, TIMES)
def test_values_of_any_form_are_written_so_that_they_read_back(term: tuple[str, str, str], time: str) -> None:
    """A value with spaces, quotes or backslashes is equal after its search is written and read again."""
    name, comparison, value = term
    value = time if name == "due" else value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    found, wrong = read(f'{name}{comparison}"{escaped}"')
    if wrong is not None:
        assert wrong.why.startswith(("it holds half", "a search has"))
        return
    assert parse_search(str(found)) == found
    if comparison == ":":
        assert found.terms[0].value == value


@given(st.sampled_from(["<", "<=", ">", ">="]), st.sampled_from(["due", "died"]), st.integers(-2, 2))
def test_a_search_with_instants_means_the_same(comparison: str, name: str, step_ms: int) -> None:
    """`fixed` replaces durations by points in time. At any later time, the fixed search selects the same messages."""
    found = parse_search(f"{name}{comparison}1h")
    fixed = found.fixed(NOW)
    at_ms = (NOW + HOUR if name == "due" else NOW - HOUR) + step_ms
    one = entry("due" if name == "due" else "dead", at_ms)
    assert found.filter(NOW).matches(one) == fixed.filter(NOW + DAY).matches(one)
    assert parse_search(str(fixed)) == fixed


def test_a_state_replaces_the_conditions_that_its_messages_cannot_meet() -> None:
    """`only` limits a search to one state. It drops the conditions that no message in this state can meet, and keeps
    the others."""
    assert str(parse_search("due<1h state:held topic:a").only("dead")) == "topic:a state:dead"
    assert str(parse_search("died<1h topic:a").only("due")) == "topic:a state:due"
    assert str(parse_search("state:held topic:a").only(None)) == "topic:a"
    assert str(parse_search("a b").without(0)) == "b"
    assert Search().filter(NOW) == Filter()


def test_conditions_that_dead_letter_filters_lack_are_refused_there() -> None:
    """A filter of dead letters lacks some conditions of a search. A search with such a condition is refused."""
    for text in ("attempt>1", "attempt<9", "policy:a", "id:a", "word"):
        assert parse_search(text).filter(NOW).narrow
        with pytest.raises(Rejected, match="nothing was done"):
            parse_search(text).filter(NOW).selection()
