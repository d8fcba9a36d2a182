"""The kit finds what is wrong: transports that are broken on purpose fail the right check."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.testing import (
    CHECKS,
    MemoryNetwork,
    NotConformingError,
    check_transport,
)
from waystation.testing.memory import MemoryLink, MemoryTransport
from waystation.transports.transport import Link, LinkOwner


class Reordering(MemoryLink):
    """Writes the messages of one turn backwards."""

    def carry_over(self) -> None:
        self.outbox.reverse()
        super().carry_over()


class Dropping(MemoryLink):
    """Loses every tenth message."""

    count = 0

    def put(self, message: Message) -> None:
        self.count += 1
        if self.count % 10 or not message.onward_route.addresses:
            super().put(message)


class Repeating(MemoryLink):
    """Writes every tenth message twice."""

    count = 0

    def put(self, message: Message) -> None:
        super().put(message)
        self.count += 1
        if self.count % 10 == 0:
            super().put(message)


class Forgetful(MemoryLink):
    """Hands in what came without itself as the way back."""

    def hand_in(self) -> None:
        self.inbox = [
            m.rerouted(m.onward_route, m.return_route.rest()) if m.onward_route.addresses else m
            for m in self.inbox
        ]
        super().hand_in()


class Unstripped(MemoryLink):
    """Leaves its own address in the onward route."""

    def send(self, message: Message) -> Reason | None:
        self.put(message)
        return None


class Greedy(MemoryLink):
    """Takes whatever it is given, for a peer that does not read as well."""

    def put(self, message: Message) -> None:
        if not self.closed:
            self.outbox.append(message)
            self.schedule()


class Meddling(MemoryLink):
    """Changes a payload."""

    def send(self, message: Message) -> Reason | None:
        changed = Message(
            message.onward_route, message.return_route, message.payload[:-1] + b"!",
            message.id, message.expiry,
        )  # fmt: skip
        return super().send(changed)


class Anonymous(MemoryLink):
    """Forgets the id and the expiry."""

    def send(self, message: Message) -> Reason | None:
        return super().send(Message(message.onward_route, message.return_route, message.payload))


class Boundless(MemoryLink):
    """Takes what is too large."""

    def send(self, message: Message) -> Reason | None:
        self.put(message.departed())
        return None


class Fragile(MemoryLink):
    """Ends when it is given something too large."""

    def send(self, message: Message) -> Reason | None:
        reason = super().send(message)
        if reason is Reason.TOO_LARGE:
            self.abort()
        return reason


class Hasty(MemoryLink):
    """Ends without writing what it was given."""

    def close(self) -> None:
        self.abort()


class Late(MemoryLink):
    """Says too late that anything went wrong with it."""

    def finish(self, reason: Reason | None, detail: str) -> None:
        delay = 0.0 if reason is None else 1.5
        asyncio.get_running_loop().call_later(delay, super().finish, reason, detail)


class Mute(MemoryLink):
    """Never says that what it took is out of its hands."""

    def carry_over(self) -> None:
        owner = self.owner

        class Deaf:
            def __getattr__(self, name: str) -> Any:
                return (lambda *_: None) if name == "sent" else getattr(owner, name)

        self.owner = Deaf()
        super().carry_over()
        self.owner = owner


BROKEN: list[tuple[type[MemoryLink], str]] = [
    (Reordering, "keeps order"),
    (Dropping, "keeps order"),
    (Repeating, "keeps order"),
    (Forgetful, "traces the way back"),
    (Unstripped, "traces the way back"),
    (Greedy, "is held back by a reader that never reads"),
    (Meddling, "carries every size"),
    (Anonymous, "keeps id and expiry"),
    (Boundless, "refuses what is too large"),
    (Fragile, "refuses what is too large"),
    (Hasty, "ends in order"),
    (Late, "connects again"),
    (Mute, "loses nothing else in a close in mid-message"),
]


@pytest.mark.parametrize(
    ("broken", "check"), BROKEN, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_broken_transport_fails_the_check_for_it(broken: type[MemoryLink], check: str) -> None:
    network = MemoryNetwork(limit=80_000, make_link=broken)

    async def scenario() -> None:
        await check_transport(
            network.transport,
            "mem://any",
            path=network.path,
            largest=70_000,
            too_large=100_000,
            flood=5_000,
            time_factor=0.05,
            checks={check: CHECKS[check]},
        )

    with pytest.raises(NotConformingError) as caught:
        asyncio.run(scenario())
    assert str(caught.value).startswith(f"{check}: ")


def test_a_sound_transport_passes_in_the_same_time() -> None:
    network = MemoryNetwork(limit=80_000)
    result = asyncio.run(
        check_transport(
            network.transport,
            "mem://any",
            path=network.path,
            largest=70_000,
            too_large=100_000,
            flood=5_000,
        )
    )
    assert result.passed == tuple(CHECKS)


class Unreachable:
    """A transport that reaches nobody."""

    type_name: ClassVar[str] = "mem"

    def __init__(self, network: MemoryNetwork) -> None:
        self._inner = MemoryTransport(network)
        self.listen = self._inner.listen

    async def dial(self, places: Sequence[str], owner: LinkOwner) -> Link:
        raise ConnectionRefusedError(f"{places[0]}: {owner.address} is not wanted")


def test_every_check_that_fails_is_named_and_the_others_are_made_all_the_same() -> None:
    network = MemoryNetwork(limit=80_000)

    async def scenario() -> None:
        await check_transport(
            lambda: Unreachable(network), "mem://any", path=network.path, time_factor=0.01
        )

    with pytest.raises(NotConformingError) as caught:
        asyncio.run(scenario())
    failed = {part.partition(":")[0] for part in str(caught.value).split("; ")}
    assert failed == set(CHECKS) - {"says when nobody is there"}
