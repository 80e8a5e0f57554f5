"""The command doctor: each check finds its own kind of damage. Its finding says what is wrong and how to fix it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.servers.valkey import temporary_server
from wheel_sched.config import Settings
from wheel_sched.extensions import Installed
from wheel_sched.management.doctor import examination
from wheel_sched.management.doctor import namespace as doctor_namespace
from wheel_sched.management.doctor import server as doctor_server
from wheel_sched.management.doctor.finding import ExaminedTarget, Finding
from wheel_sched.store import open_store
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.counts import Count

if TYPE_CHECKING:
    import redis

HOUR = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def findings(cli: Any, code: int, *options: str) -> dict[str, dict[str, str]]:
    report = cli.json(*options, "doctor", code=code)
    assert report["healthy"] == (code == 0)
    return {finding["check"]: finding for finding in report["findings"]}


def harmed(cli: Any, code: int, *options: str) -> set[tuple[str, str]]:
    """Return check and level of each finding that is not "ok". Each of them must have a fix."""
    found = {name: f for name, f in findings(cli, code, *options).items() if f["level"] != "ok"}
    assert all(f["fix"] for f in found.values())
    return {(name, f["level"]) for name, f in found.items()}


CHECKS = [
    "python", "packages", "core",
    "server", "version", "eviction", "persistence", "failover", "scripts", "clock", "libraries",
    "frozen", "members", "backlog", "leases", "counters", "clock jumps", "dead letters", "records", "places",
]  # fmt: skip


def test_the_core_alone_runs_exactly_these_checks(
    cli: Any, opened: Any, wait_for: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without extensions, `doctor` runs exactly the checks in CHECKS, in this order. A check follows the checks
    that it depends on."""
    monkeypatch.setattr(examination, "installed", Installed)
    wait_for("w", now_ms() + HOUR)
    assert list(findings(cli, 0)) == CHECKS


def test_a_healthy_namespace_has_no_findings_to_fix(cli: Any, opened: Any, wait_for: Any) -> None:
    """For a healthy namespace all checks are "ok", the exit code is 0, and `doctor` leaves no key behind."""
    wait_for("w", now_ms() + HOUR)
    before = set(opened.backend.client.scan_iter())
    found = findings(cli, 0)
    assert set(CHECKS) <= set(found)
    assert {finding["level"] for finding in found.values()} == {"ok"}
    left = {key for key in set(opened.backend.client.scan_iter()) - before if b":op:" not in key}
    assert left == set()


def test_the_text_has_a_line_for_each_check_and_a_sum(cli: Any, opened: Any, wait_for: Any) -> None:
    """In the text output a finding with a fix has a second line. The last line counts problems, warnings and passed
    checks."""
    wait_for("w", now_ms() - 10_000)
    text = cli("doctor", code=1).stdout
    assert re.search(r"^PROBLEM  backlog      1 item is overdue, by [1-9]\ds: no dispatcher releases them$", text, re.M)
    assert "fix: start " in text
    fine = sum(line.startswith("ok ") for line in text.splitlines())
    assert text.splitlines()[-1] == f"1 problem, 0 warnings, {fine} checks fine"


def test_an_absent_namespace_is_no_problem_and_stays_absent(cli: Any) -> None:
    """A namespace that does not exist yet is no problem, and `doctor` does not create it."""
    found = findings(cli, 0)
    assert "does not exist yet" in found["namespace"]["evidence"]
    assert "1" not in cli("stats", code=1).stdout


def test_an_absent_embedded_folder_is_checked_elsewhere(cli_at: Any, tmp_path: Any) -> None:
    """If the folder of the embedded server does not exist, `doctor` checks a server in a temporary folder. It does
    not create the missing folder."""
    assert findings(cli_at("embedded:data"), 0)["version"]["level"] == "ok"
    assert list(tmp_path.iterdir()) == []


def test_without_a_server_it_says_so_once_and_ends_with_69(cli_at: Any) -> None:
    """Without a server, `doctor` reports one problem and leaves out the checks that need the server."""
    report = cli_at("redis://127.0.0.1:1/0").json("doctor", code=69)
    assert [f["check"] for f in report["findings"] if f["level"] == "problem"] == ["server"]
    assert report["findings"][-1]["check"] == "server"


