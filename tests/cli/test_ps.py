"""`wheel-sched ps` lists the live members; `doctor` and `stats` use them to say what is missing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from wheel_sched.store import DelayStore, Member, Members

if TYPE_CHECKING:
    from tests.cli.running import Cli

LEASE_MS = 60_000
SERVICE = Member(
    "retry-service",
    "billing",
    topics=("billing.retry",),
    takes_in=("billing.retry",),
    releases=True,
    holds={"in_flight": 1_200},
    host="web-1",
    pid=77,
    version="1.2.3",
)
HOSTILE = "\x1b[2J\nforged row\u202e" + "x" * 10_000


def announce(store: DelayStore, *members: Member) -> None:
    for member in members:
        Members(store).announce(member, LEASE_MS, age_ms=3_600_000)


def test_members_are_listed_in_a_table(cli: Cli, opened: DelayStore) -> None:
    """A row has the kind, name, host, process id, version, age, last announcement, counts and topics of a member."""
    announce(opened, SERVICE, Member("consumer", "audit"))
    result = cli("ps")
    head, first, second = result.stdout.splitlines()
    assert head.split() == ["kind", "name", "host", "pid", "version", "up", "seen", "holds", "reads"]
    assert first.split()[:2] == ["consumer", "audit"]
    kind, name, host, pid, version, up, *rest = second.split()
    assert (kind, name, host, pid, version, up) == ("retry-service", "billing", "web-1", "77", "1.2.3", "1h")
    assert rest[-4:] == ["1,200", "in", "flight", "billing.retry"]
    assert "1 consumer, 1 retry-service" in result.stderr


def test_json_has_one_member_a_line(cli: Cli, opened: DelayStore) -> None:
    """The values are exact: times are epoch ms, and counts are numbers."""
    announce(opened, SERVICE, Member("consumer", "audit"))
    (found,) = cli.objects("ps", "--kind", "retry-service")
    assert found["id"] == SERVICE.id
    assert (found["topics"], found["takes_in"], found["holds"]) == (
        ["billing.retry"],
        ["billing.retry"],
        {"in_flight": 1_200},
    )
    assert found["until_ms"] - found["seen_ms"] == LEASE_MS
    assert found["seen_ms"] - found["since_ms"] == 3_600_000
    assert abs(found["now_ms"] - time.time_ns() // 1_000_000) < 60_000
    assert len(cli.objects("ps")) == 2


@pytest.mark.usefixtures("opened")
def test_an_empty_list_is_no_failure(cli: Cli) -> None:
    """Without a live member `ps` exits with 0, and a note says that no member is live."""
    result = cli("ps")
    assert (result.stdout, result.stderr) == ("", "no member is live\n")
    assert cli.objects("ps") == []
    assert "of this kind" in cli("ps", "--kind", "consumer").stderr


def test_a_namespace_that_does_not_exist_is_a_failure(cli: Cli) -> None:
    """On an absent namespace `ps` exits with 1, as the other commands do."""
    assert "there is no namespace" in cli("ps", code=1).stderr


def test_a_server_that_is_away_has_its_own_exit_code(cli_at: Any) -> None:
    """If the server cannot be reached `ps` exits with 69, as the other commands do."""
    cli_at("redis://127.0.0.1:1")("ps", code=69)


def test_hostile_names_neither_control_the_terminal_nor_fill_it(cli: Cli, opened: DelayStore) -> None:
    """Control characters are escaped, long texts are cut, and a line break makes no second row."""
    member = Member(HOSTILE, HOSTILE, topics=(HOSTILE,) * 50, holds={HOSTILE: 1}, host=HOSTILE, version=HOSTILE)
    announce(opened, member)
    shown = cli("ps")
    assert len(shown.stdout.splitlines()) == 2
    for text in (shown.stdout, shown.stderr, cli("stats").stdout, cli("doctor", code=None).stdout):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert max(map(len, text.splitlines())) < 400
    assert "\\x1b[2J" in shown.stdout


def finding(cli: Cli, check: str, code: int = 0) -> dict[str, Any]:
    (found,) = [one for one in cli.json("doctor", code=code)["findings"] if one["check"] == check]
    return found


def test_doctor_and_stats_count_the_members(cli: Cli, opened: DelayStore) -> None:
    """Members of the same kind are counted together."""
    assert finding(cli, "members")["evidence"] == "none has announced itself"
    assert "live " not in cli("stats").stdout
    announce(opened, SERVICE, Member("consumer", "a"), Member("consumer", "b"))
    assert finding(cli, "members")["evidence"] == "live: 2 consumers, 1 retry-service"
    assert "live       2 consumers, 1 retry-service" in cli("stats").stdout
    assert cli.json("stats")["members"] == {"consumer": 2, "retry-service": 1}


def test_overdue_items_without_a_dispatcher_name_what_to_start(
    cli: Cli, opened: DelayStore, wait_for: Callable[[str, int], None]
) -> None:
    """Items are overdue, and only a consumer is live, which releases nothing: `doctor` names what to start."""
    wait_for("late", time.time_ns() // 1_000_000 - 60_000)
    announce(opened, Member("consumer", "a"))
    found = finding(cli, "backlog", code=1)
    assert found["evidence"].endswith("no dispatcher releases them")
    assert found["fix"].startswith("start ")
    assert "no dispatcher releases them; start " in cli("stats").stdout


def test_overdue_items_beside_a_live_dispatcher_name_its_process(
    cli: Cli, opened: DelayStore, wait_for: Callable[[str, int], None]
) -> None:
    """Items are overdue although a service that releases items is live: `doctor` names it and refers to its log."""
    wait_for("late", time.time_ns() // 1_000_000 - 60_000)
    announce(opened, SERVICE)
    found = finding(cli, "backlog", code=1)
    assert "although retry-service billing (pid 77 on web-1, seen " in found["evidence"]
    assert found["fix"].startswith("see its log; if it has died, start ")
    assert "although retry-service billing (pid 77 on web-1" in cli("stats").stdout
