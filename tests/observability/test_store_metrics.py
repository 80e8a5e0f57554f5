"""The metrics that show a backlog, absent services and a full server."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from wheel_sched.errors import Rejected
from wheel_sched.observability.prometheus import MetricsCollector, metrics_page
from wheel_sched.store import Item, Member, Members, open_store


def scraped(store: Any) -> dict[str, float]:
    """The samples of a page by name and labels, such as `members{kind="consumer"}`."""
    page = metrics_page(MetricsCollector({}, store))().body.decode()
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            found[sample.name.removeprefix("wheel_sched_") + f"{{{labels}}}" * bool(labels)] = sample.value
    return found


def test_overdue_items_are_counted() -> None:
    """Of three items, two are due. `overdue_messages` is two; the third waits and is not overdue."""
    with open_store("memory:") as store:
        now_ms = store.now_ms()
        store.schedule([Item("a", now_ms - 2, b""), Item("b", now_ms - 1, b""), Item("c", now_ms + 60_000, b"")])
        assert scraped(store)["overdue_messages"] == 2


def test_a_retry_topic_without_a_live_service_shows_zero() -> None:
    """Consumers of two groups write to retry topics, and one of the topics has a service. A topic that nobody writes to
    has no sample."""
    with open_store("memory:") as store:
        for name, member in {
            "a": Member("consumer", "billing", retries_to="billing.retry"),
            "b": Member("consumer", "mail", retries_to="mail.retry"),
            "c": Member("consumer", "mail", retries_to="mail.retry"),
            "d": Member("retry-service", "mail", takes_in=("mail.retry", "old.retry"), releases=True),
        }.items():
            Members(store).announce(Member.of_record(name, member.record()) or member, 60_000)
        found = scraped(store)
    assert found['members{kind="consumer"}'] == 3
    assert found['members{kind="retry-service"}'] == found["releasing_members"] == 1
    topics = {name: value for name, value in found.items() if name.startswith("retry_topic_services")}
    assert topics == {
        'retry_topic_services{topic="billing.retry"}': 0,
        'retry_topic_services{topic="mail.retry"}': 1,
    }


@pytest.mark.parametrize(
    ("memory", "used", "limit"),
    [
        ([(700, 1000)], 700, 1000),
        ([(700, 0)], 700, None),
        ([(100, 1000), (90, 100), (5000, 0)], 90, 100),
        ([], None, None),
    ],
    ids=["limit", "no limit", "the fullest of a cluster", "hidden"],
)
def test_the_memory_of_the_fullest_server(
    monkeypatch: pytest.MonkeyPatch, memory: list[tuple[int, int]], used: int | None, limit: int | None
) -> None:
    """In a cluster, the metrics are of the server whose memory is nearest to its limit. A server without a limit has
    no metric of the limit.
    """
    with open_store("memory:") as store:
        monkeypatch.setattr(store.backend, "memory", lambda: memory, raising=False)
        found = scraped(store)
    assert found.get("store_memory_used_bytes") == used
    assert found.get("store_memory_limit_bytes") == limit


def test_a_server_that_refuses_info_has_all_other_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """A managed server may refuse INFO. Then only the memory is missing."""

    def refuses() -> list[tuple[int, int]]:
        raise Rejected("no permission")

    with open_store("memory:") as store:
        monkeypatch.setattr(store.backend, "memory", refuses, raising=False)
        found = scraped(store)
    assert found["store_up"] == 1
    assert found["overdue_messages"] == 0
    assert "store_memory_used_bytes" not in found


@pytest.mark.real
def test_the_memory_of_a_real_server(tmp_path: Any) -> None:
    """A real server reports its used memory, and its limit once a limit is set."""
    with open_store(f"embedded:{tmp_path / 'store'}") as store:
        assert scraped(store)["store_memory_used_bytes"] > 100_000
        assert "store_memory_limit_bytes" not in scraped(store)
        backend: Any = store.backend
        backend.client.config_set("maxmemory", 50_000_000)
        assert scraped(store)["store_memory_limit_bytes"] == 50_000_000
