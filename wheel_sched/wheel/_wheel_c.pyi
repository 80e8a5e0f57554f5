# The compiled core has the same types as the pure core.
from wheel_sched.wheel.pure import TimingWheel as TimingWheel
from wheel_sched.wheel.pure_entry import TimerTaskEntry as TimerTaskEntry
