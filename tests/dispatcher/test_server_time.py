"""The estimate of the store's clock, tested against a simulated server, network and drift."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheel_sched.dispatcher.store_calls import JUMP_US, ServerTime

BASE_US = 1_767_225_600_000_000
JITTER_US = 1  # both clocks are read in whole microseconds


class Talk(NamedTuple):
    """One call, in microseconds: the pause before the call, and the travel times of the request and of the reply."""

    pause_us: int
    out_us: int
    back_us: int


LATENCY = st.one_of(st.integers(0, 500), st.integers(0, 4_000_000))
TALKS = st.lists(st.builds(Talk, st.integers(0, 600_000_000), LATENCY, LATENCY), min_size=1, max_size=40)


class Server:
    """A server whose clock runs `drift_ppm` parts per million faster than the local clock."""

    def __init__(self, drift_ppm: int = 0) -> None:
        self.local_us = 10_000_000
        self.step_us = 0
        self._drift_ppm = drift_ppm

    def true_us(self, local_us: int) -> int:
        return BASE_US + self.step_us + local_us + local_us * self._drift_ppm // 1_000_000

    def observe(self, time: ServerTime, talk: Talk) -> int:
        asked_us = self.local_us = self.local_us + talk.pause_us
        read_us = asked_us + talk.out_us
        self.local_us = read_us + talk.back_us
        return time.observe(self.true_us(read_us), asked_us, self.local_us)


def observed(server: Server, talks: list[Talk]) -> Iterator[tuple[ServerTime, Talk]]:
    time = ServerTime()
    for talk in talks:
        assert server.observe(time, talk) == 0
        yield time, talk


@given(TALKS)
def test_it_is_never_ahead_of_the_server_under_any_latency(talks: list[Talk]) -> None:
    """Neither at a reply nor an hour later is the estimate ahead of the server, so no claim is too early."""
    server = Server()
    for time, _ in observed(server, talks):
        for later_us in (0, 1, 3_600_000_000):
            at_us = server.local_us + later_us
            assert time.now_us(at_us) <= server.true_us(at_us)


@given(TALKS)
def test_it_lags_by_no_more_than_the_last_replys_way_back(talks: list[Talk]) -> None:
    """The estimate is behind the server by at most the time that the last reply travelled, whatever came before."""
    server = Server()
    for time, talk in observed(server, talks):
        assert server.true_us(server.local_us) - time.now_us(server.local_us) <= talk.back_us


@given(TALKS, st.integers(-100, 100))
def test_drifting_clocks_cost_no_more_than_their_drift_since_the_last_reply(talks: list[Talk], drift_ppm: int) -> None:
    """If the clocks drift, the estimate is ahead by no more than the drift since the last reply: 6 ms in a minute at
    100 ppm.

    Errors of earlier replies do not add up.
    """
    server = Server(drift_ppm)
    for time, _ in observed(server, talks):
        for silence_us in (0, 60_000_000):
            at_us = server.local_us + silence_us
            ahead_us = time.now_us(at_us) - server.true_us(at_us)
            assert ahead_us <= silence_us * abs(drift_ppm) // 1_000_000 + 2 * JITTER_US


def test_drift_does_not_add_up_over_many_quick_replies() -> None:
    """With a reply every 5 ms, the estimate is never ahead by more than the clocks' resolution, even after 20,000
    replies."""
    server = Server(drift_ppm=-100)
    for time, _ in observed(server, [Talk(2_999, 2_000, 0)] * 20_000):
        ahead_us = time.now_us(server.local_us) - server.true_us(server.local_us)
        assert ahead_us <= 2 * JITTER_US


@given(TALKS, st.integers(JUMP_US + 1, 10**15), st.sampled_from([1, -1]), LATENCY)
def test_a_large_step_is_reported_once(talks: list[Talk], size_us: int, sign: int, latency_us: int) -> None:
    """A step of the server's clock is reported once, with its sign and approximate size. Then the estimate is not
    ahead."""
    server = Server()
    time = ServerTime()
    for talk in talks:
        server.observe(time, talk)
    server.step_us = sign * (size_us + 20_000_000)  # more than the slowest talk can hide
    step_us = server.observe(time, Talk(0, 0, latency_us))
    assert step_us * sign > JUMP_US
    assert abs(step_us - server.step_us) <= 20_000_000
    assert server.observe(time, Talk(1000, latency_us, 0)) == 0
    assert time.now_us(server.local_us) <= server.true_us(server.local_us)


@given(TALKS, st.integers(1, JUMP_US))
def test_a_small_step_back_is_followed_without_a_report(talks: list[Talk], back_us: int) -> None:
    """After a small step back, as NTP makes them, no jump is reported, and the estimate is at once not ahead of the
    server."""
    server = Server()
    time = ServerTime()
    for talk in talks:
        server.observe(time, talk)
    server.step_us -= back_us
    assert server.observe(time, Talk(1_000, 50, 50)) == 0
    assert time.now_us(server.local_us) <= server.true_us(server.local_us) + 51


def test_a_small_step_forward_is_followed_at_once() -> None:
    """After a step forward of 0.3 s the next reply makes the estimate equal to the server's clock, without a report."""
    server, time = Server(), ServerTime()
    server.observe(time, Talk(0, 0, 0))
    server.step_us += 300_000
    assert server.observe(time, Talk(0, 0, 0)) == 0
    assert time.now_us(server.local_us) == server.true_us(server.local_us)


def test_there_is_no_time_before_the_first_reply() -> None:
    """`now_us` before the first reply raises an error, because no caller should ask so early."""
    time = ServerTime()
    assert not time.known
    with pytest.raises(RuntimeError, match="no reply"):
        time.now_us(0)
    time.observe(BASE_US, 0, 0)
    assert time.known
