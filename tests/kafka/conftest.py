"""The session's broker (`kafka`) and names on it (`name`) are the suite's own; see tests/conftest.py."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group's rebalance takes seconds."""
    monkeypatch.setattr("retry_topic.brokers.conformance.PATIENCE_MS", 60_000)
