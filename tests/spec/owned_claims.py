"""The model `docs/spec/OwnedClaims.tla` in Python: due items of an owned shard are sent to Kafka in transactions.

Variables, actions, invariants and safeguards have the names of the TLA+ module; `test_tla.py` compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import ClassVar, NamedTuple

from tests.spec.explorer import Model, Step, changed

Grid = tuple[tuple[int, ...], ...]
Flags = tuple[bool, ...]

KINDS = ("death", "leaseEnd", "step", "storeReply", "brokerReply", "refusal", "forget")
UNKNOWN = -1
NOBODY = -1


class State(NamedTuple):
    """The variables of the TLA+ module. Sets are tuples of truth values by index; processes are numbers from 0 on."""

    place: tuple[str, ...]
    claim: tuple[int, ...]
    claims: int
    epoch: int
    owner: int
    senders: Flags
    last: int
    published: tuple[int, ...]
    stage: tuple[str, ...]
    mine: tuple[int, ...]
    number: tuple[int, ...]
    asked: tuple[int, ...]
    suspect: Flags
    held: Grid
    out: tuple[Flags, ...]
    doubt: tuple[str, ...]
    strays: Flags
    used: tuple[int, ...]


class OwnedClaims(Model[State]):
    """The model of the TLA+ module `OwnedClaims`."""

    name = "OwnedClaims"
    kinds = KINDS
    of_items = ("place", "claim", "published", "strays")
    of_processes = ("senders", "stage", "mine", "number", "asked", "suspect", "doubt")
    grids = ("held", "out")
    one_process = "owner"
    safeguards: ClassVar[Mapping[str, str]] = {
        "fencing-skipped": "EffectivelyOnce",
        "number-not-in-the-transaction": "EffectivelyOnce",
        "settle-before-send": "NeverLost",
        "epoch-not-compared-by-claim": "NeverLost",
        "epoch-not-compared-by-resolve": "EffectivelyOnce",
        "claim-without-token": "NeverLost",
        "claim-number-not-compared": "SettledUnderPresentClaim",
        "sent-out-of-order": "NeverLost",
        "doubt-not-asked": "EffectivelyOnce",
        "doubt-not-confirmed": "EffectivelyOnce",
        "refresh-in-doubt": "EffectivelyOnce",
    }

    def initial(self) -> State:
        """Implements `Init` of the TLA+ module."""
        nobody, nothing, zero = (False,) * self.processes, (False,) * self.items, (0,) * self.processes
        return State(
            place=("due",) * self.items,
            claim=(0,) * self.items,
            claims=0,
            epoch=1,
            owner=NOBODY,
            senders=nobody,
            last=UNKNOWN,
            published=(0,) * self.items,
            stage=("out",) * self.processes,
            mine=zero,
            number=zero,
            asked=zero,
            suspect=nobody,
            held=((0,) * self.items,) * self.processes,
            out=(nothing,) * self.processes,
            doubt=("no",) * self.processes,
            strays=nothing,
            used=(0,) * len(KINDS),
        )

    def steps(self, s: State) -> Iterator[Step[State]]:
        """Implements `Next` of the TLA+ module."""
        for p in range(self.processes):
            yield from self._ownership(s, p)
            yield from self._claiming(s, p)
            yield from self._sending(s, p)
            yield from self._doubting(s, p)
            for i in range(self.items):
                if s.held[p][i]:
                    yield from self._settling(s, p, i)
            yield from self._process_faults(s, p)
        if (used := self.strike(s.used, "step")) is not None:
            yield "ClockStep", (), s._replace(epoch=s.epoch + 1, used=used)
        if s.last != UNKNOWN and "ready" not in s.stage and (used := self.strike(s.used, "forget")) is not None:
            yield "BrokerForgets", (), s._replace(last=UNKNOWN, used=used)

    def _drop(self, s: State, p: int) -> State:
        """The state after the process `p` has lost the shard. The process drops the claims of this ownership that it
        has not sent."""
        kept = tuple(n if out else 0 for n, out in zip(s.held[p], s.out[p], strict=True))
        return s._replace(
            stage=changed(s.stage, p, "out"),
            mine=changed(s.mine, p, 0),
            number=changed(s.number, p, 0),
            asked=changed(s.asked, p, 0),
            suspect=changed(s.suspect, p, False),
            held=changed(s.held, p, kept),
            doubt=changed(s.doubt, p, "no"),
        )

    def _ownership(self, s: State, p: int) -> Iterator[Step[State]]:
        who, stage = (f"p{p + 1}",), s.stage[p]
        if stage == "out":
            epoch = s.epoch if s.owner == p else s.epoch + 1
            owned = s._replace(epoch=epoch, owner=p, mine=changed(s.mine, p, epoch), stage=changed(s.stage, p, "owned"))
            if s.owner in (p, NOBODY):
                yield "Acquire", who, owned
            elif (used := self.strike(s.used, "leaseEnd")) is not None:
                yield "AcquireEnded", who, owned._replace(used=used)
            return
        if s.owner != p:
            yield "Renew", who, self._drop(s, p)
        elif s.mine[p] != s.epoch:
            yield "Renew", who, s._replace(mine=changed(s.mine, p, s.epoch))
        if stage == "owned":
            alone = s.senders if self.broken == "fencing-skipped" else (False,) * self.processes
            senders = changed(alone, p, True)
            yield "Fence", who, s._replace(senders=senders, stage=changed(s.stage, p, "fenced"))
        elif stage == "fenced":
            number = changed(s.number, p, s.last)
            yield "ReadNumber", who, s._replace(number=number, stage=changed(s.stage, p, "read"))
        elif stage == "read":
            if s.mine[p] == s.epoch or self.broken == "epoch-not-compared-by-resolve":
                ended = self._end_open(s, s.number[p], 0)
                number = changed(s.number, p, s.claims if s.number[p] == UNKNOWN else s.number[p])
                yield "Resolve", who, ended._replace(number=number, stage=changed(s.stage, p, "resolved"))
            else:
                yield "Resolve", who, self._drop(s, p)
        elif stage == "resolved":
            if s.senders[p]:
                yield "SendNumber", who, s._replace(last=s.number[p], stage=changed(s.stage, p, "ready"))
            else:
                yield "SendNumber", who, s._replace(stage=changed(s.stage, p, "owned"))

    @staticmethod
    def _end_open(s: State, committed: int, spared: int) -> State:
        """End all open claims except `spared`. Claims up to number `committed` were sent, later ones were not.

        If `committed` is UNKNOWN, nobody knows which claims were sent, and their items are held.
        """
        places, claims = list(s.place), list(s.claim)
        for i, number in enumerate(s.claim):
            if number and number != spared:
                claims[i] = 0
                sent = "done" if number <= committed else "due"
                places[i] = "held" if committed == UNKNOWN else sent
        return s._replace(place=tuple(places), claim=tuple(claims), claims=max(s.claims, committed))

    @staticmethod
    def _open(s: State, p: int) -> list[int]:
        """The numbers of the claims that the process `p` has not sent, in order."""
        return sorted({n for n, out in zip(s.held[p], s.out[p], strict=True) if n and not out})

    @staticmethod
    def _sent(s: State, p: int, number: int) -> tuple[Flags, ...]:
        """The value of `out` after the process `p` has sent the claim `number`."""
        return changed(s.out, p, tuple(o or n == number for n, o in zip(s.held[p], s.out[p], strict=True)))

    def _claiming(self, s: State, p: int) -> Iterator[Step[State]]:
        who = (f"p{p + 1}",)
        if s.asked[p]:
            answered = s._replace(asked=changed(s.asked, p, 0))
            row = tuple(s.asked[p] if c == s.asked[p] else n for c, n in zip(s.claim, s.held[p], strict=True))
            known = s.held if self.broken == "claim-without-token" else changed(s.held, p, row)
            yield "RepeatClaim", who, answered._replace(held=known)
            yield "GiveUpClaim", who, answered._replace(suspect=changed(s.suspect, p, True))
        if s.stage[p] != "ready":
            return
        if s.suspect[p]:
            if s.mine[p] == s.epoch:
                spared = min(self._open(s, p), default=0)
                row = tuple(n if out or n == spared else 0 for n, out in zip(s.held[p], s.out[p], strict=True))
                ended = self._end_open(s, s.number[p], spared)
                suspect = changed(s.suspect, p, False)
                yield "ResolveOwn", who, ended._replace(held=changed(s.held, p, row), suspect=suspect)
            return
        if s.asked[p] or not (s.mine[p] == s.epoch or self.broken == "epoch-not-compared-by-claim"):
            return
        due = [i for i in range(self.items) if s.place[i] == "due" and not s.held[p][i]]
        number = max(s.claims, s.number[p]) + 1
        for size in range(1, len(due) + 1):
            for batch in combinations(due, size):
                who = (f"p{p + 1}", "{" + ", ".join(f"i{i + 1}" for i in batch) + "}")
                taken = s._replace(
                    claims=number,
                    place=tuple("leased" if i in batch else place for i, place in enumerate(s.place)),
                    claim=tuple(number if i in batch else claim for i, claim in enumerate(s.claim)),
                )
                row = tuple(number if i in batch else n for i, n in enumerate(s.held[p]))
                yield "Claim", who, taken._replace(held=changed(s.held, p, row))
                if (used := self.strike(s.used, "storeReply")) is not None:
                    yield "ClaimReplyLost", who, taken._replace(asked=changed(s.asked, p, number), used=used)

    def _sending(self, s: State, p: int) -> Iterator[Step[State]]:
        if s.stage[p] != "ready" or s.doubt[p] != "no":
            return
        numbers = self._open(s, p)
        for n in numbers if self.broken == "sent-out-of-order" else numbers[:1]:
            who = (f"p{p + 1}", str(n))
            used = self.strike(s.used, "brokerReply")
            if used is not None:
                yield "SendUnsure", who, s._replace(doubt=changed(s.doubt, p, "asked"), used=used)
            if not s.senders[p]:
                yield "Send", who, self._drop(s, p)
                continue
            out = self._sent(s, p, n)
            committed = s._replace(
                published=tuple(
                    count + (new and not old) for count, new, old in zip(s.published, out[p], s.out[p], strict=True)
                ),
                last=s.last if self.broken == "number-not-in-the-transaction" else n,
            )
            number = changed(s.number, p, max(s.number[p], n))
            yield "Send", who, committed._replace(out=out, number=number)
            if used is not None:
                doubt = "no" if self.broken == "doubt-not-asked" else "asked"
                yield "SendReplyLost", who, committed._replace(doubt=changed(s.doubt, p, doubt), used=used)

    def _doubting(self, s: State, p: int) -> Iterator[Step[State]]:
        who, doubt = (f"p{p + 1}",), s.doubt[p]
        if doubt in ("asked", "again"):
            alone = changed((False,) * self.processes, p, True)
            yield "DoubtFence", who, s._replace(senders=alone, doubt=changed(s.doubt, p, "fenced"))
        elif doubt == "fenced":
            numbers = self._open(s, p)
            found = "sent" if s.last != UNKNOWN and numbers and s.last >= numbers[0] else "unsent"
            yield "DoubtRead", who, s._replace(doubt=changed(s.doubt, p, found))
        elif doubt in ("sent", "unsent"):
            if (s.owner == p and s.mine[p] == s.epoch) or self.broken == "doubt-not-confirmed":
                known = s._replace(doubt=changed(s.doubt, p, "no"))
                if doubt == "sent":
                    n = self._open(s, p)[0]
                    known = known._replace(out=self._sent(s, p, n), number=changed(s.number, p, n))
                yield "DoubtConfirm", who, known
            else:
                yield "DoubtConfirm", who, self._drop(s, p)
            if (used := self.strike(s.used, "storeReply")) is not None:
                yield "DoubtWaits", who, s._replace(doubt=changed(s.doubt, p, "again"), used=used)

    def _settling(self, s: State, p: int, i: int) -> Iterator[Step[State]]:
        who = (f"p{p + 1}", f"i{i + 1}")
        let_go = changed(s.held, p, changed(s.held[p], i, 0))
        if s.out[p][i]:
            out = changed(s.out, p, changed(s.out[p], i, False))
            yield "Settle", who, self._settled(s, p, i, "done")._replace(held=let_go, out=out)
        else:
            if self.broken == "settle-before-send" and s.claim[i] == s.held[p][i]:
                yield "Settle", who, self._settled(s, p, i, "done")
            if s.doubt[p] == "no" and (used := self.strike(s.used, "refusal")) is not None:
                yield "Leave", who, self._settled(s, p, i, "due")._replace(held=let_go, used=used)

    def _settled(self, s: State, p: int, i: int, place: str) -> State:
        ours = s.claim[i] == s.held[p][i]
        if not ours and not (self.broken == "claim-number-not-compared" and s.place[i] == "leased"):
            return s
        strays = s.strays if ours else changed(s.strays, i, True)
        return s._replace(place=changed(s.place, i, place), claim=changed(s.claim, i, 0), strays=strays)

    def _process_faults(self, s: State, p: int) -> Iterator[Step[State]]:
        who = (f"p{p + 1}",)
        if (used := self.strike(s.used, "death")) is not None:
            dead = self._drop(s, p)._replace(
                held=changed(s.held, p, (0,) * self.items),
                out=changed(s.out, p, (False,) * self.items),
                owner=NOBODY if s.owner == p else s.owner,
                senders=changed(s.senders, p, False),
                used=used,
            )
            yield "Die", who, dead
        quiet = not self._open(s, p) or (s.doubt[p] in ("no", "again") and self.broken == "refresh-in-doubt")
        if s.stage[p] == "ready" and quiet and s.senders[p] and (used := self.strike(s.used, "forget")) is not None:
            yield "Refresh", who, s._replace(last=s.number[p], used=used)

    def is_finished(self, s: State) -> bool:
        """Implements `AllDone` of the TLA+ module."""
        return all(place in ("done", "held") for place in s.place)

    @property
    def invariants(self) -> dict[str, Callable[[State], bool]]:
        """The invariants of the TLA+ module."""
        return {
            "OnePlace": lambda s: all(
                (place == "leased") == (claim != 0) and claim <= s.claims
                for place, claim in zip(s.place, s.claim, strict=True)
            ),
            "NeverLost": lambda s: (
                0 not in s.published
                or all(place != "done" or count for place, count in zip(s.place, s.published, strict=True))
            ),
            "EffectivelyOnce": lambda s: max(s.published) <= 1,
            "SettledUnderPresentClaim": lambda s: True not in s.strays,
            "NumberTellsTheTruth": lambda s: (
                s.last == UNKNOWN
                or all(
                    not claim or (claim <= s.last) == (count > 0)
                    for claim, count in zip(s.claim, s.published, strict=True)
                )
            ),
        }
