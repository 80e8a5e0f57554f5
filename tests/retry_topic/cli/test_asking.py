"""Commands that change several messages ask first. If no message matches, they say in which state messages do match."""

from __future__ import annotations

import base64
import time
from typing import Any

import pytest

HOUR = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def dues(connection: Any) -> dict[str, int]:
    return {found.id: found.score_ms for found in connection.store.list_items("due").found}


@pytest.fixture
def waiting(wait_for: Any) -> None:
    for name in ("a", "b", "c"):
        wait_for(name, now_ms() + HOUR)


@pytest.mark.parametrize("command", [("run-now",), ("reschedule", "--in", "3649d"), ("delete",)])
@pytest.mark.parametrize("which", [("--all",), ("a", "b", "c"), ("--topic", "orders")])
def test_what_changes_several_is_refused_where_nobody_can_answer(
    cli: Any, connection: Any, waiting: None, command: tuple[str, ...], which: tuple[str, ...]
) -> None:
    """Without a terminal, the command fails with the number of messages and changes nothing. With --yes it changes
    them."""
    before = dues(connection)
    error_text = cli(*command, *which, code=2).stderr
    assert "3 messages" in error_text
    assert "add --yes" in error_text
    assert dues(connection) == before
    assert cli.json(*command, *which, "--yes")["done"] == 3
    assert dues(connection) != before


@pytest.mark.parametrize("command", [("run-now",), ("reschedule", "--in", "2h")])
def test_one_message_is_not_asked_about(cli: Any, connection: Any, waiting: None, command: tuple[str, ...]) -> None:
    """A command that selects one message or none asks no question."""
    assert cli.json(*command, "a")["done"] == 1
    assert cli.json(*command, "--topic", "nope")["done"] == 0


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        (("delete", "--dry-run"), "add --dead"),
        (("delete", "--yes"), "add --dead"),
        (("run-now", "--dry-run"), "add --dead"),
        (("reschedule", "--in", "1h", "--dry-run"), "`wheel-sched replay`"),
    ],
)
def test_nothing_that_matches_says_where_something_does(
    cli: Any, bury: Any, waiting: None, command: tuple[str, ...], advice: str
) -> None:
    """A filter selects waiting messages only. If it matches only dead letters, a note names the option or the command
    for dead letters."""
    for name in ("x", "y"):
        bury(name, error="builtins.KeyError")
    error_text = cli(*command, "--error", "*KeyError*").stderr
    assert "nothing that is due or held matches; 2 dead letters do" in error_text
    assert advice in error_text
    assert "matches" not in cli(*command, "--error", "*nowhere*").stderr
    assert "matches" not in cli(*command, "--error", "*Timeout*").stderr


def test_list_says_so_too(cli: Any, bury: Any, waiting: None) -> None:
    """If no waiting message matches, `list` says that a dead letter does."""
    bury("x", error="builtins.KeyError")
    assert "1 dead letter does: add --dead" in cli("list", "--error", "*KeyError*").stderr


def test_replay_says_what_waits(cli: Any, waiting: None) -> None:
    """If only waiting messages match, `replay` says that `run-now` delivers them."""
    error_text = cli("replay", "--topic", "orders", "--dry-run").stderr
    assert "nothing that is dead matches; 3 that wait do: see `wheel-sched run-now`" in error_text


@pytest.mark.parametrize(
    "command", [("list",), ("run-now", "--dry-run"), ("delete", "--dry-run"), ("replay", "--dry-run")]
)
@pytest.mark.parametrize("state", [("--dead",), ("--state", "dead")])
def test_dead_is_said_alike_everywhere(
    cli: Any, bury: Any, waiting: None, command: tuple[str, ...], state: tuple[str, ...]
) -> None:
    """--dead and --state dead mean the same in every command that selects messages."""
    bury("x")
    assert "x" in cli(*command, *state).stdout
    cli(*command, "--dead", "--state", "due", code=2)


