"""The dashboard's pages and API calls about policies. They describe, explain, simulate and compare policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from retry_topic.dashboard.part import PART
from retry_topic.dashboard.policies import CALLS
from retry_topic.history import Attempt
from retry_topic.management.settings import RetrySettings
from retry_topic.policy import load_policies
from retry_topic.policy.load_simulation import Traffic, simulate_load
from retry_topic.policy.model import RetryPolicy
from tests.json_schema import validate
from tests.servers.valkey import TemporaryServer
from wheel_sched.config import Settings, load_settings
from wheel_sched.dashboard import DashboardApp, DashboardConfig, everyone
from wheel_sched.dashboard.core_part import CORE
from wheel_sched.store import DelayStore, History, open_store

POLICIES = """
[default]
max_attempts = 4
delay = { kind = "fixed", base = "2s" }

[topic.orders]
version = 7
max_attempts = 3
delay = { kind = "list", delays = ["1s", "1m"] }
rate = "30/m"
breaker = { failures = "50%", of = 20, within = "1m", open = "30s" }

[[topic.orders.rule]]
name = "gone"
status = 410
dead = true

[[topic.orders.rule]]
error = "app.*"
max_attempts = 2
"""
HOSTILE = "<script>alert(1)</script>\u202e"
Open = Callable[..., TestClient]
SCHEMAS = {call.path: call.schema for call in CALLS}


@pytest.fixture
def store() -> Iterator[DelayStore]:
    with open_store("memory:") as opened:
        yield opened


@pytest.fixture
def client(store: DelayStore, tmp_path: Path) -> TestClient:
    """A dashboard whose settings name a policy file."""
    file = tmp_path / "retry.toml"
    file.write_text(POLICIES)
    return client_of(store, policies=str(file))


def client_of(store: DelayStore, **flags: str) -> TestClient:
    loaded = load_settings(flags, env={}, kinds=(Settings, RetrySettings))
    app = DashboardApp(store, loaded, everyone("read"), config=DashboardConfig(), parts=(CORE, PART))
    return TestClient(app, base_url="http://localhost")


def data(client: TestClient, address: str, call: str, **query: Any) -> Any:
    """The answer of an API call, checked against the schema of the call."""
    answer = client.get(f"/api/v1{address}", params=query)
    assert answer.status_code == 200, answer.text
    validate(answer.json(), SCHEMAS[call])
    return answer.json()


def test_the_page_shows_every_policy_of_the_file(client: TestClient) -> None:
    """For each policy, the page has the policy in words, a curve of its delays, a table of its rules and its flow
    control.
    """
    page = client.get("/policies")
    assert page.status_code == 200
    for text in ("All other topics", "default@1", "orders@7", "1s, 1m; then 1m each time", "at most 30/m", "breaker"):
        assert text in page.text
    assert page.text.count('<svg class="chart curve"') == 2
    assert "dead at once" in page.text
    assert 'href="/policies/orders"' in page.text
    assert "100% max-attempts" in page.text


def test_without_a_file_there_is_the_built_in_policy(store: DelayStore) -> None:
    """Without a policy file the page shows the built-in policy and says so."""
    found = data(client_of(store), "/policies", "/policies")
    assert found["source"] is None
    assert [one["policy"] for one in found["policies"]] == ["default@1"]
    assert "built-in policy" in client_of(store).get("/policies").text


def test_the_call_lists_the_policies(client: TestClient) -> None:
    """The call has the same policies as the page, with their rules and the simulated steps."""
    found = data(client, "/policies", "/policies")
    default, orders = found["policies"]
    assert (default["topic"], orders["topic"], found["more"]) == (None, "orders", 0)
    assert [rule["does"] for rule in orders["rules"]] == ["dead at once", "at most 2 deliveries"]
    assert orders["steps"][-1]["died"] == {"max-attempts": 100}


def test_many_policies_are_listed_by_name(store: DelayStore, tmp_path: Path) -> None:
    """Only some policies are shown in full. For the others, the page has links."""
    file = tmp_path / "many.toml"
    file.write_text("".join(f"[topic.t{number:03}]\nmax_attempts = 2\n" for number in range(50)))
    client = client_of(store, policies=str(file))
    page = client.get("/policies").text
    assert page.count("<h2") == 11
    assert 'href="/policies/t049"' in page
    assert data(client, "/policies", "/policies")["more"] == 41


def test_a_file_with_mistakes_is_an_error_of_the_server(store: DelayStore, tmp_path: Path) -> None:
    """For a policy file with mistakes, page and call show the message of the function that loads the file."""
    file = tmp_path / "wrong.toml"
    file.write_text("[default]\nmax_attempts = 0\n")
    page = client_of(store, policies=str(file)).get("/policies")
    assert page.status_code == 500
    assert "expected max_attempts to be an integer from 1" in page.text


@pytest.mark.parametrize(
    ("query", "reason", "words"),
    [
        ({"status": 410}, "fatal", "rule 1 (gone) of orders@7"),
        ({"error": "app.Away", "attempt": 2}, "max-attempts", "rule 2 of orders@7"),
        ({"attempt": 2}, None, "orders@7"),
    ],
)
def test_a_decision_is_explained(client: TestClient, query: Any, reason: str | None, words: str) -> None:
    """Page and call say what the topic's policy decides about an error, and which rule decided."""
    found = data(client, "/policies/orders/explain", "/policies/{topic:path}/explain", **query)
    assert (found["reason"], found["decision"]) == (reason, "dead" if reason else "retry")
    assert words in found["chosen_by"]
    page = client.get("/policies/orders", params={"form": "explain", **query}).text
    assert f"Decided by: {found['chosen_by']}." in page
    assert "If every attempt fails this way" in page


