"""Hatchling's metadata hook: it makes the README's links absolute, and the project's addresses from one constant.

The README in the tree has relative links, which work in a checkout and on a code host. A package index shows the README
alone, so a relative link leads nowhere there. The hook changes only the text that goes into the package's metadata.

The address of the repository stands in one place: `repository` in pyproject.toml, `[tool.hatch.metadata.hooks.custom]`.
While it is empty, the package names no addresses, and a relative link becomes its text and the name of the file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?![a-z][a-z0-9+.-]*:|#)(?P<target>[^)\s]+)\)")
FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)


class PackageAddresses(MetadataHookInterface):
    """Hatchling calls `update` for each build. pyproject.toml names both fields as dynamic."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the package's README and addresses."""
        repository = str(self.config["repository"]).rstrip("/")
        tag = f"v{metadata['version']}"
        text = readable_alone(Path(self.root, "README.md").read_text("utf-8"), repository, tag)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        if repository:
            metadata["urls"] = addresses(repository, tag)


def addresses(repository: str, tag: str) -> dict[str, str]:
    """Return the addresses that a package index shows, by their labels."""
    return {
        "Homepage": repository,
        "Documentation": f"{repository}/blob/{tag}/docs/index.md",
        "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
        "Source": f"{repository}/tree/{tag}",
        "Security": f"{repository}/blob/{tag}/SECURITY.md",
    }


def readable_alone(markdown: str, repository: str, tag: str) -> str:
    """Return a Markdown text whose relative links are absolute, and lead to the files as of `tag`.

    With an empty `repository`, a link becomes its text and the name of the file. Code blocks stay as they are.
    """

    def absolute(link: re.Match[str]) -> str:
        text, target = link["text"], link["target"]
        if not repository:
            return f"{text} (`{target}`)"
        kind = "raw" if link["image"] else "blob"
        return f"{link['image']}[{text}]({repository}/{kind}/{tag}/{target})"

    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(absolute, part) for part in parts)
