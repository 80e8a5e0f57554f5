"""Conformance tests of the rates, budgets and circuits that limit releases."""

# ruff: noqa: S101 - assertions are what a test-suite is made of

from __future__ import annotations

from dataclasses import replace

import pytest

from wheel_sched.store.rate_limits import Admitted, Limits
from wheel_sched.testing.store_conformance.bench import Bench

CIRCUIT = Limits(trip_ppm=500_000, of=4, within_ms=10_000, open_ms=5_000)


class Control:
    """The rate limits of one topic."""

    def __init__(self, bench: Bench) -> None:
        self.clock = bench.clock
        self.flow = bench.rate_limits

    def admit(self, limits: Limits, wanted: int, destination: str = "") -> Admitted:
        return self.flow.admit("g/orders", limits, [(destination, wanted)])[0]

    def report(self, succeeded: int, failed: int, first: int = 0, destination: str = "") -> None:
        self.flow.report("g/orders", [(destination, first, succeeded, failed)])


class RateLimitCases:
    """Tests of rates and bursts, budgets, circuits and counters."""

    @pytest.fixture
    def control(self, wide: Bench) -> Control:
        return Control(wide)

    def test_a_rate_admits_a_burst_and_gives_the_others_slots_one_interval_apart(self, control: Control) -> None:
        """A burst is admitted at once. Each other item gets a slot: a time at which it is admitted if it asks again."""
        limits = Limits(interval_us=100_000, burst=3)
        answer = control.admit(limits, 5)
        assert (answer.granted, answer.step_us, answer.why) == (3, 100_000, "rate")
        assert answer.first_us == control.clock.now_ms * 1000 + 100_000
        for _ in range(2):
            control.clock.now_ms += 100
            assert control.admit(limits, 1).granted == 1

    def test_no_second_ever_sees_more_than_the_rate_and_its_burst(self, control: Control) -> None:
        """200 items ask at once whether they may go. A refused item asks again at the time that the answer has named.

        All are admitted in the end, and no second has more releases than the rate and the burst allow.
        """
        limits = Limits(interval_us=50_000, burst=2)
        start_us = control.clock.now_ms * 1000
        waiting, out = [start_us] * 200, []
        while waiting:
            waiting.sort()
            control.clock.now_ms = max(control.clock.now_ms, -(-waiting[0] // 1000))
            due = [at for at in waiting if at <= control.clock.now_ms * 1000][:25]
            del waiting[: len(due)]
            answer = control.admit(limits, len(due))
            out += [control.clock.now_ms * 1000] * answer.granted
            waiting += [answer.first_us + number * answer.step_us for number in range(len(due) - answer.granted)]
        assert len(out) == 200
        for number, at in enumerate(out):
            assert sum(at <= other < at + 1_000_000 for other in out[number : number + 40]) <= 20 + 2
        assert out[-1] - start_us <= 200 * 50_000 * 1.1

    def test_a_budget_allows_a_share_of_first_attempts_and_a_least(self, control: Control) -> None:
        """Without first attempts, a budget allows its least rate. First attempts add a share of their own rate."""
        limits = Limits(share_ppm=200_000, least_mhz=1_000)
        answer = control.admit(limits, 3)
        assert (answer.granted, answer.step_us, answer.why) == (1, 1_000_000, "budget")
        control.report(0, 0, first=1_000)
        control.clock.now_ms += 10_000
        answer = control.admit(limits, 500)
        first_per_s = 1_000 * (1 - control.clock.now_ms % 10_000 / 10_000) / 10
        assert answer.step_us == pytest.approx(1_000_000 / (1 + 0.2 * first_per_s), rel=0.01)
        control.clock.now_ms += 60_000
        assert control.admit(limits, 3).step_us == 1_000_000, "old first attempts do not count"

    def test_the_tighter_of_rate_and_budget_holds(self, control: Control) -> None:
        """When rate and budget differ, the smaller one limits the releases."""
        assert control.admit(Limits(interval_us=2_000_000, burst=1, share_ppm=10_000, least_mhz=1_000), 2).why == "rate"
        assert control.admit(Limits(interval_us=1_000, burst=1, share_ppm=10_000, least_mhz=1_000), 2).why == "budget"

    def test_a_circuit_opens_waits_probes_and_closes(self, control: Control) -> None:
        """A circuit goes through its states in order: closed, open, half open with one probe, closed."""
        assert control.admit(CIRCUIT, 10).granted == 10
        control.report(succeeded=1, failed=2)
        assert control.admit(CIRCUIT, 10).granted == 10, "too few results to open it"
        control.report(succeeded=0, failed=1)
        answer = control.admit(CIRCUIT, 10)
        assert (answer.granted, answer.why, answer.first_us) == (0, "open", (control.clock.now_ms + 5_000) * 1000)
        assert answer.step_us == 500_000, "refused items are spread over the time that the circuit stays open"
        control.report(succeeded=5, failed=0)
        assert control.admit(CIRCUIT, 1).granted == 0, "late results do not close an open circuit"
        control.clock.now_ms += 5_000
        answer = control.admit(CIRCUIT, 10)
        assert (answer.granted, answer.why) == (1, "half-open")
        assert control.admit(CIRCUIT, 10).granted == 0, "one probe at a time"
        control.report(succeeded=1, failed=0)
        assert control.admit(CIRCUIT, 10).granted == 10

    def test_a_failed_probe_opens_the_circuit_again_and_a_lost_one_is_repeated(self, control: Control) -> None:
        """A failed probe opens the circuit again. A probe without a result is repeated after `open_ms`."""
        control.admit(CIRCUIT, 1)
        control.report(succeeded=0, failed=4)
        assert control.admit(CIRCUIT, 1).why == "open"
        control.clock.now_ms += 5_000
        assert control.admit(CIRCUIT, 1).granted == 1
        control.report(succeeded=0, failed=1)
        assert control.admit(CIRCUIT, 1).why == "open"
        control.clock.now_ms += 5_000
        assert control.admit(CIRCUIT, 1).granted == 1
        assert control.admit(CIRCUIT, 1).granted == 0
        control.clock.now_ms += 5_000
        assert control.admit(CIRCUIT, 1).granted == 1, "the probe was lost"
        circuit = next(flow for flow in control.flow.flows() if flow.destination is not None)
        assert (circuit.numbers["opens"], circuit.numbers["probes"]) == (2, 3)

    def test_each_destination_has_a_circuit_and_all_share_the_rate(self, control: Control) -> None:
        """While the circuit of one destination is open, the other destinations share the rate of the topic."""
        limits = Limits(interval_us=1_000_000, burst=5, trip_ppm=500_000, of=4, within_ms=10_000, open_ms=5_000)
        control.admit(limits, 0, "down")
        control.report(0, 4, destination="down")
        down, up, also = control.flow.admit("g/orders", limits, [("down", 3), ("up", 3), ("also", 4)])
        assert [(one.granted, one.why) for one in (down, up, also)] == [(0, "open"), (3, "-"), (2, "rate")]

    def test_old_failures_fade(self, control: Control) -> None:
        """Failures that are much older than the window do not open a circuit."""
        control.admit(CIRCUIT, 1)
        control.report(0, 3)
        control.clock.now_ms += 30_000
        control.report(0, 1)
        assert control.admit(CIRCUIT, 1).granted == 1

    def test_failures_fade_also_after_the_window_became_longer(self, control: Control) -> None:
        """When the window becomes longer, earlier failures lose weight over the new one, and then open no circuit."""
        control.admit(CIRCUIT, 1)
        control.report(succeeded=0, failed=3)
        longer = replace(CIRCUIT, within_ms=60_000)
        control.admit(longer, 1)
        control.report(succeeded=0, failed=3)
        control.clock.now_ms += 180_000
        control.report(succeeded=0, failed=1)
        assert control.admit(longer, 1).granted == 1

    @pytest.mark.parametrize("within_ms", [10_000, 60_000, 3_600_000])
    def test_failures_before_the_first_admit_count_for_every_window(self, control: Control, within_ms: int) -> None:
        """Results that are reported before the first `admit` count in a window of any length."""
        control.report(succeeded=0, failed=4, first=4)
        assert control.admit(replace(CIRCUIT, within_ms=within_ms), 1).why == "open"

    def test_spread_dues_are_counted_and_limit_nothing(self, control: Control) -> None:
        """`flows` shows the count of spread due times beside the other counters. The count limits no release."""
        assert [control.flow.spread("g/orders", count) for count in (3, 2)] == [3, 5]
        assert control.admit(Limits(), 10).granted == 10
        (topic,) = control.flow.flows()
        assert (topic.topic, topic.numbers["spread"], topic.numbers["granted"]) == ("g/orders", 5, 10)

    def test_flows_show_what_was_refused_and_why(self, control: Control) -> None:
        """`flows` counts the refused items of a topic and of a circuit, by reason."""
        limits = Limits(interval_us=1_000_000, burst=1, trip_ppm=500_000, of=2, within_ms=10_000, open_ms=5_000)
        control.admit(limits, 3, "a")
        control.report(0, 2, destination="a")
        control.admit(limits, 4, "a")
        topic, circuit = sorted(control.flow.flows(), key=lambda flow: flow.destination or "")
        assert (topic.topic, topic.destination, topic.numbers["rate"], topic.numbers["granted"]) == (
            "g/orders",
            None,
            2,
            1,
        )
        assert (circuit.topic, circuit.destination, circuit.state) == ("g/orders", "a", "o")
        assert (circuit.numbers["refused"], circuit.numbers["opens"]) == (4, 1)