def test_a_topic_without_its_own_policy_has_the_default(client: TestClient) -> None:
    """The page works for any topic, also for one with a slash or with hostile characters."""
    for topic in ("mail", "a/b", HOSTILE, "explain"):
        page = client.get(f"/policies/{quote(topic, safe='')}", params={"form": "explain"})
        assert page.status_code == 200
        assert "no policy of its own" in page.text
        assert "<script>alert" not in page.text
        assert "\u202e" not in page.text
        answer = client.get(f"/api/v1/policies/{quote(topic, safe='')}/explain").json()
        assert answer["why"]["policy"] == "default@1"
    assert client.get(f"/policies/{'x' * 2_000}").status_code == 404


def test_traffic_is_simulated_as_the_function_says(client: TestClient) -> None:
    """Page and call show the result of `simulate_load`. The same seed gives the same result."""
    query = {"failure_rate": 0.5, "per_second": 20, "seconds": 30, "outage": 5, "seed": 3}
    call = "/policies/{topic:path}/simulate"
    found = data(client, "/policies/default/simulate", call, **query)
    assert found == data(client, "/policies/default/simulate", call, **query)
    assert found["messages"] == 600
    assert found["load_factor"] > 1.8
    page = client.get("/policies/default", params={"form": "simulate", **query}).text
    assert f"{found['attempts']:,}" in page
    assert "simulated attempts over time" in page
    assert "success at attempt 1" in page
    assert "dead: max-attempts" in page


def test_the_call_simulates_the_topics_own_policy(client: TestClient, store: DelayStore) -> None:
    """The call has the numbers of `simulate_load` for the topic's policy and the default seed. Without a policy file,
    it uses the built-in policy."""
    address, call = "/policies/orders/simulate", "/policies/{topic:path}/simulate"
    own = load_policies(POLICIES).for_topic("orders")
    found = data(client, address, call, failure_rate=0.2)
    assert found == simulate_load(own, Traffic(0.2)).as_dict()
    assert found["policy"] == "orders@7"
    assert (
        data(client_of(store), address, call, failure_rate=0.2) == simulate_load(RetryPolicy(), Traffic(0.2)).as_dict()
    )


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"failure_rate": "2"}, "failure rate to be from 0 to 1"),
        ({"failure_rate": "nan"}, "expected failure_rate to be a number"),
        ({"failure_rate": "1e9"}, "expected failure_rate to be a number"),
        ({"per_second": "9" * 400}, "expected per_second to be a number"),
        ({"per_second": "0"}, "0.001 to 10,000 messages a second"),
        ({"seconds": "9" * 400}, "expected seconds to be a whole number"),
        ({"per_second": "10000", "seconds": "86400"}, "at most 20,000 messages"),
        ({"seed": "-1"}, "expected seed"),
        ({"status": "99"}, "expected status"),
        ({"error": "x" * 501}, "at most 500 characters"),
    ],
)
def test_traffic_outside_its_bounds_is_refused(client: TestClient, query: dict[str, str], words: str) -> None:
    """For a wrong number, page and call answer 400 with the same error, which says what is expected."""
    answer = client.get("/api/v1/policies/orders/simulate", params=query)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert client.get("/policies/orders", params={"form": "simulate", **query}).status_code == 400


def test_a_wrong_attempt_is_refused(client: TestClient) -> None:
    """An attempt of 0 or of too many digits is refused."""
    for attempt in ("0", "9" * 100, "1.5"):
        assert client.get("/api/v1/policies/orders/explain", params={"attempt": attempt}).status_code == 400


def record(store: DelayStore, topic: str = "orders", error: str = "app.Away") -> None:
    """Write a history of two messages. At the third attempt one succeeded, and the other was given up."""
    rows = [
        Attempt(name, topic, number, None, number * 1_000, outcome, None if outcome == "ok" else error)
        for name, end in (("a", "ok"), ("b", "dead"))
        for number, outcome in enumerate(("failed", "failed", end), 1)
    ]
    History(store).append([(row.id, row.encode()) for row in rows], keep=1_000)


