"""The dispatcher in a worker: a held task that is due goes to the broker, and only then leaves the store."""