Harm = Callable[["redis.Redis"], Any]


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (lambda c: c.hset("{wheel:0}:meta", "frozen", "resharding 1 to 2"), ("frozen", "problem")),
        (lambda c: c.hset("{wheel:0}:meta", "jumps", 2), ("clock jumps", "warn")),
        (lambda c: c.hset("{wheel:0}:meta", "unreadable", 1), ("records", "warn")),
        (lambda c: c.zrem("{wheel:0}:due", "w"), ("counters", "problem")),
        (lambda c: c.hdel("{wheel:0}:body", "w"), ("counters", "problem")),
        (lambda c: c.hincrby("{wheel:0}:meta", "n:due:orders", 1), ("counters", "problem")),
        (lambda c: c.function_load(OLD_LIBRARY), ("libraries", "warn")),
    ],
)
def test_each_kind_of_damage_is_found_by_one_check(
    cli: Any, opened: Any, wait_for: Any, harm: Harm, expected: tuple[str, str]
) -> None:
    """Each kind of damage gives exactly one finding. If there are only warnings, the exit code is 0."""
    wait_for("w", now_ms() + HOUR)
    harm(opened.backend.client)
    assert harmed(cli, 1 if expected[1] == "problem" else 0) == {expected}


OLD_LIBRARY = """#!lua name=wheel_sched_000000000000
redis.register_function{function_name='ws_old', callback=function() return 1 end}
"""


def test_leases_that_ran_out_are_seen(cli: Any, opened: Any, wait_for: Any) -> None:
    """`doctor` warns about a lease that ended long ago, because it shows that no dispatcher runs."""
    wait_for("f", now_ms() - 1)
    opened.claim(1)
    opened.backend.client.zadd("{wheel:0}:leased", {"f": now_ms() - 60_000})
    assert harmed(cli, 0) == {("leases", "warn")}


def test_items_in_another_shard_than_their_route_are_seen(cli: Any) -> None:
    """`doctor` reports a problem if a process with a wrong shard count stored items in wrong shards."""
    from wheel_sched.store import DelayStore, Item
    from wheel_sched.store.redis.backend import RedisBackend, client_for
    from wheel_sched.store.redis.round_trips import Dialect

    with open_store(cli.url, namespace="wide", shards=4):
        backend = RedisBackend(client_for(cli.url), Dialect("wide"), owns_client=True)
        DelayStore(backend, shards=2).schedule([Item(f"i{n}", now_ms() + HOUR, b"") for n in range(40)])
        backend.close()
    assert harmed(cli, 1, "--namespace", "wide") == {("places", "problem")}


@pytest.mark.real
def test_a_server_that_may_drop_or_lose_messages_is_a_problem(cli_at: Any) -> None:
    """`doctor` reports an eviction policy other than noeviction, and append-only settings too weak for the durability
    level."""
    with temporary_server() as server:
        cli = cli_at(server.url)
        import redis

        with redis.Redis.from_url(server.url) as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
            assert harmed(cli, 1) == {("eviction", "problem")}
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("appendonly", "no")
            assert harmed(cli, 1) == {("persistence", "problem")}
            assert harmed(cli, 0, "--durability", "memory") == set()
            client.config_set("appendonly", "yes")
            client.config_set("appendfsync", "no")
            assert harmed(cli, 1) == {("persistence", "problem")}
            while client.info("persistence")["aof_rewrite_in_progress"]:
                time.sleep(0.02)  # the server does not stop while its child writes the first append-only file
            client.config_set("appendfsync", "everysec")
            assert harmed(cli, 1, "--durability", "replicated") == {("persistence", "problem")}


def examined(durability: str, info: dict[str, Any], config: dict[str, str], replicas: int = 1) -> ExaminedTarget:
    settings = Settings(durability=durability, replicas=replicas)
    return ExaminedTarget(settings, "redis://h", None, {"aof_enabled": 1, **info}, config)


