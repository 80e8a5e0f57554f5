"""Writer fences: what a writer stores in an epoch is stored once."""
