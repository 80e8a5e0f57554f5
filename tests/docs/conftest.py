"""What the tests of the pages share."""

from __future__ import annotations

import pytest


@pytest.fixture
def ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a poll of an idle consumer or intake end after 50 ms instead of 1 s.

    So `stop` takes less time. Most programs of the pages stop a consumer or a service. Nothing else changes.
    """
    for module in ("retry_topic.consumer.consumer", "retry_topic.intake.worker"):
        monkeypatch.setattr(f"{module}._POLL_MS", 50)
