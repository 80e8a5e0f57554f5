"""Live updates: server-sent events while a page is open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.dashboard.trying import Site, site
from wheel_sched.config import given_settings
from wheel_sched.dashboard import DashboardApp, endpoints_html, everyone
from wheel_sched.dashboard.core_part import CORE
from wheel_sched.errors import StoreUnavailable
from wheel_sched.store import Item

PATIENCE_S = 20.0


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints_html, "LIVE_SECONDS", 0.01)


class Stream:
    """An open stream of events, as an ASGI server sees it."""

    def __init__(self, made: Site, path: str) -> None:
        self._events: asyncio.Queue[bytes] = asyncio.Queue()
        self.gone = asyncio.Event()
        self.headers: dict[bytes, bytes] = {}
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": [(b"host", b"localhost")],
            "http_version": "1.1",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "server": ("localhost", 80),
            "client": ("127.0.0.1", 1),
        }
        self.task = asyncio.ensure_future(made.app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.headers = dict(message["headers"])
        elif message.get("body"):
            self._events.put_nowait(message["body"])

    async def until(self, wanted: Callable[[str], bool]) -> str:
        """The text of the next event for which `wanted` is true."""

        async def search() -> str:
            while True:
                text = (await self._events.get()).decode()
                if wanted(text):
                    return text

        return await asyncio.wait_for(search(), PATIENCE_S)


@asynccontextmanager
async def streaming(made: Site, path: str = "/live") -> AsyncIterator[Stream]:
    stream = Stream(made, path)
    try:
        yield stream
    finally:
        stream.gone.set()
        await asyncio.wait_for(stream.task, PATIENCE_S)


def test_an_event_comes_when_something_changes(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first event shows the state, and the next event shows the change. Between them the stream sends only
    comments, which keep the connection open.
    """
    monkeypatch.setattr("wheel_sched.dashboard.sampling._FRESH_S", 0.0)

    async def watch() -> None:
        async with streaming(here, "/live/things") as stream:
            first = await stream.until(lambda text: text.startswith("data:"))
            assert "ball" in first
            assert "<h1>" not in first
            assert first.endswith("\n\n")
            await stream.until(lambda text: text == ": unchanged\n\n")
            here.things.colours["new thing"] = "grey"
            await stream.until(lambda text: "new thing" in text)
            assert stream.headers[b"content-type"].startswith(b"text/event-stream")
            assert stream.headers[b"cache-control"] == b"no-store"

    asyncio.run(watch())


def test_every_live_page_streams_what_it_shows(here: Site) -> None:
    """Each live page names the address of its updates, and this address sends updates."""
    here.store.schedule([Item("id", 0, b"x", "orders")])

    async def watch() -> None:
        for part in here.app.dashboard.parts:
            for page in part.pages:
                if page.live and "{" not in page.path:
                    path = f"/live{page.path.rstrip('/')}"
                    assert f'sse-connect="{path}"' in here.client.get(page.path).text
                    async with streaming(here, path) as stream:
                        await stream.until(lambda text: text.startswith("data:"))

    asyncio.run(watch())


def test_the_stream_ends_when_the_client_leaves(here: Site) -> None:
    async def watch() -> None:
        async with streaming(here) as stream:
            await stream.until(lambda text: text.startswith("data:"))
        assert stream.task.done()

    asyncio.run(watch())


def test_the_stream_ends_by_itself_and_with_the_server(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream ends after a while, and the browser opens a new one. So a visitor who has lost the right to see a page
    does not see it for long.
    """

    async def watch(stop: Callable[[], None]) -> None:
        stream = Stream(here, "/live")
        assert (await stream.until(lambda text: True)).startswith("retry: ")
        stop()
        await asyncio.wait_for(stream.task, PATIENCE_S)

    monkeypatch.setattr(endpoints_html, "LIVE_LONGEST_S", 0.05)
    asyncio.run(watch(lambda: None))
    monkeypatch.setattr(endpoints_html, "LIVE_LONGEST_S", 3600.0)
    asyncio.run(watch(here.app.dashboard.ending.set))


def test_an_error_is_shown_and_the_stream_goes_on(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the store is away, the open page says so. Afterwards it shows the state again."""

    def away() -> None:
        raise StoreUnavailable("the server does not answer")

    async def watch() -> None:
        async with streaming(here) as stream:
            await stream.until(lambda text: "data:" in text)
            with monkeypatch.context() as patched:
                patched.setattr(here.app.dashboard.sampler, "now", away)
                await stream.until(lambda text: "the server does not answer" in text)
            await stream.until(lambda text: 'class="figures"' in text)

    asyncio.run(watch())


def test_a_hostile_text_cannot_forge_an_event(here: Site) -> None:
    """Each line of a page is sent as an SSE field `data:`, so no text of a message can begin another field."""
    here.things.colours = {"a\n\nevent: forged\ndata: forged\r\rid: 7": "red"}

    async def watch() -> None:
        async with streaming(here, "/live/things") as stream:
            text = await stream.until(lambda text: "forged" in text)
            assert all(line.startswith("data: ") for line in text.removesuffix("\n\n").split("\n"))
            assert "\r" not in text

    asyncio.run(watch())


def test_without_live_updates_a_page_has_no_address_for_them(tmp_path: Path) -> None:
    made = site(tmp_path)
    app = DashboardApp(made.store, given_settings({}), everyone("read"), parts=(CORE,), live=False)
    client = TestClient(app, base_url="http://localhost")
    assert "sse-connect" not in client.get("/").text
    assert client.get("/live").status_code == 404
