"""Log intake: a batch of a log is stored with its position, all or nothing, and once."""
