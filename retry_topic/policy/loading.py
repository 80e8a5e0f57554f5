"""Reads policy files (TOML). It is strict and lists every problem of a file at once, each with its place in the file.

Unknown keys and wrong types, bounds, kinds or patterns are problems. Nothing is guessed, and a file is never loaded in
part. A wrong value is replaced by a harmless one, only so that the rest of the file can be checked too.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from retry_topic.policy.checks import is_integer
from retry_topic.policy.delays import KINDS, Delay
from retry_topic.policy.fair import Fair
from retry_topic.policy.flow import Breaker, Budget, Rate, parse_percent, parse_rate
from retry_topic.policy.key_source import KeySource, parse_key_source
from retry_topic.policy.model import PolicySet, RetryPolicy
from retry_topic.policy.once_per_key import Collapse, Debounce
from retry_topic.policy.rules import Rule
from retry_topic.policy.schema import (
    BREAKER_KEYS,
    BUDGET_KEYS,
    COLLAPSE_KEYS,
    DEBOUNCE_KEYS,
    DELAY_KEYS,
    FAIR_KEYS,
    FILE_KEYS,
    OFF,
    POLICY_KEYS,
    RULE_KEYS,
    UNLIMITED,
    place_of,
)
from wheel_sched.duration import LONGEST_MS, parse_duration
from wheel_sched.errors import ConfigError

_Made = TypeVar("_Made")

_HARMLESS: dict[str, Any] = {"base": 0, "cap": LONGEST_MS, "max_attempts": 8, "max_age": LONGEST_MS}

FAIR_IN_DEFAULT = "[default] expected fair in the table of a topic, [topic.<name>.fair], got: fair for all topics"

# Names from AWS's article that people may try; here jitter is a setting of most curves.
_JITTER_KINDS = {"full-jitter": "full", "equal-jitter": "equal"}


def load_policies(path_or_text: str | Path) -> PolicySet:
    """The policies of a TOML file, or of TOML text.

    A `Path` is always a file. A str is text when it is empty or holds a line break or `=`, otherwise a path.

    Raises:
        ConfigError: lists every problem; nothing was loaded.
    """
    try:
        return _loaded(path_or_text)
    except ConfigError:
        raise
    except ValueError:  # also raised for a number that was read but cannot be printed
        raise ConfigError("expected policies, got: TOML with a number too long; nothing was loaded") from None
    except RecursionError:
        raise ConfigError("expected policies, got: TOML that is nested too deeply; nothing was loaded") from None


def _loaded(path_or_text: str | Path) -> PolicySet:
    try:
        data = tomllib.loads(_text(path_or_text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"expected the policies to be TOML, got: {error}") from error
    problems: list[str] = []
    top = _Table(data, (), FILE_KEYS, problems)
    default = _policy(top.table("default"), ("default",), RetryPolicy(), problems)
    topics = {
        topic: _policy(table, ("topic", topic), replace(default, name=_legal(topic)), problems)
        for topic, table in top.table("topic").items()
    }
    if default.fair is not None:
        problems.append(FAIR_IN_DEFAULT)
    policies = _made(lambda: PolicySet(default, topics), ("topic",), problems)
    if problems or policies is None:
        raise ConfigError(problems)
    return policies


def _text(path_or_text: str | Path) -> str:
    if isinstance(path_or_text, str) and (not path_or_text or "\n" in path_or_text or "=" in path_or_text):
        return path_or_text
    try:
        return Path(path_or_text).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"expected {path_or_text} to be a readable policy file, got: {error}") from error


def _legal(topic: str) -> str:
    """The name of a topic's policy: the topic, or "default" for an illegal topic, which another check reports."""
    try:
        return RetryPolicy(name=topic).name
    except ConfigError:
        return "default"


