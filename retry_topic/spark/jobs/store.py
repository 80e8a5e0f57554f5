"""The store a job works on, as the driver and every worker can reach it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retry_topic.spark.source.options import Place, read_place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def place_of(store: str, namespace: str = "wheel", durability: str = "everysec") -> Place:
    """An existing namespace.

    Raises:
        ConfigError: there is none, or the address is wrong.
        StoreError: the server cannot be reached.
    """
    return read_place({"store": store, "namespace": namespace, "durability": durability})


def read(spark: SparkSession, place: Place, **options: str) -> DataFrame:
    """The store as a DataFrame."""
    options = {"store": place.url, "namespace": place.namespace, **options}
    return spark.read.format("wheelsched").options(**options).load()
