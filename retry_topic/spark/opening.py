"""Opens what the Spark commands work on: a session, a store, an attempt history."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from retry_topic.cli.settings import settings_of
from retry_topic.management.opening import cluster_of
from wheel_sched.cli.options import Session
from wheel_sched.cli.output import note
from wheel_sched.management.opening import server_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from retry_topic.spark.source.options import StorePlace

master_option = click.option(
    "--master", metavar="URL", help="Spark master: local[2], spark://host:7077 (default: local[*])."
)


TOPIC = "kafka:"  # prefix of a topic name in an argument that takes a file name too


@contextlib.contextmanager
def running(master: str | None) -> Iterator[SparkSession]:
    """Yield the running Spark session, or a new one. A new session ends with the block."""
    from pyspark.errors import PySparkException

    from retry_topic.spark.session import running_session, spark_session

    session = running_session()
    if session is not None:
        yield session
        return
    note("starting Spark")
    session = spark_session(master, progress=sys.stderr.isatty())
    with contextlib.suppress(PySparkException):  # Spark Connect has no SparkContext
        session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


@dataclass(frozen=True, slots=True)
class JobContext:
    """The Spark session and the store that a command works on."""

    spark: SparkSession
    place: StorePlace


@contextlib.contextmanager
def with_store(settings: Session, master: str | None) -> Iterator[JobContext]:
    """Yield a Spark session and the store that the settings name. An embedded server runs as long as the block."""
    with server_url(settings.settings) as url:
        from retry_topic.spark.jobs.store import place_of

        place = place_of(url, settings.settings.namespace, settings.settings.durability)
        with running(master) as session:
            yield JobContext(session, place)


@contextlib.contextmanager
def attempts(settings: Session, master: str | None, file: str | None) -> Iterator[DataFrame]:
    """Yield the attempt history from a file, from a topic (`kafka:TOPIC`), or, if `file` is None, from the store."""
    from retry_topic.spark.jobs.history import load_history, store_history, topic_history

    if file is not None and file.startswith(TOPIC):
        cluster = cluster_of(settings_of(settings))
        with running(master) as alone:
            yield topic_history(alone, cluster, file.removeprefix(TOPIC))
        return
    if file is not None:
        with running(master) as alone:
            yield load_history(alone, file)
        return
    with with_store(settings, master) as job:
        yield store_history(job.spark, job.place)
