"""The examples of the documentation's Spark pages run, page by page, over one session of Spark Connect.

This also shows that every job, reads, writes and a stream work over a session without a JVM. All other tests have a
classic session. These examples run in their own process, because a process has only one kind of session.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(DOCS.glob("spark*.md"))
RUN = """
import sys
from pathlib import Path
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser
from retry_topic.spark import spark_session
# queries this small are over before their code is compiled or their plan revised
quick = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
assert "connect" in type(spark_session(settings=quick)).__module__
for page in sys.argv[1:]:
    for example in Sybil(parsers=[PythonCodeBlockParser()]).parse(Path(page)).examples():
        example.document.namespace.clear()  # a block that needs another is an error
        example.evaluate()
        print("ran", page, example.line, flush=True)
"""


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_every_example_of_the_pages_runs_over_spark_connect(tmp_path: Path) -> None:
    """Each code block of a page runs alone without an error."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, *map(str, PAGES)],
        cwd=tmp_path,
        env={
            **os.environ,
            "SPARK_REMOTE": "local[2]",
            "SPARK_TESTING": "yes",  # Spark's own: its Connect server takes a free port, not 15002
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(tmp_path / "local"),
        },
        capture_output=True,
        text=True,
        timeout=580,
    )
    # examples leave clients of stopped clusters
    errors = [line for line in done.stderr.splitlines() if "|FAIL|rdkafka" not in line]
    assert done.returncode == 0, done.stdout[-500:] + "\n".join(errors)[-3_000:]
    assert done.stdout.count("ran ") == sum(page.read_text("utf-8").count("```python\n") for page in PAGES)
