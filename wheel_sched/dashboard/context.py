"""`Dashboard` has what all pages share: the store, the settings, the parts, and how a page is rendered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from wheel_sched.config import Loaded
from wheel_sched.dashboard.addresses import base_of, here, path_of
from wheel_sched.dashboard.lazy_store import LazyStore
from wheel_sched.dashboard.parts import Action, DashboardPart
from wheel_sched.dashboard.recent import Recent
from wheel_sched.dashboard.rendering import Renderer
from wheel_sched.dashboard.rights import Right, Visitor
from wheel_sched.dashboard.sampling import Sampler
from wheel_sched.dashboard.signing import TextSigner
from wheel_sched.errors import WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched.store import Counts, DelayStore

logger = logger_of(__name__)

T = TypeVar("T")

TEMPLATES = Path(__file__).parent / "templates"
CSRF_SECONDS = 86_400
START_AGAIN_S = 5.0
CSRF_STEP_S = 600  # the token stays equal for so long, so a live page with a form is not sent anew each second


@dataclass(frozen=True, slots=True)
class DashboardConfig:
    """What the pages of a dashboard show and permit.

    Args:
        right: the greatest right of any visitor. Defaults to "read".
        show_payloads: whether payloads, keys and header values are shown. Defaults to False.
        title: stands in the title of each page. Defaults to "wheel-sched".
        purgatories: purgatories of this process to show, by name. Defaults to none.
        timers: timers of this process to show, by name. Defaults to none.
        extras: settings for parts, such as the application of the Celery part. Defaults to none.
    """

    right: Right = "read"
    show_payloads: bool = False
    title: str = "wheel-sched"
    purgatories: Mapping[str, Any] = field(default_factory=dict)
    timers: Mapping[str, Any] = field(default_factory=dict)
    extras: Mapping[str, Any] = field(default_factory=dict)


class Dashboard:
    """What all pages share. Thread-safe: pages run in worker threads.

    Args:
        store: the open store of the settings' namespace, or a `LazyStore`.
        loaded: the settings, also those of the extensions.
        parts: the parts, the core's own first.
        config: what the pages show and permit.
        signer: signs previews, sessions and CSRF tokens.
    """

    def __init__(
        self,
        store: DelayStore | LazyStore,
        loaded: Loaded,
        parts: Sequence[DashboardPart],
        config: DashboardConfig,
        signer: TextSigner,
    ) -> None:
        self._home = store
        self.namespace = store.namespace
        self.loaded = loaded
        self.parts = parts
        self.config = config
        self.signer = signer
        self.recent = Recent()
        self.sampler = Sampler(self._counts)
        listed = [(page.place or part.place, page) for part in parts for page in part.pages if page.label]
        self._navigation = [(page.label, page.path) for _, page in sorted(listed, key=lambda one: one[0])]
        self.actions: Mapping[str, Action] = {action.name: action for part in parts for action in part.actions}
        self._renderer = Renderer([TEMPLATES, *(part.templates for part in parts if part.templates is not None)])
        self.ending = threading.Event()  # when set, live updates end
        self._opened: dict[str, Any] = {}
        self._starter: threading.Thread | None = None
        self._closed = threading.Event()
        self._opening = threading.RLock()  # reentrant: `open` of one part may call `opened` for another part

    @property
    def store(self) -> DelayStore:
        """The open store. A `LazyStore` is opened when a page first asks for the store."""
        return self._home.opened() if isinstance(self._home, LazyStore) else self._home

    def _counts(self) -> Counts:
        return self.store.counts()

    def opened(self, name: str) -> Any:
        """What the part of this name keeps open. The first call opens it. After an error the next call tries again."""
        with self._opening:
            if name not in self._opened:
                (opens,) = (part.open for part in self.parts if part.name == name and part.open is not None)
                self._opened[name] = opens(self)
            return self._opened[name]

    def kept(self, name: str, make: Callable[[Dashboard], T]) -> T:
        """The object that the dashboard keeps under this name, such as a thread.

        The first call makes the object with `make`. The dashboard's `close` closes it.
        """
        with self._opening:
            if name not in self._opened:
                self._opened[name] = make(self)
            found: T = self._opened[name]
            return found

    def start(self) -> None:
        """Start the background work of the parts in a thread, so pages are served even if the store does not answer."""
        waiting = [part for part in self.parts if part.started is not None]
        with self._opening:
            if waiting and self._starter is None:
                self._closed.clear()
                self._starter = threading.Thread(target=self._start, args=(waiting,), name="dashboard", daemon=True)
                self._starter.start()

    def _start(self, waiting: list[DashboardPart]) -> None:
        """Call `started` of each part. If a call fails, repeat it after a few seconds."""
        while waiting:
            for part in [*waiting]:
                try:
                    if part.started is not None:
                        part.started(self)
                    waiting.remove(part)
                except (WheelSchedError, OSError) as error:
                    logger.warning("dashboard.not_started: %s: %s: %s", part.name, type(error).__name__, error)
            if waiting and self._closed.wait(START_AGAIN_S):
                return

    def close(self) -> None:
        """Close what the parts have opened, in reverse order, and then the store if it is a `LazyStore`. Idempotent."""
        self._closed.set()
        with self._opening:
            starter, self._starter = self._starter, None
        if starter is not None:
            starter.join()
        with self._opening:
            opened = [*self._opened.values()]
            self._opened.clear()
        for one in reversed(opened):
            one.close()
        if isinstance(self._home, LazyStore):
            self._home.close()

    def page(self, request: Request, template: str, values: Mapping[str, Any], status: int = 200) -> Response:
        """Render a page. Only its block `live` is rendered when the request asks for live updates."""
        shared = self._shared(request)
        live = getattr(request.state, "live", False)
        render = self._renderer.render_live if live else self._renderer.render
        text = render(template, {**shared, **values})
        return HTMLResponse(text.encode("utf-8", "backslashreplace"), 200 if live else status)

    def csrf_token(self, visitor: Visitor) -> str:
        return self.signer.sign("csrf", visitor.name, step_s=CSRF_STEP_S)

    def is_csrf_token(self, visitor: Visitor, token: str) -> bool:
        return bool(self.signer.read("csrf", token, CSRF_SECONDS + CSRF_STEP_S) == visitor.name)

    def _shared(self, request: Request) -> dict[str, Any]:
        """The values that every template has.

        `base` is the path under which the dashboard is mounted; a link is `{{ base }}/items`. `may(right)` says whether
        the visitor has this right. `live_path` is the address of the page's live updates, "" for a page without them.
        """
        visitor: Visitor = request.state.visitor
        return {
            "base": base_of(request),
            "path": path_of(request),
            "title": self.config.title,
            "namespace": self.namespace,
            "visitor": visitor,
            "may": visitor.may,
            "signed_in": getattr(request.state, "signed_in", False),
            "csrf": self.csrf_token(visitor),
            "show_payloads": self.config.show_payloads,
            "navigation": self._navigation,
            "live_path": getattr(request.state, "live_path", ""),
            "here": here(request),
        }
