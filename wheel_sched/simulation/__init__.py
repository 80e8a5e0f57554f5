"""A deterministic simulator: it runs wheel-sched's own code in virtual time, with faults that a seed chooses."""
