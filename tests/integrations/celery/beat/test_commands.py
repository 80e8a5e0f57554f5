"""`celery wheel beat`: every command on a store in memory, without a worker."""

from __future__ import annotations

import json
import shlex
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click.testing
import pytest
from wheel_sched_celery.beat.entry import decode_entry
from wheel_sched_celery.cli import wheel
from wheel_sched_celery.cli.beat import COMMANDS

RECORDED = Path(__file__).parent / "recorded"
Run = Callable[..., click.testing.Result]


@pytest.fixture
def beat(make_beat: Callable[..., Any]) -> Any:
    return make_beat(timezone="Europe/Berlin")


@pytest.fixture
def run(beat: Any) -> Run:
    """Runs `celery wheel beat ...` in this process, as the celery program calls it."""

    def run(*arguments: str, code: int = 0, stdin: str | None = None) -> click.testing.Result:
        obj = SimpleNamespace(app=beat.app)
        result = click.testing.CliRunner().invoke(wheel, ["beat", *arguments], obj=obj, input=stdin)
        assert result.exit_code == code, result.output
        return result

    return run


def rows(result: click.testing.Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def three(beat: Any) -> None:
    """Three entries: two for mail, and one at 4."""
    beat.add("mail-a", 60)
    beat.add("mail-b", 3600, options={"queue": "mail"})
    beat.add("report", "0 4 * * *", args=[1], kwargs={"region": "eu"}, catch_up="all", catch_up_limit=5)


def test_every_command_has_help_with_an_example(run: Run) -> None:
    """The help of each command has an example, as everywhere in this project."""
    for name in COMMANDS:
        text = run(name, "--help").stdout
        assert "celery -A proj wheel beat" in text or name == "import", name
    for source in ("redbeat", "django"):
        assert "--apply" in run("import", source, "--help").stdout


def test_list_shows_a_table_and_json_a_line_each(run: Run, three: None) -> None:
    """`list` shows the entries in order of their names, with their next and last runs."""
    lines = run("list").stdout.splitlines()
    assert lines[0].split() == ["name", "task", "schedule", "next", "last", "state", "source", "catch-up"]
    assert [line.split()[0] for line in lines[1:]] == ["mail-a", "mail-b", "report"]
    assert "0 4 * * *" in lines[3]
    assert "all, 5 at most" in lines[3]
    found = rows(run("list", "--json"))
    assert [row["name"] for row in found] == ["mail-a", "mail-b", "report"]
    assert (found[2]["kwargs"], found[2]["state"], found[2]["gone"]) == ({"region": "eu"}, "waiting", False)


def test_list_narrows_by_pattern_and_state(run: Run, three: None, beat: Any) -> None:
    """`list` shows the entries of a pattern or a state. A pattern that fits no entry is an error."""
    beat.entries.pause("mail-b")
    assert [row["name"] for row in rows(run("list", "mail-*", "--json"))] == ["mail-a", "mail-b"]
    assert [row["name"] for row in rows(run("list", "--state", "paused", "--json"))] == ["mail-b"]
    assert "there is no entry 'x*'" in run("list", "x*", code=1).stderr
    assert "no entry matches" in run("list", "--state", "failed").stderr


def test_an_empty_list_says_how_to_add(run: Run) -> None:
    """Without entries, `list` prints on stderr how to add one."""
    assert "beat add" in run("list").stderr
    assert "nothing is due" in run("next").stderr


def test_show_tells_all_of_one_entry(run: Run, three: None, beat: Any) -> None:
    """`show` prints everything about one entry, as text or as JSON."""
    text = run("show", "report").stdout
    for part in ("report", "note", "0 4 * * *", "{'region': 'eu'}", "0 sent, 0 missed", "never", "all, 5 at most"):
        assert part in text
    (row,) = rows(run("show", "mail-b", "--json"))
    assert (row["options"], row["due_ms"]) == ({"queue": "mail"}, beat.now_ms + 3_600_000)
    assert "beat list" in run("show", "unknown", code=1).stderr


def test_next_shows_runs_of_all_entries_in_order_of_time(run: Run, three: None, beat: Any) -> None:
    """`next` shows the next runs of all entries or of the named ones. Paused entries have none."""
    found = rows(run("next", "61", "--json"))
    assert [row["name"] for row in found] == ["mail-a"] * 59 + ["mail-a", "mail-b"]
    assert found[0]["due_ms"] == beat.now_ms + 60_000
    only = rows(run("next", "2", "report", "--json"))
    assert [row["due_ms"] - only[0]["due_ms"] for row in only] == [0, 86_400_000]
    beat.entries.pause("mail-a")
    assert "mail-b" in run("next", "1").stdout


def test_add_makes_an_entry_of_every_kind(run: Run, beat: Any) -> None:
    """`add` takes arguments, options, a time zone and a catch-up policy."""
    assert "ping added, next" in run("add", "ping", "note", "30s").stdout
    more = ["--args", "[1]", "--kwargs", '{"a": 2}', "-Q", "mail", "--priority", "5", "--expires", "60"]
    more += [
        "--options",
        '{"headers": {"x": "y"}}',
        "--catch-up",
        "all",
        "--catch-up-limit",
        "7",
        "--tz",
        "Asia/Kolkata",
    ]
    (row,) = rows(run("add", "report", "note", "0 4 * * mon-fri", *more, "--json"))
    assert (row["args"], row["kwargs"]) == ([1], {"a": 2})
    assert row["options"] == {"headers": {"x": "y"}, "queue": "mail", "priority": 5, "expires": 60.0}
    assert (row["schedule"], row["catch_up"], row["catch_up_limit"]) == ("0 4 * * mon-fri Asia/Kolkata", "all", 7)
    assert beat.entry("ping").due_ms == beat.now_ms + 30_000


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["* * * *"], "expected a line of cron"),
        (["61 * * * *"], "is wrong"),
        (["30s", "--args", "{}"], "a JSON list"),
        (["30s", "--kwargs", "["], "a JSON object"),
        (["30s", "--tz", "Mars/Olympus", "--catch-up", "never"], "never"),
        (["0 4 * * *", "--tz", "Mars/Olympus"], "unknown time zone"),
        (["30s", "--priority", "256"], "256"),
    ],
)
def test_add_refuses_what_is_malformed(run: Run, beat: Any, arguments: list[str], why: str) -> None:
    """If something is malformed, `add` fails and adds nothing."""
    assert why in run("add", "one", "note", *arguments, code=2).stderr
    assert beat.entries.all() == []


