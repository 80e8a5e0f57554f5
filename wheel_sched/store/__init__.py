"""The delay store: a durable set of (id, due, body), claimed under leases, on Redis, Valkey or in memory."""
