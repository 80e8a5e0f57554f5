"""The consumer in a worker: it moves an ETA message that came through the broker into the store."""
