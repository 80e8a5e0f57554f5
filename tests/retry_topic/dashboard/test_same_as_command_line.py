"""The command line and the JSON API give the same answer, or the same refusal, for the same input."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from retry_topic import Connection, connect
from retry_topic.cli.listing import list_messages
from retry_topic.dashboard.items.times import start_of
from retry_topic.management.search import parse_search
from retry_topic.message.encoding import encode_body
from tests.cli.running import Cli, isolate
from tests.retry_topic.cli.conftest import failed
from wheel_sched.cli.instants import INSTANT
from wheel_sched.errors import Rejected
from wheel_sched.management.operations import OperationBook
from wheel_sched.store import Item, Member, Members
from wheel_sched.store.core.items import STATES

NOW = 1_800_000_000_000
NAMES = {"topic": "orders", "group": "aaaaaaaaaaaa"}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(tmp_path, monkeypatch)


@pytest.fixture
def connection(redis_url: str) -> Iterator[Connection]:
    with connect(redis_url) as opened:
        yield opened


@pytest.fixture
def cli(redis_url: str) -> Cli:
    return Cli(redis_url)


@pytest.fixture
def seen(see: Callable[..., Any], connection: Connection) -> Any:
    """A dashboard over the store that the command line opens."""
    return see(connection=connection)


def plain(text: str) -> str:
    """A refusal as one line, without the parts that only the command line has, such as usage and program name."""
    words = " ".join(text.split()).rpartition("Error: ")[2].removeprefix("wheel-sched: ")
    return words.replace("--", "")


def read(reader: Callable[[], Any]) -> Any:
    """The result of `reader`; None if `reader` refuses the text."""
    try:
        return reader()
    except (Rejected, click.BadParameter):
        return None


@pytest.mark.parametrize(
    "text",
    [
        "2030-01-01T06:00:00Z",
        "2030-01-01T06:00:00.0001Z",
        "6750-07-23T02:30:29.991001Z",  # between two floats
        "9999-12-31T23:59:59.999Z",
        "9999-12-31T23:59:59.9991Z",
        "9999-12-31T23:59:59-01:00",
        "0001-01-01T00:00:00+14:00",
        "1969-12-31T23:59:59Z",
        "1970-01-01T00:00:00Z",
        "2030-01-01",
        "2030-13-01T00:00:00Z",
        "yesterday",
    ],
)
def test_an_instant_is_the_same_millisecond_everywhere(text: str) -> None:
    """An option, an argument of an action and a search accept the same texts as instants, and round them in the same
    way.
    """
    by_option = read(lambda: INSTANT.convert(text, None, None))
    by_action = read(lambda: start_of({"at": text}, NOW))
    by_search = read(lambda: parse_search(f"due<{text}").filter(NOW).until_ms or 0)
    assert by_option == by_action == by_search


@pytest.mark.real
@pytest.mark.parametrize("given", [{}, {"in": "1h", "at": "2100-01-01T00:00:00Z"}])
def test_a_new_due_time_is_refused_in_the_same_words(cli: Cli, seen: Any, given: dict[str, str]) -> None:
    """A request without `in` and `at` is refused, and so is a request with both."""
    options = [word for name, value in given.items() for word in (f"--{name}", value)]
    refused = cli("reschedule", "a.2", *options, code=2)
    assert plain(refused.stderr) == seen.preview("reschedule", 400, ids=["a.2"], **given)["error"]["message"]


@pytest.mark.real
def test_a_rate_and_a_spread_are_refused_in_the_same_words(cli: Cli, seen: Any, connection: Connection) -> None:
    """A replay with both a rate and a spread is refused, by the command and by the operation."""
    connection.store.bury([(Item("d.8", None, encode_body(failed(8)), "orders", ("fp:aaaaaaaaaaaa",)), "dead")])
    refused = cli("replay", "d.8", "--rate", "1", "--spread", "1m", code=2)
    asked = seen.preview("start-replay", 400, **NAMES, rate="1", spread="1m")
    assert plain(refused.stderr) == asked["error"]["message"]


@pytest.mark.real
@pytest.mark.parametrize(("most", "accepted"), [("0", False), ("1", True), ("100", True), ("101", False)])
def test_the_loop_guard_has_the_same_bounds(
    cli: Cli, seen: Any, connection: Connection, most: str, accepted: bool
) -> None:
    """The command and the operation both accept 1 to 100 as the highest number of replays."""
    connection.store.bury([(Item("d.8", None, encode_body(failed(8)), "orders", ("fp:aaaaaaaaaaaa",)), "dead")])
    done = cli("replay", "d.8", "--max-replays", most, "--dry-run", code=None)
    assert (done.exit_code == 0) is accepted
    seen.preview("start-replay", 200 if accepted else 400, **NAMES, max_replays=most)


@pytest.mark.real
@pytest.mark.parametrize("step", ["confirm", "pause", "resume", "cancel"])
@pytest.mark.parametrize("state", ["counting", "cancelled", "absent"])
def test_a_step_of_an_operation_is_refused_in_the_same_words(
    cli: Cli, seen: Any, connection: Connection, step: str, state: str
) -> None:
    """If the state of the operation does not allow the step, command and dashboard both name that state."""
    book = OperationBook(connection.store)
    made = book.create("replay-dead-letters", NAMES, "ada").id
    if state == "cancelled":
        book.cancel(made)
    operation_id = "none" if state == "absent" else made
    if (state, step) == ("counting", "cancel"):
        assert seen.preview("cancel-operation", id=operation_id)["count"] == 1
        assert cli.json("operations", "cancel", operation_id)["state"] == "cancelled"
        return
    more = ["--yes"] if step == "confirm" else []
    refused = plain(cli("operations", step, operation_id, *more, code=1).stderr)
    asked = seen.preview(f"{step}-operation", 404 if state == "absent" else 409, id=operation_id)
    assert refused == asked["error"]["message"]
    assert re.search("nothing was changed", refused)


def told_by_doctor(cli: Cli, check: str) -> tuple[str, str, str]:
    (found,) = (one for one in cli.json("doctor", code=None)["findings"] if one["check"] == check)
    return found["level"], found["evidence"], found["fix"]


def told_by_overview(seen: Any, word: str) -> tuple[str, str, str]:
    (found,) = (one for one in seen.api("/overview")["problems"] if word in one["what"])
    return found["level"], found["what"], found["fix"]


@pytest.mark.real
def test_overdue_items_are_told_in_the_same_words(cli: Cli, seen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`doctor`, `stats` and the overview report overdue items from the same lateness on, and name the same fix."""
    seen.message("a.2", in_ms=-60_000)
    level, what, fix = told_by_doctor(cli, "backlog")
    assert (level, fix) == ("problem", told_by_overview(seen, "overdue")[2])
    pieces = re.split(r"[0-9.]+m?s(?=:)", what)  # the lateness grows from one look to the next
    assert all(piece in told_by_overview(seen, "overdue")[1] for piece in pieces)
    assert all(piece in cli("stats").stdout for piece in (*pieces, fix))
    monkeypatch.setattr("wheel_sched.management.overdue.NOTICED_MS", 3_600_000)
    assert "no dispatcher" not in cli("stats").stdout
    assert not seen.api("/overview")["problems"]
    assert told_by_doctor(cli, "backlog")[0] == "ok"


