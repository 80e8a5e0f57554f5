"""Finds the store that a job works on, and reads its items as a DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retry_topic.spark.source.options import StorePlace, read_place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def place_of(store: str, namespace: str = "wheel", durability: str = "everysec") -> StorePlace:
    """Where the store of an existing namespace is. The driver and every worker must reach the address.

    Raises:
        ConfigError: there is no such namespace, or the address is wrong.
        StoreError: the server cannot be reached.
    """
    return read_place({"store": store, "namespace": namespace, "durability": durability})


def read(spark: SparkSession, place: StorePlace, **options: str) -> DataFrame:
    """The items of the store as a DataFrame. `options` are those of `format("wheelsched")`."""
    options = {"store": place.url, "namespace": place.namespace, **options}
    return spark.read.format("wheelsched").options(**options).load()
