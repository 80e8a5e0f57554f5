"""Renders the pages' templates. All text is escaped for HTML; control characters and direction marks are made visible.

Templates lie in `templates/` of the dashboard and of each part. They show texts of messages only through the filter
`shown`, which also hides passwords. A template's block `live` can be rendered alone, for live updates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import jinja2

from wheel_sched.dashboard import charts
from wheel_sched.escaping import escaped
from wheel_sched.management.wording import amount, instant, relative, span
from wheel_sched.redacting import redacted_text

_CUT = 2_000  # characters of a foreign text on a page
_OTHER_SURROGATES = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # those that stand for no byte
_MARGIN = 1_000  # longer than an address with a password


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
    """A text from outside, made safe for a page: characters escaped, passwords hidden, cut to `limit` characters."""
    text = str(value)
    rest = len(text) - limit
    return escaped(_cut(text, limit)) + (f"... ({rest:,} more characters)" if rest > 0 else "")


def _cut(text: str, limit: int) -> str:
    """The beginning of a text, without passwords. They are hidden before the cut, which could split a password."""
    if len(text) <= limit + _MARGIN:
        return redacted_text(text)[:limit]
    clean = redacted_text(text[: limit + _MARGIN])
    return clean[: min(limit, len(clean) - _MARGIN)]


def shown_lines(text: str, limit: int = _CUT) -> str:
    """Like `shown`, for a text of several lines: its line breaks stay."""
    rest = len(text) - limit
    lines = "\n".join(escaped(line) for line in _cut(text, limit).split("\n"))
    return lines + (f"\n... ({rest:,} more characters)" if rest > 0 else "")


def quote_path(text: object) -> str:
    """A text as one part of a path in a link, or as the value of a hidden field whose name ends with %."""
    return quote(_bytes(str(text)), safe="")


def _bytes(text: str) -> bytes:
    """The bytes of a text. Surrogates that stand for bytes become these bytes; other surrogates become `?`."""
    return _OTHER_SURROGATES.sub("?", text).encode("utf-8", "surrogateescape")


def query(pairs: Mapping[str, Any]) -> str:
    """The query of a link, such as `?a=1&b=2`. Empty values are left out. A list gives a pair for each element."""
    kept = [
        (name, _bytes(str(one)))
        for name, value in pairs.items()
        if value not in (None, "", [], ())
        for one in (value if isinstance(value, list | tuple) else [value])
    ]
    return f"?{urlencode(kept)}" if kept else ""


def number(value: float | None) -> str:
    """A number with commas between thousands; a dash for None."""
    return "-" if value is None else f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:,.2g}"


def as_json(value: Any) -> str:
    """A value as indented JSON for a page."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)
