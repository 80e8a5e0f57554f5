"""Signs visitors in: people by a form and a signed cookie, programs by HTTP Basic.

After five wrong passwords for a name or from an address, nobody can sign in with this name or from this address for a
minute. A session ends after twelve hours, and earlier when the user signs out, gets another password, or is removed
from the password file.
"""

from __future__ import annotations

import base64
import binascii
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from wheel_sched.dashboard.addresses import base_of
from wheel_sched.dashboard.ended_sessions import EndedSessions
from wheel_sched.dashboard.passwords import PasswordFile
from wheel_sched.dashboard.rights import Visitor
from wheel_sched.dashboard.signing import TextSigner

COOKIE = "wheel_sched_session"
SESSION_SECONDS = 12 * 3600
_WRONG_AT_MOST = 5
_REFUSED_S = 60.0
_REMEMBERED = 10_000
_AT_ONCE = 2  # passwords that are checked at the same time; few, so that wrong ones are counted soon


class Throttle:
    """Counts wrong passwords by name and by address. Keeps at most 10,000 names and addresses. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._lock = threading.Lock()

    def refuses(self, *names: str) -> bool:
        with self._lock:
            return any(self._count(name) >= _WRONG_AT_MOST for name in names)

    def wrong(self, *names: str) -> None:
        with self._lock:
            for name in names:
                self._wrong[name] = self._count(name) + 1, self._clock()
                self._wrong.move_to_end(name)
            while len(self._wrong) > _REMEMBERED:
                self._wrong.popitem(last=False)

    def right(self, *names: str) -> None:
        with self._lock:
            for name in names:
                self._wrong.pop(name, None)

    def _count(self, name: str) -> int:
        count, at_s = self._wrong.get(name, (0, 0.0))
        return count if self._clock() - at_s < _REFUSED_S else 0


class PasswordSessions:
    """Finds visitors by cookie or by HTTP Basic, and signs them in and out. Thread-safe.

    Args:
        users: the password file.
        signer: signs the cookie.
        ended: the sessions that were signed out.
        throttle: counts wrong passwords. Defaults to a new one.
    """

    def __init__(
        self, users: PasswordFile, signer: TextSigner, ended: EndedSessions, throttle: Throttle | None = None
    ) -> None:
        self._users = users
        self._signer = signer
        self._ended = ended
        self._throttle = throttle or Throttle()
        self._checking = threading.BoundedSemaphore(_AT_ONCE)

    def visitor(self, request: Request) -> tuple[Visitor | None, bool]:
        """The visitor or None, and whether the request has a session's cookie. Takes up to 50 ms.

        With a cookie, the page offers to sign out.
        """
        session = self._session(request)
        if session is not None:
            name, mark, session_id = session
            return None if self._ended.has(session_id) else self._users.visitor(name, mark), True
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return None, False
        try:
            user, _, password = base64.b64decode(given, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            return None, False
        return self.check(request, user, password), False

    def _session(self, request: Request) -> tuple[str, str, str] | None:
        """Name, text of `PasswordFile.mark` at sign-in, and session id from the cookie; None without a valid cookie."""
        found = self._signer.read("session", request.cookies.get(COOKIE, ""), SESSION_SECONDS)
        if not isinstance(found, list) or len(found) != 3:  # a cookie of an older release has no id: sign in again
            return None
        name, mark, session_id = found
        return name, mark, session_id

    def check(self, request: Request, user: str, password: str) -> Visitor | None:
        """The visitor with this name and password; None if one is wrong, or after too many wrong passwords."""
        names = f"name {user[:100]}", f"address {request.client.host if request.client else ''}"
        with self._checking:
            if self._throttle.refuses(*names):
                return None
            found = self._users.check(user, password)
            (self._throttle.wrong if found is None else self._throttle.right)(*names)
        return found

    def sign_in(self, request: Request, visitor: Visitor, to: str) -> Response:
        """Start a session: the answer sets its cookie, and redirects to a path of the dashboard."""
        answer = RedirectResponse(to, 303)
        answer.set_cookie(
            COOKIE,
            self._signer.sign("session", [visitor.name, self._users.mark(visitor.name), secrets.token_hex(16)]),
            max_age=SESSION_SECONDS,
            path=base_of(request) or "/",
            secure=request.scope["scheme"] == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    def sign_out(self, request: Request, to: str) -> Response:
        """End the session of this request, and redirect to a path of the dashboard."""
        session = self._session(request)
        if session is not None:
            self._ended.end(session[2])
        answer = RedirectResponse(to, 303)
        answer.delete_cookie(
            COOKIE,
            path=base_of(request) or "/",
            secure=request.scope["scheme"] == "https",
            httponly=True,
            samesite="strict",
        )
        return answer
