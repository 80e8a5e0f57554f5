"""The thread that calls the store, so that a worker's event loop does not wait for it."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest
from wheel_sched_celery.store_thread import StoreThread

from wheel_sched.errors import StoreUnavailable


def test_the_asker_gets_the_answer_or_the_error() -> None:
    """The job runs in the store thread. `ask` returns its answer or raises its error."""
    thread = StoreThread()
    assert thread.ask(threading.get_ident) != threading.get_ident()
    with pytest.raises(KeyError, match="odd"):
        thread.ask(lambda: {}["odd"])
    thread.submit(lambda: {}["odd"])  # is logged, and the thread goes on
    assert thread.ask(lambda: 1) == 1


def test_an_asker_waits_no_longer_than_its_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its time limit `ask` raises an error, which says whether the job has begun and may still be done, or was
    not sent. While another job hangs, `ask` raises the error at once."""
    thread, over, later, done = StoreThread(), threading.Event(), threading.Event(), list[int]()
    with pytest.raises(StoreUnavailable, match="may still be done"):
        thread.ask(over.wait, 0.01)
    with pytest.raises(StoreUnavailable, match="nothing was sent"):
        thread.ask(lambda: done.append(1), 0.01)
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 0.6)
    assert thread.stuck
    with pytest.raises(StoreUnavailable, match="nothing was sent"):
        thread.ask(lambda: done.append(1), 60)
    thread.submit(later.set)
    over.set()
    assert later.wait(10)
    assert done == []


def test_finish_waits_for_jobs_in_time_and_drops_the_others() -> None:
    """`finish` drops jobs that have not begun and returns their number. The thread does not keep its process alive."""
    thread, begun, over, done = StoreThread(), threading.Event(), threading.Event(), list[int]()
    thread.submit(lambda: done.append(1))
    assert (thread.finish(60), done) == (0, [1])

    def hangs() -> None:
        begun.set()
        over.wait(60)

    thread.submit(hangs)
    assert begun.wait(60)
    for n in range(40):
        thread.submit(partial(done.append, n))
    assert thread.finish(0.01) == 40
    over.set()
    assert (thread.finish(60), done) == (0, [1])
    assert thread._thread is not None
    assert thread._thread.daemon


class Stepped(StoreThread):
    """A `StoreThread` that starts no thread: the test runs each job."""

    def start(self) -> None:
        """Does nothing."""


def test_a_simulation_runs_the_jobs_one_by_one_in_its_own_thread(caplog: pytest.LogCaptureFixture) -> None:
    """A simulation runs the jobs in order, in its own thread. A job that fails is logged, and the next job runs."""
    thread, ran_in = Stepped(), list[int]()
    assert thread.step(wait=False) is False
    thread.submit(lambda: {}["odd"])
    thread.submit(lambda: ran_in.append(threading.get_ident()))
    assert thread.step() is True
    assert (ran_in, caplog.text.count("celery.store_thread")) == ([], 1)
    assert thread.step() is True
    assert (ran_in, thread.stuck) == ([threading.get_ident()], False)
    assert thread.step(wait=False) is False
