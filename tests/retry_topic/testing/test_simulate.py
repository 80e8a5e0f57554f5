"""`simulate`: the user's handler and policy in a simulated system."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from retry_topic import DeadLetter, Message, Retry, RetryPolicy
from retry_topic.policy import Exponential, Fixed
from retry_topic.testing import FAULTS, Report, simulate
from wheel_sched.errors import ConfigError

pytestmark = pytest.mark.slow

POLICY = RetryPolicy(delay=Fixed(base_ms=60_000), max_attempts=3)
handled: list[bytes] = []


def fails_once(message: Message) -> None:
    """A handler that fails at the first delivery."""
    if message.header("retry-attempt") is None:
        raise ConnectionError("no route")


def fails_always(message: Message) -> None:
    """A handler that always fails."""
    raise ValueError(f"cannot read {message.value!r}")


def test_without_faults_each_message_is_handled_as_its_policy_says() -> None:
    """Each message is handled twice, a minute apart, and no call is repeated."""
    report = simulate(fails_once, POLICY, faults=0)
    assert len(report.ended("succeeded")) == 20
    assert (report.calls, report.repeats, report.faults) == (40, 0, ())
    for message in report.messages:
        first, second = message.attempts
        assert (first.number, first.outcome, first.error) == (0, "failed", "ConnectionError: no route")
        assert (second.number, second.outcome) == (1, "ok")
        assert 60 <= second.began_s - first.began_s < 61


def test_a_message_that_never_succeeds_is_dead_after_its_attempts() -> None:
    """The policy's max_attempts holds under faults too."""
    report = simulate(fails_always, POLICY, messages=[b"a", b"b"], faults=["lose-reply"], seed=3)
    assert [one.value for one in report.ended("dead")] == [b"a", b"b"]
    assert [len(one.attempts) - one.repeats for one in report.messages] == [3, 3]


def test_the_handlers_answers_count() -> None:
    """If the handler returns `Retry`, the message is handled again after the delay of the verdict. If it returns
    `DeadLetter`, the message is not handled again."""

    def answers(message: Message) -> object:
        if message.value == b"dead":
            return DeadLetter("no customer")
        return Retry(after=120) if message.header("retry-attempt") is None else None

    report = simulate(answers, POLICY, messages=[b"again", b"dead"], faults=0)
    again, dead = report.messages
    assert (again.end, dead.end) == ("succeeded", "dead")
    assert again.took_s is not None
    assert 120 <= again.took_s < 121
    assert len(dead.attempts) == 1


def test_time_in_the_handler_is_virtual_and_memory_is_not_shared() -> None:
    """`time.sleep` in the handler takes no real time. The handler runs in another process, so the test's list stays
    empty."""

    def remembers(message: Message) -> None:
        handled.append(message.value)
        time.sleep(60)

    began_s = time.monotonic()
    report = simulate(remembers, POLICY, faults=0)
    assert report.took_s > 60
    assert time.monotonic() - began_s < 30
    assert report.calls == 20
    assert handled == []


@pytest.mark.parametrize("kind", [kind for kind in FAULTS if kind != "rewind"])
def test_each_kind_of_fault_can_be_asked_for(kind: str) -> None:
    """Faults of the requested kind happen, and no message is lost."""
    report = simulate(fails_once, POLICY, faults=[kind] * 3, seed=1, consumers=1)
    assert report.faults
    assert all(fault.startswith(kind) for fault in report.faults)
    assert not report.ended("lost")


def test_what_a_server_has_forgotten_is_reported_as_lost() -> None:
    """A server that restarts without its last writes can lose messages. In at least one of ten runs this happens."""
    reports = [simulate(fails_once, POLICY, faults=["rewind"] * 3, seed=seed) for seed in range(10)]
    assert any(report.ended("lost") for report in reports)


def test_the_same_seed_gives_the_same_report_in_every_process(tmp_path: Path) -> None:
    """The report depends only on the seed, not on the process or its hash seed."""
    policy = RetryPolicy(delay=Exponential(base_ms=1_000), max_attempts=6)
    assert simulate(fails_once, policy, seed=5) == simulate(fails_once, policy, seed=5)
    program = tmp_path / "program.py"
    program.write_text(
        "from retry_topic import RetryPolicy\n"
        "from retry_topic.policy import Exponential\n"
        "from retry_topic.testing import simulate\n"
        "def handler(message):\n"
        "    if message.header('retry-attempt') is None:\n"
        "        raise ConnectionError('no route')\n"
        "report = simulate(handler, RetryPolicy(delay=Exponential(base_ms=1_000), max_attempts=6), seed=5)\n"
        "print('\\n'.join(report.trace))\n"
    )
    outputs = [
        subprocess.run(
            [sys.executable, str(program)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "12345")
    ]
    assert len(set(outputs)) == 1
    assert len(outputs[0].splitlines()) > 100


def test_the_summary_names_what_people_ask_for() -> None:
    """The summary has the outcomes, calls, times and faults."""
    text = str(simulate(fails_once, POLICY, faults=["kill"], seed=2))
    first, second, third, fourth = text.splitlines()
    assert first.startswith("20 messages, seed 2: 20 succeeded, 0 dead, 0 waiting, 0 lost")
    assert second.startswith("the handler was called ")
    assert third.startswith("success came after 60.")
    assert fourth.startswith("faults: kill ")
    assert str(Report(1, (), (), 0.0, ())).splitlines()[-1] == "faults: none"


def test_what_cannot_be_simulated_is_refused() -> None:
    """A coroutine function and an unknown fault are errors."""

    async def handler(message: Message) -> None:
        """A handler that is never called."""

    with pytest.raises(ConfigError, match="expected a plain function"):
        simulate(handler, POLICY)
    with pytest.raises(ConfigError, match=r"unknown faults \['earthquake'\]: expected some of"):
        simulate(fails_once, POLICY, faults=["earthquake"])