def test_dead_letters_have_no_due_to_move(cli: Any, bury: Any) -> None:
    """`reschedule --dead` is wrong usage, and the error names `replay`."""
    bury("x")
    assert "wheel-sched replay" in cli("reschedule", "--dead", "--in", "1h", code=2).stderr


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_topic_that_does_not_exist_is_refused(cli: Any, connection: Any, command: str) -> None:
    """For an unknown topic, the error names a similar topic and the existing topics, and nothing is changed. With
    --force, `pause` accepts the topic."""
    connection.broker.create_topic("other")
    error_text = cli(command, "otehr", code=1).stderr
    assert "there is no topic 'otehr': nothing was done; did you mean 'other'? known: " in error_text
    assert connection.store.counts().paused == {}
    assert cli.json(command, "otehr", "--force", code=0 if command == "pause" else 1)["topic"] == "otehr"
    assert ("otehr" in connection.store.counts().paused) == (command == "pause")
    if command == "pause":  # a paused topic is a known topic
        assert cli.json("resume", "otehr")["was_paused"] is True


def test_a_topic_of_the_store_alone_can_be_paused(cli: Any, waiting: None) -> None:
    """A topic can be paused if messages for it wait in the store, even if it has no stream in the broker."""
    assert cli.json("pause", "orders")["held"] == 3


def test_list_exports_payloads(cli: Any, wait_for: Any) -> None:
    """With --json --payload, text is printed as text and other bytes in base64, both in full length."""
    text, odd = "ü" * 50_000, b"\xff\x00"
    wait_for("a", now_ms() + HOUR, value=text.encode())
    wait_for("b", now_ms() + 2 * HOUR, value=odd)
    first, second = cli.objects("list", "--payload")
    assert first["payload"] == text
    assert base64.b64decode(second["payload_base64"]) == odd
    assert "payload" not in cli.objects("list")[0]


def test_people_see_the_beginning_of_payloads(cli: Any, wait_for: Any) -> None:
    """Without --json, --payload adds a column with the beginning of the payload, on one line."""
    wait_for("a", now_ms() + HOUR, value=b'{"id": 7,\n "x": "' + b"y" * 500 + b'"}')
    line = cli("list", "--payload").stdout.splitlines()[1]
    assert '{"id": 7, "x": "yyy' in line
    assert len(line) < 250


def test_reschedule_says_which_two_exclude_each_other(cli: Any, waiting: None) -> None:
    """Exactly one of --in and --at must be given. The error says so."""
    assert (
        "Give --in or --at, not both; nothing was changed."
        in cli("reschedule", "a", "--in", "1h", "--at", "+1h", code=2).stderr
    )
    assert "When? Give --in or --at; nothing was changed." in cli("reschedule", "a", code=2).stderr


def test_replay_counts_ids_that_are_not_dead(cli: Any, bury: Any, waiting: None) -> None:
    """If `replay` gets ids that are no dead letters, the error names these ids, in singular or plural."""
    bury("x")
    assert "a is no dead letter: nothing was replayed" in cli("replay", "x", "a", "--yes", code=1).stderr
    assert "a, b are no dead letters: nothing was replayed" in cli("replay", "x", "a", "b", "--yes", code=1).stderr


@pytest.mark.parametrize("args", [("list",), ("pause", "t")])
def test_a_mistyped_folder_is_an_error_and_creates_nothing(args: tuple[str, ...], cli_at: Any, tmp_path: Any) -> None:
    """Commands that do not store new messages never create a data folder."""
    done = cli_at("embedded:nowhere")(*args, code=1)
    assert "there is no data folder nowhere: nothing was changed" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_mistyped_command_of_an_extension_is_answered_with_the_near_one(cli_at: Any) -> None:
    """For `replya`, the error proposes `replay`. The exit code is 2 (wrong usage)."""
    assert "Did you mean 'replay'?" in cli_at("memory:")("replya", code=2).stderr


def test_listing_refuses_a_store_that_it_cannot_list(cli_at: Any) -> None:
    """`list` refuses a memory store, an unknown address and a server that does not answer, each with its own error."""
    assert "would end with this command" in cli_at("memory:")("list", code=2).stderr
    assert "redis://" in cli_at("postgres://x")("list", code=2).stderr
    error_text = cli_at("redis://127.0.0.1:1/0")("list", code=69).stderr
    assert "no connection to the server" in error_text
    assert "executed" not in error_text  # nothing was sent, and listing changes nothing


def test_a_namespace_that_does_not_exist_cannot_be_listed(cli: Any) -> None:
    """`list` fails for an unknown namespace and does not create it."""
    for _ in range(2):
        done = cli("--namespace", "nosuch", "list", code=1)
        assert "there is no namespace 'nosuch'" in done.stderr
        assert done.stdout == ""
