"""Retry topics: failed messages wait durably, come back on time, are capped and dead-lettered."""
