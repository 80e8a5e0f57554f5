"""The consumer in a worker: an ETA message that came through the broker all the same moves into the store."""
