"""A small working project for a stack: the files of an extension's `Stack`, written into a folder."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from wheel_sched.errors import NotDone
from wheel_sched.extensions import Stack

_SUFFIX = ".in"  # of the stored files, so that no tool takes them for modules or tests of the package


def files_of(stack: Stack) -> dict[str, str]:
    """The files of a stack's project: their texts by name, in order of their names."""
    package, _, folder = stack.files.partition(":")
    found = [one for one in files(package).joinpath(folder).iterdir() if one.name.endswith(_SUFFIX)]
    return {one.name.removesuffix(_SUFFIX): one.read_text("utf-8") for one in sorted(found, key=lambda one: one.name)}


def write_project(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write files into a folder, which is created if it is absent. Returns their paths.

    Raises:
        NotDone: the folder is no folder, or some of the files exist. Nothing was written.
        OSError: the system refuses a file. The files that were written before are removed.
    """
    if folder.exists() and not folder.is_dir():
        raise NotDone(f"{folder} is no folder: nothing was written; give another name")
    targets = {folder / name: text for name, text in texts.items()}
    if there := [path.name for path in targets if path.exists() or path.is_symlink()]:
        raise NotDone(f"{', '.join(there)} in {folder} exist: nothing was written; give another folder, or move them")
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    try:
        for path, text in targets.items():
            with path.open("x", encoding="utf-8") as file:  # never replaces a file that was made meanwhile
                written.append(path)
                file.write(text)
    except BaseException:
        for path in written:
            with contextlib.suppress(OSError):
                path.unlink()
        raise
    return written
