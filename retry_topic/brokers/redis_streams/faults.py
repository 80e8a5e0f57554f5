"""Translates client and server errors into texts that say the cause, whether anything was written, and what to do.

The first word of a server's error is its code. The client library replaces some codes by exception classes; a table
translates these back. After a refusal, or when no connection could be made, nothing was written. When a connection was
lost, the effect depends on what was sent. A read has changed nothing. A repeatable command may have run; repeating
it does no harm. A message may have been appended; sending it again may append it twice.
"""

from __future__ import annotations

from typing import Literal

from redis import exceptions as client

from retry_topic.brokers.protocol import PublishFailure
from wheel_sched.errors import BrokerError, BrokerUnavailable
from wheel_sched.store.redis.faults import unsent

REASON_CHARACTERS = 500  # what `PublishFailure.reason` promises

_CLASSES: tuple[tuple[type[Exception], str], ...] = (
    (client.OutOfMemoryError, "OOM"),
    (client.ReadOnlyError, "READONLY"),
    (client.NoPermissionError, "NOPERM"),
    (client.AuthenticationError, "NOAUTH"),
    (client.AuthorizationError, "NOAUTH"),
    (client.BusyLoadingError, "LOADING"),
    (client.MasterDownError, "MASTERDOWN"),
    (client.ClusterDownError, "CLUSTERDOWN"),
    (client.RedisClusterException, "CLUSTERDOWN"),  # raised before anything is sent: no node, no slot
    (client.TryAgainError, "TRYAGAIN"),
    (client.MovedError, "MOVED"),
    (client.AskError, "ASK"),
    (client.ClusterCrossSlotError, "CROSSSLOT"),
    (client.ClusterError, "TRYAGAIN"),  # "TTL exhausted": redirected or put off 16 times
)

# Transient errors: they end by themselves, or when an operator repairs the server.
_PASSING = {
    "OOM": "the server is at maxmemory: nothing was written; free memory or raise the limit",
    "READONLY": "the server is a read-only replica: nothing was written; connect to the primary",
    "MISCONF": "the server cannot save to its disk and refuses writes: nothing was written; check its disk",
    "NOREPLICAS": "too few replicas are connected: nothing was written; check the replicas",
    "LOADING": "the server is loading its data: nothing was written; wait",
    "BUSY": "the server is busy with a long script: nothing was written; wait",
    "MASTERDOWN": "the replica has lost its primary: nothing was written; wait for the failover",
    "CLUSTERDOWN": "the cluster does not serve this topic's slot: nothing was written; wait for the failover",
    "TRYAGAIN": "the topic's slot is moving: nothing was written; wait",
    "MOVED": "the topic's slot has moved: nothing was written; repeat",
    "ASK": "the topic's slot is moving: nothing was written; wait",
}
_REFUSED = {
    "NOAUTH": "the server refused the credentials: nothing was written; correct user name and password",
    "WRONGPASS": "the server refused the credentials: nothing was written; correct user name and password",
    "NOPERM": "the user lacks a permission: nothing was written; see the server's ACL",
}
_HOPELESS = {
    "WRONGTYPE": "the topic's key is not a stream: nothing was written; rename the topic",
    "CROSSSLOT": "the keys are on different slots: nothing was written",
}

LOST = (client.ConnectionError, client.TimeoutError, OSError)
FAULTS = (client.RedisError, client.RedisClusterException, OSError)  # all that a call on the client may raise


def code(error: Exception | str) -> str:
    """The server's code of the error; "" if the connection failed."""
    for kind, name in _CLASSES:
        if isinstance(error, kind):
            return name
    if isinstance(error, LOST):
        return ""
    return (str(error).split(maxsplit=1) or ["ERR"])[0]


def is_lost(error: Exception) -> bool:
    """Whether the connection failed. The effect of the command that was sent is then in doubt."""
    return code(error) == ""


def is_unsent(error: Exception | str) -> bool:
    """Whether nothing was sent because there was no connection."""
    return isinstance(error, Exception) and code(error) == "" and unsent(error)


Sent = Literal["read", "repeatable", "message"]

_NO_ANSWER: dict[Sent, str] = {
    "read": "no answer from the server: nothing was changed; repeat",
    "repeatable": "no answer from the server: what was sent may have been executed; repeat it, which does no harm",
    "message": "no answer from the server: what was being sent is in doubt",  # a message with an id may be repeated
}


def words(error: Exception | str, sent: Sent = "message") -> str:
    """The cause of an error and what to do, followed by the server's own text. `sent`: what kind of call failed."""
    name = code(error)
    known = _PASSING.get(name) or _REFUSED.get(name) or _HOPELESS.get(name)
    if isinstance(error, Exception) and is_unsent(error):
        known = "no connection to the server: nothing was sent; see that it runs, then repeat"
    elif name == "":
        known = _NO_ANSWER[sent]
    text = f"{known} ({error})" if known else f"the server refused: {error}"
    return text[:REASON_CHARACTERS]


def publish_failure(error: Exception | str) -> PublishFailure:
    """The failure of one message. Wrong credentials count as transient: they are not the message's fault."""
    if isinstance(error, BrokerError):  # translated already
        return PublishFailure(str(error)[:REASON_CHARACTERS], in_doubt=error.in_doubt)
    return PublishFailure(
        words(error), transient=code(error) not in _HOPELESS, in_doubt=code(error) == "" and not is_unsent(error)
    )


def broker_error(error: Exception, sent: Sent) -> BrokerError:
    """The error for a call that failed as a whole: `BrokerUnavailable` if repeating may help, else `BrokerError`."""
    name, text = code(error), words(error, sent)
    if name != "" and name not in _PASSING:
        return BrokerError(text)
    in_doubt = name == "" and sent != "read" and not is_unsent(error)
    if in_doubt and sent == "message":
        text = f"{text[:REASON_CHARACTERS]}; if it is sent again, there may be a second record"
    return BrokerUnavailable(text, in_doubt=in_doubt)
