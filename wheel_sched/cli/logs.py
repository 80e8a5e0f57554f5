"""The log of the commands that run until a signal: as text or as JSON lines, on stderr.

With JSON, the comments of these commands are log records too. So everything on stderr is JSON, one object a line.
"""

from __future__ import annotations

import logging

from wheel_sched.cli.output import comment_by
from wheel_sched.escaping import ONE_LINE, logger_of
from wheel_sched.observability import JsonLines

_TEXT = "%(asctime)s %(levelname)s %(name)s %(message)s"


def set_up_logs(form: str, level: str) -> None:
    """Send the log records of this process to stderr, unless the root logger has handlers already.

    Args:
        form: "text" or "json".
        level: the least level, such as "info".
    """
    logging.basicConfig(level=level.upper(), format=_TEXT)
    for handler in logging.getLogger().handlers:
        handler.addFilter(ONE_LINE)  # also for lines of libraries
        if form == "json":
            handler.setFormatter(JsonLines())
    if form == "json":
        comments = logger_of("wheel_sched.cli")
        comments.setLevel(logging.INFO)
        comment_by(lambda text: comments.info("%s", text))
