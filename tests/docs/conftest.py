"""What the tests of the pages share."""

from __future__ import annotations

import pytest


@pytest.fixture
def ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let idle consumers and intakes look up after 50 ms instead of 1 s. Only their reaction to `stop` depends on it.
    Most programs of the pages stop some."""
    for module in ("retry_topic.consumer.consumer", "retry_topic.intake.worker"):
        monkeypatch.setattr(f"{module}._POLL_MS", 50)
