"""Removes passwords from text for people and logs: from a URL, however malformed, and from text that quotes URLs.

Invariant: these parts of a URL are always hidden: the text between the first colon after the scheme and the last `@`;
the query, from its first parameter that is unknown or has an unusual value; a fragment (except after embedded:, http:
and https:); a user or host with an encoded `:` or `@`; and for redis:// a port or path that is not a number. In doubt,
more is hidden: people only need to recognise the URL. All functions are pure. Any thread may call them.
"""

from __future__ import annotations

import re

_HIDDEN = "***"
# bounded: otherwise a long foreign text would be searched again from each of its characters
_START = r"((?:[A-Za-z][A-Za-z0-9+.-]{0,30}:)?/{0,3})([^\s:/@'\"?]{0,200}):"
_LOGIN_START = re.compile(_START)
_IN_TEXT = re.compile(rf"{_START}(\S{{0,500}})@([^\s'\"]*)")
_NO_PASSWORD = re.compile(r"\?[\w%-]{0,60}=|/\d{0,5}#")  # the beginning of a query or fragment that holds an @
_URL = re.compile(r"(?i)([a-z][a-z0-9+.-]{0,30}):/{1,3}[^\s'\"<>]*")
_PUNCTUATION = ".,:;)]}"  # it belongs to the sentence around a URL
_AUTHORITY = re.compile(r"((?:[A-Za-z][A-Za-z0-9+.-]*:)?//)([^/]*)(.*)", re.DOTALL)
_ENCODED = re.compile(r"(?i)%(?:3a|40)")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]*\]|[^:\[\]]*)(?::(?:\d{0,5}|PORT))?")  # our own errors write PORT and DB
_DATABASE = re.compile(r"/?(?:/(?:\d{1,5}|DB))?")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,40}")
_NUMBER = re.compile(r"(?i)-?\d{1,10}(?:\.\d{1,6})?|true|false|yes|no|on|off|none|optional|required")
_FILE = re.compile(r"(?i)[\w./~-]{0,300}(?:/[\w.-]{0,100}|\.(?:pem|crt|cer|key))")
NUMBERS = frozenset(
    {
        *("db", "protocol", "decode_responses", "max_connections", "health_check_interval", "socket_timeout"),
        *("socket_connect_timeout", "socket_keepalive", "socket_read_size", "retry_on_timeout", "timeout"),
        *("ssl_cert_reqs", "ssl_check_hostname", "ssl_min_version"),
    }
)
FILES = frozenset({"ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"})
_NAMES_A_SECRET = re.compile(r"(?i)password|secret|token|jaas")  # quick: most texts need no further search
_QUOTED = r"\"(?:\\.|[^\"\\]){0,2000}\"|'[^']{0,2000}'"
_ASSIGNED = re.compile(  # a setting of Kafka clients
    rf"(?i)\b([\w-]{{1,40}}\.[\w.-]{{0,60}}(?:password|secret|token|jaas)[\w.-]{{0,60}}['\"]?\s*[=:]\s*)({_QUOTED}|[^\s,;&}}\]]+)"
)
_PASSWORD = re.compile(  # in a JAAS setting
    rf"(?i)\b(password\s{{0,5}}=\s{{0,5}})(?!\*\*\*)(\\\".{{0,500}}?\\\"|{_QUOTED}|[^\s,;&}}\]]+)"
)


def redacted(url: str) -> str:
    """The URL with its secrets hidden, for people and logs."""
    shown = _anonymous(url)
    scheme = shown.partition(":")[0].lower()
    at = len(shown)
    for mark in "?" if scheme in ("embedded", "http", "https") else "?#":  # there a # is no fragment
        at = shown.find(mark, 0, at) % (at + 1)  # -1 (not found) becomes `at`
    return _AUTHORITY.sub(_addressed, shown[:at]) + _asked(shown[at:])


def redacted_text(text: str) -> str:
    """The text with the secrets of the URLs and settings in it hidden."""
    shown = text
    if "@" in shown:
        shown = _IN_TEXT.sub(_logged_in, shown)
    if ("=" in shown or ":" in shown) and _NAMES_A_SECRET.search(shown):
        shown = _PASSWORD.sub(rf"\1{_HIDDEN}", _ASSIGNED.sub(rf"\1{_HIDDEN}", shown))
    if ":/" in shown:
        shown = _URL.sub(_quoted, shown)
    return shown


def is_harmless(text: str) -> bool:
    """Whether `redacted_text` certainly leaves this ASCII text as it is. False: it may change it."""
    if "@" in text or ":/" in text:
        return False
    if "=" not in text and ":" not in text:
        return True
    lower = text.lower()
    return not ("password" in lower or "secret" in lower or "token" in lower or "jaas" in lower)


def _anonymous(url: str) -> str:
    last = url.rfind("@")
    start = _LOGIN_START.search(url, 0, max(last, 0))
    if start is None:
        return url
    rest = "" if _NO_PASSWORD.search(url, start.end(), last) else url[last:]
    return url[: start.end()] + _HIDDEN + rest


def _quoted(found: re.Match[str]) -> str:
    url = found[0].rstrip(_PUNCTUATION)
    return redacted(url) + found[0][len(url) :]


def _logged_in(found: re.Match[str]) -> str:
    start, user, password, rest = found.groups()
    shown = f"{start}{user}:{_HIDDEN}"
    return shown if _NO_PASSWORD.search(password) else f"{shown}@{rest}"


def _addressed(found: re.Match[str]) -> str:
    scheme, authority, path = found.groups()
    user, at, host = (_HIDDEN if _ENCODED.search(part) else part for part in authority.rpartition("@"))
    if scheme.lower() in ("redis://", "rediss://"):
        if not _HOST.fullmatch(host):
            host = f"{host.partition(':')[0]}:{_HIDDEN}"
        if not _DATABASE.fullmatch(path):
            path = f"/{_HIDDEN}"
    return f"{scheme}{user}{at}{host}{path}"


def _asked(query: str) -> str:
    """A query without its secrets: all text after the first parameter that may be secret is hidden as well.

    That text may belong to the secret. `query` begins with its mark, `?` or `#`. After a `#`, all text is hidden.
    """
    mark, parts, shown = query[:1], query[1:].split("&"), []
    if mark != "?" or not query[1:]:
        return mark and mark + (_HIDDEN if query[1:] else "")
    for part in parts:
        name, equals, value = part.partition("=")
        looks = _NUMBER if name in NUMBERS else _FILE if name in FILES else None
        if looks is None or not looks.fullmatch(value):
            shown.append(f"{name}={_HIDDEN}" if equals and _NAME.fullmatch(name) else _HIDDEN)
            break
        shown.append(part)
    return mark + "&".join(shown)
