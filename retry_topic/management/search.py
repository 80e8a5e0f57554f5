"""The search language for messages. A search is one line of text that chooses messages.

    topic:orders error:*Timeout* attempt>3 due<1h state:held key:customer-7 fp:3f2a policy:default id:abc text

A message must meet all parts of the search. If the search names several states, the message must be in one of them. A
value with spaces stands in quotes: `error:"* refused"`. Inside quotes, `\\"` is a quote and `\\\\` a backslash.

| part | chooses messages |
|---|---|
| `topic:NAME` | of this topic; `topic:""`: of no topic |
| `state:STATE` | that are due (waiting), leased (in flight), held or dead; repeatable |
| `error:GLOB` | whose error class, error message or reason matches the whole glob |
| `fp:HEX` | whose error's fingerprint begins so |
| `key:KEY` | with this key |
| `policy:NAME` | that the policy of this name, or `name@version`, decided about |
| `id:START` | whose id begins so |
| `attempt>N` | with more than N failed attempts; also `>=`, `<`, `<=`, `=` |
| `due<1h` | due within the next hour, or overdue; `due>1h`: due later than an hour from now |
| `died>2d` | dead letters that died longer ago than two days; `died<2d`: less long ago |
| `due<INSTANT`, `died<INSTANT` | due (or died) before this RFC 3339 instant; `>`: after it |
| a word | whose id or error contains it, ignoring case |

`due` never chooses dead letters, and `died` chooses only dead letters. `<=` and `>=` include the bound itself.

Parsing is pure. Every text gives a `Search`, or an error that names the wrong part and says what to write instead.
`parse_search(str(search)) == search` for every search.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import NamedTuple

from retry_topic.management.filters import Filter, checked_fingerprint
from wheel_sched.duration import format_duration, parse_duration
from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.management.moments import instant_ms
from wheel_sched.management.wording import instant
from wheel_sched.store import State
from wheel_sched.store.core.items import MAX_DUE_MS, STATES

LONGEST = 1_000
"""The greatest number of characters in a search."""

TEXT = "text"
"""The `name` of a term that consists of a word only."""

_MOST_ATTEMPTS = 1_000_000
_HEAD = re.compile(r"([A-Za-z][A-Za-z_-]*)(:|>=|<=|>|<|=)")
_EXAMPLES = {
    "topic": "topic:orders",
    "state": "state:held",
    "error": "error:*Timeout*",
    "fp": "fp:3f2a",
    "key": "key:customer-7",
    "policy": "policy:default",
    "id": "id:abc",
    "attempt": "attempt>3",
    "due": "due<1h",
    "died": "died>2d",
}
NAMES: tuple[str, ...] = tuple(_EXAMPLES)
"""The names that a term can have in a search."""

_OTHER_NAMES = {"fingerprint": "fp", "class": "error", "message": "error", "attempts": "attempt", "until": "due"}
_STATE_WORDS: dict[str, State] = {"waiting": "due", "in-flight": "leased", **{state: state for state in STATES}}


class SearchError(Rejected):
    """A search that cannot be read.

    Args:
        token: the part of the text that is wrong.
        at: the index of its first character in the text.
        why: what is wrong, and what to write instead.
    """

    def __init__(self, token: str, at: int, why: str) -> None:
        super().__init__(f"{token[:60]!r} at character {at + 1}: {why}; nothing was searched")
        self.token = token
        self.at = at
        self.why = why


class SearchTerm(NamedTuple):
    """One condition of a search: its name, ":" or a comparison such as "<", and its value in one standard form."""

    name: str
    comparison: str
    value: str

    def __str__(self) -> str:
        if self.name == TEXT:
            return _quoted(self.value) if _HEAD.match(self.value) is None else _in_quotes(self.value)
        return f"{self.name}{self.comparison}{_quoted(self.value)}"


@dataclass(frozen=True, slots=True)
class Search:
    """A search that was read from a text.

    Args:
        terms: the conditions, in the order of the text. Defaults to none: every message.
    """

    terms: tuple[SearchTerm, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, self.terms))

    @property
    def states(self) -> tuple[State, ...]:
        """The states that the search names."""
        return tuple(dict.fromkeys(_STATE_WORDS[term.value] for term in self.terms if term.name == "state"))

    def without(self, place: int) -> Search:
        """The search without the term at this index."""
        return Search(self.terms[:place] + self.terms[place + 1 :])

    def with_topic(self, topic: str) -> Search:
        """The same search in this topic only."""
        return Search((*(term for term in self.terms if term.name != "topic"), SearchTerm("topic", ":", topic)))

    def only(self, state: State | None) -> Search:
        """The same search in this state only; None: in any state.

        The result has no `due` in a search for dead letters, and no `died` in a search for other messages.
        """
        lost = {"state", "due"} if state == "dead" else {"state", "died"} if state is not None else {"state"}
        kept = tuple(term for term in self.terms if term.name not in lost)
        return Search(kept if state is None else (*kept, SearchTerm("state", ":", state)))

    def fixed(self, now_ms: int) -> Search:
        """The same search with instants instead of durations. It chooses the same times when it is used later."""
        return Search(tuple(_fixed(term, now_ms) if term.name in ("due", "died") else term for term in self.terms))

    def filter(self, now_ms: int) -> Filter:
        """The filter that chooses the messages.

        Args:
            now_ms: the store's time, epoch ms. Durations count from this time.
        """
        texts = tuple(term.value for term in self.terms if term.name == TEXT)
        chosen = Filter(states=self.states, text=texts)
        for term in self.fixed(now_ms).terms:
            narrowed = _FILTERS.get(term.name)
            chosen = chosen if narrowed is None else narrowed(chosen, term)
        return chosen


def parse_search(text: str) -> Search:
    """Read a search.

    Raises:
        SearchError: a part of the text cannot be read, or two parts contradict each other.
    """
    if len(text) > LONGEST:
        raise SearchError(text[:20], 0, f"a search has at most {LONGEST:,} characters, got: {len(text):,}")
    terms: list[SearchTerm] = []
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        term, end = _term(text, at)
        _check_repeat(terms, term, text[at:end], at)
        if term not in terms:
            terms.append(term)
        at = end
    return Search(tuple(terms))


def _term(text: str, at: int) -> tuple[SearchTerm, int]:
    """The term that begins at index `at` of the text, and the index of its end."""
    head = _HEAD.match(text, at)
    value, end, quoted = _value(text, head.end() if head else at)
    token = text[at:end]
    if any(0xD800 <= ord(one) < 0xE000 and not 0xDC80 <= ord(one) < 0xDD00 for one in token):  # DC80-DCFF: bytes
        raise SearchError(token, at, "it holds half of a character; leave that out")
    if head is None:
        if not value:
            raise SearchError(token, at, "an empty text is in every message; write a word")
        return SearchTerm(TEXT, ":", value), end
    name, comparison = head[1].lower(), head[2]
    if name not in _EXAMPLES:
        raise SearchError(token, at, _unknown(name, token))
    if not value and not (quoted and name == "topic"):
        raise SearchError(token, at, f"{name} needs a value, such as {_EXAMPLES[name]}")
    try:
        return _READERS.get(name, _read_text)(name, comparison, value), end
    except ConfigError as error:
        raise SearchError(token, at, str(error)) from error


def _value(text: str, at: int) -> tuple[str, int, bool]:
    """The value that begins at index `at` of the text, the index of its end, and whether it stands in quotes."""
    if text[at : at + 1] != '"':
        end = at
        while end < len(text) and not text[end].isspace():
            end += 1
        return text[at:end], end, False
    found, place = [], at + 1
    while place < len(text) and text[place] != '"':
        place += text[place] == "\\" and text[place + 1 : place + 2] in ('"', "\\")
        found.append(text[place])
        place += 1
    if place >= len(text):
        raise SearchError(text[at:], at, 'the quote is not closed; end it with "')
    if text[place + 1 : place + 2].strip():
        raise SearchError(text[at : place + 2], at, "a space must follow the closing quote")
    return "".join(found), place + 1, True


def _unknown(name: str, token: str) -> str:
    close = _OTHER_NAMES.get(name) or next(iter(get_close_matches(name, NAMES, 1)), None)
    hint = f"did you mean {_EXAMPLES[close]}?" if close else f"known are {', '.join(NAMES)}"
    return f"nothing is called {name[:40]}; {hint} To search for it as text, write it in quotes: {_in_quotes(token)}"


def _check_repeat(terms: list[SearchTerm], term: SearchTerm, token: str, at: int) -> None:
    """Raise an error if a term contradicts the terms before it."""
    before = [one for one in terms if one.name == term.name and one != term]
    if before and term.name not in (TEXT, "state", "attempt", "due", "died"):
        raise SearchError(token, at, f"{before[0]} is given too, and a message has one {term.name}; remove one of them")
    names = {term.name, *(one.name for one in terms)}
    if {"due", "died"} <= names:
        raise SearchError(token, at, "due chooses waiting messages, died chooses dead letters; remove one of them")
    states = {_STATE_WORDS[one.value] for one in (*terms, term) if one.name == "state"}
    if "due" in names and "dead" in states:
        raise SearchError(token, at, "dead letters are not due; write died instead of due, or remove state:dead")
    if "died" in names and states - {"dead"}:
        raise SearchError(token, at, "only dead letters have died; write due instead of died, or state:dead")


def _read_text(name: str, comparison: str, value: str) -> SearchTerm:
    if comparison not in (":", "="):
        raise ConfigError(f"{name} cannot be compared; write {_EXAMPLES[name]}")
    return SearchTerm(name, ":", value)


def _read_fingerprint(name: str, comparison: str, value: str) -> SearchTerm:
    return _read_text(name, comparison, checked_fingerprint(value))


def _read_state(name: str, comparison: str, value: str) -> SearchTerm:
    _read_text(name, comparison, value)
    state = _STATE_WORDS.get(value.lower())
    if state is None:
        close = get_close_matches(value.lower(), _STATE_WORDS, 1)
        hint = f"did you mean state:{close[0]}?" if close else f"write state: and one of {', '.join(STATES)}"
        raise ConfigError(f"there is no such state; {hint}")
    return SearchTerm(name, ":", state)


def _read_attempt(name: str, comparison: str, value: str) -> SearchTerm:
    if not (value.isascii() and value.isdigit() and len(value) <= 7 and int(value) <= _MOST_ATTEMPTS):
        raise ConfigError(f"expected a whole number up to {_MOST_ATTEMPTS:,}, such as {_EXAMPLES[name]}")
    return SearchTerm(name, "=" if comparison == ":" else comparison, f"{int(value)}")


def _read_time(name: str, comparison: str, value: str) -> SearchTerm:
    if comparison in (":", "="):
        raise ConfigError(f"compare it with < or >, such as {_EXAMPLES[name]}")
    try:
        return SearchTerm(name, comparison, format_duration(parse_duration(value)))
    except ConfigError:
        at_ms = _instant_ms(value)
    if at_ms is None:
        raise ConfigError(f"expected a duration such as {_EXAMPLES[name]}, or {name}{comparison}2026-01-01T12:00:00Z")
    return SearchTerm(name, comparison, instant(at_ms))


def _instant_ms(text: str) -> int | None:
    """Epoch milliseconds of an instant; None for another text."""
    try:
        return instant_ms(text)
    except ConfigError:
        return None


_READERS: dict[str, Callable[[str, str, str], SearchTerm]] = {
    "fp": _read_fingerprint,
    "state": _read_state,
    "attempt": _read_attempt,
    "due": _read_time,
    "died": _read_time,
}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _fixed(term: SearchTerm, now_ms: int) -> SearchTerm:
    """A condition on a time, with an instant instead of a duration: `died>2d` becomes `died<INSTANT`."""
    if _instant_ms(term.value) is not None:
        return term
    span_ms = parse_duration(term.value)
    if term.name == "died":
        return SearchTerm(term.name, _TURNED[term.comparison], instant(max(0, now_ms - span_ms)))
    return SearchTerm(term.name, term.comparison, instant(min(now_ms + span_ms, MAX_DUE_MS)))


def _between(least: int | None, most: int | None, comparison: str, value: int) -> tuple[int | None, int | None]:
    """Narrow the range from `least` to `most`, both included, to the values that meet a comparison."""
    if comparison in ("=", ">", ">="):
        bound = value + (comparison == ">")
        least = bound if least is None else max(least, bound)
    if comparison in ("=", "<", "<="):
        bound = value - (comparison == "<")
        most = bound if most is None else min(most, bound)
    return least, most


def _filter_attempt(chosen: Filter, term: SearchTerm) -> Filter:
    least, most = _between(chosen.least_attempts, chosen.most_attempts, term.comparison, int(term.value))
    return replace(chosen, least_attempts=least, most_attempts=most)


def _filter_time(chosen: Filter, term: SearchTerm) -> Filter:
    last_ms = None if chosen.until_ms is None else chosen.until_ms - 1
    least, most = _between(chosen.since_ms, last_ms, term.comparison, _instant_ms(term.value) or 0)
    states: tuple[State, ...] = ("dead",) if term.name == "died" else chosen.states or ("due", "leased", "held")
    return replace(chosen, states=states, since_ms=least, until_ms=None if most is None else most + 1)


_FILTERS: dict[str, Callable[[Filter, SearchTerm], Filter]] = {
    "topic": lambda chosen, term: replace(chosen, topic=term.value),
    "error": lambda chosen, term: replace(chosen, error=term.value),
    "fp": lambda chosen, term: replace(chosen, fingerprint=term.value),
    "key": lambda chosen, term: replace(chosen, key=term.value),
    "policy": lambda chosen, term: replace(chosen, policy=term.value),
    "id": lambda chosen, term: replace(chosen, id_start=term.value),
    "attempt": _filter_attempt,
    "due": _filter_time,
    "died": _filter_time,
}


def _quoted(value: str) -> str:
    """A value as a search writes it: in quotes when it needs them."""
    plain = value and not value.startswith('"') and not any(one.isspace() for one in value)
    return value if plain else _in_quotes(value)


def _in_quotes(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
