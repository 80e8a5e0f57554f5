"""`format("wheelsched")`: the delay store as a Spark data source, to read and to write, in batches and as a stream."""
