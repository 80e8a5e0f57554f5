"""Identity: the same message of the same group always gets the same id, so a second copy of a retry is recognised.

95 bits: among a thousand million messages the chance of one clash is about 10**-11.

What a message *is* can stand for where it was: see `content_id`.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from hashlib import blake2b
from zlib import crc32


def retry_id(group: str, topic: str, partition: int, offset: str) -> str:
    """16 url-safe characters for a message at its origin, per consumer group; a letter first, as commands take ids.

    `topic` may be the broker's topic *id* where there is one, so that a topic made anew does not repeat old ids.
    """
    digest = blake2b(digest_size=12)
    for part in (group, topic, str(partition), offset):
        data = part.encode(errors="surrogatepass")
        digest.update(len(data).to_bytes(4, "big") + data)  # lengths: ("ab", "c") is not ("a", "bc")
    first, *rest = digest.digest()
    return urlsafe_b64encode(bytes([first & 0x7F, *rest])).decode()  # the upper half of the alphabet has the dash


def member_id(retry_id: str, attempt: int) -> str:
    """Id of one attempt in the delay store."""
    return f"{retry_id}.{attempt}"


def content_id(group: str, value: bytes, key: bytes | None) -> str:
    """An id made of payload and key, for a record whose place and headers prove nothing: records alike share it."""
    digest = blake2b(value, digest_size=16).hexdigest()
    return retry_id(group, "", 0, digest if key is None else digest + blake2b(key, digest_size=16).hexdigest())


def content_print(value: bytes, key: bytes | None) -> str:
    """A short print of payload and key, by which two messages under one id are told apart: a help against accidents.

    Whoever wants two messages to pass for one can make them so; what is signed has a digest of its payload besides.
    """
    return f"{crc32(value, 0 if key is None else crc32(key, len(key) + 1)):x}"
