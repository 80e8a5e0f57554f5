"""Commands of `wheel-sched` that know messages, policies and brokers; `wheel_sched.cli` finds them by name alone."""
