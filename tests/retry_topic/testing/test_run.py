"""`run` calls the user's handler under the user's policy, in virtual time and in the calling thread."""

from __future__ import annotations

import asyncio
import threading
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retry_topic import DeadLetter, Message, PolicySet, Retry, RetryPolicy
from retry_topic.policy import Exponential, Fixed, Rule
from retry_topic.policy.flow import Rate
from retry_topic.policy.key_source import parse_key_source
from retry_topic.policy.once_per_key import Collapse
from retry_topic.testing import DeadSeen, HandlerRun, run
from retry_topic.testing.pytest_plugin import run_handler  # noqa: F401  # the entry point may not be installed yet
from wheel_sched.errors import ConfigError, NotDone
from wheel_sched.testing.virtual_clock import WALL_START_MS

ROOT = Path(__file__).resolve().parents[3]
DAY_S = 86_400
POLICY = RetryPolicy(delay=Fixed(base_ms=60_000), max_attempts=3)


class FailsFirst:
    """A handler that fails the first `times` calls, and records the message and the thread of each call."""

    def __init__(self, times: int, error: BaseException) -> None:
        self.left, self.error = times, error
        self.calls: list[tuple[Message, threading.Thread]] = []

    def __call__(self, message: Message) -> None:
        self.calls.append((message, threading.current_thread()))
        if self.left:
            self.left -= 1
            raise self.error


def fails(message: Message) -> None:
    """A handler that always fails."""
    raise ValueError(f"cannot read {message.value!r}")


def test_each_attempt_is_reported_with_its_virtual_time() -> None:
    """The delay is three days. The handler gets each delivery at the policy's virtual time, in the test's own
    thread."""
    handler = FailsFirst(2, OSError("no route"))
    policy = RetryPolicy(delay=Fixed(base_ms=3 * DAY_S * 1_000), max_attempts=5)
    outcome = run(handler, policy, [b"order"])
    (message,) = outcome.messages
    assert [round(one.began_s / DAY_S, 3) for one in message.attempts] == [0, 3, 6]
    assert [(one.number, one.outcome, one.error) for one in message.attempts] == [
        (0, "failed", "OSError: no route"),
        (1, "failed", "OSError: no route"),
        (2, "ok", ""),
    ]
    assert [one.again_s is not None for one in message.attempts] == [True, True, False]
    assert message.attempts[0].why.startswith("attempt 1 of 5: ")
    assert (outcome.attempts, outcome.deliveries, outcome.dead_letters) == ((3,), 3, ())
    assert round(outcome.elapsed_s / DAY_S, 3) == 6
    assert {thread for _, thread in handler.calls} == {threading.main_thread()}
    assert [message.topic for message, _ in handler.calls] == ["messages"] * 3


def test_dead_letters_have_error_and_reason() -> None:
    """Limits, rules and verdicts make dead letters. Each has its reason and the handler's last error."""

    def handler(message: Message) -> object:
        if message.value == b"refused":
            return DeadLetter("not sold")
        raise KeyError("k") if message.value == b"by rule" else ValueError("v")

    policy = replace(POLICY, rules=(Rule(errors=("KeyError",), dead=True),))
    outcome = run(handler, policy, [b"refused", b"by rule", b"tired"])
    assert outcome.attempts == (1, 1, 3)
    refused, by_rule, tired = outcome.dead_letters
    assert refused == DeadSeen("m0", b"refused", "verdict", "DeadLetter(reason='not sold')", 0.0)
    assert by_rule.error == "KeyError: 'k'"
    assert by_rule.reason == "fatal"
    assert (tired.reason, tired.error, round(tired.at_s)) == ("max-attempts", "ValueError: v", 120)


def test_the_age_cap_holds_in_virtual_time() -> None:
    """The age of a message is counted in virtual time. At the maximum age the message becomes a dead letter."""
    policy = RetryPolicy(delay=Fixed(base_ms=DAY_S * 1_000), max_attempts=None)
    outcome = run(fails, policy, [b"m"])
    assert outcome.attempts == (8,)
    assert outcome.dead_letters[0].reason == "max-age"


def test_a_message_expires_in_virtual_time() -> None:
    """The consumer compares `expires-at` with the virtual clock. After that time it does not call the handler."""
    expires = b"%d" % (WALL_START_MS + 90_000)
    outcome = run(fails, POLICY, [Message("t", b"m", headers=(("expires-at", expires),))])
    assert outcome.attempts == (2,)
    assert round(outcome.dead_letters[0].at_s) == 120


def test_the_seed_decides_the_jitter() -> None:
    """Equal seeds give equal runs. Another seed gives another run."""
    policy = RetryPolicy(delay=Exponential(base_ms=60_000), max_attempts=4)
    assert run(fails, policy, [b"m"], seed=3) == run(fails, policy, [b"m"], seed=3)
    assert run(fails, policy, [b"m"], seed=3).elapsed_s != run(fails, policy, [b"m"], seed=4).elapsed_s


