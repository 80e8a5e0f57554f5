"""Writes the Grafana dashboards in `dashboards/`: python deploy/grafana/generate.py

One dashboard for each part of the project. A test compares the files with what this program makes, and every query with
the metrics that the program exports. Values of the store are the same in every process, so queries take their maximum.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("dashboards")
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
HEIGHT, WIDTH, ACROSS = 8, 8, 24


@dataclass(frozen=True, slots=True)
class GrafanaPanel:
    """A chart: its title, what a reader sees in it, the unit of Grafana, and queries with their legends."""

    title: str
    description: str
    unit: str
    queries: tuple[tuple[str, str], ...]


def maximum(metric: str, by: str = "job", **labels: str) -> str:
    """The value of the store, which each process reports."""
    return f"max by ({by}) ({selected(metric, **labels)})"


def rate(metric: str, by: str = "job") -> str:
    """Events a second, added up over the processes."""
    return f"sum by ({by}) (rate({selected(metric)}[$__rate_interval]))"


def store_rate(metric: str, by: str, **labels: str) -> str:
    """Events a second of a counter of the store, which each process reports."""
    return f"max by ({by}) (rate({selected(metric, **labels)}[$__rate_interval]))"


def quantile(share: str, metric: str, by: str = "job") -> str:
    """The quantile of a histogram, over the processes of a job."""
    return f"histogram_quantile({share}, sum by ({by}, le) (rate({selected(metric + '_bucket')}[$__rate_interval])))"


def selected(metric: str, **labels: str) -> str:
    more = "".join(f",{name}={value!r}".replace("'", '"') for name, value in labels.items())
    return f'wheel_sched_{metric}{{job=~"$job"{more}}}'


LATENESS = GrafanaPanel(
    "Lateness",
    "From due to published. Healthy values are milliseconds under any load.",
    "s",
    tuple(
        (quantile(share, "fire_lateness_seconds"), f"{{{{job}}}} p{name}")
        for share, name in (("0.5", 50), ("0.99", 99))
    ),
)
OVERDUE = GrafanaPanel(
    "Overdue messages", "Due and not released.", "short", ((maximum("overdue_messages"), "{{job}}"),)
)
OLDEST = GrafanaPanel(
    "Oldest overdue message", "How late the first one is.", "s", ((maximum("oldest_overdue_seconds"), "{{job}}"),)
)
WAITING = GrafanaPanel(
    "What waits",
    "Items by state. A count of waiting items is not unhealthy by itself.",
    "short",
    ((maximum("messages", "job, state"), "{{job}} {{state}}"),),
)
PUBLISHED = GrafanaPanel(
    "Published", "Items published and settled, a second.", "ops", ((rate("published_total"), "{{job}}"),)
)
MEMORY = GrafanaPanel(
    "Memory of the store",
    "Used memory and the limit of the fullest server. A full server refuses new messages.",
    "bytes",
    ((maximum("store_memory_used_bytes"), "{{job}} used"), (maximum("store_memory_limit_bytes"), "{{job}} limit")),
)
MEMBERS = GrafanaPanel(
    "Live members",
    "Processes that announce themselves, by kind.",
    "short",
    ((maximum("members", "job, kind"), "{{kind}}"),),
)
STORE_UP = GrafanaPanel(
    "Store reached",
    "1: the store answered this process.",
    "short",
    ((maximum("store_up", "job, instance"), "{{instance}}"),),
)
BY_TOPIC = GrafanaPanel(
    "Waiting by topic",
    "Items that wait for their time.",
    "short",
    ((maximum("messages", "job, topic", state="due"), "{{topic}}"),),
)
COMPLETED = GrafanaPanel(
    "Completed by topic",
    "A second.",
    "ops",
    ((store_rate("events_total", "job, topic", event="completed"), "{{topic}}"),),
)
CANCELLED = GrafanaPanel(
    "Cancelled and deleted",
    "A second.",
    "ops",
    tuple(
        (store_rate("events_total", "job, topic", event=one), f"{{{{topic}}}} {one}")
        for one in ("cancelled", "deleted")
    ),
)
DEAD = GrafanaPanel(
    "Dead letters", "A person should look.", "short", ((maximum("messages", "job, topic", state="dead"), "{{topic}}"),)
)

DASHBOARDS = {
    "store": (
        "Store and dispatcher",
        (
            *(LATENESS, OVERDUE, OLDEST, WAITING, PUBLISHED, MEMORY, STORE_UP),
            GrafanaPanel(
                "Failures",
                "Publishing attempts that failed, possible duplicates, and leases that ran out, a second.",
                "ops",
                tuple(
                    (rate(f"{one}_total"), f"{{{{job}}}} {one}")
                    for one in ("failed", "in_doubt", "stale", "recovered", "store_errors")
                ),
            ),
            GrafanaPanel(
                "Work of the dispatchers",
                "Claims, claims that found nothing, wake-ups and sweeps, a second. Idle dispatchers send nothing.",
                "ops",
                tuple(
                    (rate(f"{one}_total"), f"{{{{job}}}} {one}")
                    for one in ("claims", "empty_claims", "wake_ups", "sweeps")
                ),
            ),
            GrafanaPanel(
                "In flight",
                "Claimed and not settled.",
                "short",
                ((f"sum by (job) ({selected('in_flight')})", "{{job}}"),),
            ),
            GrafanaPanel(
                "Clock steps and reconnections",
                "How often the store's clock was set, and connections were made anew.",
                "short",
                tuple(
                    (f"sum by (job) (increase({selected(f'{one}_total')}[$__rate_interval]))", f"{{{{job}}}} {one}")
                    for one in ("clock_jumps", "reconnects")
                ),
            ),
            MEMBERS,
        ),
    ),
    "retry-topics": (
        "Retry topics",
        (
            *(LATENESS, BY_TOPIC, DEAD),
            GrafanaPanel(
                "Services that take in",
                "0: consumers write failed messages to this topic, and no live service reads it.",
                "short",
                ((maximum("retry_topic_services", "job, topic"), "{{topic}}"),),
            ),
            GrafanaPanel(
                "Messages that die",
                "A second.",
                "ops",
                ((store_rate("events_total", "job, topic", event="died"), "{{topic}}"),),
            ),
            GrafanaPanel(
                "Failed messages accepted",
                "A second.",
                "ops",
                ((store_rate("events_total", "job, topic", event="accepted"), "{{topic}}"),),
            ),
            GrafanaPanel(
                "Paused topics", "1: paused.", "short", ((maximum("topic_paused", "job, topic"), "{{topic}}"),)
            ),
            GrafanaPanel(
                "Ordered keys",
                "Keys that wait for a failed message, and messages parked behind them. If they only grow, heads fail.",
                "short",
                (
                    (maximum("locked_keys"), "{{job}} keys"),
                    (maximum("parked_messages", "job, topic"), "{{topic}} parked"),
                ),
            ),
            GrafanaPanel(
                "Open circuits",
                "Destinations that get no retries now.",
                "short",
                ((maximum("circuits_open", "job, topic"), "{{topic}}"),),
            ),
            GrafanaPanel(
                "Flow control",
                "Messages released and held back, a second.",
                "ops",
                (
                    (store_rate("flow_released_total", "job, topic"), "{{topic}} released"),
                    (store_rate("flow_held_back_total", "job, topic, reason"), "{{topic}} {{reason}}"),
                ),
            ),
            GrafanaPanel(
                "Spread",
                "How many due times of retries a policy has spread, per second.",
                "ops",
                ((store_rate("flow_spread_total", "job, topic"), "{{topic}}"),),
            ),
            MEMBERS,
        ),
    ),
    "celery": ("Celery", (OVERDUE, OLDEST, MEMBERS, BY_TOPIC, COMPLETED, CANCELLED, WAITING, DEAD, MEMORY)),
    "apscheduler": (
        "APScheduler",
        (
            *(OVERDUE, OLDEST, MEMBERS, BY_TOPIC, COMPLETED, CANCELLED),
            GrafanaPanel(
                "Time until the next job",
                "Below 0: it is overdue.",
                "s",
                ((f"{maximum('next_due_timestamp_seconds')} - time()", "{{job}}"),),
            ),
            *(WAITING, MEMORY),
        ),
    ),
    "purgatory": (
        "Purgatory and timers",
        (
            GrafanaPanel(
                "Lateness of timeouts",
                "From an operation's deadline to its expiration. Too little CPU, or a callback that blocks.",
                "s",
                tuple(
                    (
                        quantile(share, "purgatory_expiration_lateness_seconds", "job, instance"),
                        f"{{{{instance}}}} p{name}",
                    )
                    for share, name in (("0.5", 50), ("0.99", 99))
                ),
            ),
            GrafanaPanel(
                "Waiting operations",
                "Operations that wait for their timer.",
                "short",
                ((f"sum by (job, purgatory) ({selected('purgatory_delayed')})", "{{purgatory}}"),),
            ),
            GrafanaPanel(
                "Watched",
                "Entries in watcher lists, and keys.",
                "short",
                tuple(
                    (f"sum by (job, purgatory) ({selected(f'purgatory_{one}')})", f"{{{{purgatory}}}} {one}")
                    for one in ("watched", "keys")
                ),
            ),
            GrafanaPanel(
                "Completed",
                "By reason, a second.",
                "ops",
                ((rate("purgatory_completed_total", "job, purgatory, reason"), "{{purgatory}} {{reason}}"),),
            ),
            GrafanaPanel(
                "Cancelled and failed",
                "A second.",
                "ops",
                tuple(
                    (rate(f"purgatory_{one}_total", "job, purgatory"), f"{{{{purgatory}}}} {one}")
                    for one in ("cancelled", "failed")
                ),
            ),
            GrafanaPanel(
                "Wake-ups",
                "Alarms of the dispatchers' wheels, a second.",
                "ops",
                ((rate("wake_ups_total", "job, dispatcher"), "{{dispatcher}}"),),
            ),
        ),
    ),
}


def dashboard(name: str, title: str, panels: tuple[GrafanaPanel, ...]) -> dict[str, Any]:
    """One dashboard as Grafana's JSON."""
    choices: dict[str, Any] = {"includeAll": True, "multi": True, "current": {"text": "All", "value": "$__all"}}
    return {
        "uid": f"wheel-sched-{name}",
        "title": f"wheel-sched: {title}",
        "tags": ["wheel-sched"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
                {
                    **{"name": "job", "type": "query", "label": "Job", "refresh": 2, "datasource": SOURCE, **choices},
                    "query": {"query": "label_values(wheel_sched_build_info, job)", "refId": "job"},
                },
            ]
        },
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }


def _panel(number: int, panel: GrafanaPanel) -> dict[str, Any]:
    across = ACROSS // WIDTH
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": {"x": WIDTH * (number % across), "y": HEIGHT * (number // across), "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": {"showPoints": "never"}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + at), "expr": query, "legendFormat": legend, "datasource": SOURCE}
            for at, (query, legend) in enumerate(panel.queries)
        ],
    }


def files() -> dict[str, str]:
    """The content of each file in `dashboards/`, by name."""
    return {
        f"{name}.json": json.dumps(dashboard(name, title, panels), indent=2) + "\n"
        for name, (title, panels) in DASHBOARDS.items()
    }


def main() -> None:
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