SYNCED = {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"}


@pytest.mark.parametrize(
    ("durability", "replicas", "info", "config", "level", "words"),
    [
        ("fsync", 1, {}, SYNCED, "ok", "synced before each reply"),
        ("fsync", 1, {}, SYNCED | {"appendfsync": "everysec"}, "problem", "CONFIG SET appendfsync always"),
        ("fsync", 1, {}, SYNCED | {"no-appendfsync-on-rewrite": "yes"}, "problem", "no-appendfsync-on-rewrite no"),
        ("fsync", 1, {}, {}, "problem", "+config|get"),
        ("replicated", 2, {"connected_slaves": 1}, {}, "problem", "needs connected replicas: 2"),
        ("replicated", 1, {"connected_slaves": 2}, {}, "warn", "loss is bounded, not excluded"),
        ("replicated", 2, {"connected_slaves": 2}, {}, "ok", "all confirm"),
        ("everysec", 1, {}, {"appendfsync": "no"}, "problem", "the kernel decides"),
    ],
)
def test_persistence_says_whether_the_level_is_kept(
    durability: str, replicas: int, info: dict[str, Any], config: dict[str, str], level: str, words: str
) -> None:
    """If the server does not keep the durability level, the finding names the server's setting."""
    finding = doctor_server.persistence(examined(durability, info, config, replicas))
    assert finding.level == level
    assert words in f"{finding.evidence} {finding.fix}"


@pytest.mark.parametrize(
    ("durability", "info", "config", "level", "words"),
    [
        ("everysec", {}, {}, "ok", "no replicas"),
        ("everysec", {"connected_slaves": 1}, {}, "warn", "hides"),
        ("everysec", {"connected_slaves": 1}, {"min-replicas-to-write": "0"}, "warn", "still acknowledges writes"),
        (
            "everysec",
            {"connected_slaves": 1},
            {"min-replicas-to-write": "1", "min-replicas-max-lag": "5"},
            "ok",
            "of about the last 6 s",
        ),
        ("replicated", {"connected_slaves": 1}, {"min-replicas-to-write": "0"}, "ok", "replicated"),
        ("everysec", {"role": "slave"}, {}, "warn", "primary"),
    ],
)
def test_failover_names_the_possible_loss(
    durability: str, info: dict[str, Any], config: dict[str, str], level: str, words: str
) -> None:
    """`doctor` warns if a primary acknowledges writes that its replicas may not have."""
    finding = doctor_server.failover(examined(durability, info, config))
    assert finding.level == level
    assert words in f"{finding.evidence} {finding.fix}"


@pytest.mark.real
def test_no_check_sends_keys(cli_at: Any) -> None:
    """No check uses the command KEYS, which blocks a server with many keys and is forbidden on some servers."""
    with temporary_server() as server:
        import redis

        with redis.Redis.from_url(server.url) as client:
            open_store(server.url).close()
            findings(cli_at(server.url), 0)
            assert client.info("commandstats").get("cmdstat_keys") is None


class Clock:
    """A client of a server whose clock is `off_s` seconds ahead of this machine's. A negative number means behind."""

    def __init__(self, off_s: float) -> None:
        self._off_s = off_s

    def time(self) -> tuple[int, int]:
        now = time.time() + self._off_s
        return int(now), int(now % 1 * 1_000_000)


def target(**given: Any) -> ExaminedTarget:
    return ExaminedTarget(Settings(), "", given.pop("client", None), given.pop("info", {}), **given)


@pytest.mark.parametrize(("off_s", "level"), [(0.0, "ok"), (2.0, "warn"), (-2.0, "warn"), (60.0, "problem")])
def test_a_clock_that_is_off_is_seen(off_s: float, level: str) -> None:
    """`doctor` warns if this machine's clock and the server's differ by seconds. A difference of a
    minute is a problem."""
    found = doctor_server.clock_skew(target(client=Clock(off_s)))
    assert found.level == level
    if off_s:
        assert ("behind" if off_s > 0 else "ahead of") in found.evidence


@pytest.mark.parametrize(
    ("info", "level"),
    [
        ({"valkey_version": "9.1.2", "redis_version": "7.2.4"}, "ok"),
        ({"valkey_version": "7.2.5", "redis_version": "7.2.4"}, "problem"),
        ({"redis_version": "6.2.0"}, "problem"),
        ({"redis_version": "8.0.0"}, "ok"),
    ],
)
def test_an_old_server_is_a_problem(info: dict[str, str], level: str) -> None:
    """The server must be Valkey 8 or Redis 7, or newer."""
    assert doctor_server.server_version(target(info=info)).level == level


@pytest.mark.parametrize(
    ("info", "level"),
    [
        ({"maxmemory_policy": "noeviction", "maxmemory": 100, "used_memory": 90}, "warn"),
        ({"maxmemory_policy": "noeviction", "maxmemory": 100, "used_memory": 10}, "ok"),
        ({"maxmemory_policy": "volatile-ttl"}, "problem"),
        ({}, "warn"),
    ],
)
def test_memory_that_runs_out_is_seen(info: dict[str, Any], level: str) -> None:
    """`doctor` warns if the server's memory is nearly full, or if the server does not tell its eviction policy."""
    assert doctor_server.eviction(target(info=info)).level == level


def test_dead_letters_near_the_cap_are_seen(cli: Any, opened: Any, bury: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`doctor` warns when dead letters are nearly as many as the cap, because above the cap the store removes the
    oldest dead letters."""
    monkeypatch.setattr(doctor_namespace, "DEAD_CAP", 5)
    for number in range(4):
        bury(f"d{number}")
    counts = opened.execute([Call(0, Count())])
    found: Finding = doctor_namespace.dead_letters(target(counts=counts))
    assert found.level == "warn"
    assert "4 of 5" in found.evidence
