"""What the workers that are up say of themselves: who would take back what a drain sends, and whose settings differ.

Reads the answers to `inspect wheel_stats`; pure but for `ask`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from wheel_sched.duration import format_duration
from wheel_sched_celery.settings import WheelSettings

RELEASE: Final = 2  # of what workers tell each other; from 2 on they leave alone what the store has sent

Answers = Mapping[str, Any]


def ask(app: Any, timeout_s: float = 1.0) -> tuple[frozenset[str], Answers]:
    """The workers that are up, and what each said to `wheel_stats`.

    Raises:
        OperationalError: the broker is away.
    """
    up = frozenset(app.control.inspect(timeout=timeout_s).ping() or {})
    if not up:
        return up, {}
    again = app.control.inspect(timeout=5 * timeout_s, limit=len(up))  # over when all have answered
    return up, wheel_stats(again)


def wheel_stats(inspect: Any) -> Answers:
    """What workers said to `wheel_stats`.

    One of an older release that does not dispatch knows the question no better than a stock one: only what it puts into
    Celery's own `stats` tells the two apart. It stands here as installed, and says no more.
    """
    answers: dict[str, Any] = dict(inspect._request("wheel_stats") or {})
    strangers = [name for name, answer in answers.items() if isinstance(answer, Mapping) and answer.keys() == {"error"}]
    said = (inspect.stats() or {}) if strangers else {}
    for name in strangers:
        if isinstance(said.get(name), Mapping) and "wheel_collector" in said[name]:
            answers[name] = {"installed": True, **answers[name]}
    return answers


def takers_back(up: Iterable[str], answers: Answers) -> list[str]:
    """Workers that may take over what the store has sent: those of an older release, and those that did not say.

    A stock worker refuses the question, and takes nothing over.
    """
    return sorted(name for name in up if not _is_safe(answers.get(name)))


def _is_safe(answer: Any) -> bool:
    if not isinstance(answer, Mapping):
        return False
    if not _is_ours(answer):
        return "installed" in answer or "error" in answer
    return not is_older(answer)


def _is_ours(answer: Mapping[str, Any]) -> bool:
    """Whether the integration is installed where this comes from."""
    return bool(answer.get("installed"))


def is_older(answer: Any) -> bool:
    """Whether a worker of a release that takes back what the store has sent, and so may lose it, answered this."""
    if not isinstance(answer, Mapping) or not _is_ours(answer) or answer.get("store", "") is None:
        return False
    release = answer.get("release")
    return not (isinstance(release, int) and release >= RELEASE)


def why_idle(namespace: str, answer: Any) -> str:
    """Why a worker sends nothing of what `namespace` holds; "" when it does."""
    if not isinstance(answer, Mapping) or not _is_ours(answer):
        return "does not say that it has wheel_sched_celery"
    settings, dispatcher = answer.get("settings"), answer.get("dispatcher")
    if isinstance(settings, Mapping) and settings.get("namespace") != namespace:
        return f"namespace {settings.get('namespace')}"
    if not isinstance(dispatcher, Mapping):
        return "without a store" if answer.get("store", "") is None else "dispatches nothing"
    state = str(dispatcher.get("state"))
    return "" if state == "running" else state


def told(settings: WheelSettings) -> dict[str, Any]:
    """What a worker says of its settings."""
    return {
        "namespace": settings.namespace,
        "horizon_ms": settings.horizon,
        "lead_ms": settings.lead,
        "takeover": settings.takeover,
        "dispatch": settings.dispatch,
    }


def differing(mine: WheelSettings, answers: Answers) -> list[str]:
    """Where workers of this namespace have another horizon or lead than this app: a line for each setting."""
    workers = {
        name: answer["settings"]
        for name, answer in sorted(answers.items())
        if isinstance(answer, Mapping) and isinstance(answer.get("settings"), Mapping)
    }
    lines = []
    for setting, own_ms in (("horizon", mine.horizon), ("lead", mine.lead)):
        lengths: dict[Any, list[str]] = {own_ms: ["this app"]}
        for name, theirs in workers.items():
            if theirs.get("namespace") == mine.namespace:
                lengths.setdefault(theirs.get(f"{setting}_ms"), []).append(name)
        if len(lengths) > 1:
            said = (f"{_length(ms)} in {', '.join(names[:3])}" for ms, names in lengths.items())
            lines.append(f"{setting}: {'; '.join(said)}")
    return lines


def _length(ms: Any) -> str:
    return format_duration(ms) if isinstance(ms, int) else "None"
