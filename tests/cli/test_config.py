"""Settings: their four sources in order, and one error for all mistakes.

The origin of a setting is the source that its value came from: a flag, an environment variable, the file or the
default.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wheel_sched.config import Settings, load_settings
from wheel_sched.errors import ConfigError
from wheel_sched.redacting import redacted


def test_without_anything_the_defaults_hold() -> None:
    """Without flag, environment and file, every setting has its documented default and the origin "default"."""
    loaded = load_settings({}, env={})
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"default"}


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    """The sources in order are flag, environment variable, file and default. An earlier one overrides a later one.

    The origin of each setting names the source of its value.
    """
    file = tmp_path / "s.toml"
    file.write_text('namespace = "from-file"\nstore = "redis://file"\nreplicas = 3\n')
    env = {"WHEEL_SCHED_NAMESPACE": "from-env", "WHEEL_SCHED_STORE": "redis://env"}
    loaded = load_settings({"store": "redis://flag", "namespace": None}, env=env, file=file)
    assert (loaded.settings.store, loaded.settings.namespace, loaded.settings.replicas) == (
        "redis://flag",
        "from-env",
        3,
    )
    assert loaded.origins["store"] == "flag"
    assert loaded.origins["namespace"] == "env WHEEL_SCHED_NAMESPACE"
    assert loaded.origins["replicas"] == f"file {file}"
    assert loaded.origins["durability"] == "default"


def test_the_file_of_the_working_folder_is_read(tmp_path: Path) -> None:
    """The file wheel-sched.toml of the working folder is read without --config."""
    (tmp_path / "wheel-sched.toml").write_text("shards = 3\n")
    assert load_settings({}, env={}).settings.shards == 3


def test_one_error_lists_every_mistake_with_its_source(tmp_path: Path) -> None:
    """One error lists all unknown names, wrong types and wrong values, from file, environment and flags."""
    file = tmp_path / "s.toml"
    file.write_text('namespce = "x"\nshards = 0\nstore = 5\n')
    env = {"WHEEL_SCHED_DURABILITY": "always", "WHEEL_SCHED_REPLICAS": "two"}
    with pytest.raises(ConfigError) as caught:
        load_settings({"shards": 9_999}, env=env, file=file)
    text = str(caught.value)
    assert "did you mean 'namespace'" in text
    assert "env WHEEL_SCHED_DURABILITY" in text
    assert "flag --shards" in text
    assert len(caught.value.problems) == 6


@pytest.mark.parametrize("content", [b"a = [", b"\xff\xfe"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes) -> None:
    """A settings file that is not TOML is a configuration error."""
    file = tmp_path / "s.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="to be TOML"):
        load_settings({}, env={}, file=file)


def test_a_named_file_must_exist() -> None:
    """If a settings file is named and does not exist, an error is raised. Only the working folder's file may be
    missing."""
    with pytest.raises(ConfigError, match="readable file"):
        load_settings({}, env={"WHEEL_SCHED_CONFIG": "nowhere.toml"})


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:secret@host:6379/0", "redis://user:***@host:6379/0"),
        ("redis://:secret@host", "redis://:***@host"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("embedded:.wheel-sched", "embedded:.wheel-sched"),
    ],
)
def test_passwords_are_never_shown(url: str, shown: str) -> None:
    """`redacted` hides the password of a URL and changes nothing else."""
    assert redacted(url) == shown


def test_config_show_needs_no_server(cli_at: Any) -> None:
    """`config show --origin` opens no store and hides the password."""
    cli = cli_at("redis://me:hunter2@nowhere:1/0")
    shown = cli.json("config", "show", "--origin")
    assert shown["store"] == {"value": "redis://me:***@nowhere:1/0", "origin": "flag"}
    assert shown["namespace"]["origin"] == "default"
    assert "hunter2" not in cli("config", "show", "--origin").output


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("WHEEL_SCHED_STROE", "did you mean WHEEL_SCHED_STORE?"),
        ("WHEEL_SCHED_URL", "known are WHEEL_SCHED_STORE, "),
        ("WHEEL_SCHED_store", "did you mean WHEEL_SCHED_STORE?"),
    ],
)
def test_an_unknown_variable_is_a_mistake(variable: str, hint: str) -> None:
    """An unknown WHEEL_SCHED_ variable is an error with a hint. The error does not contain the variable's value, which
    may be secret."""
    with pytest.raises(ConfigError) as caught:
        load_settings({}, env={variable: "redis://h:s3cret@h"})
    assert f"env {variable}: unknown setting; {hint}" in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "variable",
    [
        "WHEEL_SCHED_PURE",
        "WHEEL_SCHED_SERVER",
        "WHEEL_SCHED_CONFIG",
        "WHEEL_SCHED_SERVICE_HOST",
        "WHEEL_SCHED_SERVICE_PORT_HTTP",
        "WHEEL_SCHED_PORT_80_TCP_ADDR",
        "WHEEL_SCHED_PORT",
    ],
)
def test_variables_of_others_pass(variable: str, tmp_path: Path) -> None:
    """A WHEEL_SCHED_ variable that other code reads, or that Kubernetes sets for a service named wheel-sched, is no
    setting and no error."""
    (tmp_path / "f.toml").write_text("")
    value = str(tmp_path / "f.toml") if variable.endswith("CONFIG") else "1"
    assert load_settings({}, env={variable: value}).settings == Settings()
