"""What the owner has said to the store: calls that are out, and their replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from wheel_sched.dispatcher.batch import Batch
from wheel_sched.errors import InDoubt, WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched.store.begun import Begun, Performed
from wheel_sched.store.delay_store import DelayStore
from wheel_sched.store.operations import Call

logger = logger_of("wheel_sched.dispatcher")

Question = tuple[Call[Any], Batch | None]  # a call, and the batch it is about


class Reply(NamedTuple):
    """A call, what it is about, and its answer."""

    call: Call[Any]
    batch: Batch | None
    answer: Any


class Asked(NamedTuple):
    """Calls that are out.

    `at_us` is when they went. `ahead`: in an earlier turn, so that a marker raised since may have been heard before the
    answer, which then must not put off what the marker asked for.
    """

    questions: Sequence[Question]
    begun: Begun
    at_us: int
    ahead: bool

    def replies(self) -> list[Reply]:
        """Wait for the answers; an error for each call when there are none."""
        try:
            answers = self.begun.answers()
        except WheelSchedError as error:
            answers = [error] * len(self.questions)
        return [Reply(*question, _held(answer)) for question, answer in zip(self.questions, answers, strict=True)]


def _held(answer: Any) -> Any:
    """The answer; of a write that was executed and not confirmed, what the server said.

    To wait for replicas that are gone would end all releasing. Where the server is lost now, what was settled comes
    again when its lease ends.
    """
    if not isinstance(answer, InDoubt) or answer.answer is None:
        return answer
    logger.warning("dispatcher.unconfirmed: it goes on, and what was settled may come again: %s", answer)
    return answer.answer


def ask(store: DelayStore, questions: Sequence[Question], at_us: int, *, ahead: bool = False) -> Asked:
    """Send the calls and wait for nothing."""
    try:
        begun = store.begin([call for call, _ in questions])
    except WheelSchedError as error:
        begun = Performed([error] * len(questions))
    return Asked(questions, begun, at_us, ahead)
