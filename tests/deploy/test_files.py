"""The image, the compose file, the chart and the units: what can be seen without their tools.

`make deploy-check` runs promtool, hadolint, helm and systemd-analyze.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from retry_topic import load_policies
from tests.deploy.rendered import faults
from tests.json_schema import validate
from wheel_sched.cli.program import cli

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CONTAINERFILE = (DEPLOY / "container" / "Containerfile").read_text("utf-8")
CHART = DEPLOY / "helm" / "wheel-sched"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    return found


def unknown_options(words: list[str]) -> set[str]:
    """The options of a command line of `wheel-sched` that the program does not have."""
    command = cli.get_command(click.Context(cli), words[0])
    assert command is not None, words
    known = {option for parameter in command.params for option in parameter.opts}
    return {word for word in words[1:] if word.startswith("--")} - known


def test_the_image_runs_without_root_and_checks_its_health() -> None:
    """The last stage sets a numeric user, and its health check needs no program but Python."""
    final = CONTAINERFILE.rpartition("\nFROM ")[2]
    assert re.search(r"^USER 10001:10001$", final, re.MULTILINE)
    assert "HEALTHCHECK" in final
    assert '["python", "-c",' in final
    assert final.index("USER") < final.index("ENTRYPOINT")
    assert "apt-get" not in final


def test_the_image_copies_files_that_exist_and_installs_extras_that_exist() -> None:
    """Each file that the build needs is copied, is in the repository, and is not left out by the ignore file."""
    copied = [
        word for line in re.findall(r"^COPY (?!--from)(.+) \S+$", CONTAINERFILE, re.MULTILINE) for word in line.split()
    ]
    ignored = (DEPLOY / "container" / "Containerfile.dockerignore").read_text("utf-8").splitlines()
    assert copied
    for name in copied:
        assert (ROOT / name).exists(), name
        assert f"!{name}" in ignored, name
    extras = re.search(r'"\.\[(.+)\]"', CONTAINERFILE)
    assert extras is not None
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert set(extras[1].split(",")) <= settings["project"]["optional-dependencies"].keys()
    hatch = settings["tool"]["hatch"]
    hooks = [hatch["metadata"]["hooks"]["custom"], hatch["build"]["targets"]["wheel"]["hooks"]["custom"]]
    needed = {hook.get("path", "hatch_build.py") for hook in hooks} | set(settings["project"]["license-files"])
    assert needed | {"pyproject.toml", "README.md"} <= set(copied)
    packages = hatch["build"]["targets"]["wheel"]["packages"]
    assert {name.split("/")[0] for name in packages} <= set(copied)


def test_the_compose_file_starts_commands_that_exist_and_opens_loopback_only() -> None:
    """Options are those of the program, mounted files exist, and no port is open to other machines."""
    services = compose()["services"]
    assert {"valkey", "service", "consumer", "dashboard", "prometheus", "grafana"} <= services.keys()
    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in compose()["volumes"], volume
        if service["image"] == "wheel-sched":
            assert service["read_only"] is True
            assert service["cap_drop"] == ["ALL"]
            if "entrypoint" not in service:
                assert unknown_options(service["command"]) == set()
        else:
            assert re.search(r":[\w.-]*\d", service["image"]), f"{name} has no fixed version"


def test_no_password_is_in_the_compose_file() -> None:
    """The only password comes from the environment, and the file refuses to start without it."""
    text = (DEPLOY / "compose.yaml").read_text("utf-8")
    assert all(":?" in value for value in re.findall(r"PASSWORD: (.+)", text))


def test_the_policies_and_the_consumer_of_the_compose_file_are_valid() -> None:
    """The policies load; the consumer compiles."""
    assert load_policies((DEPLOY / "compose" / "policies.toml").read_text("utf-8"))
    compile((DEPLOY / "compose" / "consumer.py").read_text("utf-8"), "consumer.py", "exec")


def test_the_chart_has_the_version_of_the_package_and_its_values_fit_its_schema() -> None:
    """A chart of another version would run another image."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert chart["appVersion"] == importlib.metadata.version("wheel-sched")
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    validate(values, json.loads((CHART / "values.schema.json").read_text("utf-8")))