def test_an_async_handler_sleeps_in_virtual_time() -> None:
    """An `async def` handler can be run. Its sleeps advance the virtual clock. An error of any class is a failed
    attempt."""

    async def handler(message: Message) -> Any:
        await asyncio.sleep(30)
        if message.header("retry-attempt") is None:
            raise SystemExit(2)
        return Retry(after=5) if message.header("retry-attempt") == b"1" else None

    (message,) = run(handler, POLICY, [b"m"]).messages
    assert [round(one.began_s) for one in message.attempts] == [0, 90, 125]
    assert (message.end, message.attempts[0].error) == ("succeeded", "SystemExit: 2")


def test_policies_by_topic_and_message_objects() -> None:
    """A `Message` keeps its topic, key and headers. The policy of its topic decides."""
    handler = FailsFirst(9, OSError())
    policies = PolicySet(POLICY, {"orders": RetryPolicy(max_attempts=1)})
    outcome = run(handler, policies, [Message("orders", b"1", b"k", (("tenant", b"a"),)), b"2"])
    assert outcome.attempts == (1, 3)
    first = handler.calls[0][0]
    assert (first.topic, first.key, first.header("tenant")) == ("orders", b"k", b"a")


def test_limits_and_superseded_messages() -> None:
    """A rate spreads retries in virtual time. With collapse, only the first retry of a key is sent, and the others are
    superseded."""
    limited = RetryPolicy(delay=Fixed(base_ms=1_000), max_attempts=2, rate=Rate(1, "m"), burst=1)
    assert run(fails, limited, [b"1", b"2", b"3"]).elapsed_s > 100
    collapsing = RetryPolicy(delay=Fixed(base_ms=1_000), max_attempts=2, collapse=Collapse(parse_key_source("key")))
    outcome = run(fails, collapsing, [Message("t", value, b"k") for value in (b"1", b"2")])
    assert [one.end for one in outcome.messages] == ["dead", "superseded"]


def test_a_run_always_ends() -> None:
    """A run with too many deliveries, with too much virtual time, or with a handler that never returns ends with an
    error that says why."""

    async def hangs(_: Message) -> None:
        await asyncio.Event().wait()

    endless = RetryPolicy(delay=Fixed(base_ms=1_000), max_attempts=None)
    with pytest.raises(NotDone, match=r"after 5 deliveries .*: the run was stopped; give the policy a cap, or raise"):
        run(fails, endless, [b"m"], most_deliveries=5)
    with pytest.raises(NotDone, match="11 deliveries"):
        run(fails, endless, [b"m"], limit_s=10.5)
    with pytest.raises(NotDone, match="1 deliveries and 60 virtual seconds"):
        run(hangs, endless, [b"m"], limit_s=60)
    with pytest.raises(KeyboardInterrupt):
        run(FailsFirst(1, KeyboardInterrupt()), POLICY, [b"m"])
    assert run(fails, POLICY, []).deliveries == 0


def test_the_fixture_is_the_function(run_handler: Callable[..., HandlerRun]) -> None:  # noqa: F811
    """The fixture of the pytest plugin gives messages to a handler as `run` does."""
    assert run_handler(fails, POLICY, [b"m"], seed=1) == run(fails, POLICY, [b"m"], seed=1)
    points = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]["pytest11"]
    assert points["retry_topic"] == run_handler.__module__


def test_the_texts_of_a_run() -> None:
    """`repr` is one line, for assertions. `str` has a line for each attempt. Control characters are escaped."""
    outcome = run(FailsFirst(1, OSError("a\nb")), POLICY, [b"m"])
    assert repr(outcome) == "<HandlerRun 2 deliveries in 60.0 s: m0 succeeded after 2>"
    assert str(outcome).splitlines() == [
        "1 messages, 2 deliveries, 60.0 virtual seconds",
        "m0 b'm': succeeded",
        "  0.0 s  failed: OSError: a\\nb; again at 60.0 s",
        "  60.0 s  ok",
    ]


def test_wrong_arguments_are_named() -> None:
    """One error lists all wrong arguments, and nothing is run."""
    with pytest.raises(ConfigError) as raised:
        run(None, 3, [b"m", "text"], seed="x", most_deliveries=0, limit_s=-1)  # type: ignore[arg-type, list-item]
    assert len(raised.value.problems) == 6
    assert all(problem.endswith("; nothing was run") for problem in raised.value.problems)
    with pytest.raises(ConfigError, match="expected messages to be a list"):
        run(fails, POLICY, b"m")  # type: ignore[arg-type]

    async def inside() -> None:
        async def handler(_: Message) -> None:
            """A handler that is never called."""

        run(handler, POLICY, [b"m"])

    with pytest.raises(ConfigError, match="expected no running event loop"):
        asyncio.run(inside())
