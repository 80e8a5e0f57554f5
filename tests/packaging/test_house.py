"""The program `tests.house`, which measures the structure of the product, counts correctly, and its figures do not
grow.

A figure is one result of the program, such as the list of import circles or the number of lines of each package. The
tests run `python -m tests.house` in a process of its own. To measure a small tree takes 0.3 s.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.house.rooms import rooms
from tests.house.tree import Tree

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]

# How many of each the product may have. Lower a limit when its figure has fallen; never raise one.
AT_MOST = {"import_circles": 0, "names_with_two_meanings": 0, "upward_imports": 0, "files_over_400": 5}

LAYERS = """
[[tool.importlinter.contracts]]
type = "layers"
layers = ["retry_topic | wheel_sched_celery", "wheel_sched"]

[[tool.importlinter.contracts]]
type = "layers"
containers = ["wheel_sched"]
layers = ["cli", "(store)", "clock"]
"""


def measured(tree: Path, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.house", "--json", "--tree", str(tree), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def structure(tmp_path: Path, **files: str) -> dict[str, Any]:
    """Write a new tree and return its figures by name, such as "import_circles".

    Args:
        files: the source of each module. `__` in a name separates the folder from the module, and the module `init` is
            `__init__.py`.
    """
    write(tmp_path, **files)
    return measured(tmp_path, "--no-rooms")


def write(tmp_path: Path, **files: str) -> None:
    (tmp_path / "pyproject.toml").write_text(LAYERS, "utf-8")
    for name, text in {"wheel_sched__init": "", "retry_topic__init": "", **files}.items():
        *folders, stem = name.split("__")
        path = tmp_path.joinpath(*folders, "__init__.py" if stem == "init" else f"{stem}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def test_the_figures_of_this_tree_do_not_grow() -> None:
    """This repository has no more faults of each kind than `AT_MOST` allows.

    The kinds are import circles, public classes with the same name, imports that break the declared layers, and files
    of more than 400 lines. All four packages are measured: otherwise a limit could hold only because a package was not
    found.
    """
    today = measured(ROOT, "--no-rooms")
    grown = {figure: today[figure] for figure in AT_MOST if len(today[figure]) > AT_MOST[figure]}
    assert grown == {}, json.dumps(grown, indent=2)
    packages = ["wheel_sched", "retry_topic", "wheel_sched_celery", "wheel_sched_apscheduler"]
    assert list(today["lines"]) == [*packages, "total"]
    assert min(today["lines"].values()) > 1_000
    assert min(today["public_names"].values()) > 10


@pytest.mark.parametrize(
    "back",
    [
        "from wheel_sched.first import one\n",
        "from wheel_sched import first\n",
        "import wheel_sched.first\n",
        "from .first import one\n",
        "def late():\n    from wheel_sched.first import one\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from wheel_sched.first import one\n",
    ],
)
def test_a_circle_is_found_wherever_its_imports_stand(tmp_path: Path, back: str) -> None:
    """An import circle counts, however the module is imported, even inside a function or for type checking."""
    found = structure(
        tmp_path,
        wheel_sched__first="from wheel_sched import second\none = 1\n",
        wheel_sched__second=back,
        wheel_sched__third="from wheel_sched.first import one\n",
    )
    assert found["import_circles"] == [["wheel_sched.first", "wheel_sched.second"]]


def test_a_package_and_its_submodule_make_a_circle_only_by_names(tmp_path: Path) -> None:
    """If a package and its submodule import names from each other, they form a circle. A submodule that imports a
    sibling submodule from the package forms none."""
    found = structure(
        tmp_path,
        wheel_sched__a__init="from wheel_sched.a.inner import x\n",
        wheel_sched__a__inner="from wheel_sched.a import sibling\nx = 1\n",
        wheel_sched__a__sibling="",
        wheel_sched__b__init="from wheel_sched.b.inner import x\n",
        wheel_sched__b__inner="x = 1\ndef late():\n    from wheel_sched.b import x\n",
    )
    assert found["import_circles"] == [["wheel_sched.b", "wheel_sched.b.inner"]]


def test_two_public_classes_of_one_name_are_found(tmp_path: Path) -> None:
    """Public top-level classes with one name are reported, also if one is under `if` or in Cython.

    Private, nested and imported classes are not.
    """
    write(tmp_path)
    (tmp_path / "wheel_sched" / "fast.pyx").write_text("cdef class Reply:\n    pass\n", "utf-8")
    found = structure(
        tmp_path,
        wheel_sched__first="class Stored: ...\nclass _Own: ...\nclass Alone:\n    class Inner: ...\n",
        retry_topic__second="if True:\n    class Stored: ...\nclass _Own: ...\nclass Inner: ...\nclass Reply: ...\n",
        retry_topic__third="from retry_topic.second import Stored\n",
    )
    assert found["names_with_two_meanings"] == {
        "Reply": ["retry_topic/second.py", "wheel_sched/fast.pyx"],
        "Stored": ["retry_topic/second.py", "wheel_sched/first.py"],
    }


def test_the_twins_of_the_wheel_have_one_meaning_and_a_third_class_has_not(tmp_path: Path) -> None:
    """A class of the compiled wheel may have the name of the Python class beside it. A third class of that name is
    reported."""
    write(tmp_path, wheel_sched__wheel__pure="class TimingWheel: ...\n")
    (tmp_path / "wheel_sched" / "wheel" / "fast.pyx").write_text("cdef class TimingWheel:\n    pass\n", "utf-8")
    assert structure(tmp_path)["names_with_two_meanings"] == {}
    found = structure(tmp_path, retry_topic__own="class TimingWheel: ...\n")
    assert len(found["names_with_two_meanings"]["TimingWheel"]) == 3


def test_imports_against_the_layers_are_found_also_in_strings(tmp_path: Path) -> None:
    """An upward import inside a function counts, and so does a module's name in a string. A name in a docstring
    does not."""
    found = structure(
        tmp_path,
        wheel_sched__cli='TABLE = {"serve": "retry_topic.serving:serve"}\nfrom wheel_sched import clock\n',
        wheel_sched__clock="def late():\n    from wheel_sched.store import x\n",
        wheel_sched__store='"""Used by retry_topic.serving."""\nfrom importlib import import_module\n'
        'x = import_module("wheel_sched.cli")\nTITLE = "a retry_topic of its own"\n',
        retry_topic__serving="import wheel_sched.cli\nimport wheel_sched_celery\n",
    )
    assert [(item["from"], item["to"], item["string"]) for item in found["upward_imports"]] == [
        ("wheel_sched.cli", "retry_topic.serving", True),
        ("wheel_sched.clock", "wheel_sched.store", False),
        ("wheel_sched.store", "wheel_sched.cli", True),
    ]


def test_packages_that_are_kept_apart_do_not_import_each_other(tmp_path: Path) -> None:
    """In an import contract, `|` separates packages of one layer. An import between two of them counts as upward."""
    celery = tmp_path / "integrations" / "celery" / "wheel_sched_celery"
    celery.mkdir(parents=True)
    (celery / "__init__.py").write_text("from retry_topic import serving\n", "utf-8")
    found = structure(tmp_path, retry_topic__serving="")
    assert [item["place"] for item in found["upward_imports"]] == [
        "integrations/celery/wheel_sched_celery/__init__.py:1"
    ]


def test_long_files_and_the_longest_function_are_found(tmp_path: Path) -> None:
    """A file of 401 lines is too long, one of 400 is not. A method's docstring counts, its decorators do not."""
    method = 'class A:\n    @property\n    def long(self):\n        """Three lines."""\n        return 1\n'
    found = structure(
        tmp_path,
        wheel_sched__long="x = 1\n" * 401,
        wheel_sched__enough="x = 1\n" * 400,
        retry_topic__methods=method,
    )
    assert found["files_over_400"] == {"wheel_sched/long.py": 401}
    assert found["longest_function"] == {"name": "A.long", "place": "retry_topic/methods.py:3", "lines": 3}
    assert found["lines"]["wheel_sched"] == 801
    assert found["lines"]["total"] == 806


