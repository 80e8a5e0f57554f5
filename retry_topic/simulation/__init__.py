"""The simulated worlds of retry topics. The simulator in `wheel_sched.simulation` runs them."""