@pytest.mark.real
@pytest.mark.parametrize(
    ("field", "value", "check", "word"),
    [("frozen", "resharding 1 to 2", "frozen", "frozen"), ("jumps", "2", "clock jumps", "jumped")],
)
def test_damage_has_the_same_fix_and_level(
    cli: Cli, seen: Any, connection: Connection, field: str, value: str, check: str, word: str
) -> None:
    """`doctor` and the overview name the same fix for a problem that both of them find."""
    backend: Any = connection.store.backend
    backend.client.hset("{wheel:0}:meta", field, value)
    level, _, fix = told_by_doctor(cli, check)
    assert (level, fix) == told_by_overview(seen, word)[::2]


@pytest.mark.real
def test_missing_services_are_told_in_the_same_words(cli: Cli, seen: Any, connection: Connection) -> None:
    """`doctor`, `stats` and the overview report retries that no service reads, and a group that has consumers and no
    service.
    """
    connection.broker.create_topic("pay.retry")
    connection.publish("pay.retry", b"1")
    Members(connection.store).announce(Member("consumer", "billing", retries_to="billing.retry"), 60_000)
    level, what, fix = told_by_doctor(cli, "retries")
    shown = [one for one in seen.api("/topics")["problems"] if "retry" in one["what"]]
    assert len(shown) == 2
    assert level == shown[0]["level"] == "problem"
    assert shown[1]["level"] == "warn"
    assert fix == "; ".join(one["fix"] for one in shown)
    assert shown[1]["what"] in what
    assert f"{shown[1]['what']}: {shown[1]['fix']}" in cli("stats").stdout
    assert "no service reads it" in what
    assert "no service reads it" in shown[0]["what"]


