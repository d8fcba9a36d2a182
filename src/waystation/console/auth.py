"""Access control of the console: every request is checked here first.

The Host header must be an allowed name, which defeats DNS rebinding; a change must come from a page
of the console itself, which defeats cross-site requests; and if there is a token, the browser must
have logged in with it. Every response has a content security policy that forbids other origins and
frames.
"""

from __future__ import annotations

import hmac
import secrets
from http.cookies import CookieError, SimpleCookie
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from waystation.errors import LocalError
from waystation.net.hosts import HostNames

MIN_TOKEN_LENGTH: Final = 16
"""Minimum number of characters; a shorter token could be guessed."""

LOGIN: Final = "/login"
_OPEN: Final = (LOGIN, "/static/")
_SAFE: Final = frozenset({"GET", "HEAD"})
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",  # without any, a form would not send its origin
    "X-Content-Type-Options": "nosniff",
}


def check_token(token: str) -> str:
    """Return the token; raise a LocalError if it is invalid."""
    if len(token) < MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable():
        raise LocalError(
            "the page token is too short or not printable ASCII",
            rule="OB-2",
            hint=f"give {MIN_TOKEN_LENGTH} characters or more, or omit it to get a random one",
        )
    return token


class TokenAuth:
    """Login with a token; a cookie then identifies the browser."""

    def __init__(self, token: str | None, port: int) -> None:
        self._token = token
        self._pass = secrets.token_urlsafe(32)  # per process; the token is never stored
        self.port = port  # of the console: browsers separate cookies by host, not by port

    @property
    def _cookie(self) -> str:
        return f"waystation-console-{self.port}"

    @property
    def is_required(self) -> bool:
        """Whether a login is required."""
        return self._token is not None

    def accepts(self, token: str) -> bool:
        """Whether the token is right, compared in constant time."""
        return self._token is not None and hmac.compare_digest(token.encode(), self._token.encode())

    def is_logged_in(self, headers: Headers) -> bool:
        """Whether a request has the cookie."""
        if self._token is None:
            return True
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return found is not None and hmac.compare_digest(found.value.encode(), self._pass.encode())

    def log_in(self, response: Response) -> Response:
        """Set the cookie in a response."""
        response.set_cookie(self._cookie, self._pass, httponly=True, samesite="strict", path="/")
        return response


class AuthMiddleware:
    """An ASGI application that checks each request before passing it on."""

    def __init__(self, app: ASGIApp, names: HostNames, auth: TokenAuth) -> None:
        self._app = app
        self._names = names
        self._auth = auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                if not scope["path"].startswith("/static/"):
                    headers["Cache-Control"] = "no-store"
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or host not in self._names:
            return PlainTextResponse(
                "Unknown host name. Start the console with --allow-host NAME.\n", 421
            )
        if scope["method"] not in _SAFE and not _is_own(headers, host):
            return PlainTextResponse("Cross-site request refused.\n", 403)
        path: str = scope["path"]
        if path.startswith(_OPEN) or self._auth.is_logged_in(headers):
            return None
        if "x-fragment" in headers or path == "/events":
            return PlainTextResponse("Log in first.\n", 401)
        return RedirectResponse(LOGIN, 303)


def _is_own(headers: Headers, host: str) -> bool:
    """Whether a request was made by a page of this console."""
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return False
    origin = headers.get("origin", "").lower()
    return origin in {f"http://{host.lower()}", f"https://{host.lower()}"}
