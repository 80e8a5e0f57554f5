"""Tests a handler and its policy in a simulated system with faults.

`simulate` runs consumers, retry services and a producer in virtual time, with the product's own classes. Meanwhile
processes die, servers restart and replies get lost. It needs the extra `simulation`. See docs/testing-handlers.md.
"""

from retry_topic.testing.handler_world import FAULTS, simulate
from retry_topic.testing.report import AttemptSeen, MessageSeen, Report

__all__ = ["FAULTS", "AttemptSeen", "MessageSeen", "Report", "simulate"]
