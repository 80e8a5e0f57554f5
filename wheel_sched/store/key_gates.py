"""The names of other modules of the store, under the name that callers still import."""

# ruff: noqa: F403

from wheel_sched.store.ordering.face import *
from wheel_sched.store.ordering.face import OrderedKeys, lock_of


class KeyGates(OrderedKeys):
    """The class under the names that callers still use."""

    own = OrderedKeys.acquire
    leave = OrderedKeys.release


gate_of = lock_of
