"""A held task as data: the finished broker message, its id, its due time and its queue. No I/O."""
