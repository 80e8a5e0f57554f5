"""Spark: the delay store as a data source, and jobs over dead letters, the attempt history and the store.

    spark = spark_session()                    # or: register(your_spark)
    dead = spark.read.format("wheelsched").options(store=url, states="dead").load()

Use Spark when one machine is not enough, or when the input must be joined or aggregated first. On one machine a plain
loop is as fast. Spark needs `wheel-sched[spark]` and Java 17 or newer.
"""

from retry_topic.spark.session import JavaMissing, register, spark_session
from retry_topic.spark.sizes import sizes

__all__ = ["JavaMissing", "register", "sizes", "spark_session"]
