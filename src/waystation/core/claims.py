"""Claims: who has a name, by the word of the peers (CL-1, CL-2, CL-4, CL-6).

A peer claims a name: messages to it go over the session of that peer. A node keeps every live claim
and tells its parents of the best, which alone is a routing entry (CL-7). What becomes of a claim:

    it equals what is known                       nothing, and nobody is told            CL-3
    its path names this node, or is too long      refused                                CL-2
    its number is below the owner's lowest        refused: it is dead, and is probed     CL-1, CL-6
    nobody has the name                           the best                               CL-1
    its owner holds the name                      the best if it ranks before the best   CL-1
    another owner holds the name                  stands by, and the holder is probed    CL-4, CL-6
    withdrawn, session ended, now >= expiry       gone: the next is the best at once     CL-1

A session has one claim to a name: a new one ends the former, even if the new one is refused.

Why a network of such nodes settles, also rings and meshes in which nodes are each other's parents:
of one owner the shorter path is better, a path grows with each node, and a node never leaves the
owner that it holds while it knows a claim of it. Once the leaves rest, direct claims are constant.
A node that holds the owner of one keeps it, and tells its parents the same for good; no other tells
a path of two nodes. So those are constant too, and then, likewise, the paths of three nodes, up to
the longest. How much is said until then is not proven, only tested up to six hubs: after one change
all nodes together tell of the name at most twice the sum, over all links, of one and the number of
ways without a circle from the leaves to the lower end. In a tree that is little; in a full mesh it
can be hundreds, which is what damping is for (CL-3).

What a node has to do besides, or a name may stay lost until a heartbeat fails somewhere:

- `take_grown` is told to the parents, even if no best claim changed: what is dead by an owner's
  lowest number may be the best further up.
- `contest`, `dead` and `doubted` of a change are probed, and whoever is probed for a name probes
  the session of its own best in turn (CL-6).
- When a node opens another session, its older sessions are probed. What a hub relayed over them has
  other owners, whose numbers do not tell that it is dead.

Two cases are left to the heartbeat of the session that is half open. A lowest number cannot tell
that a session has ended while an older one of its owner lives: its claims stay best wherever no
newer one of the owner is known beside them (`doubted`). And a probe that is under way is lost when
a link on its way breaks, unless the best moves where the contest is known.

Times are milliseconds, and never decrease from one call to the next.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from waystation.core.expiry import NEVER, Deadlines, Expiry

PATH_LIMIT: Final = 16
"""Maximum number of nodes that a claim may have passed (CL-2)."""

RECENT_TIME: Final = 600_000
"""Milliseconds for which a name and an owner are remembered after their last claim has gone."""

RECENT_LIMIT: Final = 100_000
"""Maximum number of names, and of owners, that are remembered; the oldest are forgotten first."""

NO_PATH: Final = "its path is empty"
LONG_PATH: Final = f"its path is longer than {PATH_LIMIT} nodes"
CIRCLE: Final = "its path names this node"
EXPIRED: Final = "it has expired"
DEAD: Final = "its session has ended, as its owner told"


_Names: TypeAlias = str | dict[str, None]
"""Some names: one as a str, several as the keys of a dict, as in a routing table."""


class Claim(Struct, frozen=True, gc=False):
    """The word of a peer that a name is reached through it (CL-1).

    >>> claim = Claim("truck-7", b"tcp-1", "depot", "c0ffee", 3, ("leaf-7", "depot"))
    >>> claim.is_direct, claim.origin
    (False, 'leaf-7')
    """

    participant: str
    session: bytes  # the data of the local address of the session that it came over
    peer: str  # the name of the node at the other end
    owner: str
    number: int  # of the owner's session
    path: tuple[str, ...]  # names of the nodes that it passed, the origin first, the peer last
    visible: bool = False
    expiry: Expiry = NEVER

    @property
    def is_direct(self) -> bool:
        """Whether the participant lives at the peer itself."""
        return len(self.path) == 1

    @property
    def origin(self) -> str:
        """The name of the node where the participant lives."""
        return self.path[0]

    def goes_like(self, other: Claim | None) -> bool:
        """Whether the two differ in expiry and visibility at most: one renews the other."""
        return other is not None and self.session == other.session and self.says_like(other)

    def says_like(self, other: Claim | None) -> bool:
        """Whether parents would be told the same way: the owner, its session, the path."""
        return (
            other is not None
            and self.number == other.number
            and self.owner == other.owner
            and self.path == other.path
        )


def rank(claim: Claim) -> tuple[int, int, str, bytes]:
    """The order of claims of one owner, the best first (CL-1).

    >>> direct = Claim("a", b"s1", "leaf", "c0ffee", 1, ("leaf",))
    >>> newer = Claim("a", b"s2", "depot", "c0ffee", 2, ("leaf", "depot"))
    >>> min(newer, direct, key=rank) is direct
    True
    """
    return (len(claim.path), -claim.number, claim.peer, claim.session)


class ClaimChange(Struct, frozen=True):
    """What an event did to the claims to one name."""

    participant: str
    before: Claim | None  # the best until now
    after: Claim | None  # the best from now on
    refused: str = ""  # why the claim was refused; empty if it was not
    contest: Claim | None = None  # stands by: the session of `after` is to be probed (CL-6)
    dead: tuple[Claim, ...] = ()  # dead by number: their sessions are to be probed (CL-6)
    ended: tuple[Claim, ...] = ()  # all that ended, the dead among them; not what was renewed
    doubted: Claim | None = None  # the best is of an older session than another: to be probed too

    @property
    def is_move(self) -> bool:
        """Whether the best is another one, not the same renewed: what damping counts (CL-3)."""
        if self.after is None:
            return self.before is not None
        return not self.after.goes_like(self.before)

    @property
    def is_news(self) -> bool:
        """Whether parents are to be told: they do not care over which session it came (CL-3)."""
        before, after = self.before, self.after
        if before is None or after is None:
            return before is not after
        return (
            not after.says_like(before)
            or after.expiry != before.expiry
            or after.visible != before.visible
        )


class _Owner(Struct, eq=False, gc=False):
    """What is known of an owner while it has claims here."""

    lowest: int
    latest: Claim  # whose values are shared by those that follow
    names: _Names  # what it claims


class Claims:
    """The claims that the peers of a node make to names.

    >>> claims = Claims("hub")
    >>> claims.announce(Claim("truck-7", b"s1", "leaf", "c0ffee", 1, ("leaf",)), now=0).after.peer
    'leaf'
    >>> other = Claim("truck-7", b"s2", "thief", "beef", 1, ("thief",))
    >>> claims.announce(other, now=1).contest.peer
    'thief'
    >>> claims.best("truck-7", now=1).peer, claims.standbys("truck-7", now=1) == [other]
    ('leaf', True)
    >>> [change.after.peer for change in claims.session_ended(b"s1", now=2)]
    ['thief']

    No operation on a name is slower because there are many.
    """

    def __init__(self, node: str) -> None:
        self.node = node
        self.count = 0  # number of claims, including expired ones that `purge` has not ended
        self.contested = 0  # number of names that several owners claim
        # A name's claims: one directly, several as a tuple, the best first and the others in the
        # order in which they came. Most names have one, and a tuple for each costs half as much.
        self._claims: dict[str, Claim | tuple[Claim, ...]] = {}
        # What is claimed of a name, in that form: for whoever asks for many, without a call of ours
        self.find: Final = self._claims.get
        self._names: dict[bytes, _Names] = {}  # what is claimed over a session
        self._owners: dict[str, _Owner] = {}
        self._grown: dict[str, None] = {}  # owners whose lowest number parents do not know
        self._departed = _Memory()  # owners without claims, and their lowest numbers
        self._recent = _Memory()  # names without claims
        # Names with claims that will expire: what was extended comes out too early and is filed
        # again, what is gone is ignored.
        self._deadlines: Deadlines[str] = Deadlines()
        self._filed = 0

    def __len__(self) -> int:
        """Number of names."""
        return len(self._claims)

    # What is known

    def best(self, participant: str, now: int) -> Claim | None:
        """The claim that is the routing entry, or None."""
        known = self._claims.get(participant)
        if not isinstance(known, tuple):
            return known if known is not None and now < known.expiry else None
        claims = self.all(participant, now)
        return claims[0] if claims else None

    def standbys(self, participant: str, now: int) -> list[Claim]:
        """The claims of other owners, in the order in which they came."""
        claims = self.all(participant, now)
        return [claim for claim in claims if claim.owner != claims[0].owner]

    def all(self, participant: str, now: int) -> list[Claim]:
        """All live claims to a name, the best first."""
        known = self._known(participant)
        return list(_arranged([claim for claim in known if now < claim.expiry], known))

    def get(self, session: bytes, participant: str) -> Claim | None:
        """The claim of a session to a name, expired or not."""
        known = self._claims.get(participant)
        if not isinstance(known, tuple):
            return known if known is not None and known.session == session else None
        return next((claim for claim in known if claim.session == session), None)

    def latest(self, owner: str) -> Claim | None:
        """The claim of an owner that came last, to share its values; None if it has none."""
        record = self._owners.get(owner)
        return None if record is None else record.latest

    def names_of(self, session: bytes) -> Collection[str]:
        """The names that are claimed over a session."""
        return _listed(self._names.get(session))

    def lowest(self, owner: str) -> int:
        """The lowest number of an owner's sessions that still live; 0 if it was not told."""
        record = self._owners.get(owner)
        if record is not None:
            return record.lowest
        return self._departed.get(owner) if self._departed.kept else 0

    def lowest_numbers(self) -> list[tuple[str, int]]:
        """The lowest numbers that a new parent is to be told, with their owners."""
        return [(name, owner.lowest) for name, owner in self._owners.items() if owner.lowest > 1]

    @property
    def has_grown(self) -> bool:
        """Whether `take_grown` has something to tell."""
        return bool(self._grown)

    def take_grown(self) -> list[tuple[str, int]]:
        """The lowest numbers that have grown since the last call, with their owners.

        All parents are to be told, since what is dead may be the best further up. Owners without a
        claim here are not among them: word of those could go round in a ring for ever.
        """
        grown, self._grown = self._grown, {}
        return [(owner, self._owners[owner].lowest) for owner in grown]

    def is_recent(self, participant: str, now: int) -> bool:
        """Whether a name is claimed, or was within the last ten minutes (CL-4)."""
        known = self._known(participant)
        if known:
            return any(now < claim.expiry + RECENT_TIME for claim in known)
        return self._recent.has(participant, now)

    # What happens

    def announce(self, claim: Claim, now: int) -> ClaimChange | None:
        """Take a claim; None if it is known already."""
        old = self._known(claim.participant)
        former = next((known for known in old if known.session == claim.session), None)
        if former is not None and former == claim and now < claim.expiry:
            return None
        new = [known for known in old if known is not former]
        refused = self._refusal(claim, now)
        if refused:
            dead = (claim,) if refused == DEAD else ()
            return self._settled(claim.participant, old, new, now, refused=refused, dead=dead)
        claim = self._entered(claim, former)
        if former is not None and former.owner == claim.owner:
            new.insert(old.index(former), claim)  # it keeps its place among those that wait
        else:
            new.append(claim)
        return self._settled(claim.participant, old, new, now, claim=claim)

    # For many names at once, mostly new or known: whoever announces says the same of all of them

    def objection(self, owner: str, number: int, path: tuple[str, ...]) -> str:
        """Why all claims of an owner's session that come this way are refused; empty: they are not.

        An expired one is refused in any case.
        """
        if not path:
            return NO_PATH
        if len(path) > PATH_LIMIT:
            return LONG_PATH
        if len(path) > 1 and self.node in path:  # a direct one cannot have come in a circle
            return CIRCLE
        return DEAD if number < self.lowest(owner) else ""

    def are_free(self, names: Iterable[str]) -> bool:
        """Whether none of these names is claimed by anybody."""
        return self._claims.keys().isdisjoint(names)

    def announce_first(self, claims: dict[str, Claim], *, expire: bool = True) -> None:
        """Take claims that become the best: of one owner over one session, to free names.

        The same as to announce each of them, if there is no `objection` and none has expired.
        Without `expire` none of them ever does.
        """
        name, last = next(reversed(claims.items()))
        session, owner = last.session, last.owner
        names: _Names = dict.fromkeys(claims) if len(claims) > 1 else name
        self._claims.update(claims)
        self.count += len(claims)
        of_session, record = self._names.get(session), self._owners.get(owner)
        self._names[session] = _copied(names) if of_session is None else _joined(of_session, names)
        if record is None:
            self._add_owner(last, names)
        else:
            record.latest = last
            record.names = _joined(record.names, names)
        if self._recent.kept:
            self._recent.pop_all(claims)
        if expire:
            for name, claim in claims.items():
                self._file(name, claim.expiry)

    def withdraw(self, session: bytes, participant: str, now: int) -> ClaimChange | None:
        """End the claim of a session to a name, and no other; None if there is none (CL-2)."""
        known = self._claims.get(participant)
        if isinstance(known, Claim):
            return self._last_ended(known, now) if known.session == session else None
        old = self._known(participant)
        new = [claim for claim in old if claim.session != session]
        return self._settled(participant, old, new, now) if len(new) < len(old) else None

    def _last_ended(self, claim: Claim, now: int) -> ClaimChange:
        """End the only claim to a name: mostly, and nobody is next."""
        name = claim.participant
        del self._claims[name]
        self.count -= 1
        self._recent.put(name, min(now, claim.expiry))
        self._leave_owner(claim.owner, name, now)
        self._leave_session(claim.session, name)
        return ClaimChange(name, claim, None, ended=(claim,))

    def session_ended(self, session: bytes, now: int) -> list[ClaimChange]:
        """End all claims of a session."""
        names = list(self.names_of(session))
        changes = (self.withdraw(session, name, now) for name in names)
        return [change for change in changes if change is not None]

    def note_lowest(self, owner: str, lowest: int, now: int) -> list[ClaimChange]:
        """End the claims of an owner below the lowest number of its live sessions (CL-1)."""
        record = self._owners.get(owner)
        if record is None:
            if lowest > max(1, self._departed.get(owner)):
                self._departed.put(owner, now, lowest)
            return []
        if lowest <= record.lowest:
            return []
        record.lowest = lowest
        if lowest > 1:
            self._grown[owner] = None
        changes = []
        for name in list(_listed(record.names)):
            old = self._known(name)
            dead = tuple(c for c in old if c.owner == owner and c.number < lowest)
            if dead:
                new = [c for c in old if c.owner != owner or c.number >= lowest]
                changes.append(self._settled(name, old, new, now, dead=dead))
        return changes

    def expire(self, participant: str, now: int) -> ClaimChange | None:
        """End the claims to a name that have expired; None if none has."""
        old = self._known(participant)
        new = [claim for claim in old if now < claim.expiry]
        return self._settled(participant, old, new, now) if len(new) < len(old) else None

    def purge(self, now: int) -> list[ClaimChange]:
        """End the claims that have expired; to be called every few seconds."""
        due = self._deadlines.take_due(now)
        self._filed -= len(due)
        changes = []
        for name in dict.fromkeys(due):
            change = self.expire(name, now)
            if change is not None:
                changes.append(change)
            left = (claim.expiry for claim in self._known(name))
            self._file(name, min(left, default=NEVER))
        self._recent.forget(now)
        self._departed.forget(now)
        return changes

    # How it is kept

    def _known(self, name: str) -> tuple[Claim, ...]:
        known = self._claims.get(name)
        if known is None:
            return ()
        return known if isinstance(known, tuple) else (known,)

    def _refusal(self, claim: Claim, now: int) -> str:
        refused = self.objection(claim.owner, claim.number, claim.path)
        return EXPIRED if refused in (DEAD, "") and now >= claim.expiry else refused

    def _entered(self, claim: Claim, former: Claim | None) -> Claim:
        """Add a claim to the indexes; returns it with values that it shares with others."""
        name, owner = claim.participant, claim.owner
        record = self._owners.get(owner)
        if record is None:
            self._add_owner(claim, name)
        else:
            record.latest = claim = _sharing(claim, record.latest)
            record.names = _with(record.names, name)
        if former is None:
            self.count += 1
            names = self._names.setdefault(claim.session, name)
            if names is not name:
                self._names[claim.session] = _with(names, name)
        if claim.expiry != NEVER and (former is None or claim.expiry < former.expiry):
            self._file(name, claim.expiry)
        return claim

    def _settled(
        self,
        name: str,
        old: Sequence[Claim],
        new: Sequence[Claim],
        now: int,
        *,
        claim: Claim | None = None,
        refused: str = "",
        dead: tuple[Claim, ...] = (),
    ) -> ClaimChange:
        """Store the claims that a name has now, and say what has changed."""
        live = _arranged([known for known in new if now < known.expiry], old)
        self._store(name, old, live, now)
        before, after = old[0] if old else None, live[0] if live else None
        by_session = {known.session: known for known in live}
        gone = (known for known in old if by_session.get(known.session) is not known)
        ended = tuple(known for known in gone if claim is None or not claim.goes_like(known))
        contest, doubted = _contest(old, live, claim), _doubted(old, live, claim)
        return ClaimChange(name, before, after, refused, contest, dead, ended, doubted)

    def _store(self, name: str, old: Sequence[Claim], live: tuple[Claim, ...], now: int) -> None:
        if not live:
            if old:
                del self._claims[name]
                self._recent.put(name, min(now, max(claim.expiry for claim in old)))
        elif len(live) == 1:
            self._claims[name] = live[0]
        else:
            self._claims[name] = live
        if not old:
            return
        owners, former_owners = _owners(live), _owners(old)
        self.contested += (len(owners) > 1) - (len(former_owners) > 1)
        for owner in former_owners - owners:
            self._leave_owner(owner, name, now)
        sessions = {claim.session for claim in live}
        for claim in old:
            if claim.session not in sessions:
                self.count -= 1
                self._leave_session(claim.session, name)

    def _add_owner(self, latest: Claim, names: _Names) -> None:
        owner = latest.owner
        lowest = self._departed.pop(owner)
        self._owners[owner] = _Owner(lowest, latest, names)
        if lowest > 1:
            self._grown[owner] = None

    def _leave_owner(self, owner: str, name: str, now: int) -> None:
        record = self._owners[owner]
        left = _without(record.names, name)
        if left is not None:
            record.names = left
            return
        del self._owners[owner]
        self._grown.pop(owner, None)
        if record.lowest > 1:
            self._departed.put(owner, now, record.lowest)

    def _leave_session(self, session: bytes, name: str) -> None:
        left = _without(self._names[session], name)
        if left is None:
            del self._names[session]
        else:
            self._names[session] = left

    def _file(self, name: str, expiry: Expiry) -> None:
        if expiry == NEVER:
            return
        self._deadlines.file(name, expiry)
        self._filed += 1
        if self._filed > 1024 and self._filed > 2 * self.count:
            # Amortised: this many obsolete items pay for a pass over the rest.
            self._deadlines = Deadlines()
            self._filed = 0
            for kept in self._claims:
                self._file(kept, min(claim.expiry for claim in self._known(kept)))


