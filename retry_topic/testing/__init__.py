"""Tests a handler and its policy in virtual time.

- `run` gives messages to a handler one after the other, and reports each attempt until every message has ended. Nothing
  is simulated but time: the product's own intake, policy, dispatcher and consumer work over the store in memory.
- `simulate` runs many processes, which die while servers restart and replies get lost. It needs the extra `simulation`.

See docs/testing-handlers.md. A name is imported at its first use, so that `run` needs no extra.
"""

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retry_topic.testing.handler_run import run
    from retry_topic.testing.handler_world import FAULTS, simulate
    from retry_topic.testing.report import AttemptSeen, DeadSeen, HandlerRun, MessageSeen, Report

__all__ = ["FAULTS", "AttemptSeen", "DeadSeen", "HandlerRun", "MessageSeen", "Report", "run", "simulate"]

_MODULES = MappingProxyType(
    {
        "handler_run": ("run",),
        "handler_world": ("FAULTS", "simulate"),
        "report": ("AttemptSeen", "DeadSeen", "HandlerRun", "MessageSeen", "Report"),
    }
)

if not TYPE_CHECKING:  # a type checker knows the names and reports all others

    def __getattr__(name: str) -> Any:
        for module, names in _MODULES.items():
            if name in names:
                found = globals()[name] = getattr(import_module(f"retry_topic.testing.{module}"), name)
                return found
        raise AttributeError(f"module 'retry_topic.testing' has no attribute {name!r}")