@pytest.mark.real
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("change", ["run-now", "reschedule", "delete", "replay"])
def test_the_same_messages_can_be_changed(cli: Cli, seen: Any, change: str, state: str) -> None:
    """For a message's id, the command changes the message exactly if the preview of the action counts it."""
    if state == "leased":
        seen.message("a.2", in_ms=-1)
        seen.store.claim(limit=1)
    else:
        seen.message("a.2", state=state)
    moment = {"in": "2h"} if change == "reschedule" else {}
    counted = seen.preview(change, ids=["a.2"], **moment)
    options = [word for name, value in moment.items() for word in (f"--{name}", value)]
    more = [] if change == "reschedule" else ["--yes"]
    done = cli(change, "a.2", *options, *more, code=None)
    assert (done.exit_code == 0) is (counted["count"] == 1), done.output
    if (change, state) == ("run-now", "leased"):
        assert "in flight: their attempt runs now" in counted["warning"]
        assert "in flight: their attempt runs now" in done.output


@pytest.mark.real
@pytest.mark.parametrize("change", ["run-now", "reschedule", "delete"])
def test_a_search_that_names_no_state_means_the_same_messages(cli: Cli, seen: Any, change: str) -> None:
    """Such a search selects messages that wait or are held. It selects parked messages only for a deletion, and never
    dead letters or messages in flight.
    """
    seen.message("leased.2", in_ms=-1)
    seen.store.claim(limit=1)
    for state in ("due", "held", "dead"):
        seen.message(f"{state}.2", state=state)
    seen.message("parked.2", state="held", reason="ordered: behind due.2")
    moment = {"in": "2h"} if change == "reschedule" else {}
    counted = seen.preview(change, search="topic:orders", **moment)
    options = [word for name, value in moment.items() for word in (f"--{name}", value)]
    shown = cli.json(change, "--topic", "orders", *options, "--dry-run")
    assert shown["count"] == counted["count"] == (3 if change == "delete" else 2)
    assert [one["id"] for one in shown["samples"]] == [line.partition(" ")[0] for line in counted["samples"]]


@pytest.mark.parametrize("text", ["3F2A", "3f2a00", "xyz", "3f 2a"])
def test_a_fingerprint_is_read_the_same(text: str) -> None:
    """The option and the search accept the same beginnings of fingerprints, in upper and lower case."""
    (option,) = (one for one in list_messages.params if one.name == "fingerprint")
    by_option = read(lambda: option.process_value(click.Context(list_messages), text))
    assert by_option == read(lambda: parse_search(f'fp:"{text}"').filter(NOW).fingerprint)


POLICIES = """
[topic.orders]
max_attempts = 3
delay = { kind = "fixed", base = "2s" }

[[topic.orders.rule]]
name = "gone"
status = 410
dead = true
"""


@pytest.fixture
def policy_file(tmp_path: Path) -> str:
    (tmp_path / "retry.toml").write_text(POLICIES)
    return str(tmp_path / "retry.toml")


@pytest.mark.parametrize(
    "asked", [{"status": "410"}, {"attempt": "2"}, {"attempt": "3", "error": "app.Away"}, {"status": "503"}]
)
def test_a_policy_decides_the_same(see: Callable[..., Any], policy_file: str, asked: dict[str, str]) -> None:
    """The command and the API return the same decision about an error, with the same reason and the same rule."""
    seen = see(env={"WHEEL_SCHED_POLICIES": policy_file})
    options = [word for name, value in asked.items() for word in (f"--{name}", value)]
    told = Cli("memory:").json("policy", "explain", policy_file, "--topic", "orders", *options)
    answered = seen.client.get("/api/v1/policies/orders/explain", params=asked).json()
    assert told["decision"] == ("dead" if {"410", "3"} & {*asked.values()} else "retry")
    for field in ("decision", "reason", "chosen_by"):
        assert told[field] == answered[field]


