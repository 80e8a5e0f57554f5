"""Builds an sdist and the wheels from it, once for all tests, and installs the wheel into empty environments.

uv makes the environments if it is on PATH, else venv and pip.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable, Sequence
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
EPOCH = "1767225600"  # the time of all files in the built wheels
SHIPPED = frozenset({".py", ".pyx", ".lua", ".typed", ".html", ".css", ".js", ".svg", ".LICENSE"})


@dataclass(frozen=True, slots=True)
class Built:
    """The sdist, the compiled wheel, the pure wheel, and the files that the tree had when the build began."""

    sdist: Path
    wheel: Path
    pure: Path
    tree: frozenset[str]

    def wheel_names(self) -> frozenset[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return frozenset(archive.namelist())

    def again(self, out: Path, **environment: str) -> tuple[Path, Path]:
        """Build an sdist and a pure wheel from the tree, with `environment` added to the environment variables."""
        options = ["--sdist", "--wheel", "--no-isolation", "--skip-dependency-check", "--outdir", out, ROOT]
        environment |= {"SOURCE_DATE_EPOCH": EPOCH, "WHEEL_SCHED_PURE": "1"}
        _checked([sys.executable, "-m", "build", *options], **environment)
        return next(out.glob("*.tar.gz")), next(out.glob("*.whl"))


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
    """Build the sdist, and both wheels from it, as for a release."""
    out = tmp_path_factory.mktemp("dist")
    tree = frozenset(
        f"{name}/{path.relative_to(folder).as_posix()}"
        for name, folder in FOLDERS.items()
        for path in folder.rglob("*")
        if path.suffix in SHIPPED or path.name == "py.typed"
    )
    _checked(["bash", ROOT / ".ci" / "dist", out], PYTHON=sys.executable, SOURCE_DATE_EPOCH=EPOCH)
    (pure,) = out.glob("*-none-any.whl")
    (wheel,) = set(out.glob("*.whl")) - {pure}
    return Built(sdist=next(out.glob("*.tar.gz")), wheel=wheel, pure=pure, tree=tree)


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
            else:  # one pip for all: to install pip into each environment takes too long
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


def _checked(command: Sequence[str | Path], **environment: str) -> None:
    whole = [str(part) for part in command]
    done = subprocess.run(whole, env=os.environ | environment, text=True, capture_output=True, timeout=240)
    assert done.returncode == 0, f"it needs the group `check`:\n{done.stdout}\n{done.stderr}"
