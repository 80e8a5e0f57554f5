"""Previews an action, and then executes exactly what the preview showed, once.

A preview returns a token, valid for ten minutes. It is the signed action, arguments, digest and count. `execute` makes
the preview again. If the digest differs, something has changed: `execute` does nothing, and the visitor gets the new
preview. The store keeps the idempotency key for a day. A repeated request gets the first answer and changes nothing.
When the process dies during an action, the key stays "begun". A repeat then says so and changes nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wheel_sched.dashboard.audit import AuditLog
from wheel_sched.dashboard.context import Dashboard
from wheel_sched.dashboard.parts import Action, ActionResult, Arguments, Preview
from wheel_sched.dashboard.rights import Visitor
from wheel_sched.errors import Rejected, WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched.store import Documents

logger = logger_of(__name__)

PREVIEW_SECONDS = 600
_KEY_MS = 86_400_000
_KEYS = "idempotency"
_SHORTEST_KEY = 8


class NotAllowed(WheelSchedError):
    """The visitor does not have the right, or the request does not come from a page of the dashboard."""


class ChangedMeanwhile(WheelSchedError):
    """Something has changed since the preview. Nothing was done. `preview` is a new preview."""

    def __init__(self, preview: Preview, before: int) -> None:
        super().__init__(
            f"something has changed since the preview ({before:,} then, {preview.count:,} now): nothing was done; look "
            "at the new preview and confirm again"
        )
        self.preview = preview


class KeyTaken(WheelSchedError):
    """The idempotency key belongs to another request, or the first request with this key has not ended."""


def digest_of(parts: Iterable[Any]) -> str:
    """The hash of these values as a text. Other values, or another order, give another text."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(json.dumps(part, default=str).encode("utf-8", "surrogatepass") + b"\n")
    return whole.hexdigest()


def checked(action: Action, given: Mapping[str, Any]) -> Arguments:
    """The arguments of an action, without those that are empty.

    Raises:
        Rejected: an argument is unknown, missing or has the wrong type; nothing was changed.
    """
    known = {field.name: field for field in action.fields}
    unknown = sorted(given.keys() - known)
    if unknown:
        names = ", ".join(known)
        raise Rejected(f"{action.name} has no argument {unknown[0]!r:.100}: nothing was changed; known: {names}")
    kept: dict[str, Any] = {}
    for name, field in known.items():
        value = given.get(name)
        if value in (None, "", []):
            if field.required:
                raise Rejected(f"{action.name} needs {name}: nothing was changed; {field.about}")
            continue
        texts: Sequence[Any] = value if isinstance(value, list) else [value]
        if not all(isinstance(text, str) for text in texts) or (len(texts) != 1 and not field.many):
            what = "a list of texts" if field.many else "a text"
            raise Rejected(f"expected {name} to be {what}, got: {value!r:.100}; nothing was changed")
        kept[name] = list(texts) if field.many else texts[0]
    return kept


def allow(action: Action, visitor: Visitor) -> None:
    """Raise `NotAllowed` unless the visitor has the action's right."""
    if not visitor.may(action.right):
        raise NotAllowed(
            f"{visitor.name} may only {visitor.right}: nothing was changed; {action.name} needs the right "
            f"{action.right}"
        )


def preview(dashboard: Dashboard, action: Action, arguments: Arguments, visitor: Visitor) -> tuple[Preview, str]:
    """The preview of an action, and the token with which exactly this preview can be executed."""
    allow(action, visitor)
    found = action.preview(dashboard, arguments)
    return found, _token(dashboard, action, arguments, visitor, found)


def _token(dashboard: Dashboard, action: Action, arguments: Arguments, visitor: Visitor, found: Preview) -> str:
    claims = [action.name, digest_of([arguments]), visitor.name, found.digest, found.count]
    return dashboard.signer.sign("preview", claims)


def execute(
    dashboard: Dashboard, action: Action, arguments: Arguments, visitor: Visitor, token: str, key: str
) -> dict[str, Any]:
    """Execute what a preview showed.

    Args:
        dashboard: the dashboard.
        action: what to do.
        arguments: the arguments of the preview, unchanged.
        visitor: who sends the request.
        token: the token of the preview.
        key: the idempotency key, at least 8 characters, chosen by the caller.

    Returns:
        `ActionResult.as_dict()`, and "repeated": whether this is the stored answer to an earlier request.

    Raises:
        NotAllowed: the visitor does not have the right.
        Rejected: the token is forged, expired or for another request; or the key is too short. Nothing was changed.
        ChangedMeanwhile: the preview is no longer true. Nothing was changed.
        KeyTaken: the key belongs to another request, or the first request with this key has not ended.
    """
    allow(action, visitor)
    claims = dashboard.signer.read("preview", token, PREVIEW_SECONDS)
    if claims is None or claims[:3] != [action.name, digest_of([arguments]), visitor.name]:
        raise Rejected(
            f"expected the token of a preview of this request, not older than {PREVIEW_SECONDS // 60} minutes: nothing "
            "was changed; ask for a preview again"
        )
    if not _SHORTEST_KEY <= len(key) <= 200:
        raise Rejected(
            f"expected an idempotency key of {_SHORTEST_KEY} to 200 characters, got {len(key)}: nothing was changed"
        )
    documents, audit = Documents(dashboard.store), AuditLog(dashboard.store)
    key_id, request_digest = digest_of([visitor.name, key]), digest_of([action.name, arguments, claims[3]])
    slot = documents.put(_KEYS, key_id, _begun(request_digest), expect=0, ttl_ms=_KEY_MS)
    if slot is None:
        return _earlier(documents, key_id, request_digest)
    try:
        found = action.preview(dashboard, arguments)
        if found.digest != claims[3]:
            raise ChangedMeanwhile(found, claims[4])
        begun = audit.begin(visitor.name, action.name, found.words, arguments)
    except BaseException:
        with contextlib.suppress(WheelSchedError):
            documents.remove(_KEYS, key_id, expect=slot)  # nothing was changed, so the key is free again
        raise
    try:
        result = action.execute(dashboard, arguments, found, visitor.name)
    except Exception as error:
        with contextlib.suppress(WheelSchedError):  # the action's error tells more than an error of the audit log
            audit.end(begun, f"failed: {error}")
        raise
    answer = result.as_dict()
    kept = json.dumps({"request": request_digest, "answer": answer}).encode()
    try:
        documents.put(_KEYS, key_id, kept, expect=slot, ttl_ms=_KEY_MS)
        audit.end(begun, _outcome(result))
    except WheelSchedError as error:  # the action is done, so its result is returned
        logger.warning("dashboard.end_not_recorded: %s: %s: %s", action.name, type(error).__name__, error)
    return {**answer, "repeated": False}


def _begun(request_digest: str) -> bytes:
    return json.dumps({"request": request_digest, "answer": None}).encode()


def _earlier(documents: Documents, key_id: str, request_digest: str) -> dict[str, Any]:
    """The stored answer to the request that used the key first."""
    (document,) = documents.get(_KEYS, [key_id])
    kept = {} if document is None else json.loads(document.value)
    if kept.get("request") != request_digest:
        raise KeyTaken("this idempotency key was used for another request: nothing was changed; choose a new key")
    if kept["answer"] is None:
        raise KeyTaken(
            "a request with this idempotency key has begun and not ended, or its process died: what it has changed "
            "stays changed; look at the result, then ask for a preview again with a new key"
        )
    return {**kept["answer"], "repeated": True}


def _outcome(result: ActionResult) -> str:
    left = ", ".join(f"{count:,} {why}" for why, count in result.left.items())
    return result.words + (f"; left: {left}" if left else "")
