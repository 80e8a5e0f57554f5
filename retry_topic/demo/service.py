"""The demo's retry service, in its own process. Run it as `python -m retry_topic.demo.service URL`."""

from __future__ import annotations

import logging
import sys

from retry_topic import RetryPolicy, RetryService, ServiceConfig, connect
from retry_topic.demo.webhooks import GROUP, HISTORY
from retry_topic.policy import Exponential, Rule

POLICY = RetryPolicy(
    name="webhooks",
    delay=Exponential(base_ms=500, factor=2, cap_ms=4_000, jitter="equal"),
    max_attempts=6,
    rules=(Rule(statuses=(410,), name="gone forever", dead=True),),
)


def main() -> None:
    logging.getLogger("retry_topic").setLevel(
        logging.ERROR
    )  # the demo fails on purpose; its report counts the failures
    with connect(sys.argv[1]) as connection:
        # a short lease: within two seconds another service takes over what a killed service had read
        service = RetryService(connection, GROUP, POLICY, config=ServiceConfig(idle_ms=2_000, history=HISTORY))
        service.start()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.read()
        service.stop(5)


if __name__ == "__main__":
    main()
