"""Job stores: jobs of one process in memory, and jobs that many processes share in Redis or Valkey."""
