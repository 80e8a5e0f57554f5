"""Fixtures: a dashboard over a store in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dashboard.closing import dashboards_end as dashboards_end
from tests.dashboard.trying import Site, site


@pytest.fixture
def here(tmp_path: Path) -> Site:
    """A dashboard where everyone has every right."""
    return site(tmp_path)
