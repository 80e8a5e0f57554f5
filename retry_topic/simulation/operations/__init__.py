"""The world of durable operations: dead letters that operations, visitors and consumers change at the same time."""
