"""`format("wheelsched")`: the delay store as a Spark data source. It reads batches; it writes batches and streams."""
