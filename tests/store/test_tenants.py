"""Two small programs on the store, a job scheduler and a task queue, need no keys or scripts of their own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from wheel_sched.store import ServerPush
from wheel_sched.store.core.items import Item, Outcome
from wheel_sched.store.core.settle import Dead, Done, Held, Next
from wheel_sched.store.memory import MemoryBackend
from wheel_sched.store.push.push_form import decode_push, encode_push
from wheel_sched.store.redis.backend import RedisBackend
from wheel_sched.store.redis.round_trips import Dialect
from wheel_sched.testing.store_conformance import Bench

if TYPE_CHECKING:
    import redis

MINUTE_MS = 60_000


@pytest.fixture(params=["memory", "imitation", pytest.param("server", marks=pytest.mark.real)])
def bench(request: pytest.FixtureRequest, namespace: str) -> Bench:
    if request.param == "memory":
        return Bench(MemoryBackend(1, clock="test"), 1)
    client = request.getfixturevalue("shared_fake" if request.param == "imitation" else "shared_client")
    return Bench(RedisBackend(client, Dialect(namespace)), 1)


class TestJobs:
    """A scheduler stores its jobs as items: id, next run time or none, state, tags."""

    @staticmethod
    def job(bench: Bench, job_id: str, in_ms: int | None, runs: int = 0, tags: tuple[str, ...] = ()) -> Item:
        due_ms = None if in_ms is None else bench.now_ms + in_ms
        return Item(job_id, due_ms, json.dumps({"runs": runs}).encode(), "jobs", tags)

    def test_a_recurring_job_has_its_successor_in_the_same_step(self, bench: Bench) -> None:
        """One settlement ends a run and stores the job's next run. So the store always has exactly one item for the
        job."""
        bench.store.schedule([self.job(bench, "j", MINUTE_MS)])
        for run in range(5):
            bench.clock.advance(MINUTE_MS)
            claim = bench.claim()
            (item,) = claim.items
            assert (json.loads(item.body)["runs"], item.due_ms) == (run, bench.now_ms)
            successor = self.job(bench, "j", MINUTE_MS, run + 1)
            end = Next("j", successor.due_ms, successor.body, successor.topic)
            assert bench.store.settle(claim, [end]).outcomes == [Outcome.DONE]
            bench.check()
        assert bench.store.counts().now == {("due", "jobs"): 1}

    def test_a_scheduler_that_died_loses_no_run(self, bench: Bench) -> None:
        """If a scheduler dies during a run, another gets the run when the lease ends. A late settlement of the
        first one changes nothing."""
        bench.store.schedule([self.job(bench, "j", 0)])
        dead = bench.claim(lease_ms=1000)
        bench.clock.advance(1000)
        claim = bench.claim()
        assert [item.id for item in claim.items] == ["j"]
        assert bench.settle_all(claim) == [Outcome.DONE]
        late = Next("j", bench.now_ms, b"{}")
        assert bench.store.settle(dead, [late]).outcomes == [Outcome.STALE]
        assert bench.states("j") == [None]

    def test_a_paused_job_has_no_due(self, bench: Bench) -> None:
        """The store keeps a paused job and lists it, and does not hand it out until it gets a new run time."""
        bench.store.schedule([self.job(bench, "j", 5)])
        assert bench.store.replace(self.job(bench, "j", None, 3)) == Outcome.DONE
        bench.clock.advance(10 * MINUTE_MS)
        assert bench.claim().items == []
        (found,) = bench.everything("held")
        assert (found.id, found.item().due_ms, json.loads(found.body)) == ("j", None, {"runs": 3})
        assert bench.store.reschedule(["j"], bench.now_ms) == [Outcome.DONE]
        assert [item.id for item in bench.claim().items] == ["j"]

    def test_jobs_are_found_by_tag(self, bench: Bench) -> None:
        """A search by tag also finds jobs in flight and paused jobs."""
        jobs = [self.job(bench, f"j{n}", 0 if n else None, tags=("nightly", f"n{n}")) for n in range(3)]
        bench.store.schedule(jobs)
        bench.claim(1)
        assert sorted(bench.store.find("nightly")) == ["j0", "j1", "j2"]
        assert bench.store.find("n2") == ["j2"]

    def test_two_writers_of_one_job_do_not_overwrite_each_other(self, bench: Bench) -> None:
        """Two writers have read one version of a job. The first writer's change gives the job a new version, so the
        second writer's change is refused."""
        bench.store.schedule([self.job(bench, "j", 50)])
        seen = bench.one("j").version
        assert bench.store.replace(self.job(bench, "j", 60), if_version=seen) == Outcome.DONE
        assert bench.store.replace(self.job(bench, "j", 70), if_version=seen) == Outcome.OTHER_VERSION
        assert bench.one("j").score_ms == bench.now_ms + 60

    def test_a_job_removed_while_it_runs_does_not_return(self, bench: Bench) -> None:
        """If a job is removed during a run, the run may end, and the job's next run is not stored."""
        bench.store.schedule([self.job(bench, "j", 0, tags=("t",))])
        claim = bench.claim()
        assert bench.store.cancel(["j"]) == [Outcome.CANCELLED]
        assert bench.store.settle(claim, [Next("j", bench.now_ms)]).outcomes == [Outcome.CANCELLED]
        assert (bench.states("j"), bench.store.find("t")) == ([None], [])

    def test_a_job_that_cannot_be_loaded_is_quarantined(self, bench: Bench) -> None:
        """The store keeps a job that cannot be loaded, with the reason. After a repair the job can be released."""
        bench.store.schedule([self.job(bench, "j", 0)])
        bench.store.settle(bench.claim(), [Held("j", "quarantine: no module named 'jobs'")])
        assert bench.one("j").reason == "quarantine: no module named 'jobs'"
        assert bench.store.release(["j"], bench.now_ms) == [Outcome.DONE]
        assert bench.settle_all(bench.claim()) == [Outcome.DONE]


