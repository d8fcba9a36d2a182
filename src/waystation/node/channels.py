"""Secure channels: two nodes that prove who they are, and messages that only they can read (ID-4).

A channel has two local addresses at each end. What is sent to the first, and from there on along
its route, is sealed and goes to the other end; what comes to the second is opened there and goes on
along the route inside, as if sent by the peer. Its return route leads back into the channel, so
replies are sealed too. The nodes between see where the sealed messages go, and nothing else.

Both ends work by plain calls, as the other receivers of a node do: no task, no timer for a message.
An end that is not used, or whose handshake is not finished, can be ended to make room for others.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from msgspec import Struct

from waystation.core.address import LOCAL, Address, Route
from waystation.core.message import NO_ID, Arrival, Message
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.core.record import SessionKind, SessionRecord
from waystation.core.routing import RoutingEntry
from waystation.core.who import NOBODY, Who, is_first_hand
from waystation.errors import LocalError, NotTrusted, RemoteError, UnreachableError, quote
from waystation.node.entrance import SealingEntrance
from waystation.node.kernel import CHANNEL_PREFIX, Kernel
from waystation.node.keyfile import now
from waystation.node.receiver import ReadyReceiver
from waystation.wire import secure_channel as wire
from waystation.wire.identity import SEED_SIZE, Identity, PrivateIdentity, check_identifier
from waystation.wire.noise import KEY_SIZE, Handshake, public_key

if TYPE_CHECKING:
    from waystation.node.node import Node

_log = logging.getLogger("waystation.node")

_NOWHERE: Final = Route()

HANDSHAKE_TIME: Final = 30.0
"""Seconds that a handshake may take."""

PROOF_TIME: Final = 600
"""Seconds after which a node signs anew that the key of its handshakes is its own."""

HALF_OPEN: Final = 256
"""Handshakes that a node has begun to answer, and whose last message it waits for."""

CHANNELS: Final = 10_000
"""Channels that others have opened with a node; beyond, the one that was idle for longest ends."""

Trust: TypeAlias = str | Collection[str] | Callable[[str], bool]
"""Whom to trust: an identifier, several, or a function of it that says so."""


def _anyone(identifier: str) -> bool:
    return bool(identifier)


ANYONE: Final[Trust] = _anyone
"""Trust whoever proves to have an identity, whichever it is."""


class ChannelCounts(Struct, frozen=True):
    """How many secure channels a node has, and has had."""

    open: int = 0
    half_open: int = 0  # handshakes that others have begun and not finished
    handshakes: int = 0  # that succeeded
    refusals: int = 0  # of what was no message of the peer, or of a peer that is not trusted


class _State(Enum):
    """The life of an end, in this order."""

    WAITING = auto()  # for a message of the handshake
    OPEN = auto()
    CLOSED = auto()


class SecureChannel:
    """One end of a channel. What is sent through it can be read at the other end only.

    `identity` is the identifier that the peer has proven to have. `name` is a local address of this
    node: a route that begins with it goes through the channel.
    """

    def __init__(self, channels: SecureChannels, route: Route, name: str | None = None) -> None:
        kernel = channels.kernel
        self.name = name or _new_name()
        self.identity = ""
        self.who = NOBODY
        self.denials: set[str] = set()
        self.origin = b""  # the session, or whatever it is, that the other end's handshake came by
        self._channels = channels
        self._kernel = kernel
        self._route = route  # to the receiver of sealed messages at the other end
        self._state = _State.WAITING
        self._sealer: wire.Sealer
        self._opener: wire.Opener
        self._handshake = Handshake(channels.static, secrets.token_bytes(KEY_SIZE))
        self._entrance = SealingEntrance(self, kernel, is_lasting=name is not None)
        self._exit = _Exit(self)

    def __repr__(self) -> str:
        who = f"with {self.identity}" if self.identity else "not yet open"
        return f"<SecureChannel {self.name} {who}, {self._state.name.lower()}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def closed(self) -> bool:
        """Whether one of both sides has closed it."""
        return self._state is _State.CLOSED

    async def send(self, route: str | Route, payload: bytes, **options: Any) -> Any:
        """Send a message from the other end on along a route, as `Node.send` does."""
        return await self._node.send(self.through(route), payload, **options)

    async def request(self, route: str | Route, payload: bytes, **options: Any) -> Message:
        """Send a message from the other end on and wait for the reply, as `Node.request` does."""
        return await self._node.request(self.through(route), payload, **options)

    def through(self, route: str | Route) -> Route:
        """The route through this channel, and on from its other end."""
        if self.closed:
            raise LocalError(
                f"the secure channel {self.name} is closed", rule="ID-4", hint="open another"
            )
        onward = self._channels.parsed(route)
        return onward.pushed(self._entrance.address)

    async def close(self) -> None:
        """End it here and, unless that message is lost, at the other end."""
        self.close_now()

    def close_now(self) -> None:
        """End it, as `close` does."""
        if self._state is _State.OPEN:
            last = self._sealer.seal(wire.encode_close())
            self._kernel.send_on(Message(self._route, _NOWHERE, last, self._kernel.new_id()))
        self.end()

    def end(self) -> None:
        """Forget it here."""
        if self._state is not _State.CLOSED:
            was_open, self._state = self.is_open, _State.CLOSED
            if was_open:
                self._entrance.close()
            self._kernel.remove_receiver(self._exit.address)
            self._channels.ended(self)

    @property
    def peer(self) -> str:
        """What access rules call the peer: who it has proven to be."""
        return self.identity

    def record(self, at: int) -> SessionRecord:
        """The record that it is there."""
        kind, place = SessionKind.OPENED, str(self._route)
        return SessionRecord(kind, self.name, place, None, None, "", at, identity=self.identity)

    @property
    def _node(self) -> Node:
        return self._channels.node

    # The handshake

    async def begin(self, trust: Trust, seconds: float) -> None:
        """Open it: prove who this node is, and learn who the peer is."""
        route, message = str(self._route), self._handshake.write_first()
        reply = self._exit.expect()
        try:
            async with asyncio.timeout(seconds):
                verdict = await self._node.route(self._handshake_message(message))
                if verdict.reason is not None:
                    raise UnreachableError(route, f"the handshake was dropped: {verdict.reason}")
                second = await reply
        except TimeoutError:
            raise UnreachableError(route, f"no secure channel within {seconds:g} s") from None
        try:
            shown = self._handshake.read_second(second.payload)
            identity = self._channels.proven(shown, self._handshake.peer_static)
        except RemoteError as error:
            raise UnreachableError(route, f"the handshake failed: {error}") from error
        if not trusts(trust, identity.identifier):
            raise NotTrusted(route, identity.identifier)
        self._route = second.return_route
        third = self._handshake.write_third(self._channels.proof())
        responders, own = self._handshake.keys()
        self._open(identity, own, responders)
        self._kernel.send_on(self._handshake_message(third))

    def answer(self, arrival: Arrival) -> Verdict:
        """Reply to the first message of a handshake that another node has begun."""
        self._handshake.read_first(arrival.message.payload)
        second = self._handshake.write_second(self._channels.proof())
        return self._kernel.send_on(self._handshake_message(second))

    def finish(self, message: Message, listener: SecureListener) -> None:
        """Take the last message of a handshake; a RemoteError says what is wrong with it."""
        shown = self._handshake.read_third(message.payload)
        identity = self._channels.proven(shown, self._handshake.peer_static)
        if not listener.trusts(identity.identifier):
            raise RemoteError(f"{identity.identifier} is not trusted here")
        own, initiators = self._handshake.keys()
        self._route = message.return_route
        self._open(identity, own, initiators)

    def _handshake_message(self, payload: bytes) -> Message:
        back = Route((self._exit.address,))
        kernel = self._kernel
        expiry = kernel.expiry_in(HANDSHAKE_TIME)
        return Message(self._route, back, payload, kernel.new_id(), expiry)

    def _open(self, identity: Identity, own: bytes, peers: bytes) -> None:
        self.identity = identity.identifier
        self.who = Who(self.identity)
        self._sealer, self._opener = wire.Sealer(own), wire.Opener(peers)
        self._state = _State.OPEN
        self._channels.opened(self)
        self._entrance.open()

    # Messages

    @property
    def is_open(self) -> bool:
        """Whether both sides have proven who they are."""
        return self._state is _State.OPEN

    @property
    def route(self) -> Route:
        """The way to the other end."""
        return self._route

    @property
    def empty(self) -> Message:
        """A message to the other end with nothing in it, by which the way is known."""
        return Message(self._route, _NOWHERE, b"")

    def sealed(self, message: Message) -> Message:
        """What was sent through the channel, as it goes to the other end."""
        plain = wire.encode(message.onward_route.rest(), message.return_route, message.payload)
        # Without a return route: an Ockam node would take that for the way to this end.
        return Message(self._route, _NOWHERE, self._sealer.seal(plain), message.id, message.expiry)

    def open(self, message: Message) -> None:
        """Open a sealed message and send on what is inside; a RemoteError if that is impossible."""
        opener = self._opener
        before = opener.highest
        inside = wire.decode(opener.open(message.payload))
        if opener.highest > before:
            self._follow(message.return_route)
        self._channels.used(self)
        if inside is None:
            self.end()
        elif inside.onward_route.addresses:
            self._send_on(inside, message)

    def _follow(self, came: Route) -> None:
        """Reply the way that the newest message came: its sender may be elsewhere by now.

        Only the responder does, since the initiator chose the route to it.
        """
        if came.addresses and self._channels.is_responder(self):
            last = self._route.addresses[-1]
            self._route = Route((*came.addresses, last))

    def _send_on(self, inside: Message, outside: Message) -> None:
        kernel = self._kernel
        id = outside.id if outside.id != NO_ID else kernel.new_id()
        back = inside.return_route.pushed(self._entrance.address)
        message = Message(inside.onward_route, back, inside.payload, id, outside.expiry)
        sender = self.identity if is_first_hand(back) else None
        if kernel.permissions.admits(self, message) and kernel.allows(message, self.peer):
            kernel.come_out(message, outside, sender)
        else:
            kernel.refuse(message, sender=sender)


class _Exit(ReadyReceiver):
    """Where the messages of the other end arrive, those of the handshake first."""

    __slots__ = ("_first", "address", "channel", "listener", "verdict")

    def __init__(self, channel: SecureChannel) -> None:
        self.channel = channel
        name = _new_name()  # which does not tell that of the entrance
        self.address = address = Address(LOCAL, name.encode())
        self.verdict = Verdict(Outcome.DELIVERED, None, name, address)
        entry = RoutingEntry(name, address, local=True)
        channel._kernel.add_receiver(address, self, entry)  # noqa: SLF001 - they are one thing
        self._first: asyncio.Future[Message] | None = None
        self.listener: SecureListener | None = None  # where the other end began

    def expect(self) -> asyncio.Future[Message]:
        """The second message of the handshake, as soon as it comes."""
        self._first = asyncio.get_running_loop().create_future()
        return self._first

    def offer(self, arrival: Arrival) -> Verdict:
        """Take a message of the other end, or drop what is none."""
        channel, kernel = self.channel, self.channel._kernel  # noqa: SLF001
        message = arrival.message
        try:
            if channel.is_open:
                channel.open(message)
            elif self._first is not None and not self._first.done():
                self._first.set_result(message)
            elif self.listener is not None:
                channel.finish(message, self.listener)
            else:
                return kernel.drop(arrival, Reason.REFUSED, self.verdict.recipient)
        except RemoteError as error:
            channel._channels.refused(self.verdict.recipient, error)  # noqa: SLF001
            if not channel.is_open:
                channel.end()
            return kernel.drop(arrival, Reason.REFUSED, self.verdict.recipient)
        return kernel.end(arrival, self.verdict)


class SecureListener(ReadyReceiver):
    """Where others open channels with this node."""

    __slots__ = ("_channels", "_trust", "address", "verdict")

    def __init__(self, channels: SecureChannels, address: Address, trust: Trust) -> None:
        self._channels = channels
        self._trust = trust
        self.address = address
        self.verdict = Verdict(Outcome.DELIVERED, None, address.name, address)

    def __repr__(self) -> str:
        return f"<SecureListener {self.address.name}>"

    def offer(self, arrival: Arrival) -> Verdict:
        """Answer the first message of a handshake."""
        channels, message = self._channels, arrival.message
        kernel, name = channels.kernel, self.address.name
        if len(message.payload) != KEY_SIZE or not message.return_route.addresses:
            return kernel.drop(arrival, Reason.MALFORMED, name)
        try:
            sent = channels.answer(arrival, self)
        except RemoteError as error:
            channels.refused(name, error)
            return kernel.drop(arrival, Reason.REFUSED, name)
        if sent.reason is not None:
            return kernel.drop(arrival, sent.reason, name)
        return kernel.end(arrival, self.verdict)

    def trusts(self, identifier: str) -> bool:
        """Whether somebody may open channels here."""
        return trusts(self._trust, identifier)

    def change_trust(self, trust: Trust) -> None:
        """Trust others from now on; what was opened here by who is not trusted any more ends."""
        self._trust = check_trust(trust)
        for channel in self._channels.opened_at(self):
            if not self.trusts(channel.identity):
                channel.close_now()

    def close(self) -> None:
        """Open no more channels here; those that are open stay."""
        self._channels.kernel.remove_receiver(self.address)


class SecureChannels:
    """The secure channels of one node."""

    def __init__(self, node: Node, kernel: Kernel) -> None:
        self.node = node
        self.kernel = kernel
        self._identities = kernel.links.identities
        self._passing: PrivateIdentity | None = None  # of a node that was given none
        self._static = b""
        self._own: dict[SecureChannel, None] = {}  # that this node has begun
        self._half_open: dict[SecureChannel, asyncio.TimerHandle] = {}
        self._origins: dict[bytes, dict[SecureChannel, None]] = {}  # those, by where they came from
        self._shown: tuple[PrivateIdentity, int, bytes] | None = None
        self._others: dict[SecureChannel, None] = {}  # that others have; the last used is last
        self._handshakes = 0
        self._refusals = 0

    def counts(self) -> ChannelCounts:
        """How many there are, and were."""
        is_open = sum(channel.is_open for channel in self._own)
        return ChannelCounts(
            len(self._others) + is_open, len(self._half_open), self._handshakes, self._refusals
        )

    @property
    def identity(self) -> PrivateIdentity:
        """The identity of the node; one that nobody knows if it was given none."""
        if self._identities.own is not None:
            return self._identities.own
        if self._passing is None:
            self._passing = PrivateIdentity.create(secrets.token_bytes(SEED_SIZE), now())
        return self._passing

    @property
    def static(self) -> bytes:
        """The private key of handshakes, of this process alone."""
        self._static = self._static or secrets.token_bytes(KEY_SIZE)
        return self._static

    def proof(self) -> bytes:
        """What this node shows in handshakes; it is signed anew now and then."""
        own, second = self.identity, now()
        if self._shown is not None:
            signer, signed_at, proof = self._shown
            if signer is own and signed_at <= second < signed_at + PROOF_TIME:
                return proof
        proof = wire.proof(own, public_key(self.static), second)
        self._shown = own, second, proof
        return proof

    def proven(self, shown: bytes, static: bytes) -> Identity:
        """The identity that the peer has proven; a RemoteError says what is wrong with it."""
        second = now()
        identity = wire.check_proof(shown, static, second)
        objection = self._identities.objection(identity, second)
        if objection:
            raise RemoteError(objection)
        return identity

    def parsed(self, route: str | Route) -> Route:
        """A route from its text."""
        if isinstance(route, Route):
            return route
        types = self.kernel.router.types
        types.reserve_usual(route)
        return Route.parse(route, types.numbers)

    async def open(
        self, route: str | Route, trust: Trust, seconds: float, name: str | None = None
    ) -> SecureChannel:
        """Open a channel; with a name, durable messages can wait for it across restarts."""
        own = None if name is None else f"{CHANNEL_PREFIX}{name}"
        if own is not None:
            self.kernel.free_address(own, reserved=True)
            if any(channel.name == own for channel in self._own):
                raise LocalError(
                    f"a secure channel {quote(name)} is being opened already",
                    rule="ID-4",
                    hint="choose another name, or wait for it",
                )
        channel = SecureChannel(self, self.parsed(route), own)
        self._own[channel] = None
        try:
            await channel.begin(check_trust(trust), seconds)
        except BaseException:
            channel.end()
            raise
        return channel

    def listen(self, name: str, trust: Trust) -> SecureListener:
        """Let others open channels with this node."""
        address = self.kernel.free_address(name)
        listener = SecureListener(self, address, check_trust(trust))
        entry = RoutingEntry(address.name, address, local=True)
        self.kernel.add_receiver(address, listener, entry)
        return listener

    def opened_at(self, listener: SecureListener) -> list[SecureChannel]:
        """The channels that others have opened at a listener."""
        return [channel for channel in self._others if channel._exit.listener is listener]  # noqa: SLF001

    def answer(self, arrival: Arrival, listener: SecureListener) -> Verdict:
        """Answer a handshake that another node has begun."""
        origin = arrival.message.return_route.addresses[0].data
        if len(self._half_open) >= HALF_OPEN:  # the oldest of who has most had the most time
            most = max(self._origins.values(), key=len)
            next(iter(most)).end()
        channel = SecureChannel(self, arrival.message.return_route)
        channel.origin = origin
        self._origins.setdefault(origin, {})[channel] = None
        channel._exit.listener = listener  # noqa: SLF001
        loop = asyncio.get_running_loop()
        self._half_open[channel] = loop.call_later(HANDSHAKE_TIME, channel.end)
        try:
            return channel.answer(arrival)
        except RemoteError:
            channel.end()
            raise

    def opened(self, channel: SecureChannel) -> None:
        """Note that both sides have proven who they are."""
        self._handshakes += 1
        if self._is_no_longer_half_open(channel):
            if len(self._others) >= CHANNELS:
                next(iter(self._others)).end()
            self._others[channel] = None

    def used(self, channel: SecureChannel) -> None:
        """Note that a message came over a channel."""
        if channel in self._others:
            del self._others[channel]
            self._others[channel] = None

    def is_responder(self, channel: SecureChannel) -> bool:
        """Whether the other node has opened it."""
        return channel in self._others

    def ended(self, channel: SecureChannel) -> None:
        """Note that a channel has ended."""
        self._own.pop(channel, None)
        self._others.pop(channel, None)
        self._is_no_longer_half_open(channel)

    def _is_no_longer_half_open(self, channel: SecureChannel) -> bool:
        """Forget that a handshake waits for its last message; returns whether it did."""
        alarm = self._half_open.pop(channel, None)
        if alarm is None:
            return False
        alarm.cancel()
        same = self._origins[channel.origin]
        del same[channel]
        if not same:
            del self._origins[channel.origin]
        return True

    def refused(self, name: str | None, error: RemoteError) -> None:
        """Count and log what was none of the peer's."""
        self._refusals += 1
        _log.debug("node %s refused what came to %s: %s", self.kernel.name, name, error)

    async def close(self) -> None:
        """End all channels, and tell the other ends."""
        for channel in [*self._own, *self._others]:
            await channel.close()
        for channel in list(self._half_open):
            channel.end()


def _new_name() -> str:
    return f"{CHANNEL_PREFIX}{secrets.token_hex(8)}"  # who could guess it could send there


def check_trust(trust: Trust) -> Trust:
    """The trust, if it is one; else a LocalError."""
    if callable(trust):
        return trust
    named = {trust} if isinstance(trust, str) else set(trust)
    if not named:
        raise LocalError(
            "a secure channel with nobody", rule="ID-4", hint="name an identifier to trust"
        )
    for identifier in named:
        check_identifier(identifier)
    return named


def trusts(trust: Trust, identifier: str) -> bool:
    """Whether an identity is trusted; a function that fails trusts nobody."""
    if not callable(trust):
        return identifier in ({trust} if isinstance(trust, str) else trust)
    try:
        return trust(identifier) is True
    except Exception:  # noqa: BLE001 - the session that brought the handshake goes on
        _log.exception("whether %s is trusted cannot be told", identifier)
        return False
