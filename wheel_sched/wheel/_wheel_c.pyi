# What is true of the pure core is true of this one.
from wheel_sched.wheel.pure import TimingWheel as TimingWheel
from wheel_sched.wheel.pure_entry import TimerTaskEntry as TimerTaskEntry
