"""`format("wheelsched")`: the delay store as a Spark data source, to read and to write, in batches and as a stream."""

from retry_topic.spark.source.source import WheelSchedSource

__all__ = ["WheelSchedSource"]