def test_add_replaces_an_entry_only_when_asked(run: Run, three: None, beat: Any) -> None:
    """If the entry exists, `add` fails and names the option that replaces it."""
    assert "--replace" in run("add", "report", "note", "1h", code=1).stderr
    assert beat.entry("report").schedule["kind"] == "crontab"
    assert "report replaced" in run("add", "report", "note", "1h", "--replace").stdout
    assert beat.entry("report").schedule["kind"] == "interval"
    assert "new added" in run("add", "new", "note", "1h", "--replace").stdout


def test_pause_and_resume(run: Run, three: None, beat: Any) -> None:
    """One entry is paused by its name, several with --yes. `resume` resumes them."""
    assert run("pause", "report").stdout == "1 entry paused\n"
    assert "--yes" in run("pause", "mail-*", code=2).stderr
    assert run("pause", "mail-*", "--yes").stdout == "2 entries paused\n"
    assert {one.state for one in beat.entries.all()} == {"paused"}
    (answer,) = rows(run("resume", "--all", "--yes", "--json"))
    assert answer == {"done": [{"name": "mail-a"}, {"name": "mail-b"}, {"name": "report"}], "left": []}
    assert {one.state for one in beat.entries.all()} == {"waiting"}


def test_run_now_sends_a_task_and_names_its_id(run: Run, three: None, beat: Any) -> None:
    """`run-now` sends the task and prints its id. The later runs of the entry keep their times."""
    due_ms = beat.entry("report").due_ms
    (answer,) = rows(run("run-now", "report", "--json"))
    (done,) = answer["done"]
    assert (done["name"], bool(done["task_id"])) == ("report", True)
    assert beat.entry("report").due_ms == due_ms
    assert done["task_id"] not in run("run-now", "report").stdout  # each run has an id of its own


def test_remove_asks_unless_one_entry_is_named(run: Run, three: None, beat: Any) -> None:
    """`remove` of several entries asks first. A dry run changes nothing."""
    assert "would remove 2 entries" in run("remove", "mail-*", "--dry-run").stdout
    assert rows(run("remove", "--all", "--dry-run", "--json"))[0]["count"] == 3
    assert "--yes" in run("remove", "repor?", code=2).stderr
    assert run("remove", "report").stdout == "1 entry removed\n"
    assert run("remove", "--all", "--yes").stdout == "2 entries removed\n"
    assert beat.entries.all() == []


