"""Signs values that leave the process in a cookie or a form, and checks that they come back unchanged and in time.

A signed text is base64(JSON of [purpose, time of issue, value]) and the HMAC-SHA256 of it. The value is not encrypted.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
import time
from typing import Any

from wheel_sched.errors import ConfigError

_LEAST = 16  # bytes of a secret
SKEW_SECONDS = 60  # the clock of another process that signs may be this far ahead


class TextSigner:
    """Signs values and reads them back. Thread-safe.

    Args:
        secret: at least 16 bytes, the same in all processes that serve one dashboard. Defaults to None: a random one.
            Then signed texts are valid only until the process ends.

    Raises:
        ConfigError: the secret is too short.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        if secret is not None and len(secret) < _LEAST:
            raise ConfigError(f"expected the dashboard's secret to have at least {_LEAST} bytes, got: {len(secret)}")
        self._secret = secret or secrets.token_bytes(32)

    def sign(self, purpose: str, value: Any, *, step_s: int = 1) -> str:
        """Sign a JSON value for one purpose.

        Args:
            purpose: only a `read` with the same purpose returns the value.
            value: the value.
            step_s: the time of issue is rounded down to a multiple of these seconds, so that equal values that are
                signed within one step get equal texts. Defaults to 1 s.
        """
        issued = int(time.time()) // step_s * step_s
        body = base64.urlsafe_b64encode(json.dumps([purpose, issued, value]).encode()).rstrip(b"=")
        return f"{body.decode()}.{self._mark(body)}"

    def read(self, purpose: str, text: str, max_age_s: int) -> Any:
        """The value of a signed text; None when it is forged, older than `max_age_s` or for another purpose."""
        body, _, mark = text.partition(".")
        if not text.isascii() or not hmac.compare_digest(self._mark(body.encode()), mark):
            return None
        try:
            kept = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        except (ValueError, binascii.Error):
            return None
        made_for, issued, value = kept
        return value if made_for == purpose and -SKEW_SECONDS <= time.time() - issued <= max_age_s else None

    def _mark(self, body: bytes) -> str:
        return hmac.new(self._secret, body, hashlib.sha256).hexdigest()
