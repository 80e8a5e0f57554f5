"""Builds the wheel, installs it into an empty environment and uses it there, outside this repository.

The build makes the sdist first and the wheel from the sdist, so a file that the sdist lacks is missing in the wheel.
The environment has the wheel and nothing else (`--no-index`), so a module that can be imported there needs only the
standard library.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Built, Installed

ROOT = Path(__file__).resolve().parents[2]
IMPORT_NAMES = ("retry_topic", "wheel_sched", "wheel_sched_apscheduler", "wheel_sched_celery")
# The modules of the core that may need an extra. The import contracts in pyproject.toml say the same.
NEEDS_AN_EXTRA = (
    "wheel_sched.cli",
    "wheel_sched.dashboard",
    "wheel_sched.observability.",
    "wheel_sched.simulation.",
    "wheel_sched.store.connect",
    "wheel_sched.store.embedded",
    "wheel_sched.store.redis",
    "wheel_sched.testing.",
)

# a build with its own isolated environment, a venv and an install: ~15 s alone, more on a busy machine
pytestmark = [pytest.mark.built, pytest.mark.timeout(300)]


def test_the_wheel_holds_four_import_names_and_nothing_else_at_its_top(built: Built) -> None:
    """The wheel has the four packages of the product, and no package `integrations`, `tests` or `benchmarks`."""
    tops = {name.split("/")[0] for name in built.wheel_names()}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(IMPORT_NAMES)


def test_the_wheel_holds_every_module_script_and_typing_marker_of_the_tree(built: Built) -> None:
    """The wheel, made from the sdist, has all modules, Lua scripts, templates and `py.typed` files of the tree."""
    assert {f"{name}/py.typed" for name in IMPORT_NAMES} <= built.tree
    assert built.tree - built.wheel_names() == set()


def test_the_sdist_can_be_read_built_and_tested_on_its_own(built: Built) -> None:
    """The sdist holds the licence, the README, the tests and the Makefile, under one folder."""
    with tarfile.open(built.sdist) as archive:
        names = archive.getnames()
    (top,) = {name.split("/")[0] for name in names}
    assert {f"{top}/{name}" for name in ("LICENSE", "README.md", "Makefile", "pyproject.toml")} <= set(names)
    assert f"{top}/tests/packaging/{Path(__file__).name}" in names


def test_the_core_imports_with_no_third_party_package_installed(built: Built, installed: Installed) -> None:
    """Each module of the core that needs no extra can be imported with the standard library alone."""
    files = (name for name in built.wheel_names() if name.startswith("wheel_sched/") and name.endswith(".py"))
    modules = (name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in files)
    core = sorted(name for name in modules if not name.startswith(NEEDS_AN_EXTRA) and not name.endswith(".__main__"))
    assert "wheel_sched.errors" in core
    done = installed.python(
        "import importlib, retry_topic, wheel_sched\n"
        f"for name in {core!r}: importlib.import_module(name)\n"
        "print(wheel_sched.__file__)"
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(installed.bin.parent), "imported from the tree, not from the wheel"


@pytest.mark.parametrize(
    ("name", "framework"), [("wheel_sched_celery", "celery"), ("wheel_sched_apscheduler", "apscheduler")]
)
def test_an_integration_is_found_and_names_its_framework_when_that_is_absent(
    installed: Installed, name: str, framework: str
) -> None:
    """If its framework is not installed, `import` of an integration succeeds, or its error names the missing framework
    or extra."""
    done = installed.python(f"import {name}")
    assert done.returncode == 0 or (f"No module named '{framework}" in done.stderr or f"[{framework}]" in done.stderr)


def test_celery_finds_the_scheduler_of_beat(installed: Installed) -> None:
    """`celery beat -S wheel` resolves the name by an entry point of the distribution."""
    done = installed.python(
        "from importlib.metadata import entry_points\n"
        "print([point.value for point in entry_points(group='celery.beat_schedulers') if point.name == 'wheel'])"
    )
    assert done.stdout.strip() == "['wheel_sched_celery.beat.scheduler:BeatScheduler']", done.stderr


def test_the_command_says_which_extra_is_missing(installed: Installed) -> None:
    """Without click, `wheel-sched --help` fails without a traceback and prints the command that installs the
    missing extra."""
    done = installed.run(installed.bin / "wheel-sched", "--help")
    assert done.returncode == 2
    assert "wheel-sched[cli,embedded]" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_tree_casts_no_shadow_on_celery_or_apscheduler(installed: Installed) -> None:
    """The folder `integrations` has no regular package `celery` or `apscheduler`, which would hide the real one."""
    code = (
        "import importlib.util as u, sys\n"
        f"sys.path.insert(0, {str(ROOT / 'integrations')!r})\n"
        "print([n for n in ('celery', 'apscheduler') if (s := u.find_spec(n)) is not None and s.origin is not None])"
    )
    done = installed.python(code)
    assert done.stdout.strip() == "[]", done.stderr
