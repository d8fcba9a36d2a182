"""Who may use the console: every request passes here before anything else sees it.

A request has to be for a name that the console goes by (a page of somebody else that points its
own name at this machine is refused), a change has to come from a page of the console itself, and
with a token the browser has to have proven it once. Every answer tells the browser to load nothing
from elsewhere and to show the page in no frame.
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

SHORTEST_TOKEN: Final = 16
"""Characters; what is shorter can be guessed."""

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
    "Referrer-Policy": "same-origin",  # with none at all, a form would not say where it comes from
    "X-Content-Type-Options": "nosniff",
}


def check_token(token: str) -> str:
    """Return the token, or raise the LocalError that says what is wrong with it."""
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise LocalError(
            "the token of the page is too short, or not plain ASCII",
            rule="OB-2",
            hint=f"give {SHORTEST_TOKEN} characters or more, or none and have one made",
        )
    return token


class Doors:
    """The token, and the cookie that stands for it in a browser."""

    def __init__(self, token: str | None, port: int) -> None:
        self._token = token
        self._pass = secrets.token_urlsafe(32)  # of this process; the token itself is never stored
        self.port = port  # of the console, since browsers tell cookies by host and not by port

    @property
    def _cookie(self) -> str:
        return f"waystation-console-{self.port}"

    @property
    def locked(self) -> bool:
        """Whether a token has to be proven at all."""
        return self._token is not None

    def opens(self, token: str) -> bool:
        """Whether it is the token; takes as long for any other."""
        return self._token is not None and hmac.compare_digest(token.encode(), self._token.encode())

    def admits(self, headers: Headers) -> bool:
        """Whether a request brings the cookie."""
        if self._token is None:
            return True
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return found is not None and hmac.compare_digest(found.value.encode(), self._pass.encode())

    def admit(self, response: Response) -> Response:
        """Give the browser the cookie."""
        response.set_cookie(self._cookie, self._pass, httponly=True, samesite="strict", path="/")
        return response


class Guard:
    """The application behind the checks."""

    def __init__(self, app: ASGIApp, names: HostNames, doors: Doors) -> None:
        self._app = app
        self._names = names
        self._doors = doors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
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
                "This console does not go by that name. Start it with --allow-host NAME.\n", 421
            )
        if scope["method"] not in _SAFE and not _is_own(headers, host):
            return PlainTextResponse("Only pages of this console may do that.\n", 403)
        path: str = scope["path"]
        if path.startswith(_OPEN) or self._doors.admits(headers):
            return None
        if "x-fragment" in headers or path == "/events":
            return PlainTextResponse("Log in first.\n", 401)
        return RedirectResponse(LOGIN, 303)


def _is_own(headers: Headers, host: str) -> bool:
    """Whether a request was made by a page of the console, and no other."""
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return False
    origin = headers.get("origin", "").lower()
    return origin in {f"http://{host.lower()}", f"https://{host.lower()}"}
