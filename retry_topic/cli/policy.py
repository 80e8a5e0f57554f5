"""`wheel-sched policy explain | simulate`: describes a policy in words, or simulates it."""

from __future__ import annotations

import random
import time

import click

from retry_topic.cli.settings import settings_of
from retry_topic.management.opening import opened_connection
from retry_topic.management.policies import chosen_policy, described_policy
from retry_topic.management.policy_trials import explained_decision
from retry_topic.policy import Failure, RetryPolicy, plot, simulate
from retry_topic.policy.failure import LEAST_STATUS, MOST_STATUS
from retry_topic.policy.load_simulation import LoadSimulation, Traffic, simulate_load
from retry_topic.policy.rules import MAX_ATTEMPTS
from wheel_sched.cli.instants import DURATION
from wheel_sched.cli.options import Session, json_option, pass_session
from wheel_sched.cli.output import emit, say, table
from wheel_sched.management.wording import amount, one_line, span
from wheel_sched.store.rate_limits import RateLimits

_file = click.argument("file", default="default", metavar="[FILE|default]")
_topic = click.option("--topic", metavar="TOPIC", help="The policy of this topic (default: the file's default).")
_error = click.option("--error", "error_class", metavar="CLASS", help="Class of the error, as module.Class.")
_status = click.option(
    "--status", type=click.IntRange(LEAST_STATUS, MOST_STATUS), metavar="CODE", help="HTTP status of the error."
)


@click.group(name="policy", help="Explain and simulate retry policies.")
def policy() -> None:
    """Group of the commands about policies."""


def _chosen(session: Session, file: str, topic: str | None) -> RetryPolicy:
    return chosen_policy(settings_of(session), None if file == "default" else file, topic)


