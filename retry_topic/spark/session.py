"""A Spark session with what the data source needs, and the source registered in it.

Workers run the interpreter of this process (`PYSPARK_PYTHON`): with the `python3` of the PATH they would not find the
packages of a virtual environment. A local session binds to loopback and has no web page. Sources are handed to the
workers by reference, so on a cluster every node needs `wheel-sched[spark]` for the same Python.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from wheel_sched.errors import ConfigError, WheelSchedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

LEAST_JAVA = 17
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

_SETTINGS = {
    PUSHDOWN: "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "5000",
    "spark.sql.session.timeZone": "UTC",
}
_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",  # the default of 200 is for clusters
}


class JavaMissing(WheelSchedError):
    """There is no Java that Spark can run on; nothing was started."""


def spark_session(
    master: str | None = None,
    *,
    app: str = "wheel-sched",
    settings: Mapping[str, str] | None = None,
    progress: bool = False,
) -> SparkSession:
    """A session ready for our formats; the one that is already there, when there is one.

    Args:
        master: `local[N]`, `spark://host:port` or any other that Spark knows, or `sc://host:port` of a Spark Connect
            server. Defaults to None: what spark-submit, SPARK_REMOTE or spark-defaults say, else `local[*]`.
        app: the application's name.
        settings: of Spark, over ours. Defaults to none.
        progress: show a bar for each stage on stderr; of a session that somebody else starts, they decide. Defaults to
            False.

    Raises:
        JavaMissing: Java is absent or too old.
        ConfigError: PySpark is absent.
    """
    try:
        from pyspark import SparkConf
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError("Spark needs `pip install wheel-sched[spark]`; nothing was started") from error
    running = running_session()
    if running is not None:
        return running
    remote = master or os.environ.get("SPARK_REMOTE", "")
    if remote.startswith("sc://"):
        return _given(SparkSession.builder.remote(remote).getOrCreate(), settings)
    python = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)
    if "SPARK_LOCAL_IP" not in os.environ and (master is None or master.startswith("local")):
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"  # or Spark looks the host name up, which may have no address
    check_java()
    if master is None and (
        "PYSPARK_GATEWAY_PORT" in os.environ or remote
    ):  # under spark-submit, or a Connect of our own
        return _given(SparkSession.builder.getOrCreate(), settings)
    conf = SparkConf()
    chosen = master or conf.get("spark.master", "local[*]") or "local[*]"
    defaults = _SETTINGS | (_LOCAL if chosen.startswith("local") else {})
    defaults["spark.ui.showConsoleProgress"] = str(progress).lower()
    for name, value in (defaults | dict(settings or {})).items():
        if name in (settings or {}) or not conf.contains(name):
            conf.set(name, value)
    conf.setMaster(chosen).setAppName(app)
    return register(SparkSession.builder.config(conf=conf).getOrCreate())


def _given(session: SparkSession, settings: Mapping[str, str] | None) -> SparkSession:
    """A session that somebody else has configured, with what the source cannot do without."""
    for name, value in (settings or {}).items():
        session.conf.set(name, value)
    return register(session)


def running_session() -> SparkSession | None:
    """The session of this thread that is there already, with the source registered in it."""
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    return None if running is None else register(running)


def register(spark: SparkSession) -> SparkSession:
    """Make our formats known to a session, of Spark Connect too; the session. May be repeated."""
    from retry_topic.spark.kafka.source import WheelSchedKafkaSource
    from retry_topic.spark.source.source import WheelSchedSource

    spark.conf.set(PUSHDOWN, "true")  # off, a reader that can push filters down is refused
    spark.dataSource.register(WheelSchedSource)
    spark.dataSource.register(WheelSchedKafkaSource)
    return spark


def check_java() -> str:
    """The Java that Spark will run on, as it calls itself.

    Raises:
        JavaMissing: with what to install.
    """
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    advice = (
        f"install Java {LEAST_JAVA} (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install "
        "openjdk@17) or point JAVA_HOME to one; nothing was started"
    )
    if program is None or not Path(program).exists():
        raise JavaMissing(f"there is no java {f'in JAVA_HOME ({home})' if home else 'on the PATH'}: {advice}")
    told = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', told)
    if version is None or int(version[1]) < LEAST_JAVA:
        raise JavaMissing(f"{program} is {told.splitlines()[0] if told else 'silent about its version'}: {advice}")
    return version[1]
