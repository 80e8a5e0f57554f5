"""A producer with wheel-sched: its tasks wait in the delay store and in no worker.

python producer.py 20
"""

from __future__ import annotations

import sys

from tasks import send

for number in range(int(sys.argv[1])):
    print(send.apply_async((f"ours {number}",), countdown=3600).id)  # noqa: T201
