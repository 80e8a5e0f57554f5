"""The files that pages load are small, have a licence, and load nothing from other servers."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

from tests.dashboard.trying import Site
from wheel_sched import dashboard

FOLDER = Path(dashboard.__file__).parent / "assets"
LOADED = sorted(path for path in FOLDER.iterdir() if path.suffix != ".LICENSE")


def test_together_they_are_small() -> None:
    """All assets, with the icon, have at most 60 kB when compressed."""
    assert {path.suffix for path in LOADED} == {".css", ".js", ".svg"}
    assert sum(len(gzip.compress(path.read_bytes(), 9)) for path in LOADED) <= 60_000


def test_foreign_scripts_have_their_licence() -> None:
    """Each script of another project has a licence file beside it, and each licence file has its script."""
    foreign = {path.name.removesuffix(".min.js") for path in LOADED if path.name.endswith(".min.js")}
    licences = {path.stem: path.read_text() for path in FOLDER.glob("*.LICENSE")}
    assert foreign == set(licences) == {"htmx", "htmx-sse"}
    for text in licences.values():
        assert "Permission to use, copy, modify" in text
        assert "MERCHANTABILITY" in text


def test_pages_load_only_them(here: Site) -> None:
    """No page names a script, style sheet or picture of another server. The style sheet does not either."""
    page = here.client.get("/").text
    sources = re.findall(r'<(?:script|img|link)\b[^>]*?\b(?:src|href)="([^"]*)"', page)
    assert {one.partition("?")[0] for one in sources} == {f"/assets/{path.name}" for path in LOADED}
    assert not re.search(r"@import|url\(", (FOLDER / "dashboard.css").read_text())
