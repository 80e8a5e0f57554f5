"""Stored jobs: JSON, an allow-list of the functions that jobs may name, and a signature if there is a secret."""

from wheel_sched_apscheduler.codec.allow_list import Allowed, Forbidden, NotRegistered
from wheel_sched_apscheduler.codec.jobs import JobCodec, StoredJob, definition_of, unsigned
from wheel_sched_apscheduler.codec.signing import BadSignature, Signer
from wheel_sched_apscheduler.codec.values import NotHere, NotSerializable, Unreadable

__all__ = [
    "Allowed",
    "BadSignature",
    "Forbidden",
    "JobCodec",
    "NotHere",
    "NotRegistered",
    "NotSerializable",
    "Signer",
    "StoredJob",
    "Unreadable",
    "definition_of",
    "unsigned",
]
