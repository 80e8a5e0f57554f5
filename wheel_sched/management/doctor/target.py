"""Opens what the checks examine: the server and the namespace that the settings name."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace

from wheel_sched.config import Settings
from wheel_sched.management.doctor.finding import ExaminedTarget
from wheel_sched.management.opening import created_as, embedded_folder, server_url


@contextlib.contextmanager
def examined_target(settings: Settings) -> Iterator[ExaminedTarget]:
    """Yield the server and the namespace to examine. A scratch folder replaces an embedded folder that is missing."""
    import redis

    from wheel_sched.store.redis.faults import translate

    with contextlib.ExitStack() as stack:
        folder = embedded_folder(settings)
        if folder is not None and not folder.is_dir():
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="wheel-sched-doctor-"))
            url = stack.enter_context(server_url(replace(settings, store=f"embedded:{scratch}"), create=True))
        else:
            url = stack.enter_context(server_url(settings))
        try:
            yield _examine(stack, settings, url)
        except (redis.RedisError, OSError) as error:
            raise translate(error) from error


def _examine(stack: contextlib.ExitStack, settings: Settings, url: str) -> ExaminedTarget:
    import redis

    from wheel_sched.store.core.call import Call
    from wheel_sched.store.core.counts import Count
    from wheel_sched.store.core.delay_store import DelayStore
    from wheel_sched.store.members import Members
    from wheel_sched.store.redis.backend import RedisBackend, client_for
    from wheel_sched.store.redis.durability import SYNCED
    from wheel_sched.store.redis.round_trips import Dialect

    client = stack.enter_context(client_for(url))
    client.ping()
    started = time.perf_counter()
    client.ping()
    ping_ms = (time.perf_counter() - started) * 1000
    backend = RedisBackend(client, Dialect(settings.namespace))
    info = {**backend.info(), "ping_ms": ping_ms}
    config: dict[str, str] = {}
    with contextlib.suppress(redis.RedisError):  # managed servers hide CONFIG
        for name in ("maxmemory-policy", *SYNCED, "min-replicas-to-write", "min-replicas-max-lag"):
            config |= {_text(key): _text(value) for key, value in dict(client.config_get(name)).items()}
    shards = int(created_as(url, settings.namespace).get("shards", 0))
    counts = backend.execute([Call(shard, Count()) for shard in range(shards)])
    for answer in counts:
        if isinstance(answer, Exception):
            raise answer
    now_ms = max((part.now_us for part in counts), default=0) // 1000
    members = Members(DelayStore(backend, shards=shards)).live() if shards else []
    return ExaminedTarget(settings, url, client, info, config, shards, counts, now_ms, members)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
