"""The node as its users see it: workers, routes, requests, broadcasts, sessions (AD, WK).

Everything here checks what it is given and calls the kernel, or the part of the node whose business
it is. A node and its parts live in one process and one event loop.

What the outcomes mean: a message is DELIVERED when its worker has handled it, and FORWARDED when
the operating system has taken it. `send` returns as soon as it is accepted, with the verdict that
holds unless the worker or the link fails; the observers hear how it ended, exactly once (OB-1).
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from waystation.core.access import Access
from waystation.core.address import LOCAL, Address, Route, check_node_name
from waystation.core.clock import Clock, current_clock
from waystation.core.directory import Provider, Scope
from waystation.core.expiry import NEVER, Expiry
from waystation.core.grants import Action, Grants
from waystation.core.message import (
    HOP_LIMIT,
    Arrival,
    Message,
    check_message_id,
    not_bytes_error,
)
from waystation.core.multicast import ADDRESS_TYPE as MULTICAST
from waystation.core.multicast import MulticastId
from waystation.core.outcome import Reason, Verdict
from waystation.core.routing import RouteChange, RoutingEntry
from waystation.core.spoken import plural
from waystation.core.tokens import Token, Tokens
from waystation.errors import LocalError, NoReplyError, UndeliverableError, quote
from waystation.node import keyfile
from waystation.node.broadcasts import Callback, Subscription
from waystation.node.contested import ContestedNames
from waystation.node.custody import CustodySnapshot
from waystation.node.directory import Leave, Lookup, ProviderDirectory, Register
from waystation.node.flow import Snapshot
from waystation.node.kernel import Carrier, Kernel, Observer, Stage
from waystation.node.links import Limits, Listening
from waystation.node.policy import WAIT, Policy, Wait, check_policy, check_seconds
from waystation.node.readiness import READY_TIME
from waystation.node.receiver import NoRoom
from waystation.node.requests import Undeliverable
from waystation.node.runner import stop_signals
from waystation.node.sent import Published, Sent
from waystation.node.session import Session
from waystation.node.store import DAY, StoreSettings
from waystation.node.worker import Handler, Worker, check_handler
from waystation.transports.tcp import Tcp
from waystation.transports.transport import Served, ServerState, Transport
from waystation.wire.identity import PrivateIdentity

if TYPE_CHECKING:
    from waystation.journal import Journal
    from waystation.node.channels import (
        ChannelCounts,
        SecureChannel,
        SecureChannels,
        SecureListener,
        Trust,
    )
    from waystation.node.permissions import Grantee
    from waystation.why import Explanation

KEEP: Final = 7 * DAY
"""Default time in seconds that a durable subscription is kept while it is away."""

INBOX: Final = 1_000
"""Default capacity of an inbox, in messages."""

_RUNNING: Final = Stage.RUNNING
_ROUTES: Final = 4_096  # how many parsed routes a node remembers
_NOWHERE: Final = Route()

_H = TypeVar("_H", bound=Callable[..., Any])


class Node:
    """A router, its workers and its sessions with other nodes.

    >>> async def main():
    ...     async with Node("garage") as node:
    ...         @node.worker("echo")
    ...         async def echo(message, context):
    ...             await context.reply(message.payload)
    ...         answer = await node.request("echo", b"hello")
    ...         return answer.payload
    >>> asyncio.run(main())
    b'hello'
    """

    def __init__(
        self,
        name: str,
        *,
        transports: Iterable[Transport] | None = None,
        token: str | bytes | None = None,
        tokens: Iterable[Token] = (),
        identity: str | Path | PrivateIdentity | None = None,
        limits: Limits | None = None,
        hop_limit: int = HOP_LIMIT,
        dial_for_peers: bool = False,
        hub: bool = False,
        access: Access | None = None,
        grants: Grants | None = None,
        journal: str | Path | None = None,
        store: str | Path | StoreSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        _check_options(limits, transports)
        self._kernel = kernel = Kernel(
            check_node_name(name),
            hop_limit=hop_limit,
            clock=clock or current_clock(),
            limits=limits or Limits(),
            access=access,
            grants=grants,
            token=_secret(token),
            tokens=tokens,
            identity=_identity(identity),
            hub=hub,
            dial_for_peers=dial_for_peers,
            store=StoreSettings(directory=store) if isinstance(store, str | Path) else store,
        )
        self.name = name
        self.router = kernel.router
        self.new_id = kernel.new_id
        self._links = kernel.links
        self._directory = kernel.directory = ProviderDirectory(self, kernel)
        self._routes: dict[str, Route] = {}
        # The id and the route for what is published, by provider, broadcast and partition.
        self._published: dict[tuple[str | None, str, Any], tuple[str, Route]] = {}
        self._closing: asyncio.Task[None] | None = None
        self._channels: SecureChannels | None = None
        self._journal: Journal | None = None
        try:
            for transport in transports if transports is not None else (Tcp(),):
                self._links.use(transport)
            if journal is not None:
                from waystation.journal import Journal  # noqa: PLC0415 - it needs pyarrow

                self._journal = Journal(journal, name)
                self.observe(self._journal.note, incarnation=self._journal.incarnation)
        except BaseException:
            if kernel.custody.store is not None:
                kernel.custody.store.close()  # so that another node can have it
            raise

    def __repr__(self) -> str:
        kernel = self._kernel
        workers, sessions = len(kernel.workers), len(self._links.sessions)
        what = f"{plural(workers, 'worker')}, {plural(sessions, 'session')}"
        return f"<Node {self.name!r}: {what}, {kernel.stage.name.lower()}>"

    async def __aenter__(self) -> Self:
        self._links.start_broadcasters()
        self._kernel.custody.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # Workers

    def worker(
        self, *names: str, inbox: int = INBOX, passing: bool = False, visible: bool = False
    ) -> Callable[[_H], _H]:
        """Make a function, or a class with `__call__`, the handler of these addresses.

        A message whose route goes on behind the worker is forwarded without it (WK-4), unless it
        wants to see the `passing` ones as well. What a `visible` one publishes is for everybody
        (MC-10). At a leaf the hub knows the names a moment later: `ready` waits for that.
        """
        if not all(isinstance(name, str) for name in names):
            raise LocalError(
                f"a worker needs a name, not {quote(names[0])}",
                rule="WK-1",
                hint='write it in parentheses: @node.worker("echo")',
            )

        def start(handler: _H) -> _H:
            made: Any = handler() if inspect.isclass(handler) else handler
            self.start_worker(names, made, inbox=inbox, passing=passing, visible=visible)
            return handler

        return start

    def start_worker(
        self,
        names: tuple[str, ...],
        handler: Handler,
        *,
        inbox: int = INBOX,
        passing: bool = False,
        visible: bool = False,
        reserved: bool = False,
    ) -> Worker:
        """Start a worker; each of its names becomes a local routing entry.

        Names that begin with `waystation.` are `reserved` for what the node offers itself.
        """
        given: object = names
        if isinstance(given, str):  # each of its letters would be a name
            raise LocalError(
                f"the names of a worker are a tuple, not the text {quote(given)}",
                rule="WK-1",
                hint=f"write start_worker(({quote(given)},), …), or @node.worker({quote(given)})",
            )
        if not names or inbox < 1 or not callable(handler):
            raise LocalError(
                f"invalid worker: names {quote(names)}, inbox {quote(inbox)}, "
                f"handler {quote(handler)}",
                rule="WK-1",
                hint="give at least one name, an inbox of 1 or more, and something to call",
            )
        check_handler(handler)
        self._check_open()
        kernel = self._kernel
        free = (kernel.free_address(name, reserved=reserved) for name in names)
        addresses = tuple(dict.fromkeys(free))
        if len(addresses) < len(names):
            raise LocalError(
                f"duplicate name among those of a worker: {quote(names)}",
                rule="WK-1",
                hint="give each name once",
            )
        worker = Worker(self, kernel, addresses, handler, inbox, passing=passing)
        for address in addresses:
            entry = RoutingEntry(address.name, address, local=True, visible=visible)
            kernel.add_receiver(address, worker.receivers[address.data], entry)
        return worker

    async def stop_worker(self, name: str) -> None:
        """Stop the worker of this name, with all its names; what waits for it has no route.

        A handler may stop its own worker, which then ends when the handler returns.
        """
        worker = self._kernel.worker(Address.parse(name).name)
        if worker is None:
            raise LocalError(
                f"there is no worker {quote(name)}", rule="WK-1", hint="start it first"
            )
        self._kernel.remove_worker(worker)
        worker.stop(Reason.FAILED)
        try:
            if worker.task is not asyncio.current_task():
                await asyncio.wait([worker.task])
        finally:
            worker.drop_all(Reason.NO_ROUTE)

    # Other nodes

    def use(self, transport: Transport) -> None:
        """Carry messages over one more transport; its type becomes routable."""
        self._links.use(transport)

    def register_type(self, name: str, carrier: Carrier, number: int | None = None) -> int:
        """Route addresses of a type: `carrier` takes messages there (AD-2)."""
        number = self.router.types.register(name, number)
        self._kernel.carriers[number] = carrier
        return number

    async def listen(
        self,
        place: str,
        *,
        token: str | bytes | None = None,
        tokens: Iterable[Token] | None = None,
        outside: bool = False,
    ) -> Listening:
        """Let peers connect: `tcp://127.0.0.1:4000`; port 0 takes a free one.

        A peer that comes in from `outside` is reached over a global transport and never a leaf: its
        requests leave a way back to it for as long as they live (RE-13), and what it publishes goes
        to the subscribers here and no further (MC-11).

        With `tokens` a peer proves one of its own, by its name, or else the one for everybody. By
        default those of the node are asked for.
        """
        self._check_open()
        if self.is_hub:
            self._directory.serve()
        asked = Tokens.shared(_secret(token)) if tokens is None else Tokens(tokens)
        return await self._links.listen(place, asked, outside=outside)

    async def connect(
        self,
        *places: str,
        name: str | None = None,
        token: str | bytes | None = None,
        wait: float | None = 10.0,
        keep: bool = True,
        parent: bool = False,
    ) -> Session:
        """Open a session with a peer, under a local name that stays.

        Of several places of the peer the first that answers is taken. A session that is kept gets a
        new link by itself whenever it loses the one it has. Returns when it is open; raises
        UnreachableError after `wait` seconds. With None it returns at once and goes on trying.

        With `parent` this node is a leaf of that peer, which must be a hub: it announces its
        participants and subscriptions there, publishes there, and asks there for participants that
        it does not know.
        """
        self._check_open()
        return await self._links.connect(
            places, name, _secret(token), wait=wait, reconnects=keep, parent=parent
        )

    async def ready(self, timeout: float = READY_TIME) -> None:  # noqa: ASYNC109
        """Wait until all parents know the workers and subscriptions that there are by now.

        The hubs above them know by then as well, so that whoever is behind any of these hubs can
        send to the workers. A node without a parent is ready at once. Raises NotReadyError after
        `timeout` seconds, with the parents that did not reply, and NameTaken when another node
        holds a name of this one.
        """
        await self._kernel.readiness.wait(timeout)

    @property
    def identity(self) -> str | None:
        """The identifier that this node proves to its peers; None if it has none."""
        own = self._links.identities.own
        return None if own is None else own.identifier

    @property
    def handshakes(self) -> Counter[str]:
        """How many sessions opened with a peer `proven` or `unproven`, or were `refused`."""
        return self._links.identities.handshakes.copy()

    @property
    def grants(self) -> Grants | None:
        """What peers may do here; None if nothing is asked of them (ID-3)."""
        return self._kernel.permissions.grants

    @property
    def denied(self) -> Counter[str]:
        """How often peers asked for what is not granted to them, by what they wanted to do."""
        return self._kernel.permissions.denied.copy()

    def may_sender(self, message: Message, action: Action, name: str) -> bool:
        """Whether who sent a message may do something, for workers that do it on its behalf (ID-3).

        What it may not is counted, and recorded with who asked. This node itself may do anything.
        """
        return self._kernel.permissions.may_sender(message, action, name)

    def grantee_of(self, message: Message) -> Grantee:
        """Who sent a message, for workers that do lasting things on its behalf."""
        return self._kernel.permissions.grantee_of(message)

    def may_still(self, grantee: Grantee, action: Action, name: str) -> bool:
        """Whether somebody may do now what a worker did on its behalf, also while it is away."""
        return self._kernel.permissions.may_still(grantee, action, name)

    def watch_grants(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Have a function called when grants have changed; returns a function that ends this.

        What a worker did on somebody's behalf that is no longer granted is then to be undone.
        """
        watchers = self._kernel.permissions.watchers
        watchers.append(changed)
        return lambda: watchers.remove(changed)

    def change_grants(self, grants: Grants | None) -> None:
        """Judge peers by other grants from now on; what these do not give is taken back (ID-5)."""
        self._kernel.permissions.change(grants)

    def change_identity(self, identity: str | Path | PrivateIdentity | None) -> None:
        """Prove another identity, or the same with a new key, in sessions to come (ID-5)."""
        self._links.identities.own = _identity(identity)

    def change_tokens(self, token: str | bytes | None, tokens: Iterable[Token] = ()) -> None:
        """Ask for other tokens from now on, and end sessions whose peers proved none of them.

        Listeners and sessions with a token of their own keep it: see `change_token_of`.
        """
        self._links.change_tokens(_secret(token), tokens)

    def change_token_of(self, one: Listening | Session, token: str | bytes | None) -> None:
        """Change the token that a listener asks for, or that is shown to a peer (ID-5).

        None for the token of the node. Peers of the listener that proved another have to go.
        """
        self._links.change_token_of(one, _secret(token))

    def change_limits(self, limits: Limits) -> None:
        """Have other limits from now on, as far as they are not those of open sessions."""
        self._kernel.change_limits(limits)

    def renew_certificates(self) -> None:
        """Use the certificates that are in their files now, for the sessions to come (ID-5)."""
        self._links.renew_certificates()

    @property
    def is_hub(self) -> bool:
        """Whether leaves may announce their participants here."""
        return self._kernel.hierarchy.is_hub

    @property
    def sessions(self) -> list[Session]:
        """The sessions that have a link."""
        return list(self._links.sessions.values())

    def session_at(self, address: Address) -> Session | None:
        """The session that a local address leads over; None if it is not that of one."""
        return self._links.sessions.get(address.data) if address.type == LOCAL else None

    @property
    def listening(self) -> list[Listening]:
        """Where peers connect."""
        return list(self._links.listening)

    @property
    def servers(self) -> list[ServerState]:
        """The brokers and gossip routers that its transports go through."""
        used = [each for each in self._links.transports.values() if isinstance(each, Served)]
        return [server for transport in used for server in transport.servers]

    @property
    def flow(self) -> Snapshot:
        """How much it holds of what was received, and who waits because of it (FL-1, FL-3)."""
        return self._kernel.flow.snapshot()

    @property
    def custody(self) -> CustodySnapshot | None:
        """How many durable messages it has; None without a store (DU-5)."""
        return self._kernel.custody.snapshot()

    @property
    def contested(self) -> ContestedNames:
        """The names that several owners claim here, and how many claims there are (CL-4)."""
        return self._kernel.hierarchy.contested

    @property
    def draining(self) -> bool:
        """Whether it takes nothing new any more, since it is being closed or is closed."""
        return self._kernel.stage is not _RUNNING

    # Routes

    def put_route(self, entry: RoutingEntry) -> RouteChange:
        """Put an entry for a participant elsewhere; the rules decide whether it is accepted (RE).

        Raises LocalError for an entry that this node could not follow: one that takes the name of
        a worker, session or subscriber of its own, or a local one without a session behind it.
        """
        return self._kernel.put_route(entry)

    def remove_route(self, participant: str) -> RouteChange | None:
        """Remove the entry of a participant elsewhere; None if there was none."""
        self._kernel.check_not_own(participant, rule="RE-11")
        return self._kernel.remove_route(participant)

    # Secure channels

    async def secure_channel(
        self,
        route: str | Route,
        *,
        trust: Trust,
        name: str | None = None,
        timeout: float = 30.0,  # noqa: ASYNC109 - of the handshake
    ) -> SecureChannel:
        """Open a channel to a listener at the end of a route, which nobody between can read (ID-4).

        Both sides prove their identity. `trust` is the identifier of the peer, several of them, a
        function of the identifier, or ANYONE. Raises NotTrusted if the peer is another one, and
        UnreachableError if nobody answered the handshake in time.

        Durable messages need a channel with a `name`: those that the other end has not taken wait
        for a channel of that name, also after a restart. It stands for one peer.
        """
        return await self._secure_channels().open(route, trust, check_seconds(timeout), name)

    def secure_listener(self, name: str, *, trust: Trust) -> SecureListener:
        """Let those whom this node trusts open secure channels to it, at a name."""
        return self._secure_channels().listen(name, trust)

    @property
    def secure_channels(self) -> ChannelCounts:
        """How many secure channels it has, and has had."""
        return self._secure_channels().counts()

    @property
    def identifier(self) -> str:
        """Who it proves to be in secure channels; one of this process alone if it has no key."""
        return self._secure_channels().identity.identifier

    def _secure_channels(self) -> SecureChannels:
        if self._channels is None:
            from waystation.node.channels import SecureChannels  # noqa: PLC0415 - few nodes need it

            self._channels = SecureChannels(self, self._kernel)
        return self._channels

    # Finding providers

    def host_directory(self) -> None:
        """Be the node that knows the providers of the whole fleet."""
        self._directory.host()

    def ask_directory(self, route: str, *, address: str | None = None) -> None:
        """Use the directory that another node hosts: `tcp#10.0.0.1:4000`.

        `address` is where others reach this node; by default where it listens.
        """
        self._directory.ask_at(route, address)

    async def register(
        self,
        participant: str,
        domain: str,
        name: str,
        *,
        everywhere: bool = False,
        ttl: float | None = None,
        details: str = "",
        asked: Message | None = None,
    ) -> None:
        """List a participant of this node as a provider: here and at its parents, or everywhere.

        The `details` are for whoever finds it, and are passed on as they are. A worker that does it
        for who sent it a message gives that as `asked`: when it is no longer granted to them, it is
        taken off the lists (ID-5).
        """
        expiry = self.expiry_in(ttl)
        ends = None if expiry == NEVER else int(expiry)
        provider = Provider(participant, domain, name, None, ends, details)
        lister = None if asked is None else self._directory.lister_for(asked)
        await self._directory.do(Register(provider, everywhere), lister)

    async def unregister(self, participant: str) -> None:
        """Take a participant off all lists; its worker goes on."""
        await self._directory.do(Leave(participant))

    async def discover(
        self, domain: str, name: str, scope: Scope = Scope.LOCAL_THEN_GLOBAL
    ) -> list[Provider]:
        """Find who offers something; whoever is elsewhere can then be sent to by name (RE-14)."""
        return await self._directory.do(Lookup(domain, name, scope))

    def listed(self, participant: str) -> Provider | None:
        """What a participant here, or behind this node, is listed as; None if it is not."""
        return self._directory.find(participant)

    @property
    def lists_everywhere(self) -> bool:
        """Whether there is a directory of the whole fleet to register at."""
        return self._directory.lists_everywhere

    # Broadcasts

    async def publish(
        self,
        broadcast: str,
        payload: bytes,
        *,
        partition: str | Iterable[str] = "",
        ttl: float | None = None,
        provider: str | None = None,
        visible: bool | None = None,
        policy: Policy = WAIT,
        durable: bool = False,
    ) -> Published:
        """Send a message to whoever subscribed (MC); returns what became of it here.

        The topic is the name of a broadcast, or a whole multicast id as one text:
        `garage/temperature/eu`. The provider is this node unless named otherwise. What it publishes
        leaves the hub that it is connected to only if it is `visible`: a worker as it was started,
        any other name unless False is given. The policy says what becomes of a copy for a
        subscriber, or a parent, that has no room at the moment.

        A `durable` one is QUEUED when it is in the store of this node. It is for the durable
        subscriptions that this node and the hubs above it know when they have it, and for nobody
        else (DU-8).
        """
        multicast_id, onward = self._published_under(provider, broadcast, partition)
        if payload.__class__ is not bytes:
            raise not_bytes_error(payload)
        if policy is not WAIT:
            check_policy(policy)
        kernel = self._kernel
        if durable:
            sent = await self._send_durable(onward, _NOWHERE, payload, self.new_id(), ttl)
            return Published.of(sent.id, [sent.verdict])
        expiry = kernel.expiry_in(ttl)
        message = Message(onward, _NOWHERE, payload, self.new_id(), expiry)
        if kernel.stage is not _RUNNING:
            arrival = Arrival(message, kernel.tick(), multicast_id=multicast_id)
            return Published.of(message.id, [kernel.drop(arrival, Reason.REFUSED)])
        copies = await kernel.broadcasts.publish(multicast_id, message, policy, visible)
        return Published.of(message.id, copies)

    def subscribe(
        self,
        provider: str,
        broadcast: str | None = None,
        partition: str | Iterable[str] = "",
        *,
        callback: Callback | None = None,
        inbox: int = INBOX,
        durable: str | None = None,
        keep: float = KEEP,
    ) -> Subscription:
        """Receive what matches from now on: by `async for`, or by calls of `callback`.

        The topic has three parts, or is one text: `garage/temperature/eu/+`. Provider and broadcast
        may be `+`, for any. In the partition `+` stands for one segment, and `*` at the end for any
        number of them. At a leaf the hub knows of it a moment later; `async with` waits for that,
        and so does `ready`.

        A `durable` subscription has a name of its own at this node, which needs a store. What is
        published durably while it is away arrives when it is made again under that name, unless it
        was away for `keep` seconds (DU-8). A message is acknowledged when the next one is asked
        for, or when the callback returns. `unsubscribe` ends it for good, `close` does not.
        """
        self._check_open()
        if broadcast is None:
            provider, broadcast, *partition = _topic_parts(provider)
        if callback is not None and not callable(callback):
            raise LocalError(
                f"the callback {quote(callback)} is not a function",
                rule="MC-8",
                hint="give a function that takes a message, or read with `async for`",
            )
        kept = None if durable is None else (durable, keep)
        subscribe = self._kernel.broadcasts.subscribe
        subscription = subscribe(provider, broadcast, partition, inbox, kept)
        if callback is not None:
            subscription.read_by(callback)
        return subscription

    # Sending

    async def send(
        self,
        route: str | Route,
        payload: bytes,
        *,
        ttl: float | None = None,
        policy: Policy = WAIT,
        durable: bool = False,
        sender: str | Route | None = None,
    ) -> Sent:
        """Send a message that expects no reply; returns its id and its outcome here (OB-3).

        Whoever gets it can answer the `sender`, if there is one: the name of a worker here.

        By default it waits for a worker or a link that has no room as long as it takes. For a
        session that has lost its link it waits 30 seconds (`Limits.reconnect`), and the message is
        then dropped, TRANSPORT_DOWN.

        A `durable` one is QUEUED when it is in the store of this node, and the verdict has its
        `id`. From then on some node has it until its worker has handled it, or until it expires
        (DU-1); what the policy says is not asked.
        """
        kind: type = route.__class__
        onward: Any = route  # a Route; texts are looked up here, without a call
        if kind is not Route:
            onward = self._routes.get(route) if kind is str else None  # type: ignore[arg-type]
        if onward is None:
            onward = self._parsed(route)
        if payload.__class__ is not bytes:
            raise not_bytes_error(payload)
        if policy is not WAIT:
            check_policy(policy)
        kernel = self._kernel
        if durable:
            back = _NOWHERE if sender is None else self._parsed(sender)
            return await self._send_durable(onward, back, payload, self.new_id(), ttl)
        expiry = NEVER if ttl is None else kernel.expiry_in(ttl)
        new_id = self.new_id  # Python calls a variable sooner than what an attribute holds
        id = new_id()
        back = _NOWHERE if sender is None else self._parsed(sender)
        message = Message(onward, back, payload, id, expiry)
        clock = kernel.pinned_clock
        if clock is None:
            now = kernel.read_clock() // 1000
        else:  # as `stamp` does, without a call
            boottime = clock.boottime
            passed = boottime()
            is_steady = passed < clock.steady_until
            now = passed // 1000 + clock.ahead_us if is_steady else clock.read() // 1000
        kernel.latest = now = now if now > kernel.latest else kernel.latest + 1
        arrival = Arrival(message, now)
        if kernel.stage is not _RUNNING:
            return Sent(id, kernel.drop(arrival, Reason.REFUSED))
        verdict = kernel.take(arrival)
        if type(verdict) is NoRoom:
            verdict = await kernel.waiting.wait(verdict.receiver, arrival, policy)
        return Sent(id, verdict)

    async def request(
        self,
        route: str | Route,
        payload: bytes,
        *,
        timeout: float = 30.0,  # noqa: ASYNC109 - part of the request: it is the message's ttl too
        policy: Policy = WAIT,
        durable: bool = False,
    ) -> Message:
        """Send a message and wait for the reply to it.

        Raises UndeliverableError when the message is dropped on its way, here or at another node of
        ours, and NoReplyError when nobody replied in time. With the default policy, a leaf's
        request to a name that nobody has waits for that name, as long as the timeout allows.

        A `durable` request is in the store of this node before anything else happens, as with
        `send`; it lives until the timeout. The reply is not durable.
        """
        onward = self._parsed(route)
        if payload.__class__ is not bytes:
            raise not_bytes_error(payload)
        if policy is not WAIT:
            check_policy(policy)
        kernel = self._kernel
        expiry = kernel.expiry_in(check_seconds(timeout))
        id = self.new_id()
        request = kernel.requests.open(onward, id, timeout)
        message = Message(onward, request.back, payload, id, expiry)
        try:
            if durable:
                back = message.return_route
                verdict = (await self._send_durable(onward, back, payload, id, timeout)).verdict
            else:
                verdict = await self._send_request(message, policy, timeout)
            if verdict.reason is not None:
                raise UndeliverableError(str(onward), verdict.reason, message_id=id)
            reply = await request.reply
        finally:
            kernel.requests.close(request)
        if reply is None:
            raise NoReplyError(str(onward), timeout, id)
        if isinstance(reply, Undeliverable):
            raise UndeliverableError(str(onward), reply.reason, reply.node, id)
        return reply

    async def deposit(
        self,
        session: Session,
        messages: Sequence[Message],
        *,
        timeout: float = 30.0,  # noqa: ASYNC109 - as for a request
    ) -> list[Reason | None]:
        """Give messages into the custody of the peer of a session; this node needs no store.

        Their routes begin at the peer. Returns when they are in its store: None for each, or the
        reason why it did not take it, which is QUEUE_FULL if it has no room. From then on each is a
        durable message that the peer sent. Raises LocalError if the peer has no store, and
        NoReplyError if it does not answer in time: then it has the messages, or not.
        """
        self._check_open()
        return await self._kernel.custody.deposits.give(session, messages, check_seconds(timeout))

    async def _send_durable(
        self, onward: Route, back: Route, payload: bytes, id: str, ttl: float | None
    ) -> Sent:
        """Send a message that survives, as this node."""
        kernel = self._kernel
        message = Message(onward, back, payload, id, kernel.custody.expiry_in(ttl))
        if kernel.stage is not _RUNNING:
            return Sent(id, kernel.refuse(message))
        return Sent(id, await kernel.custody.send(message, self.name))

    async def _send_request(self, message: Message, policy: Policy, seconds: float) -> Verdict:
        """Send a request, which waits as its policy says and no longer than it lives."""
        kernel = self._kernel
        if kernel.stage is not _RUNNING:
            return kernel.refuse(message)
        arrival = Arrival(message, kernel.stamp())
        verdict = kernel.take(arrival)
        if type(verdict) is not NoRoom:
            return verdict
        if policy == WAIT:
            return await kernel.waiting.wait_for_name(verdict.receiver, arrival, Wait(seconds))
        if isinstance(policy, Wait) and (policy.seconds is None or policy.seconds > seconds):
            policy = Wait(seconds, policy.persist)
        return await kernel.waiting.wait(verdict.receiver, arrival, policy)

    async def route(
        self, message: Message, policy: Policy = WAIT, *, replies_to: str | None = None
    ) -> Verdict:
        """Send a message to the first address of its onward route (AD-5).

        If it replies to another one, `replies_to` is the id of that, for the journal.
        """
        kernel = self._kernel
        arrival = Arrival(message, kernel.stamp(), replies_to=replies_to)
        verdict = kernel.take(arrival)
        if type(verdict) is not NoRoom:
            return verdict
        return await kernel.waiting.wait(verdict.receiver, arrival, policy)

    def post(self, message: Message, *, from_global: bool = False) -> Verdict:
        """Send a message as `route` does, but without waiting for anything."""
        kernel = self._kernel
        if kernel.stage is not _RUNNING:
            return kernel.drop(Arrival(message, kernel.tick(), from_global), Reason.REFUSED)
        return kernel.post(message, from_global=from_global)

    def expiry_in(self, seconds: float | None) -> Expiry:
        """The expiry of a message that lives this many seconds from now; NEVER for None."""
        return self._kernel.expiry_in(seconds)

    def now(self) -> int:
        """The time by the node's clock, in milliseconds since the epoch; it never goes back."""
        return self._kernel.tick() // 1000

    @property
    def clock_offset_us(self) -> int:
        """How far the wall clock is ahead of the node's clock, in microseconds (TM-1)."""
        clock = self._kernel.clock
        return 0 if clock is None else clock.offset_us()

    @property
    def clock_slewing(self) -> bool:
        """Whether the node's clock runs faster or slower until it agrees with the wall clock."""
        clock = self._kernel.clock
        return clock is not None and clock.is_slewing

    @property
    def clock_off(self) -> bool:
        """Whether the wall clock is too far off for the node to follow it."""
        clock = self._kernel.clock
        return clock is not None and clock.is_off

    # Observing and closing

    async def why(self, message_id: str) -> Explanation:
        """Explain where a message went, from the journals beside this node's own.

        Print it, or read its hops. Raises LocalError if no journal there has the message.
        """
        if self._journal is None:
            raise LocalError(
                f"node {quote(self.name)} keeps no journal",
                rule="OB-4",
                hint="create it with journal=DIRECTORY",
            )
        from waystation.why import explain  # noqa: PLC0415 - it needs pyarrow

        await asyncio.to_thread(self._journal.flush)
        return await asyncio.to_thread(
            explain, self._journal.directory, check_message_id(message_id)
        )

    def observe(self, observer: Observer, *, incarnation: int = 0) -> Callable[[], None]:
        """Have a function called with everything that happens here, as it happens (OB-4).

        Returns a function that ends this. Of an observer that keeps a journal, give the
        `incarnation`: peers are told it, so that their journals tell which one they met (OB-10).
        """
        self._kernel.incarnation = incarnation or self._kernel.incarnation
        self._kernel.observers.append(observer)
        return lambda: self._kernel.observers.remove(observer)

    async def serve(self, *, drain: float = 5.0) -> None:
        """Run until this process is told to stop (SIGTERM, SIGINT), then close."""
        with stop_signals() as told:
            await told.wait()
            await self.close(drain=drain)

    async def close(self, *, drain: float = 5.0) -> None:
        """Let the workers finish what they have, for at most `drain` seconds, then stop them.

        From now on nothing new is taken, from here or from peers. What the workers send meanwhile
        still goes out. What was not handled in time is TRANSPORT_DOWN.

        Returns when the node is closed, whoever closed it first. Only a handler of the node does
        not wait for that, since the node waits for the handler.
        """
        if self._closing is None:
            closing = self._close(check_seconds(drain))
            self._kernel.stage = Stage.DRAINING
            self._links.stop_listening()
            self._closing = self._kernel.tasks.start(closing, f"close {self.name}")
        current = asyncio.current_task()
        if not any(worker.task is current for worker in self._kernel.workers):
            await asyncio.shield(self._closing)

    async def _close(self, drain: float) -> None:
        kernel = self._kernel
        workers = await kernel.stop_workers(drain)
        if self._channels is not None:
            await self._channels.close()
        kernel.close(workers)
        await self._directory.close()
        kernel.broadcasts.close()
        await self._links.close()
        await kernel.custody.close()
        for _ in range(3):  # who was rejected tells how its message ended
            await asyncio.sleep(0)
        for worker in workers:
            kernel.remove_worker(worker)
        kernel.requests.retire_idle()
        if self._journal is not None:
            await asyncio.to_thread(self._journal.close)

    def _published_under(
        self, provider: str | None, broadcast: str, partition: str | Iterable[str]
    ) -> tuple[str, Route]:
        """The id of a broadcast, and the route to it; most are published again and again."""
        key = (provider, broadcast, partition)
        is_text = partition.__class__ is broadcast.__class__ is str
        found = self._published.get(key) if is_text else None
        if found is None:
            if "/" in broadcast and provider is None and not partition:
                multicast_id = str(MulticastId.parse(broadcast))
            else:
                multicast_id = str(MulticastId.of(provider or self.name, broadcast, partition))
            found = multicast_id, Route((Address(MULTICAST, multicast_id.encode()),))
            if is_text:
                if len(self._published) >= _ROUTES:
                    self._published.clear()
                self._published[key] = found
        return found

    def _check_open(self) -> None:
        """Refuse what can only be begun in an event loop, by a node that is not closed."""
        if self._kernel.stage is not _RUNNING:
            raise LocalError(
                f"node {quote(self.name)} is closed",
                rule="WK-1",
                hint="do it inside of `async with Node(…)`, or create another node",
            )
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise LocalError(
                f"node {quote(self.name)} is used outside of an event loop",
                rule="WK-1",
                hint="create it in a coroutine, `async with Node(…) as node:`, and run that with "
                "waystation.run(main())",
            ) from None

    def _parsed(self, route: str | Route) -> Route:
        if isinstance(route, Route):
            return route
        if not isinstance(route, str):
            raise LocalError(
                f"{quote(route)} is not a route",
                rule="AD-3",
                hint="write it as text: 'hop => echo'",
            )
        found = self._routes.get(route)
        if found is None:
            _check_route_text(route)
            self.router.types.reserve_usual(route)
            found = Route.parse(route, self.router.types.numbers)
            if len(self._routes) >= _ROUTES:
                self._routes.clear()
            self._routes[route] = found
        return found


