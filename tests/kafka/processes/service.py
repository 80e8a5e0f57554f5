"""Runs a retry service of a group in its own process, until stdin ends; see `telling` for the process's reports."""

from __future__ import annotations

from typing import Any

from telling import Telling, settings, write_facts_until_stdin_ends

from retry_topic import RetryPolicy, RetryService, ServiceConfig, connect
from retry_topic.intake.taken import Taken
from retry_topic.policy import Fixed
from wheel_sched.dispatcher import DispatcherConfig


def main(given: dict[str, Any]) -> None:
    taken = moves = 0
    had: set[int] = set()

    def seen(_: Taken) -> None:
        nonlocal taken
        taken += 1

    broker = Telling(given["client"], **given["broker"])
    policy = RetryPolicy(delay=Fixed(base_ms=given["delay_ms"]), max_attempts=given["cap"])
    config = ServiceConfig(batch=given["batch"], dispatcher=DispatcherConfig(**given["dispatcher"]))
    with connect(given["store"], broker=broker, namespace=given["name"], shards=given["shards"]) as connection:
        service = RetryService(connection, given["name"], policy, config=config, seen=seen)
        ownership = service._ownership

        def facts() -> dict[str, Any]:
            nonlocal moves
            parts = broker.parts()
            moves += had != parts.keys()
            had.clear()
            had.update(parts)
            return {
                "owner": None if ownership is None else ownership.name,
                "parts": sorted(parts),
                "buffered": sum(parts.values()),
                "moves": moves,
                "taken": taken,
                "published": service.stats.published,
            }

        with service:
            write_facts_until_stdin_ends(given["facts_file"], facts)


if __name__ == "__main__":
    main(settings())
