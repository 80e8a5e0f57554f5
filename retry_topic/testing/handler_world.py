"""Runs a user's handler under a user's policy in a simulated system of consumers, retry services and servers."""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from retry_topic.consumer.outcome import DeadLetter, Retry
from retry_topic.message import Message
from retry_topic.policy import RetryPolicy
from retry_topic.simulation.drawing import QUIET_MS, SERVER_FAULTS
from retry_topic.simulation.retry_world import HandlerCall, RetryWorld, SendResult
from retry_topic.testing.report import AttemptSeen, MessageSeen, Report
from wheel_sched.errors import ConfigError
from wheel_sched.simulation.runner import in_child
from wheel_sched.simulation.scenario import CALL_FAULTS, LIFE, Fault, HandIn, Scenario, Step, draw_faults
from wheel_sched.simulation.substitution import substituted

FAULTS = tuple(dict.fromkeys([*CALL_FAULTS, *LIFE, *(kind for kinds in SERVER_FAULTS.values() for kind in kinds)]))
"""The kinds of faults that `simulate` knows; docs/simulator.md says what each is."""

PACKAGES = ("retry_topic", "wheel_sched")
MOST_STEPS = 5_000_000
_PAUSES_MS = (100, 1_000, 3_000, 7_000)

Handler = Callable[[Message], Any]


def simulate(
    handler: Handler,
    policy: RetryPolicy,
    *,
    messages: int | Sequence[bytes] = 20,
    faults: int | Sequence[str] = 5,
    seed: int = 0,
    consumers: int = 2,
    services: int = 1,
    within_s: float = 4,
    limit_s: float = 86_400,
    packages: Sequence[str] = (),
) -> Report:
    """Run a handler and a policy in a simulated system, and report what happened to each message.

    The run takes place in virtual time, in a forked child process. So the caller does not see what the handler changes
    in memory. In the handler's module, `time`, `threading` and `random` are simulated: `time.sleep(60)` takes no real
    time. The handler must not wait for anything outside the simulation.

    Args:
        handler: the function that gets each message, as from a `Consumer`. Not a coroutine function.
        policy: decides when a failed message is retried.
        messages: the payloads, or the number of messages. With a number the payloads are b"0", b"1" and so on.
            Defaults to 20.
        faults: the number of faults of any kind, or a list with the kind of each fault, from `FAULTS`. Defaults to 5.
        seed: decides everything. The same seed gives the same run. Defaults to 0.
        consumers: the number of consumer processes. Defaults to 2.
        services: the number of retry services. Defaults to 1.
        within_s: all messages are sent, and all faults strike, in the first so many seconds. Defaults to 4.
        limit_s: the run ends after so many virtual seconds, even if messages still wait. Defaults to a day.
        packages: further packages in which time, threads and randomness are simulated. Defaults to none.

    Raises:
        ConfigError: the handler is a coroutine function, or a kind of fault is unknown.
        RuntimeError: the child process died.
    """
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004
        raise ConfigError("expected a plain function: the simulation cannot run coroutines yet; nothing was run")
    if not isinstance(faults, int) and (unknown := [kind for kind in faults if kind not in FAULTS]):
        raise ConfigError(f"unknown faults {unknown}: expected some of {', '.join(FAULTS)}; nothing was run")
    values = [b"%d" % number for number in range(messages)] if isinstance(messages, int) else list(messages)
    options = {"services": services, "consumers": consumers, "shards": 1, "workers": 1}
    scenario = _draw(seed, len(values), faults, options, int(within_s * 1_000))
    simulated = {*PACKAGES, *packages, _module_of(handler)}
    return in_child(partial(_run, handler, policy, scenario, values, sorted(simulated), int(limit_s * 1_000)))


def _module_of(handler: Handler) -> str:
    plain = handler.func if isinstance(handler, partial) else handler
    return str(plain.__module__ if hasattr(plain, "__name__") else type(plain).__module__)


