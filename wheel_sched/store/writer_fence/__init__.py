"""Writer fences: each item of a writer's epoch is stored once."""
