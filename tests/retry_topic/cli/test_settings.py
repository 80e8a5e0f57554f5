"""The settings of retry topics come from the same places as the core's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from retry_topic.management.settings import RetrySettings
from wheel_sched.config import Settings, load_settings
from wheel_sched.errors import ConfigError

KINDS = (RetrySettings,)


def test_policies_of_a_file_lie_beside_it(tmp_path: Path) -> None:
    """A relative `policies` path is relative to the folder of the settings file, not to the working folder."""
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "s.toml").write_text('policies = "retry.toml"\n')
    assert load_settings({}, env={}, file=folder / "s.toml", kinds=KINDS).read(RetrySettings).policies == str(
        folder / "retry.toml"
    )


def test_they_come_from_all_places_as_those_of_the_core_do(tmp_path: Path) -> None:
    """The settings of retry topics come from file, environment and flag.

    `RetrySettings` also has the core's settings. `Settings` has only the core's.
    """
    file = tmp_path / "s.toml"
    file.write_text('prefix = "p:"\nretry_topic = "from-file"\nstore = "redis://file"\n')
    env = {"WHEEL_SCHED_RETRY_TOPIC": "from-env", "WHEEL_SCHED_TRANSACTIONS": "false"}
    loaded = load_settings({"kafka": "broker:9092"}, env=env, file=file, kinds=KINDS)
    settings = loaded.read(RetrySettings)
    assert (settings.prefix, settings.retry_topic, settings.kafka) == ("p:", "from-env", "broker:9092")
    assert (settings.transactions, settings.store) == (False, "redis://file")
    assert loaded.origins["prefix"] == f"file {file}"
    assert loaded.settings == Settings(store="redis://file")


def test_without_the_extension_its_settings_are_unknown(tmp_path: Path) -> None:
    """The core alone refuses a setting of the extension as unknown."""
    file = tmp_path / "s.toml"
    file.write_text('kafka = "broker:9092"\n')
    with pytest.raises(ConfigError, match="unknown setting 'kafka'"):
        load_settings({}, env={}, file=file)


@pytest.mark.parametrize(
    ("name", "hint"), [("polices", "did you mean 'policies'"), ("redelivery", "did you mean 'redelivery_topic'")]
)
def test_a_mistyped_setting_is_refused_by_every_command(name: str, hint: str, cli_at: Any) -> None:
    """For a mistyped setting, the error proposes the right name, even for a command of the core."""
    Path("wheel-sched.toml").write_text(f'{name} = "x"\n')
    assert hint in cli_at("memory:")("config", "show", code=2).stderr


def test_config_show_shows_the_origin_of_every_setting(cli_at: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`config show --origin` lists the settings of the core and of the extensions, each with where it comes from."""
    monkeypatch.setenv("WHEEL_SCHED_POLICIES", "retry.toml")
    shown = cli_at("memory:").json("config", "show", "--origin")
    assert shown["policies"] == {"value": "retry.toml", "origin": "env WHEEL_SCHED_POLICIES"}
    assert {"store", "durability", "prefix", "kafka", "dead_topic"} <= set(shown)


def test_a_variable_that_an_extension_reads_itself_is_no_mistake(cli_at: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable with the secret of the APScheduler integration is not reported as unknown."""
    monkeypatch.setenv("WHEEL_SCHED_APS_SECRET", "a secret of 16 bytes")
    cli_at("memory:")("config", "show")
