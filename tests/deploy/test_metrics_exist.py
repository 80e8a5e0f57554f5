"""Every metric that a dashboard or a rule asks for is one that the program exports."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from wheel_sched_celery.beat.entry import BeatEntry

from tests.deploy.queries import queries
from wheel_sched.dispatcher import DispatcherStats
from wheel_sched.observability.prometheus import MetricsCollector, metrics_page
from wheel_sched.purgatory import Purgatory
from wheel_sched.store import Member, Members, open_store
from wheel_sched.timers import SystemTimer

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
NAME = re.compile(r"\bwheel_sched[\w:]*")
PARTS = {"store", "retry-topics", "celery", "apscheduler", "purgatory"}


class Counting:
    stats = DispatcherStats()


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of all samples that a page can have, also of families that have no sample now."""
    with open_store("memory:") as store:
        Members(store).announce(Member("consumer", "g", retries_to="g.retry", id="a"), 60_000)
        store.schedule([BeatEntry("one", "t", {"kind": "interval", "every_s": 5, "relative": False}, due_ms=1).item()])
        monkeypatch.setattr(store.backend, "memory", lambda: [(1, 2)], raising=False)
        with SystemTimer() as timer, Purgatory[str](timer) as purgatory:
            counting: Any = Counting()
            page = metrics_page(MetricsCollector({"d": counting}, store, {"p": purgatory}))().body.decode()
    endings = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    return {family.name + ending for family in text_string_to_metric_families(page) for ending in endings[family.type]}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_there_is_a_dashboard_for_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are those that the generator makes, so a change is made in the generator."""
    spec = importlib.util.spec_from_file_location("generate", DEPLOY / "grafana" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "generate", generate)  # a dataclass looks up the module that defines it
    spec.loader.exec_module(generate)
    found = {path.name: path.read_text("utf-8") for path in (DEPLOY / "grafana" / "dashboards").iterdir()}
    assert found == generate.files()
    assert {name.removesuffix(".json") for name in found} == PARTS


def test_every_query_of_a_dashboard_asks_for_exported_metrics(exported: set[str]) -> None:
    """A metric that is renamed in the program must be renamed in the dashboards."""
    asked = {name: f"{board}: {title}" for board, title, query in queries() for name in NAME.findall(query)}
    assert len(asked) > 30
    assert {name: place for name, place in asked.items() if name not in exported} == {}


def test_every_rule_asks_for_exported_metrics_or_records(exported: set[str]) -> None:
    """An alert on a metric that does not exist never fires, and nobody notices."""
    records = {rule["record"] for rule in rules() if "record" in rule}
    asked = {name for rule in rules() for name in NAME.findall(rule["expr"])}
    assert asked - records - exported == set()


def test_the_scale_of_the_chart_asks_for_an_exported_metric(exported: set[str]) -> None:
    """KEDA gets its number from a metric that exists."""
    values = yaml.safe_load((DEPLOY / "helm" / "wheel-sched" / "values.yaml").read_text("utf-8"))
    assert set(NAME.findall(values["keda"]["query"])) <= exported


def test_every_metric_that_a_page_of_the_docs_names_is_exported(exported: set[str]) -> None:
    """The runbooks name metrics that a reader finds in Prometheus."""
    text = (DEPLOY.parent / "docs" / "runbooks.md").read_text("utf-8")
    named = set(NAME.findall(text))
    assert {name for name in named if name not in exported and f"{name}_bucket" not in exported} == set()