def _identity(given: str | Path | PrivateIdentity | None) -> PrivateIdentity | None:
    if given is None or isinstance(given, PrivateIdentity):
        return given
    return keyfile.load(Path(given))


def _check_route_text(route: str) -> None:
    """Refuse what is a mistake, though each of it could be an address."""
    if not route.strip():
        raise LocalError("the route is empty", rule="AD-3", hint="name at least one address")
    if "->" in route and "=>" not in route:
        fixed = " => ".join(part.strip() for part in route.split("->"))
        raise LocalError(
            f"the route {quote(route)} has '->' in it", rule="AD-3", hint=f"write {quote(fixed)}"
        )
    for part in route.split("=>"):
        if "://" in part and "#" not in part:
            fixed = part.strip().replace("://", "#", 1)
            raise LocalError(
                f"the route {quote(route)} has a URL in it", rule="AD-3", hint=f"write {fixed}"
            )


def _check_options(limits: object, transports: object) -> None:
    """Refuse what is of another type, which would be noticed much later."""
    if limits is not None and not isinstance(limits, Limits):
        raise LocalError(
            f"{quote(limits)} are no limits", rule="WK-6", hint="write Limits(sessions=500)"
        )
    if transports is not None and not isinstance(transports, Iterable):
        raise LocalError(
            f"the transports are a list, not {quote(transports)}",
            rule="AD-2",
            hint="write transports=[Tcp()]",
        )


def _topic_parts(topic: str) -> list[str]:
    """The segments of a topic in one text."""
    parts = topic.split("/") if isinstance(topic, str) else ()
    if len(parts) < 2:
        raise LocalError(
            f"the topic {quote(topic)} does not name a broadcast",
            rule="MC-1",
            hint="write provider/broadcast[/partition], or give the parts separately",
        )
    return parts


def _secret(token: str | bytes | None) -> bytes | None:
    if token is None or isinstance(token, bytes):
        return token
    if not isinstance(token, str):
        raise LocalError("the token is not text", rule="WK-9", hint="give text or bytes")
    return token.encode()
