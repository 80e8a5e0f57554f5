"""Walks through a dashboard by its links, without a browser, and notes an address of each page and each action's form.

A page belongs to a route, such as "/items/{id}". The walk reads a few addresses of each route, because the buttons on a
page depend on what it shows: the page of a waiting message has other buttons than that of a dead letter.
"""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

from starlette.routing import compile_path

from wheel_sched.dashboard import DashboardPage

OF_EACH = 6  # the most addresses that are read of one route


@dataclass(slots=True)
class Form:
    """A form that posts: the page on which it is, its target, its place among the page's forms with this target, and
    its fields that are not hidden."""

    page: str
    target: str
    number: int
    asks: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address
        self.links: list[str] = []
        self.forms: list[Form] = []
        self._form: Form | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "a" and "href" in given:
            self.links.append(urljoin(self.address, given["href"]))
        elif tag == "form" and given.get("method", "get").lower() == "post":
            target = urljoin(self.address, given.get("action", ""))
            self._form = Form(self.address, target, sum(one.target == target for one in self.forms))
            self.forms.append(self._form)
        elif tag in ("input", "select", "textarea") and self._form is not None and given.get("type") != "hidden":
            self._form.asks.append(given.get("name", ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._form = None


@dataclass(slots=True)
class Walk:
    """What a walk has found.

    Args:
        addresses: the addresses of each route, those of the navigation first.
        forms: a form of each action, by the action's name.
        strays: links that lead to no page, or to an error.
    """

    addresses: dict[str, list[str]]
    forms: dict[str, list[Form]]
    strays: list[str]


def walk(url: str, pages: Sequence[DashboardPage]) -> Walk:
    """Follow the links from the overview on.

    Args:
        url: the address of the dashboard, without a slash at the end.
        pages: all its pages.
    """
    routes = [(page.path, compile_path(page.path)[0]) for page in pages]
    found = Walk(defaultdict(list), defaultdict(list), [])
    waiting, seen = [f"{url}/"], {f"{url}/"}
    while waiting:
        address = waiting.pop(0)
        route = _route(urlsplit(address).path, routes)
        if len(found.addresses[route]) >= OF_EACH:
            continue
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310  # the test's own server
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            found.strays.append(f"{address} answered {error.code}")
            continue
        found.addresses[route].append(address)
        reader = _Reader(address)
        reader.feed(text)
        for form in reader.forms:
            if name := re.fullmatch(rf"{re.escape(url)}/actions/([\w-]+)", form.target):
                found.forms[name[1]].append(form)
        for link in (one.partition("#")[0] for one in reader.links):
            if link in seen or not link.startswith(f"{url}/"):
                continue
            seen.add(link)
            path = urlsplit(link).path
            if _route(path, routes):
                waiting.append(link)
            elif not path.startswith(("/assets/", "/api/")):
                found.strays.append(f"{link} on {address}")
    return found


def _route(path: str, routes: Sequence[tuple[str, re.Pattern[str]]]) -> str:
    return next((name for name, pattern in routes if pattern.fullmatch(path)), "")
