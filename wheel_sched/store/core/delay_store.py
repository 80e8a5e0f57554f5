"""DelayStore: the blocking facade of the delay store, over any backend.

Every method runs a plan (see `plans`), from any thread. Errors are those of `wheel_sched.errors`. After
`StoreUnavailable` the outcome is unknown: repeat the call with the same `token` or the same ids. The repeat is safe and
gives the first answer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, Self, TypeVar

from wheel_sched.errors import InDoubt
from wheel_sched.store.core.call import Call, new_token
from wheel_sched.store.core.change import Alteration
from wheel_sched.store.core.claim import Claim, ClaimDue, NumberedClaim
from wheel_sched.store.core.counts import Counts
from wheel_sched.store.core.items import MAX_DUE_MS, Found, Item, Marker, Outcome, State
from wheel_sched.store.core.levels import opening
from wheel_sched.store.core.listing import Page
from wheel_sched.store.core.pending import SentCalls
from wheel_sched.store.core.plans import Plans
from wheel_sched.store.core.schedule import Stored
from wheel_sched.store.core.settle import Settled, Settlement
from wheel_sched.store.core.sweep import ReportJump, Swept
from wheel_sched.store.core.window import Window

T = TypeVar("T")


class Backend(Protocol):
    """Performs calls for the blocking facade."""

    cluster: bool

    def execute(self, calls: Sequence[Call[Any]], now_ms: int | None = None) -> list[Any]:
        """Perform calls; a value or an exception for each, in order."""
        ...

    def begin(self, calls: Sequence[Call[Any]], now_ms: int | None = None) -> SentCalls:
        """`execute` in two halves: send at least one call now, and wait for the answers later."""
        ...

    def check_server(self) -> None:
        """Refuse a server that cannot keep the durability level."""
        ...

    def info(self) -> dict[str, Any]:
        """The INFO of the server, {} where there is none."""
        ...

    def identity(self) -> tuple[str, int] | None:
        """(run id, database) of a standalone server, None elsewhere."""
        ...

    def waiter(self, shard: int, timeout_ms: int) -> Any:
        """A new connection for `wait_for_mark`."""
        ...

    def wait_for_mark(self, waiter: Any, marks: dict[int, bytes], timeout_ms: int) -> dict[int, Marker]:
        """Block until the marker of a shard is newer than in `marks`. Returns the newer markers, {} at the timeout."""
        ...

    def interrupt(self, waiter: Any) -> None:
        """Make a blocked `wait_for_mark` return at once; from another thread."""
        ...

    def close(self) -> None:
        """Release connections. Idempotent."""
        ...


def values_of(answers: list[Any]) -> list[Any]:
    """The answers. Raises the first error among them, and `InDoubt` only when there is no other error."""
    errors = [answer for answer in answers if isinstance(answer, Exception)]
    for error in errors:
        if not isinstance(error, InDoubt):
            raise error
    if errors:
        raise errors[0]
    return answers


def release_of(ids: Sequence[str], due_ms: int | None) -> list[Alteration]:
    """Changes that release held items, at `due_ms` or at their old due."""
    return [Alteration(item_id, "u", "=" if due_ms is None else due_ms) for item_id in ids]


def replacement_of(
    item: Item, keep_due: bool, version: int | None, create: bool, in_flight: bool = False
) -> list[Alteration]:
    """The change that gives an item a new body."""
    due: int | str = "=" if keep_due else "" if item.due_ms is None else item.due_ms
    return [Alteration(item.id, "P" if create else "i" if in_flight else "p", due, version, item)]


class DelayStore:
    """The blocking facade. Thread-safe when its backend is thread-safe, as all backends of this package are.

    Args:
        backend: performs the calls.
        shards: number of shards of the namespace. Defaults to 1.
        test_clock: gives now in ms for a namespace created with `clock="test"`. Defaults to None: the server's time.
    """

    def __init__(self, backend: Backend, *, shards: int = 1, test_clock: Callable[[], int] | None = None) -> None:
        self.backend = backend
        self.plans = Plans(shards)
        self._test_clock = test_clock

    @property
    def shards(self) -> int:
        return self.plans.shards

    @property
    def ticks(self) -> bool:
        """Whether time passes by itself; False under a test clock."""
        return self._test_clock is None

    @property
    def namespace(self) -> str:
        """The namespace of the keys. A store in memory has a name that no other store has."""
        dialect = getattr(self.backend, "dialect", None)
        return str(dialect.namespace) if dialect is not None else f"memory-{id(self.backend):x}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {type(self.backend).__name__} shards={self.shards}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, plan: Generator[list[Call[Any]], list[Any], T], answers: list[Any] | None = None) -> T:
        """Run a plan to its end. With `answers`, its first calls were already sent: these are their answers."""
        try:
            calls = next(plan) if answers is None else plan.send(values_of(answers))
            while True:
                calls = plan.send(values_of(self.execute(calls)))
        except StopIteration as end:
            result: T = end.value
            return result

    def execute(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Perform calls in one round trip; a value or an exception for each."""
        return self.backend.execute(calls, None if self._test_clock is None else self._test_clock())

    def begin(self, calls: Sequence[Call[Any]]) -> SentCalls:
        """`execute` in two halves, so that the caller works while the server does."""
        return self.backend.begin(calls, None if self._test_clock is None else self._test_clock())

    def open(self) -> Self:
        """Check the server. Create the namespace when it is absent, otherwise check that it matches.

        Raises:
            StoreError: the server is away, too old or cannot keep the durability level, or the namespace differs.
        """
        self.backend.check_server()
        with opening():
            self.run(self.plans.open("server" if self._test_clock is None else "test"))
        return self

    def schedule(self, items: Sequence[Item], *, token: str | None = None) -> Stored:
        """Store new items. An id that exists, in any state, is not changed (DUPLICATE).

        With the token "" the server keeps no answer for repeats, which saves two commands. A repeat then answers
        DUPLICATE for each item that the first call stored.

        Raises:
            Rejected: one of the items is malformed; none was stored.
        """
        return self.run(self.plans.schedule(items, token))

    def claim(
        self,
        limit: int = 100,
        *,
        lease_ms: int = 30_000,
        shard: int = 0,
        until_ms: int | None = None,
        epoch: int | None = None,
        lapse_cap: int = 0,
        token: str | None = None,
    ) -> Claim:
        """Claim up to `limit` items that are due at min(store's now, `until_ms`), under a lease.

        First the store recovers items whose lease ran out: they wait again, or die after `lapse_cap` times (0 = never).
        A repeat with the same `token` gives the same batch.
        """
        operation = ClaimDue(limit, lease_ms, until_ms, epoch, lapse_cap, token or new_token())
        return self.run(self.plans.one(shard, operation))

    def settle(
        self,
        claim: NumberedClaim,
        settlements: Sequence[Settlement],
        *,
        dead_cap: int = 0,
        token: str | None = None,
    ) -> Settled:
        """End items of a claim. An item that is no longer under the claim is STALE and is not changed."""
        return self.run(self.plans.settle(claim, settlements, dead_cap, token))

    def extend(self, claim: NumberedClaim, ids: Sequence[str], lease_ms: int = 30_000) -> list[Outcome]:
        """Set the end of leases to `lease_ms` from now."""
        return self.run(self.plans.extend(claim, ids, lease_ms))

    def reschedule(
        self, ids: Sequence[str], due_ms: int, *, route: str | None = None, token: str | None = None
    ) -> list[Outcome]:
        """Give waiting or held items a new due. Items in flight are not changed (IN_FLIGHT)."""
        return self.run(self.plans.change([Alteration(i, "r", due_ms) for i in ids], route, token))

    def replace(
        self,
        item: Item,
        *,
        keep_due: bool = False,
        if_version: int | None = None,
        create: bool = False,
        in_flight: bool = False,
        token: str | None = None,
    ) -> Outcome:
        """Give an item a new body and, unless `keep_due`, a new due. With `if_version`, only when it has this version.

        With `in_flight` the call also replaces the record of a claimed item. The item stays claimed, and a settlement
        with the version of the claim gets OTHER_VERSION. A claimed item that was cancelled is then ABSENT. `in_flight`
        excludes `create`.
        """
        change = replacement_of(item, keep_due, if_version, create, in_flight)
        return self.run(self.plans.change(change, None, token))[0]

    def cancel(self, ids: Sequence[str], *, route: str | None = None, token: str | None = None) -> list[Outcome]:
        """Remove waiting or held items (DONE). An item in flight leaves when its claim ends (CANCELLED)."""
        return self.run(self.plans.change([Alteration(i, "c") for i in ids], route, token))

    def hold(
        self, ids: Sequence[str], reason: str, *, route: str | None = None, token: str | None = None
    ) -> list[Outcome]:
        """Hold waiting items for a reason."""
        return self.run(self.plans.change([Alteration(i, "h", reason) for i in ids], route, token))

    def release(
        self, ids: Sequence[str], due_ms: int | None = None, *, route: str | None = None, token: str | None = None
    ) -> list[Outcome]:
        """Let held items wait again, with `due_ms` or with their old due."""
        return self.run(self.plans.change(release_of(ids, due_ms), route, token))

    def requeue(
        self,
        dues: Sequence[tuple[str, int, Item | None]],
        *,
        route: str | None = None,
        token: str | None = None,
    ) -> list[Outcome]:
        """Let dead letters wait again: (id, due, item with a new body or None)."""
        alterations = [Alteration(i, "q", due, None, item) for i, due, item in dues]
        return self.run(self.plans.change(alterations, route, token))

    def delete_dead(self, ids: Sequence[str], *, route: str | None = None, token: str | None = None) -> list[Outcome]:
        """Delete dead letters for good."""
        return self.run(self.plans.change([Alteration(i, "x") for i in ids], route, token))

    def change(
        self, alterations: Sequence[Alteration], *, route: str | None = None, token: str | None = None
    ) -> list[Outcome]:
        """Make several changes, of different kinds or with different dues, in as few calls as possible."""
        return self.run(self.plans.change(alterations, route, token))

    def get(self, ids: Sequence[str], *, route: str | None = None, anywhere: bool = False) -> list[Found | None]:
        """Items in any state, None for an id that does not exist.

        With `anywhere` the store looks for absent ids in all shards, because a route may have put them there.
        """
        return self.run(self.plans.get(ids, route, anywhere))

    def find(self, ref: str, *, limit: int = 1000) -> list[str]:
        """Ids that carry `ref`, in no order."""
        return self.run(self.plans.find(ref, limit))

    def list_items(
        self,
        state: State = "due",
        *,
        topic: str | None = None,
        least_ms: int = 0,
        greatest_ms: int = MAX_DUE_MS,
        cursor: str | None = None,
        limit: int = 100,
        matches: Callable[[Found], bool] | None = None,
    ) -> Page:
        """One page of a state in order of due, lease deadline or time of death."""
        return self.run(
            self.plans.list_items(
                state,
                topic=topic,
                least_ms=least_ms,
                greatest_ms=greatest_ms,
                cursor=cursor,
                limit=limit,
                matches=matches,
            )
        )

    def counts(self) -> Counts:
        """The counters of the namespace."""
        return self.run(self.plans.counts())

    def counts_by_shard(self) -> list[Counts]:
        """The counters of each shard."""
        return self.run(self.plans.counts_by_shard())

    def pause(self, topic: str) -> int:
        """Hold all items of a topic until `resume`. Returns how many waiting items this call held."""
        return self.run(self.plans.pause(topic))

    def resume(self, topic: str, *, spread_ms: int = 0) -> int:
        """End the pause of a topic and spread overdue items over `spread_ms`. Returns how many items wait again."""
        return self.run(self.plans.resume(topic, spread_ms))

    def now_ms(self) -> int:
        """The time of the store in ms; it decides which items are due. One round trip."""
        return self.run(self.plans.now_ms())

    def windows(self, ahead_ms: int, limit: int = 1000) -> list[Window]:
        """For each shard, the items that it releases next."""
        return self.run(self.plans.windows(ahead_ms, limit))

    def sweep(self, *, dead_cap: int = 0, dead_age_ms: int = 0, lapse_cap: int = 0) -> list[Swept]:
        """Recover leases, remove dead letters above the caps and clean up, one bounded step per shard."""
        return self.run(self.plans.sweep(dead_cap, dead_age_ms, lapse_cap))

    def report_jump(self, shard: int, epoch: int, step_ms: int) -> int:
        """Record a step of the clock. Returns the epoch of the shard after the call."""
        return self.run(self.plans.one(shard, ReportJump(epoch, step_ms)))

    def restore(self, found: Sequence[Found]) -> int:
        """Put items back exactly as they were, for restore and reshard. Returns how many items were put back."""
        return self.run(self.plans.restore(found))

    def bury(self, graves: Sequence[tuple[Item, str]]) -> int:
        """Store items as dead letters, each with a reason; `due_ms` is the time of death.

        An id that exists is not changed. Returns how many items were stored.
        """
        return self.run(self.plans.bury(graves))

    def close(self) -> None:
        """Release connections. Idempotent."""
        self.backend.close()