def test_public_names_are_those_of_the_packages_faces(tmp_path: Path) -> None:
    """The names in the `__all__` of a package count. Those in the `__all__` of another module do not."""
    found = structure(
        tmp_path,
        wheel_sched__store__init='__all__ = ["a", "b"]\n__all__ += ["c"]\n',
        wheel_sched__store__inner='__all__ = ["d"]\nclass E: ...\n',
    )
    assert found["public_names"]["wheel_sched"] == 3
    assert found["public_names"]["public_classes"] == 1


TIMER = """
import threading
from wheel_sched import imported, threaded

class SystemTimer:
    def __enter__(self):
        before()
        return self

    def __exit__(self, *_):
        pass

    def schedule(self, delay_s, callback):
        from wheel_sched import imported_late
        threading.Timer(delay_s, threaded.run, [callback]).start()

def before():
    from wheel_sched import opened
    opened.opened()
"""


def test_a_traced_run_counts_the_modules_whose_functions_are_called(tmp_path: Path) -> None:
    """A module whose function is called on any thread counts.

    A module does not count if it is only imported, or if its functions are called only by an import or before the
    counting begins.
    """
    write(
        tmp_path,
        wheel_sched__timer=TIMER,
        wheel_sched__imported="class Named:\n    def method(self): ...\n",
        wheel_sched__imported_late="from wheel_sched import called_by_import\ncalled_by_import.f()\nclass B: x = 1\n",
        wheel_sched__called_by_import="def f(): ...\n",
        wheel_sched__opened="def opened(): ...\n",
        wheel_sched__threaded="def run(callback):\n    callback()\n",
    )
    found = measured(tmp_path, "--verbose", "--way", "timer")["rooms"]
    modules = ["wheel_sched.threaded", "wheel_sched.timer"]
    assert found == {"timer": {"total": 2, "core": 2, "own": 0, "modules": modules}}


def test_a_way_that_cannot_run_is_not_measured(tmp_path: Path) -> None:
    """If a tree lacks an object that a program in `tests/house/ways` uses, the result of that program is null."""
    write(tmp_path)
    assert measured(tmp_path, "--way", "timer")["rooms"] == {"timer": None}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "way",
    [
        pytest.param("timer", marks=pytest.mark.slow),
        pytest.param("retry", marks=[pytest.mark.real, pytest.mark.proof]),
        pytest.param("apscheduler_job", marks=[pytest.mark.real, pytest.mark.proof]),
        pytest.param("celery_task", marks=[pytest.mark.real, pytest.mark.proof]),
        pytest.param("retry_kafka", marks=pytest.mark.kafka),
    ],
)
def test_every_way_runs_over_this_tree(way: str) -> None:
    """Each of the programs in `tests/house/ways` runs on this repository and calls functions of `wheel_sched`.

    Each program except `timer` also calls functions of another package of the product, such as `retry_topic`.
    """
    found = rooms(Tree(ROOT), [way])[way]
    assert found is not None
    assert found["core"] >= 3
    assert (found["own"] > 0) == (way != "timer")
