"""Retry headers: what travels with a message between its failures, bounded, last value only, and never trusted."""

from retry_topic.headers.codec import AMPLE, Restating, read, write
from retry_topic.headers.homeward import homeward
from retry_topic.headers.identity import content_id, content_print, member_id, retry_id
from retry_topic.headers.names import HEADER_NAMES, MAX_TOTAL_BYTES
from retry_topic.headers.owner import of_another_group
from retry_topic.headers.published import published, without_ours
from retry_topic.headers.signature import sign, unsigned, verify
from retry_topic.headers.spring import SPRING_NAMES, with_spring
from retry_topic.headers.state import MAX_COUNT, RetryState

__all__ = [
    "AMPLE",
    "HEADER_NAMES",
    "MAX_COUNT",
    "MAX_TOTAL_BYTES",
    "SPRING_NAMES",
    "Restating",
    "RetryState",
    "content_id",
    "content_print",
    "homeward",
    "member_id",
    "of_another_group",
    "published",
    "read",
    "retry_id",
    "sign",
    "unsigned",
    "verify",
    "with_spring",
    "without_ours",
    "write",
]
