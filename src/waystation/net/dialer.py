"""Dialling: the first of several places that answers, and connecting again when it is gone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, NoReturn, TypeVar

from waystation.net.backoff import Backoff
from waystation.net.place import parse_place, place_of
from waystation.net.sockets import new_socket, reason_of
from waystation.net.tasks import report, subtask
from waystation.net.tls import Tls

STAGGER: Final = 0.25
"""Seconds between the starts of the attempts, when a peer has several places (as RFC 8305 does)."""

C = TypeVar("C", bound=asyncio.BaseProtocol)


async def dial(
    make: Callable[[str], C],
    places: Sequence[str],
    *,
    timeout: float,  # noqa: ASYNC109 - part of the error message
    tls: Tls | None = None,
    handshake: float | None = None,
) -> C:
    """Connect to the first of these places that answers; an OSError says why none did.

    `make` makes the protocol, given the place that answered. A TLS handshake may take `handshake`
    seconds of the time.
    """
    async with within(timeout, places):
        found, place = await _race(places)
        try:
            _, made = await asyncio.get_running_loop().create_connection(
                lambda: make(place),
                sock=found,
                ssl=tls.for_dialler() if tls else None,
                server_hostname=(tls.name or parse_place(place)[0]) if tls else None,
                ssl_handshake_timeout=handshake if tls else None,
            )
        except BaseException:
            found.close()
            raise
    return made


@asynccontextmanager
async def within(seconds: float, places: Sequence[str]) -> AsyncIterator[None]:
    """Give up on these places after a time."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        where = ", ".join(places)
        raise TimeoutError(f"{where}: no answer within {seconds:g} s") from None


async def keep(
    connect: Callable[[], Awaitable[bool]],
    *,
    backoff: Backoff,
) -> NoReturn:
    """Connect, and connect again, for ever.

    `connect` returns when its connection has ended: True if there was a good one, so that the next
    attempt need not wait long, and False after a failure.
    """
    while True:
        try:
            good = await connect()
        except Exception as error:  # noqa: BLE001 - a mistake of ours; the next attempt may go well
            report("an attempt to connect failed", error)
            good = False
        if good:
            backoff.reset()
        await asyncio.sleep(backoff.next())


_Found = tuple[socket.socket, str]


async def _race(places: Sequence[str]) -> _Found:
    """The first socket that connects, and the place it leads to; later ones start a bit later."""
    attempts: list[asyncio.Task[_Found]] = []  # under way
    errors: list[str] = []
    try:
        queue = [candidate for place in places for candidate in await _resolve(place, errors)]
        while queue or attempts:
            if queue:
                family, address, place = queue.pop(0)
                attempts.append(subtask(_connect(family, address, place), f"dial {place}"))
            done, _ = await asyncio.wait(
                attempts,
                timeout=STAGGER if queue else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for attempt in [each for each in attempts if each in done]:  # in the order of places
                attempts.remove(attempt)
                if (error := attempt.exception()) is None:
                    return attempt.result()
                errors.append(str(error))
    finally:
        for attempt in attempts:
            attempt.cancel()
            attempt.add_done_callback(_close_late_winner)
    raise ConnectionError("; ".join(errors) or "no address to connect to")


async def _resolve(place: str, errors: list[str]) -> list[tuple[int, tuple[object, ...], str]]:
    host, port = parse_place(place)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:  # the latter from names that no resolver takes
        errors.append(f"{host}: {error}")
        return []
    return [(family, address, place) for family, _, _, _, address in found]


async def _connect(family: int, address: tuple[object, ...], place: str) -> _Found:
    fresh = new_socket(family, socket.SOCK_STREAM)
    try:
        await asyncio.get_running_loop().sock_connect(fresh, address)
    except OSError as error:
        fresh.close()
        raise ConnectionError(f"{place_of(address)}: {reason_of(error)}") from error
    except BaseException:
        fresh.close()
        raise
    return fresh, place


def _close_late_winner(attempt: asyncio.Task[_Found]) -> None:
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result()[0].close()
