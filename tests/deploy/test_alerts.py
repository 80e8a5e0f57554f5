"""Each alert has a runbook, a case that fires and a case that stays silent."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from wheel_sched.cli.program import cli

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RUNBOOKS = (ROOT / "docs" / "runbooks.md").read_text("utf-8")


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / "rules.yml").read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def anchors(text: str) -> set[str]:
    """The anchors of headings, as code hosts make them."""
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in re.findall(r"^#+ (.+)$", text, re.M)}


def commands() -> list[str]:
    """The commands of the runbooks: lines of shell blocks, and those in the text."""
    blocks = re.findall(r"^```sh\n(.*?)^```", RUNBOOKS, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [*lines, *re.findall(r"`(wheel-sched [^`]+)`", RUNBOOKS)]


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: str(alert["alert"]))
def test_an_alert_says_what_it_means_and_where_its_runbook_is(alert: dict[str, Any]) -> None:
    """The anchor of `runbook_url` is a heading of the page, and the section says how to see it and what to do."""
    notes = alert["annotations"]
    page, _, anchor = notes["runbook_url"].partition("#")
    assert (ROOT / page).is_file()
    assert anchor in anchors(RUNBOOKS)
    section = re.split(r"^## ", RUNBOOKS, flags=re.MULTILINE)
    (mine,) = [part for part in section if part.partition("\n")[0].lower() == anchor]
    assert "\nSee it:" in mine
    assert "\nDo:" in mine
    assert notes["summary"]
    assert notes["description"]
    assert alert["labels"]["severity"] in ("page", "ticket")


def test_what_wakes_people_is_watched() -> None:
    """There is an alert for lateness, for each kind of backlog, for leases, for the store's memory and for clocks."""
    assert {alert["alert"] for alert in alerts()} >= {
        "WheelSchedLate",
        "WheelSchedDueBacklog",
        "WheelSchedDeadLettersGrow",
        "WheelSchedNobodyTakesIn",
        "WheelSchedLeasesExpire",
        "WheelSchedStoreMemory",
        "WheelSchedClockSteps",
    }


def test_every_section_is_of_an_alert() -> None:
    """A runbook without an alert is out of date."""
    headings = set(re.findall(r"^## (\w+)$", RUNBOOKS, re.MULTILINE))
    assert headings == {alert["alert"] for alert in alerts()}


def test_every_alert_has_a_case_that_fires_and_one_that_stays_silent() -> None:
    """promtool runs the cases (`make deploy-check`). This test finds an alert that has no cases."""
    tests = yaml.safe_load((PROMETHEUS / "rules_test.yml").read_text("utf-8"))["tests"]
    cases: dict[str, set[bool]] = {}
    for test in tests:
        for case in test["promql_expr_test"]:
            found = re.search(r'alertname="(\w+)"', case["expr"])
            if found:
                cases.setdefault(found[1], set()).add(bool(case["exp_samples"]))
    assert cases == {alert["alert"]: {True, False} for alert in alerts()}


@pytest.mark.parametrize("line", sorted(set(commands())))
def test_a_command_of_a_runbook_exists(line: str) -> None:
    """Each command and each of its options is one that the program has."""
    words = shlex.split(line)
    assert words[0] == "wheel-sched"
    command: click.Command = cli
    context = click.Context(cli)
    rest = words[1:]
    while rest and isinstance(command, click.Group):
        found = command.get_command(context, rest[0])
        assert found is not None, line
        command, rest = found, rest[1:]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.partition("=")[0] for word in rest if word.startswith("--")} <= known