class _Memory:
    """What was known until a while ago, with a number each; bounded, the oldest forgotten first."""

    def __init__(self) -> None:
        self.kept: OrderedDict[str, tuple[Expiry, int]] = OrderedDict()

    def has(self, key: str, now: int) -> bool:
        return key in self.kept and now < self.kept[key][0] + RECENT_TIME

    def get(self, key: str) -> int:
        return self.kept[key][1] if key in self.kept else 0

    def put(self, key: str, at: Expiry, value: int = 0) -> None:
        kept = self.kept
        if key in kept:
            kept.move_to_end(key)
        kept[key] = (at, value)
        if len(kept) > RECENT_LIMIT:
            kept.popitem(last=False)

    def pop(self, key: str) -> int:
        return self.kept.pop(key)[1] if key in self.kept else 0

    def pop_all(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.kept.pop(key, None)

    def forget(self, now: int) -> None:
        while self.kept and now >= next(iter(self.kept.values()))[0] + RECENT_TIME:
            self.kept.popitem(last=False)


def _arranged(live: Sequence[Claim], known: Sequence[Claim]) -> tuple[Claim, ...]:
    """Live claims with the best first; `known` has the former best in front, if there was one.

    The holder stays while it has a claim, else it is the owner that has waited longest.
    """
    if len(live) < 2:
        return tuple(live)
    owners = _owners(live)
    holder = known[0].owner if known[0].owner in owners else live[0].owner
    best = min((claim for claim in live if claim.owner == holder), key=rank)
    return (best, *(claim for claim in live if claim is not best))


def _contest(old: Sequence[Claim], live: Sequence[Claim], claim: Claim | None) -> Claim | None:
    """The claim that stands by, if it is new, or if the one before it is."""
    others = [known for known in live if known.owner != live[0].owner]
    if not others:
        return None
    if claim in others and not any(
        known.session == claim.session and known.owner == claim.owner for known in old
    ):
        return claim
    return None if live[0].goes_like(old[0]) else others[0]


def _doubted(old: Sequence[Claim], live: Sequence[Claim], claim: Claim | None) -> Claim | None:
    """The best claim, if it and a newer session of its owner were not known together before."""
    if len(live) < 2:
        return None
    best = live[0]
    newer = [known for known in live if known.owner == best.owner and known.number > best.number]
    if not newer:
        return None
    if claim in newer and not any(
        known.session == claim.session and known.number == claim.number for known in old
    ):
        return best
    return None if best.goes_like(old[0]) else best


def _owners(claims: Iterable[Claim]) -> set[str]:
    return {claim.owner for claim in claims}


def _sharing(claim: Claim, latest: Claim) -> Claim:
    """The same claim, with the values of another where they are equal: a million share them."""
    if claim.path is latest.path or claim.path != latest.path or claim.peer != latest.peer:
        return claim
    session = latest.session if claim.session == latest.session else claim.session
    return Claim(
        claim.participant,
        session,
        latest.peer,
        latest.owner,
        claim.number,
        latest.path,
        claim.visible,
        claim.expiry,
    )


def _with(names: _Names, name: str) -> _Names:
    if isinstance(names, dict):
        names[name] = None
        return names
    return names if names == name else {names: None, name: None}


def _joined(names: _Names, more: _Names) -> _Names:
    if isinstance(more, str):
        return _with(names, more)
    if isinstance(names, dict):
        names.update(more)
        return names
    return {names: None} | more


def _copied(names: _Names) -> _Names:
    return names if isinstance(names, str) else names.copy()


def _without(names: _Names, name: str) -> _Names | None:
    if isinstance(names, dict):
        del names[name]
        return names or None
    return None


def _listed(names: _Names | None) -> Collection[str]:
    if names is None:
        return ()
    return names.keys() if isinstance(names, dict) else (names,)
