"""The files of a release are complete and reproducible, and have what a package index asks for.

`.ci/dist` builds them, see conftest.py.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Built

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.built, pytest.mark.timeout(300)]


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


@pytest.mark.skipif(sys.platform != "linux", reason="auditwheel checks Linux wheels")
def test_the_compiled_wheel_runs_on_old_systems(built: Built) -> None:
    """auditwheel gave the compiled wheel tags of glibc 2.28 or older, and no tag that an index refuses."""
    tags = built.wheel.stem.split("-")[-1].split(".")
    assert any(tag.startswith("manylinux_2_") and int(tag.split("_")[2]) <= 28 for tag in tags), tags
    assert not any(tag.startswith("linux") for tag in tags)


def test_the_pure_wheel_is_for_every_python_3(built: Built) -> None:
    """The pure wheel has no compiled file, and otherwise the files of the compiled wheel."""
    with zipfile.ZipFile(built.pure) as archive:
        pure = frozenset(archive.namelist())
    assert built.pure.name.endswith("-py3-none-any.whl")
    assert not [name for name in pure if name.endswith((".so", ".pyd", ".c"))]
    (compiled,) = {name for name in built.wheel_names() - pure if not name.endswith("/")}
    assert compiled.startswith("wheel_sched/wheel/_wheel_c.")


def test_an_index_accepts_the_files(built: Built) -> None:
    """twine finds no fault in the sdist and the wheels. Its warnings count as faults."""
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, (built.sdist, built.wheel, built.pure))]
    done = subprocess.run(command, text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_second_build_makes_the_same_bytes(built: Built, tmp_path: Path) -> None:
    """The sdist is the same again, and a pure wheel made from the tree equals the one that was made from the sdist.

    The second build uses another temporary folder. The files of a release have the time of the commit.
    """
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    sdist, wheel = built.again(tmp_path / "out", TMPDIR=str(scratch))
    assert sdist.read_bytes() == built.sdist.read_bytes()
    assert wheel.read_bytes() == built.pure.read_bytes()


def test_the_sdist_has_every_file_of_the_repository(built: Built) -> None:
    """The sdist has the files that git knows or does not ignore, and its own metadata, and no others."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        text=True,
        capture_output=True,
    )
    if listed.returncode:
        pytest.skip("not a git checkout: the tree is the sdist itself")
    with tarfile.open(built.sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if not member.isdir()}
    expected = {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}
    assert names - {"PKG-INFO"} == expected


def test_the_metadata_names_licence_and_pythons(built: Built) -> None:
    """The metadata has a version that every uploader takes, the licence, and the Pythons 3.11 to 3.14."""
    found = metadata(built.wheel)
    assert found["Metadata-Version"] == "2.4"
    assert found["License-Expression"] == "Apache-2.0"
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in range(11, 15)} <= set(
        found.get_all("Classifier")
    )


def test_no_link_of_the_shown_readme_is_relative(built: Built) -> None:
    """The README in the wheel has all words of the tree's README, and no link to a file beside it."""
    shown = metadata(built.wheel).get_payload()
    assert isinstance(shown, str)
    assert "# wheel-sched" in shown
    assert "](docs/" not in shown
    assert "](CHANGELOG.md)" not in shown
    assert "](docs/kafka.md)" in (ROOT / "README.md").read_text("utf-8")


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    """The module hatch_readme.py, which is in no package."""
    spec = importlib.util.spec_from_file_location("hatch_readme", ROOT / "hatch_readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("link", "address", "without"),
    [
        ("[a](docs/a.md#b)", "[a](https://h/o/n/blob/v1/docs/a.md#b)", "a (`docs/a.md#b`)"),
        ("![a](docs/a.png)", "![a](https://h/o/n/raw/v1/docs/a.png)", "a (`docs/a.png`)"),
        ("[a](https://b)", "[a](https://b)", "[a](https://b)"),
        ("[a](#b)", "[a](#b)", "[a](#b)"),
        ("```\nx[a](b)\n```", "```\nx[a](b)\n```", "```\nx[a](b)\n```"),
    ],
)
def test_a_link_leads_to_the_file_of_the_release(hook: ModuleType, link: str, address: str, without: str) -> None:
    """A relative link gets the repository's address and the tag. Without an address it becomes text."""
    assert hook.readable_alone(link, "https://h/o/n", "v1") == address
    assert hook.readable_alone(link, "", "v1") == without


def test_the_addresses_come_from_one_constant(hook: ModuleType) -> None:
    """With an address in the settings, the metadata has the project's addresses, and each begins with it."""
    found = {"version": "0.1.0"}
    hook.PackageAddresses(str(ROOT), {"repository": "https://h/o/n/"}).update(found)
    assert {"Homepage", "Documentation", "Changelog", "Issues", "Source"} <= set(found["urls"])
    assert all(url.startswith("https://h/o/n") and not url.endswith("/") for url in found["urls"].values())
