"""Errors: the type of an error says who caused it and who can fix it.

A message says what is wrong and, where it is not obvious, what stayed unchanged and what to do. `transient` says
whether the same call may succeed later without any change.
"""

from __future__ import annotations

from collections.abc import Sequence


class WheelSchedError(Exception):
    """Root of this project's own errors."""

    transient = False


class ConfigError(WheelSchedError, ValueError):
    """The configuration is wrong; nothing was started or changed. `problems` lists what was found, at least one."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        count = len(self.problems)
        head = self.problems[0] if count == 1 else f"{count} problems:\n" + "\n".join(f"- {p}" for p in self.problems)
        super().__init__(head)


class Rejected(WheelSchedError, ValueError):
    """The input of the caller is not acceptable. Nothing of the call was stored or sent."""


class NotDone(WheelSchedError):
    """A request cannot be done as asked. The message says what stayed unchanged and what to do next."""


class StoreError(WheelSchedError):
    """The delay store refused a call or did not answer.

    `in_doubt` says whether the server may have executed the call nevertheless. If a method called several shards, the
    error is about one of them; others may have been changed.
    """

    in_doubt = False


class StoreUnavailable(StoreError):
    """The server is away, is busy or did not answer. Repeat the call; if it is in doubt, with the same token or id.

    Args:
        in_doubt: whether the server may have executed the call. Defaults to False.
    """

    transient = True

    def __init__(self, *args: object, in_doubt: bool = False) -> None:
        super().__init__(*args)
        if in_doubt:
            self.in_doubt = True


class InDoubt(StoreUnavailable):
    """The write was executed, but its durability level was not confirmed. Repeat the write with the same token.

    `answer` is the server's answer to the write, None if it is not known. The answer stays valid unless this server is
    lost.
    """

    in_doubt = True
    answer: object = None


class StoreFull(StoreError):
    """The server has reached `maxmemory`: nothing was written. Free memory or raise the limit."""

    transient = True


class StoreReadOnly(StoreError):
    """The server is a read-only replica, or cannot save to disk: nothing was written."""

    transient = True


class StoreAuthError(StoreError):
    """The password is wrong or missing, or the user may not run a command: nothing was written."""


class StoreTooOld(StoreError):
    """The server lacks something that this project needs: nothing was written. Upgrade the server."""


class NamespaceMismatch(StoreError):
    """The namespace is absent or frozen, or has another schema, shard count or clock: nothing was changed."""


class StaleEpoch(StoreError):
    """The shard's epoch has changed, by a clock jump or a new owner: nothing was changed. Read the shard again."""


class StalePosition(StoreError):
    """The call began at another position of a source (a partition's log) than the store expects: nothing was stored.

    Args:
        position: the position that the store expects next, from which the caller continues; "" or None when the store
            has no position of the source yet.
    """

    def __init__(self, position: str | int | None) -> None:
        self.position = None if position in ("", None) else int(str(position))
        super().__init__(
            f"the store expects position {self.position} of the source's log next, the call began at another one: "
            "nothing was stored; read the log again from there"
        )


class StaleCount(StoreError):
    """An attempt count differs from what the call expected: nothing was stored. Read the counts and decide again."""


class TakenId(StoreError):
    """An id exists already, or twice in the batch: nothing was stored. Omit this item, or give it another id."""


class EmbeddedServerError(StoreError):
    """The embedded server cannot be started here. The message says why and what to use instead.

    Args:
        last_words: the last lines of the server's log, with which the message ends. Defaults to none.
    """

    def __init__(self, *args: object, last_words: Sequence[str] = ()) -> None:
        super().__init__(*args)
        self.last_words = list(last_words)

    def __str__(self) -> str:
        return "\n  ".join([super().__str__(), *self.last_words])


class BrokerError(WheelSchedError):
    """The broker refused a call or did not answer.

    `in_doubt` says whether the broker may have executed the call nevertheless.
    """

    in_doubt = False


class BrokerUnavailable(BrokerError):
    """The broker is away, is busy or did not answer. Repeat the call.

    A publish that is in doubt must be repeated with the same id, or the message may exist twice.

    Args:
        in_doubt: whether the broker may have executed the call. Defaults to False.
    """

    transient = True

    def __init__(self, *args: object, in_doubt: bool = False) -> None:
        super().__init__(*args)
        if in_doubt:
            self.in_doubt = True


class UnknownTopic(BrokerError):
    """The topic does not exist, and the call may not create it: nothing was sent."""
