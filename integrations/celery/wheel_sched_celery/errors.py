"""The error that this integration adds to those of `wheel_sched.errors`."""

from __future__ import annotations

from kombu.exceptions import OperationalError

from wheel_sched.errors import InDoubt, StoreError, WheelSchedError


class HoldRefused(WheelSchedError, OperationalError):
    """The delay store is away or full, and the app has `on_outage="refuse"`: the task is not sent to the broker either.

    There are two cases, and `in_doubt` and the text say which one it is. Either the task was not sent. Or the store has
    not confirmed the task, and may hold it. A held task runs when it is due.

    It is an `OperationalError` of kombu, which callers of `apply_async` catch when the broker is away.

    Args:
        text: what happened.
        in_doubt: whether the task may be held. Defaults to False.
    """

    transient = True

    def __init__(self, text: str, in_doubt: bool = False) -> None:
        super().__init__(text)
        self.in_doubt = in_doubt

    @classmethod
    def because(cls, error: StoreError, what: str) -> HoldRefused:
        """Make the error to raise after the store's `error`. `what` names the task that was to be sent."""
        if not error.in_doubt:
            return cls(f"{what}: not sent: {error}")
        why = "the delay store gave no answer and may have stored what was sent"
        if isinstance(error, InDoubt):
            why = "the delay store holds it, but has not confirmed that it is durable"
        return cls(
            f"{what}: in doubt, {why}; sending again with the same task_id and eta stores nothing twice: {error}",
            in_doubt=True,
        )
