"""Observability: metrics for Prometheus, probes for a process supervisor, and log records as JSON.

The scheduler works without this package. The collector reads counters that the scheduler keeps in any case. To answer a
probe, the process asks no server.
"""

from wheel_sched.observability.endpoint import Endpoint, parse_address, verdict
from wheel_sched.observability.json_lines import JsonLines
from wheel_sched.observability.liveness import Watched, dead_parts, unready_parts

__all__ = ["Endpoint", "JsonLines", "Watched", "dead_parts", "parse_address", "unready_parts", "verdict"]
