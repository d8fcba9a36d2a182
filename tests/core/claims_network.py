"""Hubs and leaves that tell each other who has a name: a network without sockets and time.

Each link keeps its order, and nothing else is in order: who speaks or hears next is left to chance.
A link may be half open: its child has given it up, and the hub does not know. A hub finds out when
it probes the session (CL-6), or by a heartbeat, which comes when the test says so.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from itertools import count
from random import Random
from typing import NamedTuple, TypeAlias

from waystation.core.claims import Claim, ClaimChange, Claims


class Hello(NamedTuple):
    """The first word over a link, and whenever another link of the same child has gone."""

    owner: str
    lowest: int


class Announced(NamedTuple):
    """A name is reached through the child."""

    name: str
    owner: str
    number: int
    path: tuple[str, ...]
    lowest: int


class Withdrawn(NamedTuple):
    """A name is no longer reached through the child."""

    name: str


class Lowest(NamedTuple):
    """The lowest number of an owner has grown."""

    owner: str
    lowest: int


class Probed(NamedTuple):
    """The reply to a probe: whether the child has the name."""

    name: str
    found: bool


class Closed(NamedTuple):
    """The last word over a link."""


Word: TypeAlias = Hello | Announced | Withdrawn | Lowest | Probed | Closed


class Link:
    """One link from a child to a hub, which is a session there."""

    def __init__(self, child: Child, hub: Hub, number: int, session: bytes) -> None:
        self.child, self.hub, self.number, self.session = child, hub, number, session
        self.child_open = self.hub_open = True  # what each side believes
        self.up: deque[Word] = deque()
        self.probes: deque[str] = deque()  # names, on their way down
        self.told: dict[str, tuple[str, int, tuple[str, ...]]] = {}

    @property
    def is_live(self) -> bool:
        """Whether it carries messages."""
        return self.child_open and self.hub_open


class Child:
    """What leaves and hubs have in common: they open links to hubs, and number them."""

    def __init__(self, network: Network, name: str) -> None:
        self.network, self.name = network, name
        self.links: list[Link] = []  # those that it has not given up
        self._restart()

    def _restart(self) -> None:
        self.owner = f"{self.name}/{next(self.network.owners)}"
        self._numbers = count(1)

    @property
    def lowest(self) -> int:
        """The lowest number of its links."""
        return min((link.number for link in self.links), default=0)

    def connect(self, hub: Hub) -> Link:
        """Open a link and announce everything."""
        link = self.network.opened(self, hub, next(self._numbers))
        self.links.append(link)
        link.up.append(Hello(self.owner, self.lowest))
        self.announce_all(link)
        return link

    def give_up(self, link: Link, *, silently: bool) -> None:
        """Close a link; silently: the hub does not hear of it, and loses what is under way."""
        link.child_open = False
        self.links.remove(link)
        if silently:
            for _ in range(self.network.chance.randint(0, len(link.up))):
                link.up.pop()
        else:
            link.up.append(Closed())
        for other in self.links:
            other.up.append(Hello(self.owner, self.lowest))

    def announce_all(self, link: Link) -> None:
        """Tell a new hub of every name."""
        raise NotImplementedError

    def probed(self, name: str) -> bool:
        """Whether it has a name."""
        raise NotImplementedError


class Leaf(Child):
    """A node whose participants are its own."""

    def __init__(self, network: Network, name: str, names: set[str]) -> None:
        super().__init__(network, name)
        self.names = names

    def announce_all(self, link: Link) -> None:
        for name in sorted(self.names):
            self._announce(link, name)

    def start(self, name: str) -> None:
        """Start a participant."""
        if name not in self.names:
            self.names.add(name)
            for link in self.links:
                self._announce(link, name)

    def stop(self, name: str) -> None:
        """Stop a participant."""
        if name in self.names:
            self.names.remove(name)
            for link in self.links:
                link.up.append(Withdrawn(name))

    def end(self, *, silently: bool) -> None:
        """Give up all links."""
        for link in list(self.links):
            self.give_up(link, silently=silently)

    def restart(self, hub: Hub) -> None:
        """Start anew as another owner, while the hubs may not know that the former has gone."""
        self.end(silently=True)
        self._restart()
        self.connect(hub)

    def probed(self, name: str) -> bool:
        return name in self.names

    def _announce(self, link: Link, name: str) -> None:
        word = Announced(name, self.owner, link.number, (self.name,), self.lowest)
        link.up.append(word)


class Hub(Child):
    """A node that keeps the claims of its children, and tells its parents of the best."""

    def __init__(self, network: Network, name: str) -> None:
        super().__init__(network, name)
        self.claims = Claims(name)
        self.sessions: dict[bytes, Link] = {}
        self.unspoken: dict[str, None] = {}  # names that parents are to be told of

    def announce_all(self, link: Link) -> None:
        link.up.extend(Lowest(*word) for word in self.claims.lowest_numbers())
        for name in self.network.names:
            self._tell(link, name)

    @property
    def has_news(self) -> bool:
        """Whether it has something to tell."""
        return bool(self.unspoken or self.claims.has_grown)

    def speak(self) -> None:
        """Tell the parents what has changed."""
        names, self.unspoken = self.unspoken, {}
        grown = self.claims.take_grown()
        for link in self.links:
            link.up.extend(Lowest(*word) for word in grown)
            for name in names:
                self._tell(link, name)

    def _tell(self, link: Link, name: str) -> None:
        best = self.claims.best(name, now=0)
        if best is None:
            if link.told.pop(name, None):
                link.up.append(Withdrawn(name))
                self.network.spoken[name] += 1
            return
        says = (best.owner, best.number, (*best.path, self.name))
        if link.told.get(name) != says:
            link.told[name] = says
            link.up.append(Announced(name, *says, self.claims.lowest(best.owner)))
            self.network.spoken[name] += 1

    def hear(self, link: Link, word: Word) -> None:
        """Take the next word of a child."""
        session = link.session
        if isinstance(word, Hello):
            self.hear_lowest(word.owner, word.lowest)
            for other in self.sessions.values():
                if other.child is link.child and other.number < link.number:
                    self.network.probe(other, "")
        elif isinstance(word, Lowest):
            self.hear_lowest(word.owner, word.lowest)
        elif isinstance(word, Announced):
            self.hear_lowest(word.owner, word.lowest)
            name, owner, number, path, _ = word
            claim = Claim(name, session, link.child.name, owner, number, path)
            self.changed(self.claims.announce(claim, now=0))
        elif isinstance(word, Withdrawn):
            self.changed(self.claims.withdraw(session, word.name, now=0))
        elif isinstance(word, Probed):
            if not word.found:
                self.changed(self.claims.withdraw(session, word.name, now=0))
        else:
            self.ended(link)

    def hear_lowest(self, owner: str, lowest: int) -> None:
        """Take the word of an owner's lowest number."""
        for change in self.claims.note_lowest(owner, lowest, now=0):
            self.changed(change)

    def ended(self, link: Link) -> None:
        """Forget a session."""
        link.hub_open = False
        del self.sessions[link.session]
        link.up.clear()
        for change in self.claims.session_ended(link.session, now=0):
            self.changed(change)

    def changed(self, change: ClaimChange | None) -> None:
        """Do what a change asks for."""
        if change is None:
            return
        if change.is_news:
            self.unspoken[change.participant] = None
            if change.after is None:
                self.speak()
        if change.contest is not None and change.after is not None:
            self.network.probe(self.sessions[change.after.session], change.participant)
        for claim in (*change.dead, *filter(None, [change.doubted])):
            self.network.probe(self.sessions[claim.session], change.participant)

    def probed(self, name: str) -> bool:
        self.speak()
        best = self.claims.best(name, now=0)
        if best is None:
            return False
        self.network.probe(self.sessions[best.session], name)
        return True


