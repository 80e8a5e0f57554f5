"""A file that gets its name only when it is complete. Only its owner can read it."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_file(target: Path, *, replace: bool) -> Iterator[Path]:
    """Give the `with` block a temporary path. If the block ends without an error, rename the file to `target`.

    Args:
        target: the path that the complete file gets.
        replace: whether an existing file may be replaced.

    Raises:
        FileExistsError: a file exists that must not be replaced; it was not changed.
        OSError: the file cannot be written; `target` was not changed.
    """
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder; nothing was written", str(target.parent))
    if target.exists() and not replace:
        raise _exists(target)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield part
        if replace:
            part.replace(target)
        else:
            _put(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def _exists(target: Path) -> FileExistsError:
    return FileExistsError(errno.EEXIST, "the file exists; nothing was written, and it was not changed", str(target))


def _put(part: Path, target: Path) -> None:
    """Rename `part` to `target`. Raise `FileExistsError` if a file has this name now."""
    try:
        os.link(part, target)
    except FileExistsError:
        raise _exists(target) from None
    except OSError:  # a file system without links
        if target.exists():
            raise _exists(target) from None
        part.replace(target)
    else:
        part.unlink()
