"""Translate errors of redis-py into errors of wheel-sched: the cause, what was not changed, and the next step.

A failed connection leaves three cases: nothing was sent; a read was sent, which changes nothing; or a write was sent,
which may have been executed.
"""

from __future__ import annotations

import re
from typing import Any

import redis
import redis.exceptions

from wheel_sched.errors import (
    NamespaceMismatch,
    Rejected,
    StaleCount,
    StaleEpoch,
    StalePosition,
    StoreAuthError,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreTooOld,
    StoreUnavailable,
    TakenId,
)

_BY_START: tuple[tuple[str, type[StoreError], str], ...] = (
    (
        "OOM",
        StoreFull,
        "the server is at its memory limit and evicts nothing: nothing was written; free memory or "
        "raise maxmemory, then repeat",
    ),
    ("READONLY", StoreReadOnly, "the server is a read-only replica: nothing was written; connect to the primary"),
    (
        "MISCONF",
        StoreReadOnly,
        "the server refuses writes because it cannot save to disk: nothing was written; see "
        "its log and free disk space",
    ),
    ("NOAUTH", StoreAuthError, "the server wants a password: nothing was written; give one in the URL"),
    ("WRONGPASS", StoreAuthError, "the user name or password is wrong: nothing was written; correct the URL"),
    ("NOPERM", StoreAuthError, "this user may not run a command or touch a key: nothing was written; extend its ACL"),
    ("WSCLOCK", NamespaceMismatch, "nothing was changed"),
    ("WSABSENT", NamespaceMismatch, "nothing was changed; open the namespace first (was the server flushed?)"),
    (
        "WSSHARDS",
        NamespaceMismatch,
        "nothing was changed; the namespace was resharded: restart this process with the new number",
    ),
    (
        "WSFROZEN",
        NamespaceMismatch,
        "nothing was changed; wait for the maintenance to end, or end it with `wheel-sched reshard --resume`",
    ),
    ("WSEPOCH", StaleEpoch, "nothing was claimed; read the epoch again with `windows`"),
    ("WSCOUNT", StaleCount, "nothing was stored; read the attempt counts and decide again"),
    (
        "WSTAKEN",
        TakenId,
        "the id exists already, or twice in the batch: nothing was stored; leave the item out or give it another id",
    ),
    (
        "NOREPLICAS",
        StoreUnavailable,
        "fewer replicas than the server's min-replicas-to-write keep up: nothing was written; check them, then repeat",
    ),
    ("LOADING", StoreUnavailable, "the server is still loading its data: repeat in a moment"),
    ("BUSY", StoreUnavailable, "the server is busy with a script: repeat in a moment"),
    ("MASTERDOWN", StoreUnavailable, "the replica has lost its primary: repeat after the failover"),
    ("CLUSTERDOWN", StoreUnavailable, "the cluster is down: repeat when its slots are served again"),
    ("TRYAGAIN", StoreUnavailable, "the slot is being moved: nothing was executed; repeat in a moment"),
    ("ASK", StoreUnavailable, "the slot is being moved: nothing was executed; repeat in a moment"),
    ("MOVED", StoreUnavailable, "the slot has been moved: nothing was executed; repeat in a moment"),
)

# redis-py strips the code of errors for which it has a class; the first class that fits counts
_CODES: tuple[tuple[type[Exception], str], ...] = (
    (redis.exceptions.ReadOnlyError, "READONLY"),
    (redis.exceptions.OutOfMemoryError, "OOM"),
    (redis.exceptions.NoPermissionError, "NOPERM"),
    (redis.exceptions.BusyLoadingError, "LOADING"),
    (redis.exceptions.MasterDownError, "MASTERDOWN"),
    (redis.exceptions.ClusterDownError, "CLUSTERDOWN"),
    (redis.exceptions.TryAgainError, "TRYAGAIN"),
    (redis.exceptions.MovedError, "MOVED"),
    (redis.exceptions.AskError, "ASK"),
    (redis.exceptions.ClusterError, "TRYAGAIN"),  # "TTL exhausted": it was redirected or put off 16 times
)

