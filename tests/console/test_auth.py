"""Access to the console: host names, origins, the token, and the security headers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from waystation.console.auth import AuthMiddleware, TokenAuth, check_token
from waystation.errors import LocalError
from waystation.net.hosts import HostNames

TOKEN = "a-token-of-many-letters"  # noqa: S105 - opens nothing but these tests
EVERYWHERE = "0.0.0.0"  # noqa: S104 - nothing listens there


class ReplyPreview:
    """What the middleware or the application behind it sent."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}


def ask(
    guard: AuthMiddleware, method: str = "GET", path: str = "/routes", **headers: str
) -> ReplyPreview:
    given = {"host": "127.0.0.1:8480", **headers}
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()]
    return ask_with(guard, method, path, pairs)


def ask_with(
    guard: AuthMiddleware, method: str, path: str, pairs: list[tuple[bytes, bytes]]
) -> ReplyPreview:
    answer = ReplyPreview()
    scope = {"type": "http", "method": method, "path": path, "headers": pairs}

    async def receive() -> Any:
        raise AssertionError

    asyncio.run(guard(scope, receive, answer.send))
    return answer


def guard(host: str = "127.0.0.1", token: str | None = None, *allowed: str) -> AuthMiddleware:
    return AuthMiddleware(
        PlainTextResponse("hello"), HostNames(host, allowed), TokenAuth(token, 8480)
    )


@pytest.mark.parametrize(
    ("bound", "host", "known"),
    [
        ("127.0.0.1", "127.0.0.1:8480", True),
        ("127.0.0.1", "localhost:8480", True),
        ("127.0.0.1", "LOCALHOST", True),
        ("127.0.0.1", "[::1]:8480", True),
        ("127.0.0.1", "evil.test:8480", False),
        ("127.0.0.1", "127.0.0.1.evil.test", False),
        ("127.0.0.1", "localhost.evil.test", False),
        ("127.0.0.1", "10.0.0.1:8480", False),
        ("127.0.0.1", "", False),
        (EVERYWHERE, "10.0.0.1:8480", True),
        (EVERYWHERE, "evil.test", False),
        (EVERYWHERE, "ops.example", True),
        ("console.example", "console.example:8480", True),
        ("console.example", "localhost", False),
    ],
)  # fmt: skip
def test_only_allowed_host_names_are_accepted(bound: str, host: str, known: bool) -> None:
    assert ask(guard(bound, None, "ops.example"), host=host).status == (200 if known else 421)


def test_exactly_one_host_header_is_required() -> None:
    twice = [(b"host", b"127.0.0.1"), (b"host", b"127.0.0.1")]
    assert ask_with(guard(), "GET", "/routes", twice).status == 421
    assert ask_with(guard(), "GET", "/routes", []).status == 421


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://127.0.0.1:8480"}, 200),
        ({"origin": "https://127.0.0.1:8480", "sec_fetch_site": "same-origin"}, 200),
        ({}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://evil.test"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "http://127.0.0.1:8480", "sec_fetch_site": "same-site"}, 403),
        ({"origin": "http://["}, 403),
    ],
)
def test_only_requests_of_its_own_pages_can_change_anything(
    headers: dict[str, str], status: int
) -> None:
    assert ask(guard(), "POST", "/send", **headers).status == status
    assert ask(guard(), "DELETE", "/send", **headers).status == status


def test_without_the_cookie_a_locked_console_shows_nothing() -> None:
    locked = guard(EVERYWHERE, TOKEN)
    assert ask(locked).status == 303
    assert ask(locked).headers["location"] == "/login"
    assert ask(locked, x_fragment="rows").status == 401
    assert ask(locked, path="/events").status == 401
    assert ask(locked, cookie="waystation-console-8480=guess").status == 303
    assert ask(locked, cookie="\x00;;=;").status == 303
    assert ask(locked, path="/login").status == 200
    assert ask(locked, path="/static/console.css").status == 200


def test_the_cookie_does_not_contain_the_token() -> None:
    auth = TokenAuth(TOKEN, 8480)
    assert auth.accepts(TOKEN)
    assert not auth.accepts(TOKEN[:-1])
    assert not auth.accepts("")
    assert not TokenAuth(None, 1).accepts("")
    cookie = auth.log_in(PlainTextResponse("")).headers["set-cookie"]
    assert TOKEN not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    locked = AuthMiddleware(PlainTextResponse("hello"), HostNames(EVERYWHERE), auth)
    assert ask(locked, cookie=cookie.partition(";")[0]).status == 200


@pytest.mark.parametrize("path", ["/routes", "/static/console.js"])
def test_every_response_has_the_security_headers(path: str) -> None:
    headers = ask(guard(), path=path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert (headers.get("cache-control") == "no-store") == (path == "/routes")


@pytest.mark.parametrize("token", ["", "short", "fifteen-letters", "sixteen-letters\n", "ü" * 20])
def test_a_short_or_unprintable_token_is_refused(token: str) -> None:
    with pytest.raises(LocalError, match="16 characters"):
        check_token(token)
    assert check_token(TOKEN) == TOKEN
