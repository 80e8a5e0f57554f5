"""The commands policy explain and policy simulate, which need no server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from retry_topic.policy import load_policies
from retry_topic.policy.load_simulation import Traffic, simulate_load

POLICIES = """
[default]
max_attempts = 4
delay = { kind = "fixed", base = "2s" }

[topic.orders]
max_attempts = 3
delay = { kind = "list", delays = ["1s", "1m"] }

[[topic.orders.rule]]
name = "gone"
status = 410
dead = true
"""


@pytest.fixture
def offline(cli_at: Any) -> Any:
    """A command line whose store does not answer."""
    Path("retry.toml").write_text(POLICIES)
    return cli_at("redis://127.0.0.1:1/0")


@pytest.mark.parametrize("digits", ["9" * 5_000, "0x" + "f" * 5_000], ids=["decimal", "hexadecimal"])
def test_a_number_of_thousands_of_digits_is_refused(offline: Any, digits: str) -> None:
    """Python can neither parse nor print a number of thousands of digits. The command still prints a readable error."""
    Path("long.toml").write_text(f"[default]\nmax_attempts = {digits}\n")
    refused = offline("policy", "explain", "long.toml", code=2)
    assert "TOML with a number too long; nothing was loaded" in refused.stderr


def test_simulate_prints_a_table_and_a_plot(offline: Any) -> None:
    """`simulate` prints the delays by attempt as numbers and as bars, and how often messages are given up."""
    text = offline("policy", "simulate", "retry.toml", "--topic", "orders").stdout
    assert "attempt  retried" in text
    assert "▓" in text
    assert "100% max-attempts" in text
    assert " 1m " in text


@pytest.mark.parametrize("command", ["explain", "simulate"])
def test_what_has_lines_is_reported_in_lines(offline: Any, command: str) -> None:
    """`explain` and `simulate` print several lines. Their line breaks are not escaped."""
    shown = offline("policy", command, "default").stdout
    assert "\\n" not in shown
    assert len(shown.splitlines()) > 10


def test_simulate_gives_the_same_numbers_for_the_same_seed(offline: Any) -> None:
    """Two runs with the same seed give equal numbers. Another seed gives other numbers."""
    one, two, other = (
        offline.json("policy", "simulate", "default", "--attempts", "5", "--samples", "50", "--seed", seed)
        for seed in ("1", "1", "2")
    )
    assert one == two != other
    assert one["policy"] == "default@1"
    assert len(one["steps"]) == 5


def test_explain_says_what_happens_to_an_error(offline: Any) -> None:
    """`explain` prints the decision for an attempt in words. With --json it prints decision, reason and due time."""
    text = offline("policy", "explain", "retry.toml", "--topic", "orders", "--attempt", "2").stdout
    assert text.startswith("attempt 2 of 3: list")
    assert "1m" in text
    dead = offline.json("policy", "explain", "retry.toml", "--topic", "orders", "--status", "410")
    assert (dead["decision"], dead["reason"], dead["due_ms"]) == ("dead", "fatal", None)
    last = offline.json("policy", "explain", "retry.toml", "--topic", "orders", "--attempt", "3")
    assert last["reason"] == "max-attempts"


def test_explain_without_an_error_says_what_the_policy_says(offline: Any) -> None:
    """`explain` prints the limits, the rules, and TOML that would load the same policy."""
    text = offline("policy", "explain", "retry.toml", "--topic", "orders").stdout
    assert "delivered 3 times in all" in text
    assert "rule 1 (gone): 410: dead at once" in text
    assert "[default]" in text


def test_a_broken_policy_file_is_reported_with_all_its_mistakes(offline: Any) -> None:
    """For a policy file with mistakes the exit code is 2, and stderr names every mistake."""
    Path("bad.toml").write_text("[default]\nmax_attempts = 0\nretries = 3\n")
    done = offline("policy", "simulate", "bad.toml", code=2)
    assert "max_attempts" in done.stderr
    assert "retries" in done.stderr


FIVE_MISTAKES = """
[default]
max_atempts = 5
max_age = 3600

[topic.orders.delay]
kind = "exponential"
base = "10m"
cap = "5m"

[[topic.orders.rule]]
error = "requests.["
delay = { kind = "no-such-kind" }
"""
NAMED = ("max_atempts", "got: 3600", "cap to be at least base", "'requests.['", "'no-such-kind'")


@pytest.mark.parametrize("command", [("policy", "simulate", "bad.toml"), ("policy", "explain", "bad.toml")])
def test_five_mistakes_of_a_file_are_all_named_by_whoever_reads_it(offline: Any, command: tuple[str, ...]) -> None:
    """For a policy file with five mistakes, the exit code is 2, and stderr names all five and their number."""
    Path("bad.toml").write_text(FIVE_MISTAKES)
    shown = offline(*command, code=2).stderr
    assert [mistake for mistake in NAMED if mistake not in shown] == []
    assert "5 problems" in shown


@pytest.mark.real
def test_a_service_with_five_mistakes_in_its_policies_does_not_start(wheel_sched: Any, tmp_path: Path) -> None:
    """`serve` names all five mistakes and creates no data folder."""
    (tmp_path / "bad.toml").write_text(FIVE_MISTAKES)
    done = wheel_sched("--store", "embedded:data", "serve", "billing", "--policies", "bad.toml")
    assert done.returncode == 2
    assert [mistake for mistake in NAMED if mistake.encode() not in done.stderr] == []
    assert not (tmp_path / "data").exists()


def test_the_policies_of_the_settings_are_used(offline: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the argument FILE, `explain` reads the file that WHEEL_SCHED_POLICIES names."""
    monkeypatch.setenv("WHEEL_SCHED_POLICIES", "retry.toml")
    assert "delivered 4 times in all" in offline("policy", "explain").stdout


def test_explain_shows_why_a_stored_message_is_due_then(cli: Any, wait_for: Any) -> None:
    """`policy explain --id` explains the due time of a message in the store."""
    due_ms = time.time_ns() // 1_000_000 + 60_000
    wait_for("m.2", due_ms)
    shown = cli.json("policy", "explain", "--id", "m.2")
    assert shown["due_ms"] == due_ms
    assert "said: wait 2.7s" in shown["why"]


def test_simulate_with_a_failure_rate_simulates_traffic(offline: Any) -> None:
    """With --failure-rate, `simulate` prints the figures of `simulate_load` for the traffic of its options."""
    options = ("--failure-rate", "0.5", "--per-second", "20", "--for", "30s", "--outage", "5s", "--seed", "3")
    found = offline.json("policy", "simulate", "retry.toml", *options)
    policy = load_policies(POLICIES).default
    assert found == simulate_load(policy, Traffic(0.5, 20, 30, 5), 3).as_dict()
    text = offline("policy", "simulate", "retry.toml", *options).stdout
    assert f"600 messages, {found['attempts']:,} attempts" in text
    assert f"{found['died']['max-attempts']} max-attempts" in text
    assert "time to success: p50" in text
    refused = offline("policy", "simulate", "--failure-rate", "0.5", "--per-second", "1e9", code=2)
    assert "0.001 to 10,000 messages a second" in refused.stderr
