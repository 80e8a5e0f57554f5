"""Temporary folders. Whoever makes a new one first deletes the folders that killed processes have left.

A folder belongs to the process that holds the lock on its file `owner`. The kernel releases the lock when that process
ends, even by a kill. This also works between containers that share a folder but not their process ids. A folder that
has no file `owner` or belongs to another user is not deleted. A fork of the owner holds the lock too, until the fork
ends. POSIX only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

OWNER = "owner"


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Make a folder for the duration of the block. Before that, delete abandoned folders with the same prefix."""
    _remove_abandoned(prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        fresh = folder / f"{OWNER}.new"
        with fresh.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            fresh.rename(folder / OWNER)  # the file is locked before it gets the name that other processes look for
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(prefix: str) -> None:
    for owner in Path(tempfile.gettempdir()).glob(f"{prefix}*/{OWNER}"):
        folder = owner.parent
        with contextlib.suppress(OSError):  # the owner lives, or the folder is already removed
            if folder.lstat().st_uid == os.getuid():
                with owner.open("r+") as held:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
