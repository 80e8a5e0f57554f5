"""`wheel-sched operations`: an operation that was prepared in the dashboard is run, confirmed, paused and cancelled
from a terminal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from retry_topic import Connection
from wheel_sched.management.operations import OperationBook

pytestmark = pytest.mark.real


@pytest.fixture
def made(connection: Connection, bury: Callable[..., None]) -> str:
    """The id of an operation that replays three letters, not counted yet."""
    for number in range(3):
        bury(f"m{number}.8")
    arguments = {"topic": "orders", "group": "max-attempts"}
    return OperationBook(connection.store).create("replay-dead-letters", arguments, "ada").id


def test_an_operation_goes_its_way_by_commands(cli: Any, connection: Connection, made: str) -> None:
    """The first `operations run` counts the letters. After `operations confirm`, the next `operations run` replays
    exactly these letters."""
    assert "1 operation counted and not confirmed" in cli("operations", "run").output
    assert cli.json("operations", "list")["matched"] == 3
    assert cli("operations", "confirm", made, code=None).exit_code != 0
    assert connection.store.counts().total("dead") == 3
    assert cli.json("operations", "confirm", made, "--yes")["state"] == "running"
    assert cli.json("operations", "run")["done"] == 3
    assert connection.store.counts().total("due") == 3
    shown = cli("operations", "show", made).stdout
    assert "replay dead letters of orders, group max-attempts" in shown
    assert "done: 3 of 3" in shown
    assert "there was nothing to run" in cli("operations", "run").output


def test_an_operation_is_paused_resumed_and_cancelled(cli: Any, made: str) -> None:
    cli("operations", "run")
    cli("operations", "confirm", made, "--yes")
    assert cli.json("operations", "pause", made)["state"] == "paused"
    assert "there was nothing to run" in cli("operations", "run").output
    assert cli.json("operations", "resume", made)["state"] == "running"
    assert cli.json("operations", "cancel", made)["left"] == {"not reached": 3}
    assert "nothing was changed" in cli("operations", "cancel", made, code=1).output
    assert "no operation" in cli("operations", "show", "none", code=1).output


def test_without_operations_the_list_says_where_they_come_from(cli: Any, connection: Connection) -> None:
    assert "the dashboard makes them" in cli("operations", "list").output
