"""Renders the pages' templates. All text is escaped for HTML; control characters and direction marks are made visible.

Templates lie in `templates/` of the dashboard and of each part. They find texts of messages only through the filter
`shown`, which also hides passwords. A template's block `live` can be rendered alone, for live updates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import jinja2

from wheel_sched.dashboard import charts
from wheel_sched.escaping import safe
from wheel_sched.management.wording import amount, instant, relative, span

_CUT = 2_000  # characters of a foreign text on a page


class Renderer:
    """Renders templates. Thread-safe.

    Args:
        folders: the folders of templates, the dashboard's own first.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(folders),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(
            shown=shown,
            shown_lines=shown_lines,
            instant=instant,
            span=span,
            amount=amount,
            path=quote_path,
            query=query,
            number=number,
        )
        self._environment.globals.update(
            live_only=False,
            relative=relative,
            sparkline=charts.sparkline,
            histogram=charts.histogram,
            curve=charts.curve,
        )

    def render(self, template: str, values: Mapping[str, Any]) -> str:
        return self._environment.get_template(template).render(values)

    def render_live(self, template: str, values: Mapping[str, Any]) -> str:
        """Render only the block `live` of a template, with the macros that the template imports."""
        return self._environment.get_template(template).render({**values, "live_only": True})


def shown(value: object, limit: int = _CUT) -> str:
    """A foreign text for a page: unsafe characters as escapes, passwords hidden, cut to `limit` characters."""
    text = str(value)
    rest = len(text) - limit
    return safe(text[:limit]) + (f"... ({rest:,} more characters)" if rest > 0 else "")


def shown_lines(text: str, limit: int = _CUT) -> str:
    """Like `shown`, for a text of several lines: its line breaks stay."""
    rest = len(text) - limit
    lines = "\n".join(safe(line) for line in text[:limit].split("\n"))
    return lines + (f"\n... ({rest:,} more characters)" if rest > 0 else "")


def quote_path(text: str) -> str:
    """A text as one part of a path in a link."""
    return quote(text, safe="", errors="surrogateescape")


def query(pairs: Mapping[str, Any]) -> str:
    """The query of a link: `?a=1&b=2`, without empty values; a list is repeated."""
    kept = {name: value for name, value in pairs.items() if value not in (None, "", [], ())}
    return f"?{urlencode(kept, doseq=True, errors='surrogateescape')}" if kept else ""


def number(value: float | None) -> str:
    """A number with thousands separated; a dash for None."""
    return "-" if value is None else f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:,.2g}"


def as_json(value: Any) -> str:
    """A value as indented JSON for a page."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)
