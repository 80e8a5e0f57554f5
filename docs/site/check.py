"""Checks the built site: every page loads all it needs from the site itself, and every link within it leads somewhere.

python docs/site/check.py build/docs
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

FOREIGN = re.compile(r"(?:https?:)?//")
IN_CSS = re.compile(r"""(?:@import\s+|url\(\s*)["']?((?:https?:)?//[^"')\s]+)""")
TAG = re.compile(r"<([a-z]+)\s([^>]*)>")
ATTRIBUTE = re.compile(r"""([\w:-]+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")
# elements that make a browser load something, and the attributes that say what; a plain link is followed by people
LOADS = {
    "script": ("src",), "link": ("href",), "img": ("src", "srcset"), "source": ("src", "srcset"), "iframe": ("src",),
    "video": ("src", "poster"), "audio": ("src",), "object": ("data",), "embed": ("src",), "image": ("href",),
    "use": ("href",),
}  # fmt: skip


class BuiltPage:
    """What a page loads, where its links lead, and its anchors. An HTML parser would take ten times as long."""

    def __init__(self, text: str) -> None:
        self.loads: list[str] = IN_CSS.findall(text)
        self.links: list[str] = []
        self.anchors: set[str] = {""}
        for tag, written in TAG.findall(text):
            values = {name: unescape(double or single) for name, double, single in ATTRIBUTE.findall(written)}
            self.loads += [values[name] for name in LOADS.get(tag, ()) if name in values]
            if tag == "a" and "href" in values:
                self.links.append(values["href"])
            self.anchors |= {values[name] for name in ("id", "name") if name in values}


def foreign(site: Path) -> Iterator[str]:
    """Each thing that a page or a style sheet of the site loads from another address."""
    for path in sorted(site.rglob("*.html")):
        for address in BuiltPage(path.read_text("utf-8")).loads:
            if FOREIGN.match(address):
                yield f"{path.relative_to(site)}: {address}"
    for path in sorted(site.rglob("*.css")):
        for address in IN_CSS.findall(path.read_text("utf-8")):
            yield f"{path.relative_to(site)}: {address}"


def broken(site: Path) -> Iterator[str]:
    """Each link within the site whose page or anchor is not there."""
    pages = {path.resolve(): BuiltPage(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists() or (target in pages and unquote(parts.fragment) not in pages[target].anchors):
                yield f"{path.relative_to(site.resolve())}: {link}"


def main(site: Path) -> int:
    problems = [f"error: loaded from another address: {line}" for line in foreign(site)]
    problems += [f"error: a link that leads nowhere: {line}" for line in broken(site)]
    sys.stderr.writelines(f"{line}\n" for line in problems)
    return 1 if problems or not (site / "index.html").exists() else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
