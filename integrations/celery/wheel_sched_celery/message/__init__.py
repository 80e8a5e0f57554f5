"""A held task as data: the finished broker message, its id, its due time and where it goes. Nothing here connects."""
