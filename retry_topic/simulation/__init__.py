"""The simulated world of retry topics, for the simulator in `wheel_sched.simulation`."""
