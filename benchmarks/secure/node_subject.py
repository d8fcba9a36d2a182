"""Waystation: secure channels between two nodes over TCP, and sessions with and without proof.

Styles of a role: `secure` seals what is sent, `handshakes` opens channels one after the other, each
closed before the next, `sessions` connects again and again, and `proven` in front of a word gives
both nodes identities of their own. With `journalled`, both keep a journal of every message.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import waystation
from benchmarks.live import measure, node_subject
from benchmarks.live.measure import Company, Part, Subject
from waystation import ANYONE, Node
from waystation.node import keyfile
from waystation.testing import echo

PACKAGES = ("waystation", "uvloop", "cryptography")
_HOST = "tcp://127.0.0.1"


def _stage(company: Company) -> int:
    return company.start("sink")


@asynccontextmanager
async def _node(part: Part) -> AsyncIterator[Node]:
    """The node of a role, with what its style asks for."""
    with tempfile.TemporaryDirectory(prefix="secure-") as folder:
        words = part.style.split()
        identity = keyfile.create(Path(folder) / "key") if "proven" in words else None
        journal = Path(folder) / "journal" if "journalled" in words else None
        async with Node(part.role, identity=identity, journal=journal) as node:
            yield node


async def _sink(part: Part) -> None:
    async with _node(part) as node:
        node_subject.count_on(node, part.work.answer_every)
        echo(node)
        node.secure_listener("secure", trust=ANYONE)
        listening = await node.listen(f"{_HOST}:0")
        measure.say_ready(int(listening.place.rpartition(":")[2]))
        await node.serve()


async def _driver(part: Part) -> None:
    words, url = part.style.split(), f"{_HOST}:{part.port}"
    async with _node(part) as node:
        if "sessions" in words:
            await _sessions(node, url, part.work.count)
            return
        await node.connect(url, name="next")
        if "handshakes" in words:
            await _handshakes(node, part.work.count)
        elif "secure" in words:
            channel = await node.secure_channel("next => secure", trust=ANYONE)
            await node_subject.drive(node, channel.through("sink"), part.work)
        else:
            await node_subject.drive(node, "next => sink", part.work)


async def _handshakes(node: Node, count: int) -> None:
    for number in range(count + 1):
        if number == 1:
            start = time.perf_counter()  # the first one loads what it needs
        async with await node.secure_channel("next => secure", trust=ANYONE):
            pass
    measure.say_rate(count, time.perf_counter() - start)


async def _sessions(node: Node, url: str, count: int) -> None:
    """Connect, ask once, so that both have proven what they are going to prove, and part."""
    for number in range(count + 1):
        if number == 1:
            start = time.perf_counter()
        session = await node.connect(url, name="next")
        await node.request("next => echo", b"")
        await session.close()
    measure.say_rate(count, time.perf_counter() - start)


_MODULE = "benchmarks.secure.node_subject"


def _subject(name: str, style: str) -> Subject:
    return Subject(name, _MODULE, PACKAGES, _stage, style)


SECURE = _subject("waystation", "proven secure")
HANDSHAKES = _subject("waystation", "proven handshakes")
PLAIN = _subject("waystation, no channel", "proven")
PROVEN_SESSIONS = _subject("waystation, identities proven", "proven sessions")
SESSIONS = _subject("waystation, nothing proven", "sessions")
JOURNALLED = _subject("waystation, identities journalled", "proven journalled")
JOURNALLED_PLAIN = _subject("waystation, without identities", "journalled")


def _play(part: Part) -> None:
    waystation.run(_sink(part) if part.role == "sink" else _driver(part))


if __name__ == "__main__":
    measure.play(_play)
