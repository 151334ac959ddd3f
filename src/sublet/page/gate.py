"""What every request passes before anything else sees it: host, origin, and who asks.

Refuses by default: a route that is added later is behind it, too.
"""

import ipaddress
from collections.abc import Collection
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sublet.page.access import Access

OPEN_PATHS = ("/enter",)
"""For these a code is enough, which they check themselves."""
TOKEN_PATHS = ("/links",)
"""Only for programs of the user, with the token."""
_SAFE = ("GET", "HEAD")
_LONGEST_COOKIES = 8192
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_OPEN_THE_LINK = (
    "You are not signed in, or the server was started anew.\n"
    "Run `sublet ui` on the machine, and open the link that it prints.\n"
)


class Gate:
    """Lets requests through to the app that may get there."""

    def __init__(self, app: ASGIApp, access: Access, hosts: Collection[str]) -> None:
        self._app = app
        self._access = access
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        answer = self._refusal(scope) or self._app
        await answer(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, method, path = Headers(scope=scope), scope["method"], scope["path"]
        host = headers.get("host", "")
        if not self._is_ours(host):
            hint = "Open the page by its address, or start it with `sublet ui --host NAME`.\n"
            return PlainTextResponse(f"This is not {host[:100]!r}.\n{hint}", 421)
        entering = path in OPEN_PATHS and method in _SAFE
        if not entering and _is_foreign(headers, host):
            return PlainTextResponse("Another site asked for this.\n", 403)
        if entering or self._has_token(headers):
            return None
        if path in TOKEN_PATHS or not self._has_session(headers):
            return PlainTextResponse(_OPEN_THE_LINK, 401)
        if method not in _SAFE and "origin" not in headers:
            return PlainTextResponse("The browser does not say which site asked.\n", 403)
        return None

    def _is_ours(self, host: str) -> bool:
        """Whether a browser can have meant us: a name that somebody else owns may lead here, too.
        An address cannot."""
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if name.lower() in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _has_token(self, headers: Headers) -> bool:
        kind, _, token = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and self._access.has_token(token.strip())

    def _has_session(self, headers: Headers) -> bool:
        text = headers.get("cookie", "")
        if len(text) > _LONGEST_COOKIES:
            return False
        try:
            cookie = SimpleCookie(text).get(self._access.cookie)
        except CookieError:
            return False
        return cookie is not None and self._access.has_session(cookie.value)


def _is_foreign(headers: Headers, host: str) -> bool:
    """Whether another site has made the browser ask."""
    origin = headers.get("origin")
    if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
        return True
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