@policy.command(name="simulate")
@_file
@_topic
@_error
@_status
@click.option(
    "--attempts",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="Simulate up to N failures of each message.",
)
@click.option(
    "--samples", type=click.IntRange(1, 100_000), default=1_000, show_default=True, help="Number of messages."
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of the jitter; equal seeds give equal numbers."
)
@click.option(
    "--failure-rate",
    type=click.FloatRange(0, 1),
    metavar="P",
    help="Simulate traffic instead: messages arrive, and each attempt fails with this probability.",
)
@click.option("--per-second", type=float, default=10, show_default=True, help="Messages a second, with --failure-rate.")
@click.option("--for", "for_ms", type=DURATION, default="1m", show_default=True, help="How long messages arrive.")
@click.option(
    "--outage", "outage_ms", type=DURATION, default="0s", show_default=True, help="How long all attempts fail at first."
)
@json_option
@pass_session
def simulate_policy(
    session: Session,
    file: str,
    topic: str | None,
    error_class: str | None,
    status: int | None,
    attempts: int,
    samples: int,
    seed: int,
    failure_rate: float | None,
    per_second: float,
    for_ms: int,
    outage_ms: int,
    as_json: bool,
) -> None:
    """Simulate messages that always fail, on a virtual clock: show delays, their spread, and when they are given up.

    With --failure-rate: simulate traffic, and show how many attempts it costs and how many messages die.

    \b
    Examples:
      wheel-sched policy simulate default --attempts 8
      wheel-sched policy simulate retry.toml --topic orders --status 503
      wheel-sched policy simulate --failure-rate 0.3 --per-second 50 --outage 20s
    """
    chosen = _chosen(session, file, topic)
    if failure_rate is not None:
        seconds = -(-for_ms // 1_000), -(-outage_ms // 1_000)
        traffic = Traffic(failure_rate, per_second, *seconds, error_class or "builtins.Exception", status)
        _show_load(simulate_load(chosen, traffic, seed), as_json)
        return
    result = simulate(
        chosen,
        attempts,
        samples,
        random.Random(seed),
        error_class=error_class or "builtins.Exception",
        status=status,
    )
    if as_json:
        emit(result.as_dict())
        return
    rows = []
    for step in result.steps:
        delay, elapsed = step.delay, step.elapsed
        points = (delay.min_ms, delay.p50_ms, delay.p90_ms, delay.max_ms) if delay else ()
        died = ", ".join(f"{100 * count / samples:.3g}% {why}" for why, count in step.died.items())
        rows.append(
            (
                str(step.attempt),
                f"{100 * step.retried / samples:.3g}%",
                *([span(point) for point in points] or ["-"] * 4),
                span(elapsed.p50_ms) if elapsed else "-",
                died,
            )
        )
    table(
        ("attempt", "retried", "min", "median", "90%", "max", "elapsed", "given up"), rows, right=(0, 1, 2, 3, 4, 5, 6)
    )
    say()
    for line in plot(result).rstrip().split("\n"):
        say(line)


def _show_load(found: LoadSimulation, as_json: bool) -> None:
    """Show what a policy did with traffic."""
    if as_json:
        emit(found.as_dict())
        return
    say(f"policy {found.policy}: {amount(found.messages, 'message')}, {amount(found.attempts, 'attempt')}")
    say(f"attempts for each message: {found.load_factor:.3g}; at most {found.peak_per_second:.3g} a second")
    died = ", ".join(f"{count:,} {why}" for why, count in found.died.items())
    say(f"succeeded: {found.succeeded:,}; dead: {died or 'none'}")
    if found.success_ms is not None:
        times = ", ".join(f"{name} {span(ms)}" for name, ms in found.success_ms.items())
        say(f"time to success: {times}")
    say()
    rows = [(str(attempt), f"{count:,}") for attempt, count in sorted(found.succeeded_at.items())]
    table(("attempt", "succeeded"), rows, right=(0, 1))


@policy.command(name="explain")
@_file
@_topic
@_error
@_status
@click.option("--id", "message_id", metavar="ID", help="Explain the due time of this stored message.")
@click.option(
    "--attempt", type=click.IntRange(1, MAX_ATTEMPTS), metavar="N", help="The attempt that failed (default: 1)."
)
@click.option("--age", "age_ms", type=DURATION, default=0, metavar="DURATION", help="Time since the first failure.")
@click.option("--previous-delay", "previous_ms", type=DURATION, metavar="DURATION", help="Delay before this attempt.")
@click.option(
    "--retry-after",
    "after_ms",
    type=DURATION,
    metavar="DURATION",
    help="Wait that the error asks for (Retry-After).",
)
@click.option("--verdict", type=click.Choice(["retry", "dead"]), help="What the handler returned instead of raising.")
@json_option
@pass_session
def explain_policy(
    session: Session,
    file: str,
    topic: str | None,
    error_class: str | None,
    status: int | None,
    message_id: str | None,
    attempt: int | None,
    age_ms: int,
    previous_ms: int | None,
    after_ms: int | None,
    verdict: str | None,
    as_json: bool,
) -> None:
    """Explain a policy: what it does with an error; without an error, its rules; with --id, the due time of a message.

    \b
    Examples:
      wheel-sched policy explain
      wheel-sched policy explain retry.toml --topic orders --error requests.Timeout --attempt 3
      wheel-sched policy explain --id 3f2a9c.2
    """
    if message_id is not None:
        from retry_topic.cli.changing import note_stored_as
        from retry_topic.management.explaining import why_due
        from retry_topic.management.selecting import find_messages

        with opened_connection(settings_of(session)) as connection:
            found = find_messages(connection, [message_id])
            flows = RateLimits(connection.store).flows()
        note_stored_as(found.stored_as)
        (entry,) = found.messages
        why = why_due(entry, flows=flows)
        emit({"id": entry.id, "due_ms": entry.at_ms, "why": why}) if as_json else say(why)
        return
    chosen = _chosen(session, file, topic)
    if error_class is None and status is None and attempt is None and verdict is None and after_ms is None:
        _describe(chosen, as_json)
        return
    now_ms = time.time_ns() // 1_000_000
    failure = Failure(
        attempt=attempt or 1,
        first_failed_ms=now_ms - age_ms,
        previous_delay_ms=previous_ms,
        error_class=error_class or "",
        status=status,
        retry_after_ms=after_ms,
        verdict="retry" if verdict == "retry" else "dead" if verdict == "dead" else None,
    )
    explained = explained_decision(chosen, failure, now_ms, random.Random())
    emit(explained.as_dict()) if as_json else say(explained.text)


def _describe(chosen: RetryPolicy, as_json: bool) -> None:
    """Show the settings and rules of a policy in words."""
    described = described_policy(chosen)
    if as_json:
        emit(described.as_dict())
        return
    for line in described.lines:
        say(one_line(line))
    say()
    for line in described.toml.rstrip().split("\n"):  # not escaped here: TOML escapes line breaks itself
        say(line)
