"""The names of a group's topics, and the package's public names: each exists and is imported at its first use."""

from __future__ import annotations

import subprocess
import sys

import pytest

import retry_topic
from retry_topic import ConsumerConfig, GroupTopics, ServiceConfig
from wheel_sched.errors import ConfigError


def test_every_public_name_is_found() -> None:
    """Each name in `__all__` exists. An unknown name raises the usual AttributeError."""
    for name in retry_topic.__all__:
        assert getattr(retry_topic, name).__name__ == name
    with pytest.raises(AttributeError, match="module 'retry_topic' has no attribute 'nothing'"):
        _ = retry_topic.nothing  # type: ignore[attr-defined]  # it is not there


def test_a_part_is_imported_when_it_is_asked_for() -> None:
    """Importing the package imports none of its modules. This matters for Spark, which starts many processes."""
    program = (
        "import sys, retry_topic; before = 'retry_topic.message' in sys.modules; retry_topic.Message; "
        "print(before, 'retry_topic.message' in sys.modules, 'retry_topic.consumer' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["False", "True", "False"]


def test_a_groups_topics_are_named_after_it_unless_somebody_says_otherwise() -> None:
    """Each topic name of a group can be set. The names that are not set keep their defaults."""
    assert GroupTopics().of("billing") == {
        "retry": "billing.retry",
        "redelivery": "billing.redelivery",
        "dead": "billing.dead",
    }
    assert GroupTopics(retry="orders-retry").of("billing") == GroupTopics().of("billing") | {"retry": "orders-retry"}


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ({"retry": "a b"}, "expected the retry topic to be"),
        ({"dead": "x" * 250}, "expected the dead topic to be"),
        ({"redelivery": 5}, "expected the redelivery topic to be"),
        ({"retry": "t", "dead": "t"}, "to be distinct"),
    ],
)
def test_names_that_cannot_be_are_refused(named: dict[str, str], reason: str) -> None:
    """Invalid or equal topic names are refused. With equal names a group would read its own output for ever."""
    with pytest.raises(ConfigError, match=reason):
        GroupTopics(**named)


def test_a_name_that_is_anothers_default_is_refused() -> None:
    """A topic name that equals another topic's default is refused when the group is known. An invalid group name and a
    plain string in place of `GroupTopics` are refused too."""
    with pytest.raises(ConfigError, match="to be distinct"):
        GroupTopics(dead="billing.retry").of("billing")
    for config in (ServiceConfig, ConsumerConfig):
        with pytest.raises(ConfigError, match="expected group_topics to be GroupTopics"):
            config(group_topics="orders-retry")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ConfigError, match="expected group to be"):
        GroupTopics(retry="r", redelivery="b", dead="d").of("a b")
