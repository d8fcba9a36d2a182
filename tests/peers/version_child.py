"""A node of whichever version of Waystation is imported; it does what its standard input says.

    python version_child.py NAME '{"hub": true}'

Each line is `[what, arguments, named arguments]` of a method of `Driven`; the answer is a line with
what the method returns. The program keeps to what all versions have. What has to outlive the
process is appended to files: what was sent (`pulse`), what came (`count`) and what was dropped.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import waystation
from waystation.core.expiry import NEVER
from waystation.core.message import Message
from waystation.errors import WaystationError
from waystation.node import Context, Limits, MessageRecord, Node, Scope
from waystation.node.status import Status
from waystation.transports.http import Http
from waystation.transports.mqtt import Mqtt
from waystation.transports.udp import Udp
from waystation.transports.websocket import WebSocket
from waystation.wire import hello
from waystation.wire.ockam import FrameDecoder

try:
    from waystation.gossip_router import GossipServer
    from waystation.mqtt.broker import Broker
    from waystation.wire import hierarchy as control
except ImportError:  # where they are in the first version
    from waystation.broker import Broker  # type: ignore[import-not-found,no-redef]

    from waystation.groups import GossipServer  # type: ignore[attr-defined,no-redef]
    from waystation.wire import kinship as control  # type: ignore[attr-defined,no-redef]


class Driven:
    """What it can be asked for."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.got: dict[str, list[str]] = {}
        self.outcomes: dict[str, int] = {}
        self._subscriptions: dict[str, Any] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._drops: int | None = None
        self._go_on = asyncio.Event()
        self._last = 0
        node.observe(self._note)

    async def version(self) -> str:
        """The version that is imported."""
        return waystation.__version__

    async def use(self, *names: str) -> None:
        """Add transports beside TCP."""
        for name in names:
            self.node.use({"http": Http, "udp": Udp, "ws": WebSocket}[name]())

    async def use_broker(self, url: str, topic: str) -> None:
        """Use a broker, and listen on a topic."""
        self.node.use(Mqtt(url, topic=topic))
        await self.node.listen(f"mqtt://{topic}")

    async def listen(self, place: str, token: str | None = None) -> str:
        """Listen, and say where."""
        return (await self.node.listen(place, token=token)).url

    async def join(self, place: str, name: str = "parent", **options: Any) -> None:
        """Become a leaf of the node at a place."""
        await self.node.connect(place, name=name, parent=True, wait=100, **options)

    async def connect(self, place: str, name: str) -> None:
        """Open a session that is none of a leaf."""
        await self.node.connect(place, name=name, wait=100)

    async def sessions(self) -> dict[str, bool]:
        """Whether sessions are open, by what their peers call themselves."""
        return {session.peer or "": session.is_open for session in self.node.sessions}

    async def is_joined(self, peer: str) -> bool:
        """Whether there is an open session with a node."""
        return (await self.sessions()).get(peer, False)

    async def knows(self, participant: str) -> bool:
        """Whether there is an entry for a participant."""
        table = self.node.router.table
        return participant in table.snapshot(_now(self.node))

    async def number_of_subscribers(self) -> int:
        """How many subscriptions the node knows."""
        return len(self.node.router.subscriptions)

    # Messages

    async def serve(self, *names: str) -> None:
        """Start a worker that replies with its node's name and what it got."""

        async def reply(message: Message, context: Context) -> None:
            text = bytes(message.payload).decode()
            self.got.setdefault(str(context.address.name), []).append(text)
            await context.reply(f"{self.node.name}: {text}".encode())

        for name in names:
            self.node.start_worker((name,), reply)

    async def serve_when_told(self, name: str) -> None:
        """Start a worker that handles nothing until it is told to go on."""

        async def wait(message: Message, context: Context) -> None:
            await self._go_on.wait()
            self.got.setdefault(str(context.address.name), []).append(str(len(message.payload)))

        self.node.start_worker((name,), wait)

    async def go_on(self) -> None:
        """Let that worker work."""
        self._go_on.set()

    async def stop_serving(self, name: str) -> None:
        """Stop a worker."""
        await self.node.stop_worker(name)

    async def taken(self, name: str) -> list[str]:
        """What a worker or a subscription got."""
        return self.got.get(name, [])

    async def number_taken(self, name: str) -> int:
        """How much a worker or a subscription got."""
        return len(self.got.get(name, []))

    async def request(self, route: str, text: str, seconds: float = 60.0) -> str:
        """The reply, or why there is none."""
        try:
            reply = await self.node.request(route, text.encode(), timeout=seconds)
        except WaystationError as error:
            return f"no reply: {error}"
        return bytes(reply.payload).decode()

    async def send(self, route: str, text: str, number: int = 1, size: int = 0) -> list[str]:
        """Send messages; their outcomes."""
        payload = text.encode().ljust(size, b"x")
        verdicts = [await self.node.send(route, payload) for _ in range(number)]
        return [str(verdict.reason or verdict.outcome) for verdict in verdicts]

    async def flood(self, route: str, number: int, size: int) -> None:
        """Send in the background, as fast as the node takes it."""

        async def send() -> None:
            for _ in range(number):
                await self.node.send(route, bytes(size))

        self._tasks.append(asyncio.create_task(send()))

    async def is_busy(self) -> bool:
        """Whether it still sends."""
        return any(not task.done() for task in self._tasks)

    async def subscribe(self, provider: str, broadcast: str) -> None:
        """Subscribe, and note what comes."""
        got = self.got.setdefault(f"{provider}/{broadcast}", [])
        subscription = self.node.subscribe(
            provider, broadcast, callback=lambda message: got.append(message.payload.decode())
        )
        self._subscriptions[f"{provider}/{broadcast}"] = subscription

    async def unsubscribe(self, provider: str, broadcast: str) -> None:
        """Subscribe no more."""
        await self._subscriptions.pop(f"{provider}/{broadcast}").close()

    async def publish(self, provider: str, broadcast: str, text: str) -> None:
        """Publish a broadcast."""
        await self.node.publish(broadcast, text.encode(), provider=provider)

    async def counts(self) -> dict[str, int]:
        """How many messages ended how here."""
        return self.outcomes

    # The directory

    async def host_directory(self) -> None:
        """Host the directory of global listings."""
        self.node.host_directory()

    async def ask_directory(self, route: str) -> None:
        """Use the directory that another node hosts."""
        self.node.ask_directory(route)

    async def register(self, participant: str, domain: str, name: str) -> None:
        """List a provider everywhere."""
        await self.node.register(participant, domain, name, everywhere=True)

    async def unregister(self, participant: str) -> None:
        """List it no more."""
        await self.node.unregister(participant)

    async def discover(self, domain: str, name: str) -> list[str]:
        """The providers that anybody listed."""
        found = await self.node.discover(domain, name, Scope.GLOBAL_ONLY)
        return sorted(provider.participant for provider in found)

    # Other programs: the broker, the gossip router, and the members of groups

    async def start_broker(self) -> str:
        """Start a broker; where it is."""
        self._broker = Broker()
        await self._broker.start("127.0.0.1:0")
        return f"mqtt://{self._broker.place}"

    async def start_router(self) -> str:
        """Start a gossip router; where it is."""
        self._router = GossipServer()
        await self._router.start("127.0.0.1:0")
        return str(self._router.place)

    async def join_group(self, via: str, listen: str | None = None) -> None:
        """Join a group, and note what comes."""
        self._group = waystation.Group("fleet", name=self.node.name, via=via, listen=listen)
        await self._group.__aenter__()
        self._tasks.append(asyncio.create_task(self._hear_group()))

    async def _hear_group(self) -> None:
        async for sender, payload in self._group.messages():
            self.got.setdefault("group", []).append(f"{sender}: {payload.decode()}")

    async def group_place(self) -> str:
        """Where others reach this member."""
        return self._group.me.physical[0]

    async def group_members(self) -> list[str]:
        """The members of the group that this one knows."""
        return sorted(str(member) for member in await self._group.members())

    async def send_to_group(self, text: str, to: str | None = None) -> None:
        """Send to all others, or to one."""
        await self._group.send(text.encode(), to=to)

    async def leave_group(self) -> None:
        """Leave it."""
        await self._group.close()

    # Traffic, and what has to outlive the process

    async def keep_drops(self, file: str) -> None:
        """Append to a file what is dropped here."""
        self._drops = _appending(file)

    async def count(self, name: str, file: str) -> None:
        """Start a worker that appends what it gets to a file."""
        to = _appending(file)

        async def note(message: Message, context: Context) -> None:
            del context
            _append(to, bytes(message.payload).decode())

        self.node.start_worker((name,), note)

    async def count_broadcasts(self, provider: str, broadcast: str, file: str) -> None:
        """Append broadcasts to a file."""
        to = _appending(file)

        def note(message: Message) -> None:
            _append(to, bytes(message.payload).decode())

        self._subscriptions[file] = self.node.subscribe(provider, broadcast, callback=note)

    async def pulse(self, route: str, topic: str, file: str, first: int) -> None:
        """Send numbers, and publish them, one after the other until it is told to stop."""
        self._tasks.append(asyncio.create_task(self._pulse(route, topic, file, first)))

    async def stop_pulse(self) -> None:
        """Send no more."""
        while self._tasks:
            task = self._tasks.pop()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def last_pulse(self) -> int:
        """The number that was sent last."""
        return self._last

    async def _pulse(self, route: str, topic: str, file: str, first: int) -> None:
        to = _appending(file)
        self._last = first - 1
        while True:
            self._last += 1
            number = str(self._last)
            _append(to, self._last)  # before it is under way
            await self.node.send(route, f"sent {number}".encode(), ttl=60)
            await self.node.publish(topic, f"published {number}".encode(), provider="pulse")
            await asyncio.sleep(0.01)

    # What this version can read

    async def reads(self, data: str) -> list[list[Any]]:
        """What this version reads in the bytes of a link, given in base64.

        Each message is its routes, id, expiry and size; what is for the session itself is its kind,
        None if this version does not know it.
        """
        found = []
        for message in FrameDecoder().feed(base64.b64decode(data)):
            if message.onward_route.addresses:
                expiry = None if message.expiry == NEVER else message.expiry
                routes = [str(message.onward_route), str(message.return_route)]
                found.append([*routes, message.id, expiry, len(message.payload)])
            elif message.payload:
                payload = bytes(message.payload)
                told = control.read(payload) or hello._read(payload)
                found.append([None if told is None else type(told).__name__])
        return found

    async def status(self) -> None:
        """Tell others what the node is doing, as `waystation node` does."""
        self._status = Status(self.node)
        self._status.start()

    def _note(self, record: Any) -> None:
        if not isinstance(record, MessageRecord):
            return
        verdict = record.verdict
        word = str(verdict.reason or verdict.outcome)
        self.outcomes[word] = self.outcomes.get(word, 0) + 1
        if self._drops is not None and verdict.reason is not None:
            payload = bytes(record.arrival.message.payload[:20]).decode(errors="replace")
            _append(self._drops, [self.node.name, str(verdict.reason), payload])


def _now(node: Node) -> int:
    now: Any = getattr(node, "now", None) or (lambda: node.tick() // 1000)  # type: ignore[attr-defined]
    return int(now())


def _appending(file: str) -> int:
    return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def _append(file: int, value: Any) -> None:
    os.write(file, json.dumps(value).encode() + b"\n")


async def main(name: str, hub: bool = False, journal: str | None = None, **limits: Any) -> None:
    """Do what the lines say, until there are no more."""
    limits.setdefault("heartbeat", 1.0)
    directory = None if journal is None else Path(journal)
    async with Node(name, hub=hub, journal=directory, limits=Limits(**limits)) as node:
        driven = Driven(node)
        while line := await asyncio.to_thread(sys.stdin.readline):
            what, words, named = json.loads(line)
            try:
                answer = {"done": await getattr(driven, what)(*words, **named)}
            except Exception as error:  # noqa: BLE001 - the test says what it makes of it
                answer = {"failed": f"{type(error).__name__}: {error}"}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
        await driven.stop_pulse()


if __name__ == "__main__":
    waystation.run(main(sys.argv[1], **json.loads(sys.argv[2])))
