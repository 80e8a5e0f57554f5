"""Errors, one type per "whose fault is it and what to do next".

Every message says what is wrong, what stayed unchanged and what to do. `transient` tells a caller whether the
same call may succeed later without anybody changing anything.
"""

from __future__ import annotations

from collections.abc import Sequence


class WheelSchedError(Exception):
    """Root of every error this project raises on purpose."""

    transient = False


class ConfigError(WheelSchedError, ValueError):
    """The configuration is wrong; all problems are listed, nothing was started or changed."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        count = len(self.problems)
        head = self.problems[0] if count == 1 else f"{count} problems:\n" + "\n".join(f"- {p}" for p in self.problems)
        super().__init__(head)


class Rejected(WheelSchedError, ValueError):
    """The caller's input cannot be accepted; nothing of the call was stored or sent."""


class StoreError(WheelSchedError):
    """The delay store refused or could not answer.

    `in_doubt` says whether what was asked for may have been executed all the same.
    """

    in_doubt = False


class StoreUnavailable(StoreError):
    """The server is away, busy or did not answer: repeat, where it is in doubt under the same token or id.

    Args:
        in_doubt: whether what was asked for may have been executed. Defaults to False.
    """

    transient = True

    def __init__(self, *args: object, in_doubt: bool = False) -> None:
        super().__init__(*args)
        if in_doubt:
            self.in_doubt = True


class InDoubt(StoreUnavailable):
    """The write was executed, but the durability level asked for was not confirmed: repeat under the same token.

    `answer` is what the server said of the write, where that is known: it holds unless this server is lost.
    """

    in_doubt = True
    answer: object = None


class StoreFull(StoreError):
    """The server is at `maxmemory` under `noeviction`: nothing was written; free memory or raise the limit."""

    transient = True


class StoreReadOnly(StoreError):
    """The server is a read-only replica: nothing was written; connect to the primary."""

    transient = True


class StoreAuthError(StoreError):
    """Wrong or missing password, or the user lacks a command: nothing was written."""


class StoreTooOld(StoreError):
    """The server lacks something this project needs: nothing was written; upgrade the server."""


class NamespaceMismatch(StoreError):
    """The namespace exists with another schema, shard count or clock: nothing was changed."""


class StaleEpoch(StoreError):
    """The shard's epoch has moved on (clock jump or new owner): nothing was claimed; read the window again."""


class StalePosition(StoreError):
    """The source's log was taken in up to another position than expected: nothing was stored; go on from `position`.

    Args:
        position: the next one, as the store has it; "" or None: none of the source's log was taken in.
    """

    def __init__(self, position: str | int | None) -> None:
        self.position = None if position in ("", None) else int(str(position))
        super().__init__(
            f"the source's next position is {self.position}, the call came with another one: nothing was stored; "
            "read its log again from there"
        )


class StaleCount(StoreError):
    """An attempt record knows more than the call expected: nothing was stored; ask `remember`, and decide anew."""


class TakenId(StoreError):
    """An id of a slice is there already: nothing was stored; look it up, and leave it out or give it another."""


class EmbeddedServerError(StoreError):
    """The embedded server could not be started here; the message says why and what to use instead.

    Args:
        last_words: lines of its log, which the message ends with. Defaults to none.
    """

    def __init__(self, *args: object, last_words: Sequence[str] = ()) -> None:
        super().__init__(*args)
        self.last_words = list(last_words)

    def __str__(self) -> str:
        return "\n  ".join([super().__str__(), *self.last_words])


class BrokerError(WheelSchedError):
    """The broker refused or could not answer.

    `in_doubt` says whether what was asked for may have been executed all the same.
    """

    in_doubt = False


class BrokerUnavailable(BrokerError):
    """The broker is away, busy or did not answer: repeat; where it is in doubt, a message that was published is
    repeated under the same id, or may be there twice.

    Args:
        in_doubt: whether what was asked for may have been executed. Defaults to False.
    """

    transient = True

    def __init__(self, *args: object, in_doubt: bool = False) -> None:
        super().__init__(*args)
        if in_doubt:
            self.in_doubt = True


class UnknownTopic(BrokerError):
    """The topic does not exist and may not be created implicitly: nothing was sent."""
