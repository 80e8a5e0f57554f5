"""The model `docs/spec/SharedClaims.tla` in Python: competing processes claim due items under leases.

Variables, actions, invariants and safeguards have the names of the TLA+ module; `test_tla.py` compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import ClassVar, NamedTuple

from tests.spec.explorer import Model, Step, changed

Grid = tuple[tuple[int, ...], ...]

KINDS = ("death", "pause", "step", "storeReply", "brokerReply", "refusal")
EXCUSES = ("death", "pause", "step", "brokerReply")


class State(NamedTuple):
    """The variables of the TLA+ module. Sets are sorted tuples or tuples of truth values by index."""

    producer: tuple[str, ...]
    place: tuple[str, ...]
    claim: tuple[int, ...]
    ended: tuple[bool, ...]
    claims: int
    epoch: int
    known: tuple[int, ...]
    paused: tuple[bool, ...]
    asked: tuple[int, ...]
    held: Grid
    sent: tuple[tuple[bool, ...], ...]
    published: tuple[int, ...]
    strays: tuple[bool, ...]
    outdated: bool
    used: tuple[int, ...]


class SharedClaims(Model[State]):
    """The model of the TLA+ module `SharedClaims`."""

    name = "SharedClaims"
    safeguards: ClassVar[Mapping[str, str]] = {
        "schedule-without-token": "DuplicatesNeedAFault",
        "epoch-not-compared": "ClaimedInPresentEpoch",
        "claim-number-not-compared": "SettledUnderPresentClaim",
        "settle-before-publish": "NeverLost",
        "lease-not-tested": "DuplicatesNeedAFault",
    }
    kinds = KINDS
    of_items = ("producer", "place", "claim", "ended", "published", "strays")
    of_processes = ("known", "paused", "asked")
    grids = ("held", "sent")

    def initial(self) -> State:
        """Implements `Init` of the TLA+ module."""
        items, processes = range(self.items), range(self.processes)
        nothing = (False,) * self.items
        return State(
            producer=("idle",) * self.items,
            place=("none",) * self.items,
            claim=(0,) * self.items,
            ended=nothing,
            claims=0,
            epoch=1,
            known=(0,) * self.processes,
            paused=(False,) * self.processes,
            asked=(0,) * self.processes,
            held=tuple((0,) * len(items) for _ in processes),
            sent=tuple(nothing for _ in processes),
            published=(0,) * self.items,
            strays=nothing,
            outdated=False,
            used=(0,) * len(KINDS),
        )

    def steps(self, s: State) -> Iterator[Step[State]]:
        """Implements `Next` of the TLA+ module."""
        for i in range(self.items):
            yield from self._of_item(s, i)
        for p in range(self.processes):
            yield from self._of_process(s, p)
            if not s.paused[p]:
                yield from self._claims(s, p)
                for i in range(self.items):
                    if s.held[p][i]:
                        yield from self._holds(s, p, i)
        if (used := self.strike(s.used, "step")) is not None:
            leased = tuple(place == "leased" for place in s.place)
            yield "StepForward", (), s._replace(epoch=s.epoch + 1, ended=leased, used=used)
            yield "StepBack", (), s._replace(epoch=s.epoch + 1, used=used)

    def _of_item(self, s: State, i: int) -> Iterator[Step[State]]:
        who = (f"i{i + 1}",)
        if s.producer[i] == "idle":
            place = changed(s.place, i, "due")
            yield "Schedule", who, s._replace(producer=changed(s.producer, i, "told"), place=place)
            if (used := self.strike(s.used, "storeReply")) is not None:
                asking = changed(s.producer, i, "asking")
                yield "ScheduleReplyLost", who, s._replace(producer=asking, place=place, used=used)
        if s.producer[i] == "asking":
            again = self.broken == "schedule-without-token" and s.place[i] == "done"
            place = changed(s.place, i, "due") if again else s.place
            yield "RepeatSchedule", who, s._replace(producer=changed(s.producer, i, "told"), place=place)
        if s.place[i] == "leased" and (
            s.ended[i]
            or not any(not s.paused[p] and s.held[p][i] == s.claim[i] for p in range(self.processes))
            or self.broken == "lease-not-tested"
        ):
            yield "Recover", who, self._left(s, i, "due")

    def _of_process(self, s: State, p: int) -> Iterator[Step[State]]:
        who = (f"p{p + 1}",)
        running = not s.paused[p]
        if running and s.known[p] != s.epoch:
            yield "Look", who, s._replace(known=changed(s.known, p, s.epoch))
        if s.asked[p]:
            forgotten = s._replace(asked=changed(s.asked, p, 0))
            if running:
                number = s.asked[p]
                row = tuple(number if s.claim[i] == number else held for i, held in enumerate(s.held[p]))
                yield "RepeatClaim", who, forgotten._replace(held=changed(s.held, p, row))
                yield "GiveUpClaim", who, forgotten
            else:
                yield "ForgetAnswer", who, forgotten
        if (used := self.strike(s.used, "death")) is not None:
            yield (
                "Die",
                who,
                s._replace(
                    held=changed(s.held, p, (0,) * self.items),
                    sent=changed(s.sent, p, (False,) * self.items),
                    asked=changed(s.asked, p, 0),
                    known=changed(s.known, p, 0),
                    paused=changed(s.paused, p, False),
                    used=used,
                ),
            )
        if not running:
            yield "Wake", who, s._replace(paused=changed(s.paused, p, False))
        elif (used := self.strike(s.used, "pause")) is not None:
            yield "Pause", who, s._replace(paused=changed(s.paused, p, True), used=used)

    def _claims(self, s: State, p: int) -> Iterator[Step[State]]:
        fresh = s.known[p] == s.epoch
        if s.asked[p] or not s.known[p] or not (fresh or self.broken == "epoch-not-compared"):
            return
        due = [i for i in range(self.items) if s.place[i] == "due" and not s.held[p][i]]
        number = s.claims + 1
        for size in range(1, len(due) + 1):
            for batch in combinations(due, size):
                who = (f"p{p + 1}", "{" + ", ".join(f"i{i + 1}" for i in batch) + "}")
                taken = s._replace(
                    claims=number,
                    place=tuple("leased" if i in batch else place for i, place in enumerate(s.place)),
                    claim=tuple(number if i in batch else claim for i, claim in enumerate(s.claim)),
                    outdated=s.outdated or not fresh,
                )
                row = tuple(number if i in batch else held for i, held in enumerate(s.held[p]))
                yield "Claim", who, taken._replace(held=changed(s.held, p, row))
                if (used := self.strike(s.used, "storeReply")) is not None:
                    yield "ClaimReplyLost", who, taken._replace(asked=changed(s.asked, p, number), used=used)

    def _holds(self, s: State, p: int, i: int) -> Iterator[Step[State]]:
        who = (f"p{p + 1}", f"i{i + 1}")
        ours = s.claim[i] == s.held[p][i]
        if not s.sent[p][i]:
            out = s._replace(published=changed(s.published, i, s.published[i] + 1))
            yield "Publish", who, out._replace(sent=changed(s.sent, p, changed(s.sent[p], i, True)))
            if (used := self.strike(s.used, "brokerReply")) is not None:
                yield "PublishReplyLost", who, out._replace(used=used)
            if (used := self.strike(s.used, "refusal")) is not None:
                yield "Release", who, self._let_go(self._settled(s, p, i, "due"), p, i)._replace(used=used)
        if not ours:
            yield "Extend", who, self._let_go(s, p, i)
        elif s.ended[i]:
            yield "Extend", who, s._replace(ended=changed(s.ended, i, False))
        if s.sent[p][i] or self.broken == "settle-before-publish":
            settled = self._settled(s, p, i, "done")
            yield "Settle", who, self._let_go(settled, p, i)
            if ours and (used := self.strike(s.used, "storeReply")) is not None:
                yield "SettleReplyLost", who, settled._replace(used=used)

    def _settled(self, s: State, p: int, i: int, place: str) -> State:
        if s.claim[i] == s.held[p][i]:
            return self._left(s, i, place)
        if self.broken == "claim-number-not-compared" and s.place[i] == "leased":
            return self._left(s, i, place)._replace(strays=changed(s.strays, i, True))
        return s

    @staticmethod
    def _left(s: State, i: int, place: str) -> State:
        return s._replace(
            place=changed(s.place, i, place), claim=changed(s.claim, i, 0), ended=changed(s.ended, i, False)
        )

    @staticmethod
    def _let_go(s: State, p: int, i: int) -> State:
        return s._replace(
            held=changed(s.held, p, changed(s.held[p], i, 0)),
            sent=changed(s.sent, p, changed(s.sent[p], i, False)),
        )

    def is_finished(self, s: State) -> bool:
        """Implements `AllDone` of the TLA+ module."""
        return all(state == "told" for state in s.producer) and all(place == "done" for place in s.place)

    @property
    def invariants(self) -> dict[str, Callable[[State], bool]]:
        """The invariants of the TLA+ module."""
        return {
            "OnePlace": lambda s: all(
                (place == "leased") == (claim != 0) and claim <= s.claims and (place == "leased" or not ended)
                for place, claim, ended in zip(s.place, s.claim, s.ended, strict=True)
            ),
            "NeverLost": lambda s: (
                0 not in s.published
                or all(
                    (state == "idle" or place != "none") and (place != "done" or count > 0)
                    for state, place, count in zip(s.producer, s.place, s.published, strict=True)
                )
            ),
            "SettledUnderPresentClaim": lambda s: True not in s.strays,
            "ClaimedInPresentEpoch": lambda s: not s.outdated,
            "DuplicatesNeedAFault": lambda s: (
                max(s.published) <= 1 or max(s.published) <= 1 + sum(s.used[KINDS.index(kind)] for kind in EXCUSES)
            ),
        }
