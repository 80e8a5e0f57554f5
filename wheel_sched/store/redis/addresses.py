"""Make the client for a URL. A URL that redis-py would not understand is refused at once, not at the first call."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from wheel_sched.errors import ConfigError
from wheel_sched.redacting import FILES, NUMBERS, redacted

_Client = TypeVar("_Client")

_DATABASE = re.compile(r"/*\d*/*")
_ENCODED = re.compile(r"(?i)%(?:3a|40)")
_TEXTS = frozenset(
    {
        *("username", "password", "client_name", "lib_name", "lib_version", "encoding", "encoding_errors"),
        *("legacy_responses", "ssl_ca_data", "ssl_ciphers", "ssl_exclude_verify_flags", "ssl_include_verify_flags"),
        *("ssl_ocsp_expected_cert", "ssl_password", "ssl_validate_ocsp", "ssl_validate_ocsp_stapled"),
    }
)
_KNOWN = sorted((NUMBERS | FILES | _TEXTS) - {"timeout"})  # `timeout` belongs to a pool that waits; no pool here waits


def opened(url: str, make: Callable[[], _Client]) -> _Client:
    """Check `url` and return the client that `make` makes for it. The client does not connect yet.

    Raises:
        ConfigError: the URL is wrong; the error leaves out its secret parts.
    """
    _check(url)
    try:
        client = make()
        pool: Any = getattr(client, "connection_pool", None)
        if pool is not None:
            pool.connection_class(**pool.connection_kwargs)  # a wrong parameter would otherwise fail at the first call
    except TypeError as error:
        found = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if found is None or found[1] not in _KNOWN:
            raise bad_url(url) from None
        raise ConfigError(
            f"expected parameters that {url.partition(':')[0]}:// has, got: {found[1]!r} in {redacted(url)!r}; nothing "
            "was opened; leave it out"
        ) from None
    except Exception:
        raise bad_url(url) from None  # the text of the first error may contain the password
    return client


def bad_url(url: str) -> ConfigError:
    """Make the error for a URL that redis-py cannot read."""
    return ConfigError(
        "expected the store to be redis://USER:PASSWORD@HOST:PORT/DB, rediss://..., unix://PATH or embedded:FOLDER, "
        f"got: {redacted(url)!r}; in a password / ? # @ are written as %2F %3F %23 %40; nothing was opened"
    )


def _check(url: str) -> None:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise bad_url(url) from None
    # redis-py ignores a fragment and a path that is no number, and reads an encoded : or @ as part of a host name
    database, host = parts.path if parts.scheme != "unix" else "", parts.netloc.rpartition("@")[2]
    if parts.fragment or not _DATABASE.fullmatch(database) or _ENCODED.search(host):
        raise bad_url(url)
    secret = ""
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _KNOWN or not value:
            # & ends a value: if a secret contains one, the rest of the secret looks like a name and must not be shown
            which = f"one behind {secret!r}" if secret else repr(name) if value else "one without a value"
            close = get_close_matches(name, _KNOWN, 1) if value and not secret else []
            hint = f"did you mean {close[0]!r}" if close else f"there are: {', '.join(_KNOWN)}"
            raise ConfigError(
                f"expected parameters of a Redis client, got: {which} in {redacted(url)!r}; nothing was opened; "
                f"correct it or leave it out, and write & in a password as %26; {hint}"
            )
        if name in _TEXTS:
            secret = name
