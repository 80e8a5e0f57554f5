"""Passwords out of what people and logs are shown: of a URL as it was given, however malformed, and of any text.

Invariant: what stands between the first colon after the scheme and the last `@`, and the value of every query parameter
that is not known to be harmless, is never shown. When in doubt too much is hidden: a URL is shown to be recognised.
Pure. Any thread.
"""

from __future__ import annotations

import re

_HIDDEN = "***"
# bounded, or a long text of somebody else's would be looked through again from each of its characters
_START = r"((?:[A-Za-z][A-Za-z0-9+.-]{0,30}:)?/{0,3})([^\s:/@'\"?]{0,200}):"
_USERINFO = re.compile(rf"{_START}(.*)@", re.DOTALL)
_IN_TEXT = re.compile(rf"{_START}(\S{{0,500}})@")
_WORD = re.compile(r"\S+")
_QUERY = re.compile(r"([?&;])([^=&;#\s?]*)=([^&;#\s'\"]*)")
_QUERY_OF_URL = re.compile(r"([?&;])([^=&;#?]*)=([^&;#]*)")
_ASSIGNED = re.compile(  # a setting of Kafka's clients
    r"(?i)\b([\w-]{1,40}\.[\w.-]{0,60}(?:password|secret|token|jaas)[\w.-]{0,60}['\"]?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;&}\]]+)"
)
_HARMLESS = frozenset(
    {
        *("db", "virtual_host", "protocol", "client_name", "encoding", "decode_responses", "max_connections"),
        *("health_check_interval", "timeout", "socket_timeout", "socket_connect_timeout", "socket_keepalive"),
        *("socket_read_size", "retry_on_timeout", "ssl_cert_reqs", "ssl_check_hostname", "ssl_ca_certs"),
        *("ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_min_version"),
    }
)


def redacted(url: str) -> str:
    """The URL without its password, for people and logs."""
    return _QUERY_OF_URL.sub(_value, _USERINFO.sub(rf"\1\2:{_HIDDEN}@", url))


def redacted_text(text: str) -> str:
    """A text that may quote URLs or settings, without passwords."""
    shown = text
    if "@" in shown:
        shown = _IN_TEXT.sub(rf"\1\2:{_HIDDEN}@", shown)
    if "=" in shown or ":" in shown:
        shown = _ASSIGNED.sub(rf"\1{_HIDDEN}", shown)
    if "?" in shown:
        shown = _WORD.sub(lambda found: _QUERY.sub(_value, found[0]) if ":/" in found[0] else found[0], shown)
    return shown


def _value(found: re.Match[str]) -> str:
    mark, name, value = found.groups()
    return f"{mark}{name}={value if name in _HARMLESS else _HIDDEN}"
