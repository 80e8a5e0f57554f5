"""Starts a Spark session with the settings that this package's data sources need, and registers the data sources.

Workers run the Python interpreter of this process (`PYSPARK_PYTHON`). The `python3` on the PATH would not find the
packages of a virtual environment. A local session binds to loopback and has no web page. Workers import the data
sources by name, so on a cluster every node needs `wheel-sched[spark]` for the same Python.
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
    """There is no Java that can run Spark; nothing was started."""


def spark_session(
    master: str | None = None,
    *,
    app: str = "wheel-sched",
    settings: Mapping[str, str] | None = None,
    progress: bool = False,
) -> SparkSession:
    """Start a session and register this package's data sources; or return the running session with them.

    Args:
        master: `local[N]`, `spark://host:port` or any other master of Spark, or `sc://host:port` of a Spark Connect
            server. Defaults to None: what spark-submit, SPARK_REMOTE or spark-defaults say, else `local[*]`.
        app: name of the application. Defaults to "wheel-sched".
        settings: Spark settings; they override the defaults of this package. A session that is already active in this
            thread does not get them. Defaults to none.
        progress: show a progress bar for each stage on stderr. Has an effect only on a session that this function
            starts. Defaults to False.

    Raises:
        JavaMissing: Java is missing or too old.
        ConfigError: PySpark is missing.
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
        return _configured(SparkSession.builder.remote(remote).getOrCreate(), settings)
    python = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)
    if "SPARK_LOCAL_IP" not in os.environ and (master is None or master.startswith("local")):
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"  # else Spark looks up the host name, which may have no address
    check_java()
    # spark-submit sets the port; SPARK_REMOTE may also be a local Connect server
    if master is None and ("PYSPARK_GATEWAY_PORT" in os.environ or remote):
        return _configured(SparkSession.builder.getOrCreate(), settings)
    conf = SparkConf()
    chosen = master or conf.get("spark.master", "local[*]") or "local[*]"
    defaults = _SETTINGS | (_LOCAL if chosen.startswith("local") else {})
    defaults["spark.ui.showConsoleProgress"] = str(progress).lower()
    for name, value in (defaults | dict(settings or {})).items():
        if name in (settings or {}) or not conf.contains(name):
            conf.set(name, value)
    conf.setMaster(chosen).setAppName(app)
    return register(SparkSession.builder.config(conf=conf).getOrCreate())


def _configured(session: SparkSession, settings: Mapping[str, str] | None) -> SparkSession:
    """Give these settings and this package's data sources to a session of spark-submit or of Spark Connect."""
    for name, value in (settings or {}).items():
        session.conf.set(name, value)
    return register(session)


def running_session() -> SparkSession | None:
    """Register the data sources in the active session of this thread and return it; None if there is no session."""
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    return None if running is None else register(running)


def register(spark: SparkSession) -> SparkSession:
    """Register this package's data sources in a session and return it. The session may be one of Spark Connect.

    Repeating the call is harmless.
    """
    from retry_topic.spark.kafka.source import WheelSchedKafkaSource
    from retry_topic.spark.source.source import WheelSchedSource

    spark.conf.set(PUSHDOWN, "true")  # without it Spark refuses a reader that takes filters
    spark.dataSource.register(WheelSchedSource)
    spark.dataSource.register(WheelSchedKafkaSource)
    return spark


def check_java() -> str:
    """The major version of the Java that will run Spark, such as "17".

    Raises:
        JavaMissing: Java is missing or too old; the error says what to install.
    """
    java_home = os.environ.get("JAVA_HOME")
    program = str(Path(java_home) / "bin" / "java") if java_home else shutil.which("java")
    advice = (
        f"install Java {LEAST_JAVA} (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install "
        "openjdk@17) or point JAVA_HOME to one; nothing was started"
    )
    if program is None or not Path(program).exists():
        raise JavaMissing(f"there is no java {f'in JAVA_HOME ({java_home})' if java_home else 'on the PATH'}: {advice}")
    output = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', output)
    if version is None or int(version[1]) < LEAST_JAVA:
        found = output.splitlines()[0] if output else "no version"
        raise JavaMissing(f"{program} reports {found}: {advice}")
    return version[1]
