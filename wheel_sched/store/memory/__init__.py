"""The delay store in memory: for tests, and for processes whose waiting items may be lost when the process ends."""

from wheel_sched.store.memory.backend import MemoryBackend

__all__ = ["MemoryBackend"]
