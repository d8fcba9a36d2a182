"""The safeguards of the product, each with a switch that turns it off: an ablation.

A checker that finds nothing may be right, or blind. With a safeguard turned off, the lab must find
what it protects from; if it does not, either the checker, the faults or the safeguard is good for
nothing. Each names a seed that shows it, so that this can be tried quickly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from unittest.mock import patch

from msgspec import Struct

from waystation.core import claims, clock, copies, custody, grants
from waystation.journal import frames
from waystation.node import announcements, flow, links
from waystation.testing.lab import stores
from waystation.testing.simulation import process
from waystation.wire import flow as wire_flow
from waystation.wire import secure_channel


class Safeguard(Struct, frozen=True):
    """What protects promises, and how to do without it."""

    what: str
    promises: frozenset[str]
    """Those that are violated without it, one of them at least."""
    off: Callable[[], Any]
    """A context manager that turns it off, for everything that runs in this process."""
    seed: int
    """One that shows it."""
    messages: int = 2_000
    """How many are enough to see it."""


def _all(*patches: Any) -> Callable[[], Any]:
    @contextlib.contextmanager
    def off() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for one in patches:
                stack.enter_context(one)
            yield

    return off


def _constant(value: object) -> property:
    return property(lambda _: value)


def _open_again(opener: secure_channel.Opener, sealed: bytes) -> bytes:
    opener._seen = 0  # noqa: SLF001 - what it remembers is the safeguard
    return _OPEN(opener, sealed)


_OPEN: Final = secure_channel.Opener.open
_STEADY: Final = clock.SteadyClock
_STORE_DISK: Final = stores.StoreDisk.__init__


def _tells_first(disk: stores.StoreDisk, chance: Any, **_: object) -> None:
    _STORE_DISK(disk, chance, tells_first=True)


def _without(*words: str) -> tuple[str, ...]:
    return tuple(word for word in links.CAPABILITIES if word not in words)


SAFEGUARDS: Final[Mapping[str, Safeguard]] = {
    "copies": Safeguard(
        "second copies of broadcasts are recognised (FL-6)",
        frozenset({"P4", "P5"}),
        _all(patch.object(copies.Copies, "meet", lambda *_, **__: copies.Copy.FIRST)),
        2,
    ),
    "paths": Safeguard(
        "claims that come back in a circle are refused (CL-2)",
        frozenset({"P1", "P5", "P16"}),
        _all(
            patch.object(claims.Claims, "objection", lambda *_: ""),
            patch.object(announcements.Announcements, "_is_hidden", lambda *_: False),
        ),
        20,
    ),
    "hold": Safeguard(
        "senders wait for a slow receiver by name, and their links are read on (FL-3)",
        frozenset({"P11"}),
        _all(
            patch.object(links, "CAPABILITIES", _without(wire_flow.CAPABILITY)),
            patch.object(flow, "GLANCE", 60.0),
            patch.object(flow, "PATIENCE", 60.0),
        ),
        45,
    ),
    "budget": Safeguard(
        "over its budget a node reads less, and drops what it cannot hold (FL-1)",
        frozenset({"P17"}),
        _all(
            patch.object(flow.NodeFlow, "relieve", lambda _: None),
            patch.object(flow.NodeFlow, "sheds", _constant(value=False)),
            patch.object(flow.NodeFlow, "has_room", lambda *_: True),
        ),
        126,
    ),
    "clock": Safeguard(
        "a node goes on with its own clock when the system's is set (TM-1)",
        frozenset({"P1"}),
        _all(patch.object(process, "SteadyClock", lambda wall, _: _STEADY(wall, wall))),
        192,
        600,
    ),
    "offsets": Safeguard(
        "times of a peer are translated by the offset of its clock (TM-2)",
        frozenset({"P1"}),
        _all(patch.object(clock.PeerClock, "shift_ms", _constant(0))),
        178,
        600,
    ),
    "checksum": Safeguard(
        "each batch of a journal's tail has a checksum (OB-9)",
        frozenset({"P12"}),
        _all(patch.object(frames, "crc32", lambda _: 0)),
        127,
    ),
    "writing first": Safeguard(
        "custody writes before it acknowledges (DU-2)",
        frozenset({"P14"}),
        _all(patch.object(stores.StoreDisk, "__init__", _tells_first)),
        40,
    ),
    "numbers": Safeguard(
        "what was handled is known by its number (DU-3)",
        frozenset({"P14"}),
        _all(patch.object(custody.Handled, "knows", lambda *_: False)),
        8,
    ),
    "replay window": Safeguard(
        "a sealed message is opened once (ID-4)",
        frozenset({"P4"}),
        _all(patch.object(secure_channel.Opener, "open", _open_again)),
        11,
    ),
    "sealing": Safeguard(
        "what goes through a secure channel is encrypted (ID-4)",
        frozenset({"P15"}),
        _all(
            patch.object(secure_channel.Sealer, "seal", lambda _, data: data),
            patch.object(secure_channel.Opener, "open", lambda _, sealed: sealed),
        ),
        11,
    ),
    "grants": Safeguard(
        "what is not granted is refused (ID-3)",
        frozenset({"P15"}),
        _all(
            patch.object(grants.Grants, "allows", lambda *_: True),
            patch.object(grants.Grants, "admits", lambda *_: True),
        ),
        11,
    ),
}
