"""Observability: metrics for Prometheus, and probes for a process supervisor.

No other part needs this one. The collector reads counters that exist anyway, and a probe is answered from this process
alone.
"""

from wheel_sched.observability.endpoint import Endpoint, parse_address, verdict
from wheel_sched.observability.liveness import Watched, dead_parts, unready_parts

__all__ = ["Endpoint", "Watched", "dead_parts", "parse_address", "unready_parts", "verdict"]