def test_without_names_nothing_is_changed(run: Run, three: None, beat: Any) -> None:
    """A command without names is wrong usage. If one name is unknown, no entry is changed."""
    for command in ("pause", "resume", "run-now", "remove"):
        assert "Which entries?" in run(command, "--yes", code=2).stderr
        assert "not both" in run(command, "report", "--all", "--yes", code=2).stderr
        assert "nothing was changed" in run(command, "report", "unknown", "--yes", code=1).stderr
    assert {one.state for one in beat.entries.all()} == {"waiting"}


def test_an_entry_that_cannot_be_read_can_be_removed(run: Run, three: None, beat: Any) -> None:
    """An unreadable entry is listed and can be removed. The other entries work as usual."""
    entry = decode_entry(beat.entries.get("report").found.body)
    item = entry.item()
    beat.store.cancel([item.id])
    beat.store.schedule([replace(item, body=b"B1{")])
    assert rows(run("list", "--state", "unreadable", "--json"))[0]["name"] == "report"
    assert "cannot be read" in run("list").stdout
    assert "cannot be read" in run("show", "report").stdout
    assert "cannot be read" in run("pause", "report", code=1).stdout
    assert run("remove", "report").stdout == "1 entry removed\n"


def test_an_import_changes_nothing_without_apply(run: Run, beat: Any) -> None:
    """Without --apply, `import` shows what it would do with each entry. It fails, because some entries cannot be
    imported.
    """
    source = str(RECORDED / "django.json")
    shown = run("import", "django", source, code=1)
    assert "nothing was changed; --apply does it" in shown.stderr
    assert "its args" in shown.stdout
    assert beat.entries.all() == []
    found = {row["name"]: row for row in rows(run("import", "django", source, "--json", code=1))}
    assert (found["nightly"]["action"], found["nightly"]["schedule"]) == ("add", "30 2 * * *")
    assert (found["quick"]["action"], found["over"]["action"]) == ("fail", "skip")


def test_an_import_with_apply(run: Run, beat: Any) -> None:
    """`import --apply` reads a dump from stdin. A second import of the dump skips every entry."""
    text = (RECORDED / "django.json").read_text("utf-8")
    assert "--yes" in run("import", "django", "-", "--apply", code=2, stdin=text).stderr
    shown = run("import", "django", "-", "--apply", "--yes", code=1, stdin=text).stdout
    assert "entries imported" in shown
    assert "cannot be imported: quick" in shown
    assert beat.entries.get("asleep").state == "paused"
    (answer,) = rows(run("import", "django", "-", "--apply", "--yes", "--json", code=1, stdin=text))
    assert not {"add", "change"} & set(answer["done"])
    assert {"name": "nightly", "why": "is here already"} in answer["left"]


def test_an_import_of_nothing_says_why(run: Run, tmp_path: Path) -> None:
    """If the source has no entries, `import` says why. A wrong source is wrong usage."""
    assert "No such file" in run("import", "django", str(tmp_path / "none"), code=2).stderr
    assert "unknown time zone" in run("import", "django", "x", "--tz", "Mars/Olympus", code=2).stderr
    assert run("import", "redbeat", "redis://127.0.0.1:1/0", code=69).stderr


PAGE = Path(__file__).resolve().parents[4] / "docs" / "celery-beat.md"


def test_the_commands_of_the_page(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command of docs/celery-beat.md works, one after the other. One that needs a server is only parsed."""
    monkeypatch.chdir(tmp_path)
    connection = sqlite3.connect("db.sqlite3")
    connection.executescript((RECORDED / "django.sql").read_text("utf-8"))
    connection.close()
    commands = [line.strip() for line in PAGE.read_text("utf-8").splitlines() if " wheel beat " in line]
    commands = [line for line in commands if line.startswith("celery -A shop wheel beat ")]
    assert len(commands) >= 12
    for line in commands:
        words = shlex.split(line)[5:]
        if any("redis://" in word for word in words):
            run(*words, "--help")
        else:
            run(*words, code=1 if "import" in words else 0)