FAULTS = (redis.RedisError, redis.exceptions.RedisClusterException, OSError)  # all errors of a call on a client
_LOST = (redis.ConnectionError, redis.TimeoutError, OSError)
_NO_CONNECTION = re.compile(
    r"\bconnecting to\b|max number of clients reached|No (connection|master|slave|replica)", re.I
)


def translate(error: Exception, *, writes: bool = False, sent: bool = False) -> Exception:
    """Return our error for an error of the client. An unknown error becomes a `StoreError` with the server's text.

    Args:
        error: the error of the client.
        writes: whether the call changes data. Defaults to False.
        sent: whether an earlier try of the call was sent and got no reply. Defaults to False.
    """
    if isinstance(error, redis.AuthenticationError):
        return StoreAuthError(f"the server refused the login ({error}): nothing was written; correct the URL")
    text = f"{_code(error)}{error}"
    if text.startswith("WSPOSITION"):
        return StalePosition(text.removeprefix("WSPOSITION").strip())
    for start, kind, advice in _BY_START:
        if text.startswith(start):
            return kind(f"{text}: {advice}")
    if lost(error):
        words = str(error) or type(error).__name__
        if unsent(error) and not (sent and writes):
            return StoreUnavailable(
                f"no connection to the server ({words}): nothing was sent; see that it runs and that the address is "
                "right, then repeat"
            )
        if not writes:
            return StoreUnavailable(f"no answer from the server ({words}): nothing was changed; repeat")
        return StoreUnavailable(
            f"no answer from the server ({words}): what was sent may have been executed; repeat under the same token "
            "or id",
            in_doubt=True,
        )
    if "unknown command" in text.lower():
        return StoreTooOld(f"{text}: the server lacks a command; use Valkey 8 or Redis 7 or newer")
    if text.startswith("WSBATCH"):
        return Rejected(f"{text}; nothing was changed")
    if isinstance(error, redis.RedisError):
        return StoreError(f"the server refused: {text}; nothing was changed")
    return error


def _code(error: Exception) -> str:
    """The code that redis-py has removed from the text of the error, such as "READONLY "; "" if it removed none."""
    code = next((f"{name} " for kind, name in _CODES if isinstance(error, kind)), "")
    return "" if str(error).startswith(code.strip() or "\0") else code


def lost(error: Exception) -> bool:
    """Whether the connection failed, so that the server gave no answer."""
    if isinstance(error, redis.AuthenticationError | redis.exceptions.BusyLoadingError):
        return False
    return isinstance(error, (*_LOST, redis.exceptions.RedisClusterException))


def unsent(error: Exception) -> bool:
    """Whether the client had no connection to the server, so that it sent nothing."""
    if isinstance(error, redis.exceptions.RedisClusterException):  # no node, no slot
        return True
    return isinstance(error, (redis.ConnectionError, redis.TimeoutError)) and (
        isinstance(error, redis.exceptions.MaxConnectionsError) or _NO_CONNECTION.search(str(error)) is not None
    )


def moved(reply: Any) -> bool:
    """Whether the reply says that another node serves the slot now."""
    return isinstance(reply, redis.exceptions.MovedError)


def no_function(error: Exception) -> bool:
    """Whether the server lacks our function library, as after a failover or a flush, or on a new server."""
    return isinstance(error, redis.ResponseError) and "Function not found" in str(error)


def functions_refused(error: Exception) -> bool:
    """Whether this server or user may not use functions at all, so that EVALSHA must be used."""
    text = str(error)
    return isinstance(error, redis.ResponseError) and (
        "unknown command" in text.lower() or isinstance(error, redis.exceptions.NoPermissionError) or "NOPERM" in text
    )