def test_an_edited_policy_is_held_against_the_history(client: TestClient, store: DelayStore) -> None:
    """The call compares the edited and the present policies over the recorded attempts, for each topic."""
    record(store)
    found = data(client, "/policies/what-if", "/policies/what-if", policy="[default]\nmax_attempts = 2")
    assert found["attempts"] == 6
    orders = found["topics"]["orders"]
    assert (orders["retries"], orders["present"]["retries"], orders["edited"]["retries"]) == (4, 2, 2)
    assert (orders["given_up"], orders["edited"]["given_up"], orders["edited"]["lost"]) == (1, 2, 1)
    assert any("another time" in text for text in found["cannot_know"])


def test_the_page_compares_and_says_what_it_cannot_know(client: TestClient, store: DelayStore) -> None:
    """At first the form holds the present policies. The page shows the comparison, and what it cannot know."""
    record(store)
    first = client.get("/what-if").text
    assert "max_attempts = 3" in first
    assert "What would have happened" not in first
    assert "whether a retry at another time would have succeeded" in first
    page = client.get("/what-if", params={"policy": "[default]\r\nmax_attempts = 20\r\n"})
    assert page.status_code == 200
    assert "messages given up" in page.text
    assert "max_attempts = 20" in page.text
    assert "later" in page.text


@pytest.mark.real
def test_the_history_of_a_server_is_compared(real_server: TemporaryServer) -> None:
    """The comparison also works over a store on a real server with several shards."""
    with open_store(real_server.url, namespace="what-if", shards=4) as store:
        record(store)
        found = data(client_of(store), "/policies/what-if", "/policies/what-if", policy="[default]\nmax_attempts = 2")
    assert found["attempts"] == 6
    assert found["topics"]["orders"]["edited"]["lost"] == 1


def test_without_a_history_the_page_says_how_to_get_one(client: TestClient) -> None:
    """If the store has no history, the page says how to record one."""
    assert "--history 100000" in client.get("/what-if", params={"policy": ""}).text


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("[default]\nmax_attempts = 0", "expected max_attempts to be an integer from 1"),
        ("[default]\nmax_attempt = 3", "did you mean max_attempts?"),
        ("[default", "expected the policies to be TOML"),
        (f"[default]\nmax_attempts = {'9' * 4_000}", "expected"),
        ("[" * 4_000, "expected"),
        ("x" * 4_097, "at most 4,096 characters"),
    ],
)
def test_mistakes_come_back_in_the_loaders_words(client: TestClient, policy: str, words: str) -> None:
    """Page and call refuse a policy with mistakes. The form of the page keeps the text."""
    answer = client.get("/api/v1/policies/what-if", params={"policy": policy})
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    page = client.get("/what-if", params={"policy": policy})
    assert page.status_code == 400
    assert "nothing was compared" in page.text
    assert policy[:8] in page.text


def test_a_text_is_never_taken_for_a_file(client: TestClient, tmp_path: Path) -> None:
    """If the policy's text is the name of a file, the text is refused, and the file is not read."""
    (tmp_path / "secret.toml").write_text("[default]\nname = 5\n")
    for policy in (str(tmp_path / "secret.toml"), "/etc/passwd", "default"):
        answer = client.get("/api/v1/policies/what-if", params={"policy": policy})
        assert answer.status_code == 400
        assert "expected the policies to be TOML" in answer.json()["error"]["message"]


def test_the_call_needs_a_policy(client: TestClient) -> None:
    """Without a policy in the request, the call is refused, because there is nothing to compare."""
    assert client.get("/api/v1/policies/what-if").status_code == 400


def test_hostile_names_of_the_history_are_harmless(client: TestClient, store: DelayStore) -> None:
    """A history may hold any names and times. Markup is escaped. Lone surrogates and huge times do no harm."""
    record(store, HOSTILE, "\ud800")
    record(store, "\ud800half")
    row = Attempt("late", "orders", 1, None, 10**30, "dead", "x" * 10_000)
    History(store).append([("late", row.encode())], keep=1_000)
    policy = "[default]\nmax_attempts = 2"
    page = client.get("/what-if", params={"policy": policy})
    assert page.status_code == 200
    assert "<script>alert" not in page.text
    assert "\u202e" not in page.text
    found = data(client, "/policies/what-if", "/policies/what-if", policy=policy)
    assert "\\ud800half" in found["topics"]


def test_the_navigation_names_the_page_and_openapi_the_calls(client: TestClient) -> None:
    """The page is in the navigation, and every call is in the OpenAPI document."""
    assert '<a href="/policies">Policies</a>' in client.get("/").text
    paths = client.get("/api/v1/openapi.json").json()["paths"]
    assert {"/policies", "/policies/what-if", "/policies/{topic}/explain", "/policies/{topic}/simulate"} <= set(paths)