def _draw(seed: int, messages: int, faults: int | Sequence[str], options: dict[str, int], within_ms: int) -> Scenario:
    rng = random.Random(f"testing {seed}")
    steps: list[Step] = [HandIn(number, at=rng.randrange(max(1, within_ms))) for number in range(messages)]
    processes = [f"service-{number}" for number in range(options["services"])]
    processes += [f"consumer-{number}" for number in range(options["consumers"])]
    draw = partial(
        draw_faults,
        rng,
        1,
        processes,
        SERVER_FAULTS,
        calls=min(60, 6 + 3 * messages),
        span_ms=max(1, within_ms),
        pause_ms=_PAUSES_MS,
    )
    wanted: Sequence[str | None] = [None] * faults if isinstance(faults, int) else faults
    for kind in wanted:
        found: Fault
        while True:
            (found,) = draw()
            if kind in (None, found.kind):
                break
        steps.append(found)
    return Scenario(seed, "testing", rng.getrandbits(32), tuple(steps), options)


class HandlerWorld(RetryWorld):
    """A `RetryWorld` (a simulated system of consumers, retry services and servers) that calls a user's handler."""

    def __init__(self, handler: Handler, policy: RetryPolicy, scenario: Scenario, values: Sequence[bytes]) -> None:
        super().__init__(scenario, policy, MOST_STEPS)
        self._handler, self._values = handler, values
        self.errors: dict[int, str] = {}  # by the number of the call

    def value_of(self, send: HandIn) -> bytes:
        """The payload of a message, as the user gave it."""
        return self._values[send.number]

    def _handle(self, message: Message) -> Any:
        scheduler = self.world.scheduler
        sent_as = (message.header("retry-id") or b"").decode()
        call = HandlerCall(
            int(sent_as[1:]),
            int(message.header("retry-attempt") or b"0"),
            scheduler.process.name,
            scheduler.now_ns,
            self.store.wall_ms(),
        )
        place = len(self.attempts)
        self.attempts.append(call)
        try:
            result = self._handler(message)
        except Exception as error:
            call.outcome = "failed"
            self.errors[place] = f"{type(error).__name__}: {error}"
            raise
        call.outcome = "failed" if isinstance(result, Retry | DeadLetter) else "ok"
        if call.outcome == "failed":
            self.errors[place] = repr(result)
        return result


def _run(
    handler: Handler,
    policy: RetryPolicy,
    scenario: Scenario,
    values: Sequence[bytes],
    packages: Sequence[str],
    limit_ms: int,
) -> Report:
    with substituted(packages):
        run = HandlerWorld(handler, policy, scenario, values)
        run.world.begin()
        run.world.run(limit_ms, run._ended, QUIET_MS)
        return _report(run)


def _report(run: HandlerWorld) -> Report:
    attempts: dict[int, list[AttemptSeen]] = {}
    for place, call in enumerate(run.attempts):
        seen = AttemptSeen(
            call.attempt,
            call.began_ns / 1e9,
            call.process,
            "cut off" if call.outcome == "running" else "ok" if call.outcome == "ok" else "failed",
            run.errors.get(place, ""),
        )
        attempts.setdefault(call.number, []).append(seen)
    dead = {
        int(found[1])
        for item in run.store.contents.items()
        if item.state == "dead" and (found := re.match(r"m(\d+)", item.id))
    }
    over = run._ended()
    messages = []
    for number in sorted(run.sends):
        result = run.results.get(number, SendResult("in doubt", 0, 0))
        seen_attempts = tuple(attempts.get(number, ()))
        end: Literal["succeeded", "dead", "waiting", "lost"]
        if any(one.outcome == "ok" for one in seen_attempts):
            end = "succeeded"
        elif number in dead:
            end = "dead"
        else:
            end = "lost" if over and result.outcome == "sent" else "waiting"
        messages.append(
            MessageSeen(f"m{number}", run.value_of(run.sends[number]), result.at_ns / 1e9, seen_attempts, end)
        )
    struck = tuple(f"{fault} ({call})" if call else str(fault) for fault, call in run.world.struck)
    lines = tuple(str(event) for event in run.world.trace)
    return Report(run.world.scenario.seed, tuple(messages), struck, run.world.scheduler.now_ns / 1e9, lines)