def test_the_templates_use_values_that_exist() -> None:
    """Each `.Values.a.b` of a template is in values.yaml: a mistyped name would silently be empty."""
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    used = {
        name
        for path in (CHART / "templates").iterdir()
        for name in re.findall(r"\.Values\.([\w.]+)", path.read_text("utf-8"))
    }
    assert len(used) > 20
    for name in used:
        found: Any = values
        for part in name.split("."):
            assert part in found, name
            found = found[part]


def test_the_chart_has_a_disruption_budget_and_a_scale_for_the_service() -> None:
    """The chart has both objects for the retry service. `faults` checks only pods, so it cannot see if one is gone."""
    _, *objects = (CHART / "templates" / "service.yaml").read_text("utf-8").split("\nkind: ")
    kinds = {text.partition("\n")[0]: text for text in objects}
    assert set(kinds) == {"Deployment", "ConfigMap", "PodDisruptionBudget", "ScaledObject"}
    assert 'matchLabels: {{ include "wheel-sched.selector" $part' in kinds["PodDisruptionBudget"]
    assert "scaleTargetRef: {name: {{ $name }}}" in kinds["ScaledObject"]
    assert "if not .Values.keda.enabled" in kinds["Deployment"]  # with KEDA, only KEDA sets the number of replicas


def test_the_pods_use_the_probes_of_the_program() -> None:
    """/livez and /readyz are the pages of the service, and the page of the dashboard's probe exists."""
    parts = (CHART / "templates" / "_parts.tpl").read_text("utf-8")
    assert parts.count("path: /livez") == 2
    assert parts.count("path: /readyz") == 1
    assert (ROOT / "wheel_sched" / "dashboard" / "assets" / "dashboard.css").exists()


def test_a_rendered_pod_with_rights_or_without_probes_is_found() -> None:
    """`faults` finds a pod with too many rights, without limits, or with an address that is not secret.

    `make deploy-check` runs `faults` on the rendered chart.
    """
    container = {
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "livenessProbe": {},
        "readinessProbe": {},
        "resources": {"limits": {"memory": "1Mi"}, "requests": {"cpu": "1m"}},
        "env": [{"name": "WHEEL_SCHED_STORE", "valueFrom": {"secretKeyRef": {}}}],
    }

    def found(**other: Any) -> list[str]:
        pod = {
            "securityContext": {"runAsNonRoot": True},
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": [container | other],
        }
        template = {"metadata": {"labels": {"a": "b", "c": "d"}}, "spec": pod}
        spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
        return list(faults([{"kind": "Deployment", "metadata": {"name": "x"}, "spec": spec}]))

    assert found() == []
    writable = container["securityContext"] | {"readOnlyRootFilesystem": False}  # type: ignore[operator]
    assert found(securityContext=writable) == ["x: it has rights that it does not need"]
    assert found(env=[{"name": "WHEEL_SCHED_STORE", "value": "redis://ada:lovelace@db"}]) == [
        "x: the address of the store is not from a secret"
    ]
    assert found(resources={"limits": {}, "requests": {}}) == ["x: resources are missing"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_a_command_that_exists_without_rights(unit: Path) -> None:
    """The options in the unit are those of the program. The unit has a user of its own, no capabilities and a read-only
    system.
    """
    text = unit.read_text("utf-8")
    (start,) = re.findall(r"^ExecStart=(.+)$", text, re.MULTILINE)
    assert unknown_options(shlex.split(start)[1:]) == set()
    for line in ("DynamicUser=yes", "CapabilityBoundingSet=", "ProtectSystem=strict", "RestartPreventExitStatus=2"):
        assert line in text.splitlines()
