"""Who may use the page: whoever has the token, or a session that a one-time code has opened.

    sublet ui ──prints──▶ /enter?code=… ──once──▶ cookie ──▶ the page
    sublet ui, again ──token──▶ /links ──▶ the next code

The token is in a file that only the user can read; it is in no link. A cookie is sent to every port
of an address, so it is bound to a path that nobody can guess: another user's server on the same
machine never gets it. All secrets end with the server.
"""

import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable

CODE_LASTS = 600.0
"""Seconds in which a link can be opened."""
_MOST_CODES = 20
_MOST_SESSIONS = 100


class Access:
    """The secrets of one server."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.token = secrets.token_urlsafe(32)
        self.base = f"/{secrets.token_urlsafe(16)}/"
        """The path of the page, and of its cookie."""
        self.cookie = "sublet"
        self._now = now
        self._codes: deque[tuple[str, float]] = deque(maxlen=_MOST_CODES)
        self._sessions: deque[str] = deque(maxlen=_MOST_SESSIONS)

    def new_code(self) -> str:
        """A code that opens one session, soon."""
        code = secrets.token_urlsafe(24)
        self._codes.append((code, self._now() + CODE_LASTS))
        return code

    def redeem(self, code: str) -> str | None:
        """A session for this code; None if there is no such code any more."""
        now = self._now()
        live = [(one, until) for one, until in self._codes if until > now]
        found = _among(code, (one for one, _ in live))
        self._codes = deque(((one, until) for one, until in live if one != found), _MOST_CODES)
        if found is None:
            return None
        session = secrets.token_urlsafe(32)
        self._sessions.append(session)
        return session

    def has_session(self, given: str) -> bool:
        """Whether this is a session that a code has opened."""
        return _among(given, self._sessions) is not None

    def has_token(self, given: str) -> bool:
        """Whether this is the token."""
        return _among(given, (self.token,)) is not None


def _among(given: str, secrets: Iterable[str]) -> str | None:
    """The secret that was given. All of them are compared, each in the same time."""
    found = None
    for secret in secrets:
        if hmac.compare_digest(given.encode(errors="replace"), secret.encode()):
            found = secret
    return found
