# What is true of the pure core is true of this one.
from wheel_sched.wheel.pure import TimerTaskEntry as TimerTaskEntry
from wheel_sched.wheel.pure import TimingWheel as TimingWheel
