"""Reads the answers to `inspect wheel_stats`: which workers send held tasks, and which have other settings.

The functions are pure, so any thread may call them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wheel_sched.duration import format_duration
from wheel_sched_celery.settings import WheelSettings

Answers = Mapping[str, Any]


def why_idle(namespace: str, answer: Any) -> str:
    """Why a worker does not send the held tasks of `namespace`; "" when it does."""
    if not isinstance(answer, Mapping) or not answer.get("installed"):
        return "did not report that it has wheel_sched_celery"
    settings, dispatcher = answer.get("settings"), answer.get("dispatcher")
    if isinstance(settings, Mapping) and settings.get("namespace") != namespace:
        return f"namespace {settings.get('namespace')}"
    if not isinstance(dispatcher, Mapping):
        return "without a store" if answer.get("store", "") is None else "runs no dispatcher"
    state = str(dispatcher.get("state"))
    return "" if state == "running" else state


def reported(settings: WheelSettings) -> dict[str, Any]:
    """The settings that a worker reports."""
    return {
        "namespace": settings.namespace,
        "horizon_ms": settings.horizon,
        "lead_ms": settings.lead,
        "takeover": settings.takeover,
        "dispatch": settings.dispatch,
    }


def differing(mine: WheelSettings, answers: Answers) -> list[str]:
    """Which of horizon and lead differ between workers of this namespace and this app: one line for each."""
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
            values = (f"{_length(ms)} in {', '.join(names[:3])}" for ms, names in lengths.items())
            lines.append(f"{setting}: {'; '.join(values)}")
    return lines


def _length(ms: Any) -> str:
    return format_duration(ms) if isinstance(ms, int) else "None"
