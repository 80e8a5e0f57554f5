"""The simulated world of retry topics. See `wheel_sched.simulation`."""
