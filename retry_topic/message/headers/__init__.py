"""Retry headers: what a message carries from one attempt to the next. They are bounded, and never trusted.

`state` holds the typed form and the table of headers. `codec` reads and writes them. `failed_attempts` is the form of
the header that tells about all failed attempts. `foreign` reads and writes the headers of other systems. `signature`
protects ours.
"""

from retry_topic.message.headers.codec import (
    AMPLE,
    HeaderRewriter,
    lighter,
    of_another_group,
    published,
    read,
    return_to_origin,
    without_ours,
    write,
)
from retry_topic.message.headers.foreign import SPRING_NAMES, with_spring
from retry_topic.message.headers.signature import sign, unsigned, verify
from retry_topic.message.headers.state import (
    HEADER_NAMES,
    MAX_COUNT,
    MAX_TOTAL_BYTES,
    RetryState,
    attempts_key,
    content_id,
    content_print,
    replays_key,
    retry_id,
)

__all__ = [
    "AMPLE",
    "HEADER_NAMES",
    "MAX_COUNT",
    "MAX_TOTAL_BYTES",
    "SPRING_NAMES",
    "HeaderRewriter",
    "RetryState",
    "attempts_key",
    "content_id",
    "content_print",
    "lighter",
    "of_another_group",
    "published",
    "read",
    "replays_key",
    "retry_id",
    "return_to_origin",
    "sign",
    "unsigned",
    "verify",
    "with_spring",
    "without_ours",
    "write",
]
