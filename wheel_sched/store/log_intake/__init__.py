"""Log intake: the store takes a batch of a log together with its position, all or nothing, and only once."""
