"""Checks the objects of a rendered chart: python -m tests.deploy.rendered FILE

Every pod runs without rights on a read-only root, has probes and limits, and gets its store's address from a secret.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml


def faults(objects: list[dict[str, Any]]) -> Iterator[str]:
    """What is wrong with the objects, one line each."""
    names = [(one["kind"], one["metadata"]["name"]) for one in objects]
    if len(set(names)) != len(names):
        yield f"two objects have one name: {names}"
    for one in objects:
        if one["kind"] == "Deployment":
            yield from (f"{one['metadata']['name']}: {fault}" for fault in _of_pod(one["spec"]))


def _of_pod(deployment: dict[str, Any]) -> Iterator[str]:
    pod = deployment["template"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    if not deployment["selector"]["matchLabels"].items() <= labels.items():
        yield "its selector does not choose its own pods"
    if pod["securityContext"]["runAsNonRoot"] is not True or pod["automountServiceAccountToken"] is not False:
        yield "it may run as root, or it gets an account"
    if pod["enableServiceLinks"] is not False:
        yield "variables of other services would look like settings"
    volumes = {volume["name"] for volume in pod.get("volumes", [])}
    for container in pod["containers"]:
        rights = container["securityContext"]
        if (
            not rights["readOnlyRootFilesystem"]
            or rights["allowPrivilegeEscalation"]
            or rights["capabilities"] != {"drop": ["ALL"]}
        ):
            yield "it has rights that it does not need"
        if not {"livenessProbe", "readinessProbe"} <= container.keys():
            yield "a probe is missing"
        if "memory" not in container["resources"]["limits"] or "cpu" not in container["resources"]["requests"]:
            yield "resources are missing"
        store = {entry["name"]: entry for entry in container["env"]}["WHEEL_SCHED_STORE"]
        if "secretKeyRef" not in store.get("valueFrom", {}):
            yield "the address of the store is not from a secret"
        if {mount["name"] for mount in container.get("volumeMounts", [])} != volumes:
            yield "volumes and mounts differ"


def main() -> int:
    """Print the faults of a file. The exit code is 1 if there are any."""
    objects = [one for one in yaml.safe_load_all(Path(sys.argv[1]).read_text("utf-8")) if one]
    found = list(faults(objects))
    sys.stdout.write("".join(f"{line}\n" for line in found))
    return 1 if found or not objects else 0


if __name__ == "__main__":
    sys.exit(main())