class Network:
    """All hubs, leaves and links, and what is under way between them."""

    def __init__(
        self, chance: Random, names: tuple[str, ...], hubs: int, *, twice: bool = False
    ) -> None:
        self.chance, self.names = chance, names
        self.hearings = 2 if twice else 1  # how often each word arrives
        self.heard: list[Announced] = []
        self.owners = count(1)
        self.links: list[Link] = []
        self.silent: dict[Link, None] = {}  # probed, and nobody is there to reply
        self.spoken: Counter[str] = Counter()  # what hubs told of each name
        self.hubs = [Hub(self, f"hub-{number}") for number in range(hubs)]
        self.leaves: list[Leaf] = []

    def add_leaf(self, *names: str) -> Leaf:
        """Add a leaf without links."""
        leaf = Leaf(self, f"leaf-{len(self.leaves)}", set(names))
        self.leaves.append(leaf)
        return leaf

    def opened(self, child: Child, hub: Hub, number: int) -> Link:
        """Add a link; its session's name is any, so that ties are not decided by its age."""
        session = b"%08x-%d" % (self.chance.getrandbits(32), len(self.links))
        link = hub.sessions[session] = Link(child, hub, number, session)
        self.links.append(link)
        return link

    def probe(self, link: Link, name: str) -> None:
        """Ask whether somebody is at the other end of a session, and has a name."""
        if not link.child_open:
            self.silent[link] = None
        elif name not in link.probes:
            link.probes.append(name)

    @property
    def is_probing(self) -> bool:
        """Whether somebody waits for a sign of life."""
        return bool(self.silent) or any(link.probes for link in self.links)

    def steps(self) -> list[tuple[str, Link | Hub]]:
        """What may happen next."""
        steps: list[tuple[str, Link | Hub]] = []
        for link in self.links:
            if link.hub_open and link.up:
                steps.append(("hear", link))
            if link.probes:
                steps.append(("probe", link))
            if link in self.silent and not link.up:
                steps.append(("silence", link))
        steps += [("speak", hub) for hub in self.hubs if hub.has_news]
        return steps

    def step(self) -> bool:
        """Let one thing happen; False if nothing is left."""
        steps = self.steps()
        if not steps:
            return False
        kind, where = self.chance.choice(steps)
        if isinstance(where, Hub):
            where.speak()
        elif kind == "hear":
            self._hear(where, where.up.popleft())
        elif kind == "silence":
            del self.silent[where]
            if where.hub_open:
                where.hub.ended(where)
        else:
            self._reply(where, where.probes.popleft())
        return True

    def _hear(self, link: Link, word: Word) -> None:
        if isinstance(word, Announced):
            self.heard.append(word)
        for _ in range(self.hearings):
            if link.hub_open:
                link.hub.hear(link, word)

    def _reply(self, link: Link, name: str) -> None:
        if not link.child_open:
            self.silent[link] = None
        elif link.hub_open and name:
            link.up.append(Probed(name, link.child.probed(name)))

    def run(self, limit: int = 100_000) -> None:
        """Let everything happen that has to."""
        for _ in range(limit):
            if not self.step():
                return
        raise AssertionError("the network does not come to rest")

    def lose_hub(self, hub: Hub) -> None:
        """A hub crashes, and all its peers notice."""
        self.hubs.remove(hub)
        for link in list(hub.sessions.values()):
            hub.ended(link)
        for link in list(hub.links):
            link.child_open = False
            if link.hub_open:
                link.hub.ended(link)

    def heartbeat(self) -> None:
        """Both ends of every link find out that the other has given it up."""
        for link in self.links:
            if link.hub_open and not link.child_open:
                self.silent[link] = None
            if link.child_open and not link.hub_open:
                link.child.give_up(link, silently=True)

    # What must hold

    def way(self, hub: Hub, name: str) -> list[Child]:
        """The nodes that a message to a name passes from a hub on; the last is where it ends."""
        way: list[Child] = [hub]
        at: Child = hub
        while isinstance(at, Hub):
            best = at.claims.best(name, now=0)
            if best is None:
                break
            link = at.sessions[best.session]
            if not link.is_live:
                break
            at = link.child
            assert at not in way, "a circle"
            way.append(at)
        return way

    def arrives(self, hub: Hub, name: str) -> bool:
        """Whether a message to a name comes from a hub to somebody who has it."""
        end = self.way(hub, name)[-1]
        return isinstance(end, Leaf) and name in end.names

    def reached(self, name: str) -> set[Hub]:
        """The hubs that the announcements of a name can come to."""
        seen: set[Hub] = set()
        todo: list[Child] = [leaf for leaf in self.leaves if name in leaf.names]
        while todo:
            above = {link.hub for link in todo.pop().links if link.is_live}
            todo += above - seen
            seen |= above
        return seen

    def unsupported(self) -> Iterator[tuple[Hub, Claim]]:
        """Claims that nobody stands for: the child does not have the name, or told otherwise."""
        for hub in self.hubs:
            for name in self.names:
                for claim in hub.claims.all(name, now=0):
                    link = hub.sessions[claim.session]
                    child = link.child
                    if isinstance(child, Leaf):
                        is_meant = name in child.names and claim.owner == child.owner
                    else:
                        said = (claim.owner, claim.number, claim.path)
                        is_meant = link.told.get(name) == said
                    if not (link.is_live and is_meant):
                        yield hub, claim

    def ways(self, hub: Hub) -> int:
        """The number of ways without a circle from the sessions of leaves to a hub."""

        def up_from(at: Hub, passed: frozenset[Hub]) -> int:
            further = {link.hub for link in at.links} - passed
            return (at is hub) + sum(up_from(parent, passed | {parent}) for parent in further)

        sessions = (link for each in self.hubs for link in each.sessions.values())
        direct = [link.hub for link in sessions if isinstance(link.child, Leaf)]
        return sum(up_from(each, frozenset([each])) for each in direct)

    def bound(self) -> int:
        """How many words about a name one change causes at most."""
        return 2 * sum(len(hub.links) * (1 + self.ways(hub)) for hub in self.hubs)

    def check(self) -> None:
        """Every hub that can know of a name reaches it, and nobody knows anything else."""
        assert not list(self.unsupported())
        for name in self.names:
            reached = self.reached(name)
            for hub in self.hubs:
                assert self.arrives(hub, name) is (hub in reached), (hub.name, name)
