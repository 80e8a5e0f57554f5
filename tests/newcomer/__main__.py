"""Does what docs/tutorial.md says, as somebody who has nothing but the built wheel.

    python -m tests.newcomer WHEEL [PAGE]

It makes a folder with the wheel, a home and a new virtual environment. In this home it saves each program of the page,
runs each command, and compares what they print with the page. If root runs this program, the
commands run as a user without a name, who can read neither root's home nor a checkout in it. Otherwise the commands run
as the user of this program. The packages that the wheel needs come from the package registry.

The exit code is 1 if a command fails, prints something else than the page, or imports from outside the environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.newcomer.story import Step, difference, steps_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
USER = 54_321  # no system gives this number to a user by itself
# the variables that say how to reach the registry; the newcomer gets no others
REGISTRY = (
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CERT", "PIP_DEFAULT_TIMEOUT", "PIP_TRUSTED_HOST"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "no_proxy"),
)
ORIGIN = "import retry_topic, wheel_sched; print(retry_topic.__file__, wheel_sched.__file__, sep='\\n')"
_NOT_NEEDED = shutil.ignore_patterns("site-packages", "test", "__pycache__", "*.a", "share")


class Failed(Exception):
    """A step did something else than the page says."""


class Newcomer:
    """A reader with an empty home, an environment without packages, and a wheel.

    Args:
        root: an empty folder that every user may enter.
        wheel: the built wheel.
    """

    def __init__(self, root: Path, wheel: Path) -> None:
        self.home = root / "home"
        self._root, self._as_user = root, dict[str, Any]()
        wheels = root / "wheels"
        for folder in (self.home, wheels, self.home / "story"):
            folder.mkdir()
        shutil.copy(wheel, wheels)
        if os.geteuid() == 0:
            self._as_user = {"user": USER, "group": USER, "extra_groups": ()}
            for folder in (self.home, self.home / "story"):
                os.chown(folder, USER, USER)
        self._env = {name: os.environ[name] for name in REGISTRY if name in os.environ} | {
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "PATH": os.pathsep.join((str(self.home / "venv" / "bin"), "/usr/bin", "/bin")),
            "PYTHONUNBUFFERED": "1",  # output and errors come in the order in which a terminal shows them
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_FIND_LINKS": " ".join((os.environ.get("PIP_FIND_LINKS", ""), str(wheels))).strip(),
        }
        self._make_environment()

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command in the folder of the story. Errors are in its output, where a terminal shows them."""
        return subprocess.run(
            [str(part) for part in command],
            cwd=self.home / "story",
            env=self._env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=120,
            **self._as_user,
        )

    def follow(self, step: Step) -> None:
        """Save and run what a step says.

        Raises:
            Failed: it ended with an error, or printed something else than the page.
        """
        if step.program is not None:
            (self.home / "story" / step.name).write_text(step.program, "utf-8")
        done = self.run("sh", "-c", step.command)
        if done.returncode:
            raise Failed(f"line {step.line}: {step.command} ended with code {done.returncode}:\n{done.stdout}")
        if differs := difference(step, done.stdout):
            raise Failed(f"line {step.line}: {step.command} does not print what the page shows:\n{differs}")

    def check_origin(self) -> None:
        """Check that the packages are those that the newcomer has installed.

        Raises:
            Failed: a package was imported from elsewhere.
        """
        done = self.run("python", "-c", ORIGIN)
        strange = [line for line in done.stdout.splitlines() if not line.startswith(f"{self.home / 'venv'}{os.sep}")]
        if done.returncode or strange:
            raise Failed(f"expected the packages to lie in the environment, got:\n{done.stdout}")

    def _make_environment(self) -> None:
        python = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
        if not self._runs(python):  # the newcomer may not read this Python: make a copy
            shutil.copytree(sys.base_prefix, self._root / "python", symlinks=True, ignore=_NOT_NEEDED)
            python = self._root / "python" / "bin" / python.name
            # without this the copy looks for its library in the old place
            self._env["LD_LIBRARY_PATH"] = str(self._root / "python" / "lib")
        done = self.run(python, "-m", "venv", self.home / "venv")
        if done.returncode:
            raise Failed(f"cannot make a virtual environment:\n{done.stdout}")

    def _runs(self, python: Path) -> bool:
        try:
            return self.run(python, "-c", "").returncode == 0
        except PermissionError:
            return False


def walk(wheel: Path, page: str) -> None:
    """Follow every step of a page.

    Raises:
        Failed: a step did something else than the page says.
        ValueError: the page cannot be read, see `steps_of`.
    """
    steps = steps_of(page)
    with tempfile.TemporaryDirectory(prefix="newcomer-") as folder:
        root = Path(folder)
        root.chmod(0o755)
        newcomer = Newcomer(root, wheel)
        for step in steps:
            print(f"$ {step.command}", flush=True)  # noqa: T201 - a script
            newcomer.follow(step)
        newcomer.check_origin()


def main(arguments: list[str]) -> int:
    wheel, page = Path(arguments[0]), Path(arguments[1]) if len(arguments) > 1 else PAGE
    try:
        walk(wheel, page.read_text("utf-8"))
    except (Failed, ValueError) as error:
        print(f"{page.name}: {error}", file=sys.stderr)  # noqa: T201 - a script
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