@pytest.mark.parametrize("asked", [{"status": "99"}, {"status": "600"}, {"attempt": "0"}, {"attempt": "1000001"}])
def test_what_no_policy_can_be_asked_is_refused_by_both(see: Callable[..., Any], asked: dict[str, str]) -> None:
    """The command and the API have the same bounds for statuses and attempts."""
    options = [word for name, value in asked.items() for word in (f"--{name}", value)]
    assert Cli("memory:")("policy", "explain", *options, code=2).exit_code == 2
    assert see().client.get("/api/v1/policies/orders/explain", params=asked).status_code == 400


def test_traffic_is_simulated_the_same(see: Callable[..., Any], policy_file: str) -> None:
    """For the same policy, traffic and seed, the command and the API return the same numbers."""
    seen = see(env={"WHEEL_SCHED_POLICIES": policy_file})
    traffic = ("--failure-rate", "0.4", "--per-second", "5", "--for", "20s", "--outage", "3s", "--seed", "7")
    told = Cli("memory:").json("policy", "simulate", policy_file, "--topic", "orders", *traffic)
    query = {"failure_rate": "0.4", "per_second": "5", "seconds": "20", "outage": "3", "seed": "7"}
    assert told == seen.api("/policies/orders/simulate", **query)


@pytest.mark.real
@pytest.mark.parametrize(
    "search", ["topic:orders", "state:dead", "error:*Timeout* attempt>1", "due<1d", "died<1d", "b"]
)
def test_a_search_finds_the_same_messages(cli: Cli, seen: Any, search: str) -> None:
    """The command and the API list the same messages in the same order, one state after another."""
    for number, state in enumerate(("due", "held", "dead", "due")):
        seen.message(f"{'ab'[number % 2]}{number}.2", state=state, in_ms=3_600_000 * (number + 1))
    told = [one["id"] for one in cli.objects("list", "--search", search)]
    assert told == [one["id"] for one in seen.api("/items", search=search)["items"]]
    assert told


@pytest.mark.real
def test_dead_letters_are_in_the_same_groups(cli: Cli, seen: Any, connection: Connection) -> None:
    """Letters are grouped by fingerprint. Without one, they are grouped by the first 64 characters of the reason before
    its colon.
    """
    seen.message("a.2", state="dead")
    seen.message("b.2", state="dead")
    items = [(Item(f"c{n}", None, b"no message", "orders"), f"{'long ' * 20}{n}: more") for n in range(3)]
    connection.store.bury([*items, (Item("d", None, b"no message", "mail"), "quarantine: x")])
    told = {(one["topic"], one["fingerprint"], one["count"]) for one in cli.objects("list", "--dead", "--group")}
    shown = {(one["topic"], one["group"], one["count"]) for one in seen.api("/dead-letters")["groups"]}
    assert told == shown
    assert len(told) == 3


@pytest.mark.real
@pytest.mark.parametrize("change", ["pause", "resume"])
def test_an_unknown_topic_is_refused_in_the_same_words(cli: Cli, seen: Any, change: str) -> None:
    """Both errors name the topic that was probably meant. The command also names the option that accepts an unknown
    topic.
    """
    seen.message("a.2")
    refused = seen.preview(f"{change}-topic", 404, topic="ordres")["error"]["message"]
    assert "did you mean 'orders'?" in refused
    assert plain(cli(change, "ordres", code=1).stderr) == f"{refused}; force accepts it"


@pytest.mark.real
def test_only_dead_letters_are_replayed(cli: Cli, seen: Any) -> None:
    """A search or filter for another state is refused by the command and by the operation. Nothing is prepared."""
    seen.message("a.2", state="held")
    assert "nly dead letters can be replayed" in cli("replay", "--state", "held", code=2).stderr
    asked = seen.preview("start-replay", 400, search="state:held")
    assert "nly dead letters can be replayed" in asked["error"]["message"]
    assert seen.api("/operations")["operations"] == []
