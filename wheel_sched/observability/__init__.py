"""What an operator's tools see: metrics for Prometheus, and the probes of a process supervisor.

Nothing here is needed for the work itself, and nothing here takes part in it: the collector reads counters that exist
anyway, and a probe is answered from this process alone.
"""

from wheel_sched.observability.endpoint import Endpoint, parse_address, verdict
from wheel_sched.observability.liveness import Watched, dead_parts, unready_parts

__all__ = ["Endpoint", "Watched", "dead_parts", "parse_address", "unready_parts", "verdict"]
