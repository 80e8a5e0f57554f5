"""Commands of `wheel-sched` for messages, policies and brokers. `wheel_sched.cli` finds them through `extension`."""
