"""What the tests of the pages share."""

from __future__ import annotations

import pytest


@pytest.fixture
def ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let idle consumers and intakes look up after 50 ms instead of 1 s.

    Only how fast they react to `stop` depends on it, and most programs of the pages stop a consumer or a service.
    """
    for module in ("retry_topic.consumer.consumer", "retry_topic.intake.worker"):
        monkeypatch.setattr(f"{module}._POLL_MS", 50)