class TestTasks:
    """The store holds the messages of a task queue. Each message names the list to which the server pushes it."""

    @staticmethod
    def message(bench: Bench, task_id: str, queue: str, in_ms: int = 0) -> Item:
        body = json.dumps({"id": task_id, "eta": in_ms}).encode()
        push = encode_push("L", queue, [body])
        return Item(f"{task_id}:0", bench.now_ms + in_ms, push, queue, (task_id,), task_id)

    @pytest.fixture(params=["imitation", pytest.param("server", marks=pytest.mark.real)])
    def client(self, request: pytest.FixtureRequest) -> redis.Redis:
        client: redis.Redis = request.getfixturevalue(
            "shared_fake" if request.param == "imitation" else "shared_client"
        )
        return client

    def test_each_message_reaches_its_queue_once(self, client: Any, namespace: str) -> None:
        """Messages are pushed to their list in the order of their due times, and each message once."""
        bench = Bench(RedisBackend(client, Dialect(namespace)), 1)
        bench.store.schedule([self.message(bench, f"t{n}", "q", n) for n in (3, 1, 2)])
        for _ in range(5):
            bench.clock.advance(1)
            for _ in range(2):
                ServerPush(bench.store).push(prefix=f"{namespace}/")
        etas = [json.loads(client.rpop(f"{namespace}/q"))["eta"] for _ in range(3)]
        assert (etas, client.rpop(f"{namespace}/q")) == ([1, 2, 3], None)
        assert bench.store.counts().ever == {("accepted", "q"): 3, ("completed", "q"): 3}

    def test_a_queue_of_a_wrong_type_loses_nothing(self, client: Any, namespace: str) -> None:
        """If the key of a list has another type, a push refuses the list's message and still serves other lists. The
        caller makes the refused message a dead letter.

        When the key is deleted and the dead letter is requeued, the next push puts the message on the list.
        """
        bench = Bench(RedisBackend(client, Dialect(namespace)), 1)
        client.set(f"{namespace}/bad", "not a list")
        bench.store.schedule([self.message(bench, "a", "bad"), self.message(bench, "b", "good")])
        pushed = ServerPush(bench.store).push(prefix=f"{namespace}/")
        (refused,) = pushed.refused
        assert (refused.item.id, client.llen(f"{namespace}/good")) == ("a:0", 1)
        assert "no list: string" in refused.reason
        bench.store.settle(pushed, [Dead(refused.item.id, refused.reason)])
        assert bench.store.find("a") == ["a:0"]
        client.delete(f"{namespace}/bad")
        assert bench.store.requeue([("a:0", bench.now_ms, None)]) == [Outcome.DONE]
        assert len(ServerPush(bench.store).push(prefix=f"{namespace}/").dues_ms) == 1
        assert json.loads(client.rpop(f"{namespace}/bad"))["id"] == "a"
        bench.check()

    def test_a_task_is_revoked_by_its_id(self, bench: Bench) -> None:
        """A task is found and cancelled by its task id, which is a ref of the item. The item's own id also contains
        the number of the retry."""
        bench.store.schedule([self.message(bench, "a", "q", 5), self.message(bench, "b", "q", 5)])
        assert bench.store.cancel(bench.store.find("a"), route="a") == [Outcome.DONE]
        bench.clock.advance(5)
        claim = bench.claim()
        (item,) = claim.items
        assert decode_push(item.body).target == "q"
        assert bench.store.settle(claim, [Done(item.id)]).outcomes == [Outcome.DONE]
