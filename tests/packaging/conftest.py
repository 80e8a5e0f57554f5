"""Builds an sdist and a wheel from it, once for all tests, and installs the wheel into empty environments.

uv makes the environments if it is on PATH, else venv and pip.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# where each import name lies in the tree
FOLDERS = {
    "retry_topic": ROOT / "retry_topic",
    "wheel_sched": ROOT / "wheel_sched",
    "wheel_sched_apscheduler": ROOT / "integrations" / "apscheduler" / "wheel_sched_apscheduler",
    "wheel_sched_celery": ROOT / "integrations" / "celery" / "wheel_sched_celery",
}
SHIPPED = frozenset({".py", ".pyx", ".lua", ".typed", ".html", ".css", ".js", ".svg", ".LICENSE"})


@dataclass(frozen=True, slots=True)
class Built:
    """The sdist, the wheel, and the files that the tree had when the build began."""

    sdist: Path
    wheel: Path
    tree: frozenset[str]

    def wheel_names(self) -> frozenset[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return frozenset(archive.namelist())


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment that has the wheel with some extras and nothing else. Commands run in an empty folder."""

    bin: Path
    elsewhere: Path

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
        env = kept | {"PATH": f"{self.bin}{os.pathsep}/usr/bin{os.pathsep}/bin"}
        return subprocess.run(
            [str(part) for part in command], cwd=self.elsewhere, env=env, text=True, capture_output=True, timeout=120
        )

    def python(self, code: str) -> subprocess.CompletedProcess[str]:
        return self.run(self.bin / "python", "-W", "error", "-c", code)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build the sdist, and the wheel from the sdist."""
    out = tmp_path_factory.mktemp("dist")
    tree = frozenset(
        f"{name}/{path.relative_to(folder).as_posix()}"
        for name, folder in FOLDERS.items()
        for path in folder.rglob("*")
        if path.suffix in SHIPPED or path.name == "py.typed"
    )
    installer = ["--installer", "uv"] if shutil.which("uv") else []
    command = [sys.executable, "-m", "build", *installer, "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, text=True, capture_output=True, timeout=240)
    assert done.returncode == 0, f"build failed (it needs the check group):\n{done.stdout}\n{done.stderr}"
    return Built(sdist=next(out.glob("*.tar.gz")), wheel=next(out.glob("*.whl")), tree=tree)


@pytest.fixture(scope="session")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A new environment that has only the wheel, installed without a package registry."""
    made = _environment(tmp_path_factory.mktemp("environment"), with_pip=True)
    _checked([made.bin / "python", "-m", "pip", "install", "--no-index", "--quiet", built.wheel])
    return made


@pytest.fixture(scope="session")
def with_extras(
    built: Built, installed: Installed, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Installed]:
    """Return a function that installs the wheel with extras, such as `"celery"` or `"kafka,cli"`, and returns the
    environment.

    The first call with a text of extras makes a new environment, and later calls with this text return it again. The
    packages of the extras come from the registry.
    """
    made: dict[str, Installed] = {}
    uv = shutil.which("uv")

    def make(extras: str) -> Installed:
        if extras not in made:
            found = _environment(tmp_path_factory.mktemp(extras.replace(",", "-")))
            python = found.bin / "python"
            what = f"wheel-sched[{extras}] @ {built.wheel.as_uri()}"
            if uv is not None:
                _checked([uv, "pip", "install", "--quiet", "--python", python, what])
            else:  # one pip for all: to install pip into each environment takes longer than its work there
                pip: list[str | Path] = [installed.bin / "python", "-m", "pip", "--python", python]
                _checked([*pip, "install", "--quiet", "--no-compile", what])
            made[extras] = found
        return made[extras]

    return make


def _environment(folder: Path, *, with_pip: bool = False) -> Installed:
    venv.create(folder / "venv", with_pip=with_pip, symlinks=True)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    return Installed(bin=folder / "venv" / "bin", elsewhere=elsewhere)


def _checked(command: list[str | Path]) -> None:
    done = subprocess.run([str(part) for part in command], text=True, capture_output=True, timeout=240)
    assert done.returncode == 0, done.stderr