class _Table:
    """One TOML table. Its typed getters add problems to a list instead of raising."""

    def __init__(self, data: Any, place: Sequence[str], known: Sequence[str], problems: list[str]) -> None:
        self.place, self.problems = place, problems
        if not isinstance(data, dict):
            self.problem(f"expected a table, got: {data!r}")
            data = {}
        self.data: dict[str, Any] = data
        for key in data:
            if key not in known:
                close = get_close_matches(key, known, n=1)
                hint = f"; did you mean {close[0]}?" if close else ""
                self.problem(f"expected keys {', '.join(known)}, got: {key}{hint}")

    def problem(self, text: str) -> None:
        self.problems.append(f"[{place_of(*self.place)}] {text}" if self.place else text)

    def wrong(self, key: str, wanted: str) -> Any:
        """Add the problem that the value of `key` is wrong; return a harmless value."""
        self.problem(f"expected {key} to be {wanted}, got: {self.data[key]!r}")
        return _HARMLESS.get(key)

    def table(self, key: str) -> dict[str, Any]:
        value = self.data.get(key, {})
        if not isinstance(value, dict):
            self.wrong(key, "a table")
            return {}
        return value

    def text(self, key: str) -> str | None:
        value = self.data[key]
        return value if isinstance(value, str) else self.wrong(key, "a text")

    def number(self, key: str) -> float | None:
        value = self.data[key]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
        return self.wrong(key, "a number")  # type: ignore[no-any-return]

    def integer(self, key: str) -> int | None:
        value = self.data[key]
        return value if is_integer(value) else self.wrong(key, "an integer")  # type: ignore[no-any-return]

    def duration(self, key: str) -> int | None:
        value = self.data[key]
        if not isinstance(value, str):
            return self.wrong(key, 'a duration such as "90s"')  # type: ignore[no-any-return]
        return self._parsed(key, value)

    def durations(self, key: str) -> tuple[int, ...] | None:
        values = self.data[key]
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            return self.wrong(key, 'a list of durations such as ["1s", "1m"]')  # type: ignore[no-any-return]
        parsed = [self._parsed(f"{key}.{number}", value) for number, value in enumerate(values, 1)]
        return None if None in parsed else tuple(ms for ms in parsed if ms is not None)

    def rate(self, key: str) -> Rate | None:
        return parse_rate(self.data[key]) or self.wrong(key, 'a rate such as "100/s", "30/m" or "5/h"')

    def percent(self, key: str) -> int | None:
        return parse_percent(self.data[key]) or self.wrong(key, 'a share from "1%" to "100%"')

    def key_source(self, key: str) -> KeySource | None:
        try:
            return parse_key_source(self.data[key])
        except ConfigError as error:
            self.problem(error.problems[0])
            return None

    def listed(self, key: str, types: tuple[type, ...], wanted: str) -> tuple[Any, ...] | None:
        """The value or the list of values of `key`, as a tuple. None if a type is wrong; then a problem is added."""
        value = self.data[key]
        values = value if isinstance(value, list) else [value]
        if all(isinstance(one, types) and not isinstance(one, bool) for one in values):
            return tuple(values)
        self.wrong(key, wanted)
        return None

    def given(self, *settings: tuple[str, str, Callable[[str], Any]]) -> dict[str, Any]:
        """The values of the settings that the table has, by field. A wrong value is left out or becomes a harmless one.

        Args:
            settings: for each setting its key in the table, the field of the policy, and the getter that reads it.
        """
        read = ((field, reader(key)) for key, field, reader in settings if key in self.data)
        return {field: value for field, value in read if value is not None}

    def limit(self, key: str, read: Callable[[str], _Made | None]) -> _Made | None:
        """The value of the setting `key`, read by `read`; None for "unlimited"."""
        return None if self.data[key] == UNLIMITED else read(key)

    def _parsed(self, key: str, text: str) -> int | None:
        try:
            return parse_duration(text)
        except ConfigError as error:
            self.problem(f"{key}: {error.problems[0]}")
            return _HARMLESS.get(key)


def _made(make: Callable[[], _Made], place: Sequence[str], problems: list[str]) -> _Made | None:
    """The value that `make` returns. When it raises `ConfigError`: None; the problems are added with their `place`."""
    try:
        return make()
    except ConfigError as error:
        problems += [f"[{place_of(*place)}] {problem}" for problem in error.problems]
        return None


def _policy(data: Any, place: Sequence[str], base: RetryPolicy, problems: list[str]) -> RetryPolicy:
    table = _Table(data, place, POLICY_KEYS, problems)
    given = table.given(
        ("name", "name", table.text),
        ("version", "version", table.integer),
        ("retry_after_max", "retry_after_max_ms", table.duration),
    )
    if "max_attempts" in table.data:
        given["max_attempts"] = table.limit("max_attempts", table.integer)
    if "max_age" in table.data:
        given["max_age_ms"] = table.limit("max_age", table.duration)
    if "delay" in table.data and (delay := _delay(table.data["delay"], (*place, "delay"), problems)) is not None:
        given["delay"] = delay
    given |= _flow(table, place, problems) | _once_per_key(table, place, problems)
    if "rule" in table.data:
        rules = table.data["rule"]
        if not isinstance(rules, list):
            table.wrong("rule", "a list of tables, [[" + place_of(*place, "rule") + "]]")
            rules = []
        made = [_rule(rule, (*place, "rule", str(number)), problems) for number, rule in enumerate(rules, 1)]
        given["rules"] = tuple(rule for rule in made if rule is not None)
    return _made(lambda: replace(base, **given), place, problems) or base


def _flow(table: _Table, place: Sequence[str], problems: list[str]) -> dict[str, Any]:
    """The flow control settings in a policy table."""
    given = table.given(("spread", "spread_ms", table.duration), ("burst", "burst", table.integer))
    if "rate" in table.data:
        given["rate"] = table.limit("rate", table.rate)
    if "budget" in table.data:
        given["budget"] = None if table.data["budget"] == OFF else _budget(table, place, problems)
    if "breaker" in table.data:
        given["breaker"] = None if table.data["breaker"] == OFF else _breaker(table, place, problems)
    if "fair" in table.data:
        given["fair"] = None if table.data["fair"] == OFF else _fair(table, place, problems)
    return given


