"""Retry headers: what a message carries from one attempt to the next. Bounded, and never trusted.

`state` is the typed form, `fields` the table of headers; `codec` reads and writes them. `foreign` reads and writes the
headers of other systems. `signature` protects ours.
"""

from retry_topic.message.headers.codec import (
    AMPLE,
    HeaderRewriter,
    of_another_group,
    published,
    read,
    return_to_origin,
    without_ours,
    write,
)
from retry_topic.message.headers.fields import HEADER_NAMES, MAX_TOTAL_BYTES
from retry_topic.message.headers.foreign import SPRING_NAMES, with_spring
from retry_topic.message.headers.signature import sign, unsigned, verify
from retry_topic.message.headers.state import MAX_COUNT, RetryState, content_id, content_print, member_id, retry_id

__all__ = [
    "AMPLE",
    "HEADER_NAMES",
    "MAX_COUNT",
    "MAX_TOTAL_BYTES",
    "SPRING_NAMES",
    "HeaderRewriter",
    "RetryState",
    "content_id",
    "content_print",
    "member_id",
    "of_another_group",
    "published",
    "read",
    "retry_id",
    "return_to_origin",
    "sign",
    "unsigned",
    "verify",
    "with_spring",
    "without_ours",
    "write",
]
