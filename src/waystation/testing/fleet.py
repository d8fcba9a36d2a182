"""A fleet of nodes for a test: hubs, leaves and plain nodes, links that fail on demand.

A `Fleet` makes nodes over one transport, each link over a path of its own on which faults can be
injected. Its waits are for conditions, never for times. At the end it closes the nodes and checks
that every message had exactly one outcome at each of them (OB-1).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeAlias

from waystation.node import Limits, Listening, Node, Session
from waystation.node.kernel import RESERVED
from waystation.testing.memory import MemoryNetwork
from waystation.testing.path import FaultyPath, tcp_path
from waystation.testing.recorder import Recorder
from waystation.testing.running import run_checked
from waystation.testing.waiting import until
from waystation.transports.tcp import Tcp
from waystation.transports.transport import Transport

MakePath: TypeAlias = Callable[[str], AbstractAsyncContextManager[FaultyPath]]
"""Makes a faulty path to the listener at a place."""

WITHOUT_HEARTBEATS: Final = Limits(heartbeat=0.0)
"""So a session never ends because a busy machine was late with a heartbeat."""


class _Member(NamedTuple):
    node: Node
    recorder: Recorder
    listening: Listening | None


class _Join(NamedTuple):
    """A session from one node to another, and the path that its link takes."""

    dialer: Node
    listener: Node
    session: Session
    path: FaultyPath

    def crosses(self, group: set[Node]) -> bool:
        """Whether exactly one end is in a group of nodes."""
        return (self.dialer in group) is not (self.listener in group)


class Fleet:
    """Nodes that know each other; use it by `async with`.

    By default they are joined by a network in memory. Give another transport as `check_transport`
    takes it: `Fleet(Tcp, "tcp://127.0.0.1:0")`, and `path` for one that does not run over TCP.

    >>> from waystation.testing import echo
    >>> async def scenario(fleet):
    ...     hub = await fleet.hub("hub")
    ...     truck, phone = await fleet.leaf("truck", hub), await fleet.leaf("phone", hub)
    ...     echo(truck, "truck-7")
    ...     await fleet.ready()
    ...     print((await phone.request("truck-7", b"hello")).payload)
    >>> Fleet().run(scenario)
    b'hello'
    """

    def __init__(
        self,
        make: Callable[[], Transport] | None = None,
        place: str = "mem://any",
        *,
        path: MakePath = tcp_path,
        limits: Limits = WITHOUT_HEARTBEATS,
    ) -> None:
        if make is None:
            network = MemoryNetwork()
            make, path = network.transport, network.path
        self._make = make
        self._place = place
        self._path = path
        self._limits = limits
        self._members: dict[str, _Member] = {}  # those that live
        self._gone: list[Recorder] = []  # of nodes that were stopped
        self._joins: list[_Join] = []
        self._paths = AsyncExitStack()

    @classmethod
    def over_tcp(cls, *, limits: Limits = WITHOUT_HEARTBEATS) -> Self:
        """A fleet over TCP, on this machine's loopback interface."""
        return cls(Tcp, "tcp://127.0.0.1:0", limits=limits)

    def run(self, scenario: Callable[[Fleet], Awaitable[None]]) -> None:
        """Run a test of this fleet in an event loop of its own; errors of the loop fail it."""

        async def enter_and_run() -> None:
            async with self:
                await scenario(self)

        run_checked(enter_and_run)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for node in reversed(self.nodes):  # leaves before their hubs
            await self.stop(node)
        await self._paths.aclose()
        if kind is None:
            self.check_outcomes()

    # Nodes

    @property
    def nodes(self) -> list[Node]:
        """The nodes that live, in the order in which they were made."""
        return [member.node for member in self._members.values()]

    def __getitem__(self, name: str) -> Node:
        return self._members[name].node

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    async def node(self, name: str, *, listen: bool = True, **options: Any) -> Node:
        """Make a node; the options are those of `Node`."""
        if name in self._members:
            raise ValueError(f"there is already a node {name!r} in this fleet")
        options.setdefault("limits", self._limits)
        node = await Node(name, transports=[self._make()], **options).__aenter__()
        recorder = Recorder(node)
        self._members[name] = _Member(node, recorder, None)
        if listen:
            listening = await node.listen(self._place)
            self._members[name] = _Member(node, recorder, listening)
        return node

    async def hub(self, name: str, *parents: Node, **options: Any) -> Node:
        """Make a hub, which may itself be a leaf of other hubs."""
        node = await self.node(name, hub=True, **options)
        for parent in parents:
            await self.connect(node, parent, parent=True)
        return node

    async def leaf(self, name: str, *parents: Node, **options: Any) -> Node:
        """Make a leaf of one or several hubs."""
        node = await self.node(name, listen=False, **options)
        for parent in parents:
            await self.connect(node, parent, parent=True)
        return node

    async def connect(self, dialer: Node, listener: Node, **options: Any) -> Session:
        """Open a session between two nodes of the fleet; each then knows the other.

        The dialer has it under the listener's name. The options are those of `Node.connect`.
        """
        listening = self._members[listener.name].listening
        if listening is None:
            raise ValueError(f"node {listener.name!r} does not listen; make it with listen=True")
        path = await self._paths.enter_async_context(self._path(listening.place))
        options.setdefault("name", listener.name)
        kind = listening.url.partition("://")[0]
        session = await dialer.connect(f"{kind}://{path.place}", **options)
        self._joins.append(_Join(dialer, listener, session, path))
        await until(lambda: dialer.name in {other.peer for other in listener.sessions})
        return session

    async def stop(self, node: Node, *, drain: float = 5.0) -> None:
        """Close a node in order, as `Node.close` does."""
        member = self._members[node.name]
        await node.close(drain=drain)
        self._gone.append(self._members.pop(member.node.name).recorder)
        self._forget(node)

    async def kill(self, node: Node) -> None:
        """Let a node vanish, as if its process were killed: its links break, and it says nothing.

        Its outcomes are not checked at the end: a killed process tells none.
        """
        for join in self._joins:
            if node in (join.dialer, join.listener):
                join.path.refuse(refuse=True)
                join.path.cut()
        for session in node.sessions:
            session.abort_link()
        self._members.pop(node.name).recorder.stop()
        await node.close(drain=0)
        self._forget(node)

    def _forget(self, node: Node) -> None:
        self._joins = [j for j in self._joins if node not in (j.dialer, j.listener)]

    # What they know of each other

    async def ready(self) -> None:
        """Wait until all sessions are open, and each parent knows what its leaves offer.

        That is their workers and their subscriptions, and those of the leaves behind them.
        """
        for join in self._joins:
            await until(lambda join=join: join.session.is_open)  # type: ignore[misc]
        joins = [join for join in self._joins if join.session.is_parent]
        # Together: what one hub has heard by now, the hub above it may not know yet.
        await until(lambda: not any(unknown_to(join.listener, join.dialer) for join in joins))

    async def knows(self, node: Node, participant: str) -> None:
        """Wait until a node has a route to a participant."""
        await until(lambda: has_route(node, participant))

    async def forgets(self, node: Node, participant: str) -> None:
        """Wait until a node has no route to a participant."""
        await until(lambda: not has_route(node, participant))

    # Faults

    def cut(self, one: Node, other: Node) -> None:
        """Break the links between two nodes; sessions that are kept get new ones."""
        for join in self._joins:
            if {join.dialer, join.listener} == {one, other}:
                join.path.cut()

    def partition(self, *group: Node) -> None:
        """Break the links between these nodes and all others, and let no new ones open."""
        for join in self._crossing(group):
            join.path.refuse(refuse=True)
            join.path.cut()

    def freeze(self, *group: Node) -> None:
        """Let nothing through between these nodes and all others, and tell nobody."""
        for join in self._crossing(group):
            join.path.freeze()

    def heal(self) -> None:
        """Let links open and messages through again, everywhere; `ready` waits for it."""
        for join in self._joins:
            join.path.refuse(refuse=False)
            join.path.thaw()

    def _crossing(self, group: tuple[Node, ...]) -> list[_Join]:
        return [join for join in self._joins if join.crosses(set(group))]

    # Outcomes

    def recorder(self, node: Node) -> Recorder:
        """What a node of the fleet told since it was made."""
        return self._members[node.name].recorder

    def check_outcomes(self) -> None:
        """Check each node that was not killed: one outcome for every message (OB-1)."""
        for recorder in [*self._gone, *(member.recorder for member in self._members.values())]:
            recorder.check_outcomes()


def has_route(node: Node, participant: str) -> bool:
    """Whether a node has a route to a participant at the moment."""
    return node.router.table.contains(participant, node.expiry_in(0.0))


def unknown_to(parent: Node, leaf: Node) -> set[str]:
    """The participants and subscription patterns of a leaf that its parent does not know yet."""
    entries = leaf.router.table.snapshot(leaf.expiry_in(0.0)).values()
    sessions = {session.name for session in leaf.sessions}
    offered = {
        entry.participant
        for entry in entries
        if entry.local
        and entry.participant not in sessions
        and not entry.participant.startswith(RESERVED)
    }
    patterns = set(leaf.router.subscriptions.patterns())
    unknown = {name for name in offered if not has_route(parent, name)}
    return unknown | (patterns - set(parent.router.subscriptions.patterns()))
