"""`wheel-sched policy explain | simulate`: describes a policy in words, or simulates it."""

from __future__ import annotations

import random
import time

import click

from retry_topic.cli.settings import settings_of
from retry_topic.management.opening import opened_connection
from retry_topic.management.policies import chosen_policy, described_policy
from retry_topic.policy import DeadDecision, Failure, RetryPolicy, decide, explain, plot, simulate
from wheel_sched.cli.instants import DURATION
from wheel_sched.cli.options import Session, json_option, pass_session
from wheel_sched.cli.output import emit, say, table
from wheel_sched.management.wording import one_line, span
from wheel_sched.store.rate_limits import RateLimits

_file = click.argument("file", default="default", metavar="[FILE|default]")
_topic = click.option("--topic", metavar="TOPIC", help="The policy of this topic (default: the file's default).")
_error = click.option("--error", "error_class", metavar="CLASS", help="Class of the error, as module.Class.")
_status = click.option("--status", type=click.IntRange(100, 599), metavar="CODE", help="HTTP status of the error.")


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
    as_json: bool,
) -> None:
    """Simulate messages that always fail, on a virtual clock: show delays, their spread, and when they are given up.

    \b
    Examples:
      wheel-sched policy simulate default --attempts 8
      wheel-sched policy simulate retry.toml --topic orders --status 503
    """
    chosen = _chosen(session, file, topic)
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


@policy.command(name="explain")
@_file
@_topic
@_error
@_status
@click.option("--id", "message_id", metavar="ID", help="Explain the due time of this stored message.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="The attempt that failed (default: 1).")
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
    decision = decide(chosen, failure, now_ms, random.Random())
    if as_json:
        dead = isinstance(decision, DeadDecision)
        emit(
            {
                "decision": "dead" if dead else "retry",
                "reason": decision.reason if isinstance(decision, DeadDecision) else None,
                "due_ms": None if isinstance(decision, DeadDecision) else decision.due_ms,
                "text": explain(decision),
                "why": decision.why.as_dict(),
            }
        )
    else:
        say(explain(decision))


def _describe(chosen: RetryPolicy, as_json: bool) -> None:
    """Show the settings and rules of a policy in words."""
    described = described_policy(chosen)
    if as_json:
        emit(described.as_dict())
        return
    for line in described.lines:
        say(one_line(line))
    say()
    for line in described.toml.rstrip().split("\n"):  # TOML: no text of the file breaks a line
        say(line)
