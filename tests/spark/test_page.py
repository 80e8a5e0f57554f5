"""docs/spark.md: its examples run, from top to bottom, in a process of its own, because they end the session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
RUN = """
import sys
from pathlib import Path
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser
for example in Sybil(parsers=[PythonCodeBlockParser()]).parse(Path(sys.argv[1])).examples():
    example.evaluate()
    print("ran", example.line)
"""


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_every_example_of_the_page_runs(tmp_path: Path) -> None:
    """A reader who pastes the page's blocks one after the other sees no error."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(PAGE)],
        cwd=tmp_path,
        env={**os.environ, "SPARK_LOCAL_DIRS": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    assert done.stdout.count("ran ") == PAGE.read_text("utf-8").count("```python\n")
