"""The release workflow is well formed and builds what is promised, and a release that does not fit is refused.

zizmor checks the form and the safety of the workflow on every machine. actionlint also checks the expressions, and the
jobs that a job waits for. It is a Go program, so its tests run where Go is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"
BESIDE = Path(sys.executable).parent
ADDRESS = "https://example.org/owner/name"

pytestmark = [pytest.mark.built, pytest.mark.timeout(300)]

ZIZMOR = [str(BESIDE / "zizmor"), "--offline", "--no-progress", "--quiet"]
LINT = ["go", "run", ACTIONLINT, "-shellcheck=", "-pyflakes="]
needs_go = pytest.mark.skipif(shutil.which("go") is None, reason="actionlint is built with Go")

# each fault, and the program that must see it
FAULTS = [
    pytest.param(ZIZMOR, "runs-on: ubuntu-24.04", "run-on: ubuntu-24.04", id="a key that no job has"),
    pytest.param(ZIZMOR, "@ed0c53931b1dc9bd32cbe73a98c7f6766f8a527e", "@release/v1", id="an action that is not pinned"),
    pytest.param(ZIZMOR, '"$GITHUB_REF_NAME"', '"${{ github.ref_name }}"', id="a tag that is run as shell code"),
    pytest.param(LINT, "needs: gather", "needs: gathers", id="a job that is not there", marks=needs_go),
    pytest.param(LINT, "steps.epoch.outputs", "steps.epochs.outputs", id="a step that is not there", marks=needs_go),
]


def run(command: list[str], *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in this repository, with `environment` added to the environment variables."""
    whole = [*command, *map(str, arguments)]
    return subprocess.run(whole, cwd=ROOT, env=os.environ | environment, text=True, capture_output=True, timeout=240)


@pytest.mark.parametrize("program", [ZIZMOR, pytest.param(LINT, marks=needs_go)], ids=["zizmor", "actionlint"])
def test_the_workflow_has_no_finding(program: list[str]) -> None:
    """No program that checks workflows has a finding in the release workflow."""
    done = run(program, WORKFLOW)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflow_attests_all_files_and_publishes_without_a_password() -> None:
    """The workflow has the promised steps and rights, and no job has a secret. The linters do not check that."""
    jobs = yaml.safe_load(WORKFLOW.read_text("utf-8"))["jobs"]
    steps = {
        name: {step["uses"].partition("@")[0]: step for step in job["steps"] if "uses" in step}
        for name, job in jobs.items()
    }
    gather, publish = steps["gather"], steps["publish"]
    assert gather["actions/attest-build-provenance"]["with"]["subject-path"] == "dist/*"
    assert gather["actions/attest-sbom"]["with"]["sbom-path"] == "release/sbom.cdx.json"
    assert ".ci/sbom dist/*-py3-none-any.whl release/sbom.cdx.json" in str(jobs["gather"]["steps"])
    assert "twine check --strict dist/*" in str(jobs["gather"]["steps"])
    assert publish["pypa/gh-action-pypi-publish"]["with"]["attestations"] is True
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["environment"]["name"] == "pypi"
    assert jobs["publish"]["needs"] == "gather"
    assert not re.search(r"secrets\.|password:", WORKFLOW.read_text("utf-8"))


@pytest.mark.parametrize(("program", "right", "wrong"), FAULTS)
def test_a_broken_workflow_is_found(tmp_path: Path, program: list[str], right: str, wrong: str) -> None:
    """Each program fails on a copy of the release workflow that has one fault."""
    broken = tmp_path / ".github" / "workflows" / "release.yml"
    broken.parent.mkdir(parents=True)
    text = WORKFLOW.read_text("utf-8")
    assert right in text
    broken.write_text(text.replace(right, wrong), "utf-8")
    assert run(program, broken).returncode != 0


@pytest.mark.parametrize(
    ("platform", "arch", "systems"),
    [
        ("linux", "x86_64", ["manylinux_x86_64", "musllinux_x86_64"]),
        ("linux", "aarch64", ["manylinux_aarch64", "musllinux_aarch64"]),
        ("macos", "arm64", ["macosx_arm64"]),
        ("macos", "x86_64", ["macosx_x86_64"]),
    ],
)
def test_cibuildwheel_builds_for_every_supported_python(platform: str, arch: str, systems: list[str]) -> None:
    """cibuildwheel, with the settings in pyproject.toml, builds for each Python that the classifiers name."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    pythons = re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', text)
    assert len(pythons) >= 4
    options = ["--print-build-identifiers", "--platform", platform, "--archs", arch]
    done = run([sys.executable, "-m", "cibuildwheel"], *options, ROOT)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == sorted(f"cp3{minor}-{system}" for system in systems for minor in pythons)


def tree_of(tmp_path: Path, *, address: str = ADDRESS, head: str = "## [1.2.0] - 2026-01-31") -> Path:
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{head}\n", "utf-8")
    settings = f'[project]\nversion = "1.2.0"\n[tool.hatch.metadata.hooks.custom]\nrepository = "{address}"\n'
    (tmp_path / "pyproject.toml").write_text(settings, "utf-8")
    return tmp_path


def checked(tree: Path, tag: str = "v1.2.0") -> subprocess.CompletedProcess[str]:
    program = [sys.executable, str(ROOT / ".ci" / "release_check.py")]
    return run(program, "--tree", tree, "--tag", tag, "--repository", ADDRESS)


def test_a_tag_that_fits_may_be_released(tmp_path: Path) -> None:
    """The check passes if the tag, the version, the changelog and the address agree."""
    done = checked(tree_of(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")


def test_every_mistake_of_a_release_is_named_at_once(tmp_path: Path) -> None:
    """Another tag, no address and an undated changelog are three errors of one run, and nothing is published."""
    done = checked(tree_of(tmp_path, address="", head="## [1.2.0] - unreleased"), "v1.3.0")
    assert done.returncode == 1
    *mistakes, last = done.stderr.splitlines()
    assert len(mistakes) == 3
    assert all(mistake.startswith("error: expected") for mistake in mistakes)
    assert last == "nothing was built or published"
