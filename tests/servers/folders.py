"""Temporary folders that end with their owner: whoever makes the next one removes what the killed have left.

A folder belongs to the process that holds the lock on its file `owner`. The kernel lets go of that however the process
ends, and also when the folder is shared by containers whose process numbers say nothing to each other. What has no such
file, or is another user's, is not ours and stays. A fork that was made meanwhile holds the lock too, until it ends.
POSIX only.
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
    """A new folder for the time of the block; abandoned ones of the same prefix are removed before."""
    _remove_abandoned(prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        fresh = folder / f"{OWNER}.new"
        with fresh.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            fresh.rename(folder / OWNER)  # locked before anybody looks for it
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(prefix: str) -> None:
    for owner in Path(tempfile.gettempdir()).glob(f"{prefix}*/{OWNER}"):
        folder = owner.parent
        with contextlib.suppress(OSError):  # it is held, or has gone meanwhile
            if folder.lstat().st_uid == os.getuid():
                with owner.open("r+") as held:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
