"""Somebody with the built wheel and nothing else does what the tutorial says, and sees what it shows."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.newcomer.__main__ import PAGE, Failed, Newcomer, walk
from tests.newcomer.story import Step

if TYPE_CHECKING:
    from conftest import Built

# the packages come from the registry, or from its cache: the first run on a machine takes long
pytestmark = [pytest.mark.built, pytest.mark.timeout(300)]


def test_the_tutorial_prints_what_it_shows(built: Built) -> None:
    """Each program and command of the tutorial, in an empty home with a new environment, prints what the page shows."""
    walk(built.wheel, PAGE.read_text("utf-8"))


def test_a_page_that_is_wrong_is_found(built: Built) -> None:
    """A line that is not printed, a command that fails, and a package from elsewhere each raise an error. The error
    says what the newcomer saw."""
    with tempfile.TemporaryDirectory(prefix="newcomer-") as folder:
        root = Path(folder)
        root.chmod(0o755)
        newcomer = Newcomer(root, built.wheel)
        wrong, missing = Step("echo four nuts", "five nuts\n", 2), Step("wheel-shed stats", "", 10)
        with pytest.raises(Failed, match=r"(?s)line 2: .*-five nuts.*\+four nuts"):
            newcomer.follow(wrong)
        with pytest.raises(Failed, match="line 10: wheel-shed stats ended with code 127"):
            newcomer.follow(missing)
        with pytest.raises(Failed, match="No module named"):  # nothing is installed, and no checkout can be read
            newcomer.check_origin()
