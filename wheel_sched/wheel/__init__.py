"""The hierarchical timing wheel: which tasks are due at which tick, and nothing else.

    wheel = TimingWheel(now_ms)
    entry = wheel.schedule(task, deadline_ms)       # also: entry.cancel(), .touch(later_ms), .reschedule(ms)
    for entry in wheel.advance(now_ms): ...         # sleep until wheel.next_expiry()

The wheel exists twice, with the same behaviour and the same tests: the core `pure` in Python and the core `_wheel_c` in
Cython. The installation compiles `_wheel_c` when it can. The compiled core is used when it loads and Python has a GIL,
on which it depends. `WHEEL_SCHED_PURE=1` in the environment forces the pure core. `CORE` says which core is used, and
`CORE_REASON` says why; `wheel-sched doctor` shows both. `CORES` holds the cores that were loaded.

Neither core reads a clock or waits: `now` is an argument, in whole milliseconds. One owner makes all calls to a pure
wheel; any thread may call a compiled one, so the timers add entries to it without a lock.
"""

from __future__ import annotations

import os
import sysconfig
from typing import TYPE_CHECKING, Final, Literal

from wheel_sched.wheel import pure, pure_entry
from wheel_sched.wheel.states import EntryState, WheelCounters

__all__ = ["CORE", "CORES", "CORE_REASON", "EntryState", "TimerTaskEntry", "TimingWheel", "WheelCounters"]

CORES: Final = {"pure": pure.TimingWheel}
CORE: Literal["pure", "compiled"] = "pure"
CORE_REASON = "WHEEL_SCHED_PURE=1 asks for it"

if TYPE_CHECKING:
    from wheel_sched.wheel.pure import TimingWheel
    from wheel_sched.wheel.pure_entry import TimerTaskEntry
else:
    TimerTaskEntry, TimingWheel = pure_entry.TimerTaskEntry, pure.TimingWheel
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        CORE_REASON = "this Python is free-threaded, and the compiled core would turn the GIL on"
    elif os.environ.get("WHEEL_SCHED_PURE") != "1":
        try:
            from wheel_sched.wheel._wheel_c import TimerTaskEntry, TimingWheel
        except ModuleNotFoundError:
            CORE_REASON = "the compiled core was not built when wheel-sched was installed"
        except ImportError as error:
            CORE_REASON = f"the compiled core does not load: {error}"
        else:
            CORES["compiled"] = TimingWheel
            CORE, CORE_REASON = "compiled", "it is built for this Python"
