"""The dispatcher in a worker: it sends a held task that is due to the broker, and then removes it from the store."""
