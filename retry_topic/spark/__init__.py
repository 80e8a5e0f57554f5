"""The data pipeline on Spark: the delay store as a data source, and jobs over dead letters, history and the store.

    spark = spark_session()                    # or: register(your_spark)
    dead = spark.read.format("wheelsched").options(store=url, states="dead").load()

Spark is what to take when one machine is not enough, or when what goes in must be joined and aggregated first; on one
machine a plain loop is as fast. Needs `wheel-sched[spark]` and Java 17 or newer.
"""

from retry_topic.spark.session import JavaMissing, register, spark_session
from retry_topic.spark.sizes import sizes

__all__ = ["JavaMissing", "register", "sizes", "spark_session"]
