"""Opens the jobstore that the settings name. Only `migrate` creates a namespace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from wheel_sched.config import Loaded
from wheel_sched.management.opening import opened
from wheel_sched_apscheduler.codec.signing import secret_for
from wheel_sched_apscheduler.stores.redis import NAMESPACE, RedisWheelJobStore

MADE_BY = "a scheduler with this job store, or run `wheel-sched aps migrate`"


@contextlib.contextmanager
def opened_jobs(
    loaded: Loaded, *, create: bool = False, codec: Mapping[str, Any] | None = None
) -> Iterator[RedisWheelJobStore]:
    """Open the jobstore that the settings name, without a scheduler. It is closed at the end of the `with` block.

    Args:
        loaded: the settings.
        create: whether to create the namespace. Defaults to False.
        codec: settings of the codec, as `RedisWheelJobStore` takes them. Defaults to none.
    """
    settings = loaded.settings
    if loaded.origins["namespace"] == "default":
        settings = replace(settings, namespace=NAMESPACE)
    with opened(settings, create=create, made_by=MADE_BY) as store:
        yield RedisWheelJobStore(
            store=store, namespace=settings.namespace, secret=secret_for(settings.store), **codec or {}
        )
