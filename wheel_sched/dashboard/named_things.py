"""For actions on things that a request names, such as jobs: reads the names, and previews what can be changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from wheel_sched.dashboard.actions import digest_of
from wheel_sched.dashboard.parts import ActionField, Arguments, Preview
from wheel_sched.errors import Rejected

MOST = 500
"""The greatest number of things that a request may name."""

_SAMPLES = 5


class NamedKind(NamedTuple):
    """A kind of things that requests name, such as jobs.

    Args:
        one: an argument whose value is one name, such as "job". It may be repeated.
        many: an argument whose value has a name in each line, such as "jobs".
        name: what a name is, such as "the id of a job".
        words: makes a text of a number, such as "3 jobs" of 3.
    """

    one: str
    many: str
    name: str
    words: Callable[[int], str]

    @property
    def fields(self) -> tuple[ActionField, ...]:
        """The arguments `one` and `many`, for an action."""
        return (
            ActionField(self.one, f"{self.name}; may be repeated", many=True),
            ActionField(self.many, f"the same as {self.one}, with one in each line"),
        )

    def names_of(self, arguments: Arguments) -> list[str]:
        """The names in a request, each once.

        Raises:
            Rejected: there are none, or too many.
        """
        lines = (line.strip() for line in str(arguments.get(self.many, "")).splitlines())
        names = list(dict.fromkeys([*arguments.get(self.one, []), *filter(None, lines)]))
        if not names:
            raise Rejected(f"which {self.many}? Give {self.name}, or several; nothing was changed")
        if len(names) > MOST:
            raise Rejected(f"expected at most {MOST} {self.many}, got {len(names):,}: nothing was changed")
        return names


class ChosenThings:
    """The things that an action would change, and for the others the reasons why it would not.

    Args:
        kind: the kind of the things.
    """

    def __init__(self, kind: NamedKind) -> None:
        self._kind = kind
        self._chosen: dict[str, Any] = {}
        self._identities: list[Any] = []
        self._samples: list[str] = []
        self._left = Counter[str]()

    def choose(self, name: str, thing: Any, identity: Any, sample: str) -> None:
        """Add a thing that the action would change. A repeated thing counts once.

        Args:
            name: the name of the thing.
            thing: what `execute` needs to change it.
            identity: data that differs when the thing has changed.
            sample: a line about the thing, for the preview.
        """
        if name not in self._chosen:
            self._chosen[name] = thing
            self._identities.append([name, identity])
            self._samples.append(sample)

    def leave(self, why: str) -> None:
        """Count a thing that the action would not change."""
        self._left[why] += 1

    def preview(self, words: str, warning: str) -> Preview:
        """The preview of the action. Its `selected` is a dict from name to thing.

        Args:
            words: what the action would do; `{}` becomes the number of things.
            warning: what the user should know before; "" for nothing.
        """
        kind, count = self._kind, len(self._chosen)
        left = "; ".join(f"{kind.words(number)} left: {why}" for why, number in sorted(self._left.items()))
        return Preview(
            count,
            words.format(kind.words(count)),
            digest_of([*self._identities, left]),
            tuple(self._samples[:_SAMPLES]),
            "; ".join(filter(None, [warning if count else "", left])),
            self._chosen,
        )