def _once_per_key(table: _Table, place: Sequence[str], problems: list[str]) -> dict[str, Any]:
    """The settings `collapse` and `debounce`. A topic that gives one of them does not inherit the other one."""
    given: dict[str, Any] = {}
    for name, keys, kind in (("collapse", COLLAPSE_KEYS, Collapse), ("debounce", DEBOUNCE_KEYS, Debounce)):
        if name not in table.data:
            continue
        given[name] = None
        if table.data[name] == OFF:
            continue
        inner = _Table(table.data[name], (*place, name), keys, problems)
        values = inner.given(("key", "key", inner.key_source), ("max_wait", "max_wait_ms", inner.duration))
        if "key" not in inner.data:
            inner.problem('expected key to be given, such as key = "header:order", got: none')
        elif "key" in values:
            given[name] = _made(lambda kind=kind, values=values: kind(**values), inner.place, problems)  # type: ignore[misc]
    if given.get("collapse") is not None:
        given.setdefault("debounce", None)
    if given.get("debounce") is not None:
        given.setdefault("collapse", None)
    return given


def _fair(parent: _Table, place: Sequence[str], problems: list[str]) -> Fair | None:
    table = _Table(parent.data["fair"], (*place, "fair"), FAIR_KEYS, problems)
    given = table.given(
        ("key", "key", table.text),
        ("default_weight", "default_weight", table.number),
        ("max_in_flight", "max_in_flight", table.integer),
        ("in_flight_timeout", "in_flight_timeout_ms", table.duration),
    )
    if "rate" in table.data:
        given["rate"] = table.limit("rate", table.rate)
    weights = table.table("weights")
    given["weights"] = tuple(sorted(weights.items()))
    if "key" not in table.data:
        table.problem('expected key to be given, such as key = "header:tenant", got: none')
        return None
    return _made(lambda: Fair(**given), table.place, problems) if "key" in given else None


def _budget(parent: _Table, place: Sequence[str], problems: list[str]) -> Budget | None:
    table = _Table(parent.data["budget"], (*place, "budget"), BUDGET_KEYS, problems)
    given = table.given(("share", "percent", table.percent), ("least", "least", table.rate))
    return _made(lambda: Budget(**given), table.place, problems)


def _breaker(parent: _Table, place: Sequence[str], problems: list[str]) -> Breaker | None:
    table = _Table(parent.data["breaker"], (*place, "breaker"), BREAKER_KEYS, problems)
    given = table.given(
        ("failures", "percent", table.percent),
        ("of", "of", table.integer),
        ("within", "within_ms", table.duration),
        ("open", "open_ms", table.duration),
        ("by", "by", table.text),
    )
    return _made(lambda: Breaker(**given), table.place, problems)


def _rule(data: Any, place: Sequence[str], problems: list[str]) -> Rule | None:
    table = _Table(data, place, RULE_KEYS, problems)
    if not isinstance(data, dict):
        return None
    given = table.given(("name", "name", table.text))
    if "error" in table.data:
        errors = table.listed("error", (str,), "a text or a list of texts")
        given["errors"] = ("*",) if errors is None else errors
    if "status" in table.data:
        statuses = table.listed("status", (int, str), 'a status or a list of them, such as [429, "5xx"]')
        given["statuses"] = ("5xx",) if statuses is None else statuses
    if "dead" in table.data:
        given["dead"] = table.data["dead"]
        if not isinstance(given["dead"], bool):
            given["dead"] = bool(table.wrong("dead", "true or false"))
    if "max_attempts" in table.data:
        given["max_attempts"] = table.integer("max_attempts")
    if "max_age" in table.data:
        given["max_age_ms"] = table.duration("max_age")
    if "delay" in table.data:
        given["delay"] = _delay(table.data["delay"], (*place, "delay"), problems)
    return _made(lambda: Rule(**given), place, problems)


def _delay(data: Any, place: Sequence[str], problems: list[str]) -> Delay | None:
    if not isinstance(data, dict):
        _Table(data, place, (), problems)
        return None
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in DELAY_KEYS:
        jitter = _JITTER_KINDS.get(str(kind))
        hint = f'; write kind = "exponential", jitter = "{jitter}"' if jitter else ""
        problems.append(f"[{place_of(*place)}] expected kind to be one of {', '.join(KINDS)}, got: {kind!r}{hint}")
        return None
    keys = DELAY_KEYS[kind]
    table = _Table(data, place, ("kind", *keys), problems)
    given = table.given(*((key, field, getattr(table, key_type)) for key, (field, key_type) in keys.items()))
    if kind == "list" and "delays" not in table.data:
        table.problem("expected delays to be given, got: none")
    return _made(lambda: KINDS[kind](**given), place, problems)
