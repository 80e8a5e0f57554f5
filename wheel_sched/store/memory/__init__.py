"""The delay store in memory: for tests, and for processes whose waiting items may end with them."""

from wheel_sched.store.memory.backend import MemoryBackend

__all__ = ["MemoryBackend"]
