"""What the leaves of a hub claim, and what becomes of it (CL-1 .. CL-4, CL-7).

Claims stand before the routing table: every live claim is kept, and only the best is put there. The
subscriptions of a participant belong to its claim. Those of the best are in the table of
subscriptions; those of the others are kept until theirs becomes the best.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from heapq import heappop, heappush
from itertools import groupby, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from waystation.core.address import is_plain
from waystation.core.address_types import GENERATED, is_session_name
from waystation.core.claims import DEAD, EXPIRED, Claim, ClaimChange, Claims
from waystation.core.expiry import LAST_INSTANT, NEVER
from waystation.core.grants import Action
from waystation.core.multicast import check_pattern
from waystation.core.outcome import Reason
from waystation.core.record import Cause, ClaimKind, ClaimRecord, Source
from waystation.core.routing import RoutingEntry
from waystation.errors import LocalError, quote
from waystation.node.vouchers import UNPROVEN
from waystation.wire import hierarchy as wire
from waystation.wire.hello import NAME_LIMIT as NODE_NAME_LIMIT
from waystation.wire.hello import NUMBER_LIMIT, owner_of
from waystation.wire.hierarchy import Announce
from waystation.wire.identity import is_identifier
from waystation.wire.vouchers import Voucher

if TYPE_CHECKING:
    from waystation.node.kernel import Kernel
    from waystation.node.session import Session

NAME_LIMIT: Final = 1_024
"""Maximum length of the name of an announced participant."""

CHECK_INTERVAL: Final = 10_000
"""Milliseconds between two checks of which participants of a full session are gone."""

OLDER_SESSIONS: Final = 4
"""Number of a peer's sessions that are probed when it opens another one."""

SUBSCRIBER: Final = "subscriber"
"""How the names begin that a node gives to its subscribers."""

NOT_CLAIMABLE: Final = "the name cannot be claimed over that session"
NOT_GRANTED: Final = "the name is not granted to who claims it"

# Why a claim ended, as the journal tells it.
SESSION_ENDED: Final = "its session ended"
TAKEN_BACK: Final = "its claim was taken back"
OTHERWISE: Final = "its session claims the name otherwise"
NOT_THERE: Final = "its peer was asked for the name and does not have it"

_DIGITS: Final = frozenset("0123456789abcdef")
_WITHDRAWN: Final = Cause.WITHDRAWN  # looked up for each name that is taken back
NONE_ENDED: Final = (0, 1)
"""Lowest numbers that end no claim: not told, and that of an owner's first session."""

_log = logging.getLogger("waystation.node")


class Claimant(Struct, frozen=True, gc=False):
    """Who claims over a session: the owner that its peer is, and the session's number."""

    owner: str
    number: int
    peer: str
    path: tuple[str, ...]  # of its own names


class LeafClaims:
    """The claims of the leaves of one node."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.known = Claims(kernel.name)
        # Subscriptions of claims that are not the best, by session and participant.
        self._kept: dict[tuple[bytes, str], dict[str, None]] = {}
        # Sessions by the owner that their peer is: what it says of its sessions ends others.
        # One directly, several as a tuple: nearly every owner has one, and a tuple for each of many
        # owners would let the garbage collector run more often.
        self._sessions: dict[str, bytes | tuple[bytes, ...]] = {}
        # When the best claim expires to a name that has others, in milliseconds.
        self._expiries: list[tuple[int, str]] = []
        self._timer: asyncio.TimerHandle | None = None

    # What others ask

    def best(self, name: str) -> Claim | None:
        """The best claim to a name."""
        return self.known.best(name, self._now())

    def relayed(self, entry: RoutingEntry) -> Claim | None:
        """The claim that a routing entry stands for; None if the participant is this node's own.

        The entry was looked up just now, or has changed: `tick` was called for that.
        """
        if not self.known.count:
            return None
        claim = self.known.best(entry.participant, self._kernel.latest // 1000)
        return claim if claim is not None and claim.session == entry.address.data else None

    def owner_of(self, name: str) -> str | None:
        """Whose participant it is, as far as this node knows; None if it has no live claim."""
        if self._kernel.own_receiver(name) is not None:
            return self._kernel.hierarchy.owner
        claim = self.best(name)
        return None if claim is None else claim.owner

    def owner_over(self, session: Session, name: str) -> str:
        """For whom a session speaks of a name: for the owner it claims that for, or its peer."""
        claim = self.known.get(session.address.data, name)
        return self.speaker(session) if claim is None else claim.owner

    @staticmethod
    def speaker(session: Session) -> str:
        """Who the peer of a session is as an owner (CL-1)."""
        if session.claimant is not None:
            return session.claimant.owner
        if session.who.identity is not None:
            return session.who.identity
        hello = session.hello
        if hello is None:
            return f"session:{session.name}"
        return owner_of(hello.secret) if hello.secret else f"node:{hello.node}"

    def is_recent(self, name: str) -> bool:
        """Whether a name was claimed until a while ago: only claims lead there (CL-4).

        Not while a claim is in the table, which stays there whatever is put (RE-6).
        """
        entry = self._kernel.entry(name)
        is_claimed = entry is not None and entry.local
        return not is_claimed and self.known.is_recent(name, self._now())

    # Sessions

    def session_ended(self, session: Session) -> None:
        """End the claims of a session (RE-12)."""
        data = session.address.data
        why = f"{SESSION_ENDED} ({session.failure})" if session.failure else SESSION_ENDED
        self._apply_all(self.known.session_ended(data, self._now()), why)
        if session.claimant is not None:
            owner = session.claimant.owner
            session.claimant = None
            left = tuple(one for one in _several(self._sessions.pop(owner, ())) if one != data)
            if left:
                self._sessions[owner] = left

    def _claimant(self, session: Session) -> Claimant:
        """Who claims over a session (CL-1).

        It is asked for at the first claim: then the hello has come. A peer that tells no secret is
        known by its name, and its sessions are numbered here: the time, so that the newest is the
        highest also where another hub numbers them.
        """
        if session.claimant is None:
            hello = session.hello
            is_numbered = hello is not None and hello.secret
            number = hello.session if hello is not None and is_numbered else self._kernel.tick()
            peer = session.peer or session.name
            session.claimant = Claimant(self.speaker(session), number, peer, (peer,))
            self._note_session(session, session.claimant)
        return session.claimant

    def _note_session(self, session: Session, claimant: Claimant) -> None:
        """Remember who claims over a session, and probe its older ones: they may be half open."""
        data = session.address.data
        known = self._sessions.setdefault(claimant.owner, data)
        if known is not data:
            others = _several(known)
            self._probe_below(claimant.number, others[-OLDER_SESSIONS:])
            self._sessions[claimant.owner] = (*others, data)

    def _probe_below(self, number: int, sessions: Iterable[bytes]) -> None:
        """Probe those sessions of an owner whose numbers are below another."""
        for data in sessions:
            session = self._kernel.links.sessions.get(data)
            claimant = None if session is None else session.claimant
            if claimant is not None and claimant.number < number:
                self._kernel.hierarchy.contests.probe_session(data)

    # What a leaf says

    def announced(self, session: Session, told: Announce) -> None:
        """Take the claims of a leaf, and then what it says of sessions that have ended.

        In this order: a claim of another owner must not inherit from one that is about to be
        replaced by its own owner.
        """
        number = len(told.participants)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("session %s: %d participants announced", session.name, number)
        if (told.claims or told.vouched or told.vouchers) and (why := _misfit(told)):
            self._decline(session, why)
            return
        claimant, now = session.claimant or self._claimant(session), self._now()
        if told.claims:
            self._take_relayed(session, told, now)
        elif number:
            self._take(session, claimant, told.participants, now)
            if told.vouchers:
                self._keep_voucher(session, claimant, told)
        lowest = told.lowest
        if lowest not in NONE_ENDED and session.hello is not None and session.hello.secret:
            self._note_lowest(session, claimant.owner, lowest)
        for owner, lowest in told.owners:
            if lowest not in NONE_ENDED and not is_identifier(owner):
                self._note_lowest(session, owner, lowest)
        if told.vouchers:
            self._note_words(session, told.vouchers)

    def _note_words(self, session: Session, vouchers: Iterable[Voucher]) -> None:
        """Take what identities signed of their sessions: nobody else speaks for them (ID-2)."""
        for voucher in vouchers:
            owner, lowest = self._kernel.hierarchy.vouchers.note_word(voucher)
            if owner and lowest not in NONE_ENDED:
                self._note_lowest(session, owner, lowest)

    def _take_relayed(self, session: Session, told: Announce, now: int) -> None:
        """Take the claims that a hub relays, those of one owner by the same way together."""
        participants: Sequence[wire.Participant]
        for relayed, voucher, participants in self._together(told):
            claimant = self._relayed(session, relayed, told.owners, voucher)
            if isinstance(claimant, Claimant):
                self._take(session, claimant, participants, now)
                if voucher is not None and is_identifier(claimant.owner):
                    self._keep(session, (name for name, _, _ in participants), voucher)
            else:
                for name, _, _ in participants:
                    self._decline(session, claimant.format(quote(name)))

    def _together(
        self, told: Announce
    ) -> Iterable[tuple[wire.RelayedClaim, Voucher | None, Sequence[wire.Participant]]]:
        """What is relayed in the same way, with the same voucher."""
        if len(told.claims) == 1 and not told.vouched:
            return ((told.claims[0], None, told.participants),)
        vouchers = self._vouchers_of(told) if told.vouched else repeat(None)
        items = zip(told.claims, vouchers, told.participants, strict=False)
        return (
            (relayed, voucher, [participant for _, _, participant in some])
            for (relayed, voucher), some in groupby(items, key=itemgetter(0, 1))
        )

    def _vouchers_of(self, told: Announce) -> list[Voucher | None]:
        """The voucher of each relayed name, if there is one that names it."""
        vouchers, found = told.vouchers, list[Voucher | None]()
        for index, (name, _, _) in zip(told.vouched, told.participants, strict=True):
            voucher = vouchers[index] if 0 <= index < len(vouchers) else None
            found.append(voucher if voucher is not None and voucher.names_it(name) else None)
        return found

    def _keep_voucher(self, session: Session, claimant: Claimant, told: Announce) -> None:
        """Keep the signature of a leaf under its own names, for the hubs above."""
        if len(told.vouchers) != 1 or not is_identifier(claimant.owner):
            return
        [voucher] = told.vouchers
        owner = self._kernel.hierarchy.vouchers.owner_of(voucher)
        if owner == claimant.owner and voucher.number == claimant.number:
            named = (name for name, _, _ in told.participants if voucher.names_it(name))
            self._keep(session, named, voucher)

    def _keep(self, session: Session, names: Iterable[str], voucher: Voucher) -> None:
        data, keep = session.address.data, self._kernel.hierarchy.vouchers.keep
        for name in names:
            if self.known.get(data, name) is not None:
                keep(data, name, voucher)

    def _relayed(
        self,
        session: Session,
        relayed: wire.RelayedClaim,
        owners: list[wire.Owner],
        voucher: Voucher | None,
    ) -> Claimant | str:
        """Who claims what a hub relays; why not, with a place for the name, if it makes no sense.

        What is known of the owner already was checked, and is shared.
        """
        claimant = self._claimant(session)
        peer, (index, number, told) = claimant.peer, relayed
        path = tuple(told) if told[-1:] == [peer] else (*told, peer)
        if len(path) == 1:  # of its own names a peer's hello says whose they are
            return claimant
        if not 0 <= index < len(owners) or not 0 <= number < NUMBER_LIMIT:
            return "invalid claim to {}"
        owner = owners[index][0]
        if is_identifier(owner) and (
            voucher is None
            or voucher.number != number
            or self._kernel.hierarchy.vouchers.owner_of(voucher) != owner
        ):
            owner = f"{UNPROVEN}{owner}"
        latest = self.known.latest(owner)
        if latest is not None and latest.path == path:
            owner, path = latest.owner, latest.path
        elif max(map(len, (owner, *path))) > NODE_NAME_LIMIT + len("session:"):
            return "the claim to {} has too long a name in it"
        return Claimant(owner, number, peer, path)

    def _take(
        self,
        session: Session,
        claimant: Claimant,
        participants: Sequence[wire.Participant],
        now: int,
    ) -> None:
        """Take what is claimed in the same way, once for all what is the same for each.

        Mostly a name is new, or known already; what else there may be is left to `_add`.
        """
        if self._kernel.permissions.grants is not None:
            participants = self._granted(session, claimant, participants)
        if len(participants) > 1 and self._take_new(session, claimant, participants):
            return
        known, data = self.known, session.address.data
        peer, owner, number, path = claimant.peer, claimant.owner, claimant.number, claimant.path
        find, is_own_name, held = known.find, self._kernel.is_own_name, session.participants
        may_claim = not known.objection(owner, number, path)
        first: dict[str, Claim] = {}
        for name, visible, end in participants:
            expiry = NEVER if end is None else session.in_own_time(end)
            claim = Claim(name, data, peer, owner, number, path, visible, expiry)
            is_usual = now < expiry and not is_own_name(name)
            former = find(name)
            if is_usual and former == claim:
                continue
            if (
                is_usual
                and former is None
                and may_claim
                and name not in first
                and self._is_plainly_claimable(session, claim)
            ):
                first[name] = claim
                held[name] = None
                continue
            if first:
                self._add_first(session, first)
                first = {}
            self._add(session, claim, now)
        if first:
            self._add_first(session, first)

    def _take_new(
        self, session: Session, claimant: Claimant, participants: Sequence[wire.Participant]
    ) -> bool:
        """Take names together that nobody claims, to which there is nothing to object; else False.

        That is how a leaf begins, and tens of thousands of them may do so at once.
        """
        known, held, kernel = self.known, session.participants, self._kernel
        if not participants or known.find(participants[0][0]) is not None:
            return False  # mostly all of them are known, or none is
        peer, owner, number, path = claimant.peer, claimant.owner, claimant.number, claimant.path
        data, address = session.address.data, session.address
        claims = {
            name: Claim(name, data, peer, owner, number, path, visible)
            for name, visible, end in participants
            if end is None
        }
        if (
            len(claims) < len(participants)  # some expire, or come twice
            or len(held) + len(claims) > kernel.limits.participants
            or not known.are_free(claims)
            or not _are_plain(claims)
            or not kernel.has_none_of(claims)
            or known.objection(owner, number, path)
        ):
            return False
        held.update(dict.fromkeys(claims))
        if kernel.wants_each_claimed:
            self._add_first(session, claims)
            return True
        known.announce_first(claims, expire=False)
        kernel.put_all_claimed(
            {name: RoutingEntry(name, address, True, visible) for name, visible, _ in participants},
            address,
        )
        if kernel.hierarchy.parents:
            kernel.hierarchy.announcements.claims_came(claims)
        return True

    def may_announce(self, session: Session, name: str) -> bool:
        """Whether a session may claim a name (ID-3); the names of subscribers need no grant."""
        if _is_of_subscriber(name):
            return True
        return self._kernel.permissions.may(session, Action.ANNOUNCE, name)

    def _granted(
        self, session: Session, claimant: Claimant, participants: Iterable[wire.Participant]
    ) -> list[wire.Participant]:
        """Those names that a session may claim; the others are refused."""
        granted, data = [], session.address.data
        for participant in participants:
            name = participant[0]
            if self.may_announce(session, name):
                granted.append(participant)
                continue
            why = (
                f"{session.identity or session.peer or session.name} may not announce {quote(name)}"
            )
            owner, number, path = claimant.owner, claimant.number, claimant.path
            claim = Claim(name, data, claimant.peer, owner, number, path)
            self._refuse(claim, why, NOT_GRANTED)
            self._decline(session, why)
            if self.known.get(data, name) is not None:
                self.withdrawn(session, name, NOT_GRANTED)
        return granted

    def patterns_of(self, session: Session, name: str) -> list[str]:
        """What a participant that a session claims has subscribed to."""
        data = session.address.data
        if self._is_best(data, name):
            return list(self._kernel.router.subscriptions.patterns_of(name))
        return list(self._kept.get((data, name), ()))

    def _is_plainly_claimable(self, session: Session, claim: Claim) -> bool:
        """Whether there is nothing to object to a name that is not this node's own."""
        name, held = claim.participant, session.participants
        return (
            0 < len(name) <= NAME_LIMIT
            and name[-GENERATED - 1 : -GENERATED] != "-"
            and is_plain(name)
            and (claim.expiry <= LAST_INSTANT or claim.expiry == NEVER)
            and (len(held) < self._kernel.limits.participants or name in held)
        )

    def _add_first(self, session: Session, claims: dict[str, Claim]) -> None:
        """Add claims of a session to names that nobody else claims; `tick` was just called."""
        kernel, known, address = self._kernel, self.known, session.address
        known.announce_first(claims)
        for name, claim in claims.items():
            if known.find(name) is not claim:
                continue  # the session ended when something was sent over it that had waited
            if kernel.observers:
                self._note(ClaimKind.CLAIM, claim)
            kernel.put_claimed(RoutingEntry(name, address, True, claim.visible, claim.expiry))
        if kernel.hierarchy.parents:
            kernel.hierarchy.announcements.claims_came(claims)

    def _add(self, session: Session, claim: Claim, now: int) -> None:
        name, why = claim.participant, self._objection(session, claim)
        if why:
            self._refuse(claim, why, NOT_CLAIMABLE)
            self._decline(session, why)
            if self._kernel.own_receiver(name) is not None:
                self._kernel.hierarchy.contests.held_here(claim)
            return
        change = self.known.announce(claim, now)
        if change is None:
            return
        if change.refused:
            self._refuse(claim, change.refused, change.refused)
        else:
            session.participants[name] = None
            kind = ClaimKind.CLAIM if change.contest is None else ClaimKind.CONTESTED
            self._note(kind, claim, self._holder_of(change))
        self._apply(change, OTHERWISE)

    def _objection(self, session: Session, claim: Claim) -> str:
        """Why a name cannot be claimed, or not over this session; empty if it can."""
        name, kernel = claim.participant, self._kernel
        if len(name) > NAME_LIMIT:
            return f"{quote(name)} is longer than {NAME_LIMIT} characters"
        if kernel.is_own_name(name) and not self._came_in_a_circle(claim):
            return f"{quote(name)} is a name of node {kernel.name} itself"
        if not self.may_add(session, name):
            return f"a session announces at most {kernel.limits.participants} participants"
        if name[-GENERATED - 1 : -GENERATED] == "-" and (
            why := self._objection_to_generated(claim)
        ):
            return why
        try:
            RoutingEntry.of(name, session.address, local=True, expiry=claim.expiry)
        except LocalError as error:
            return str(error)
        return ""

    def _came_in_a_circle(self, claim: Claim) -> bool:
        """Whether it is this node's own word, which is refused without any complaint."""
        return len(claim.path) > 1 and self._kernel.name in claim.path

    def _objection_to_generated(self, claim: Claim) -> str:
        """Why a name cannot be claimed that some node gave to a session or a subscriber."""
        name = claim.participant
        kind, digits = name[: -GENERATED - 1], name[-GENERATED:]
        if not _DIGITS.issuperset(digits):
            return ""
        if is_session_name(name):
            return f"{quote(name)} has the form of a session's name"
        best = self.best(name) if kind == SUBSCRIBER else None
        if best is not None and best.owner != claim.owner:
            return f"{quote(name)} is the subscriber of another node"
        return ""

    def withdrawn(self, session: Session, name: str, why: str = TAKEN_BACK) -> None:
        """End the claim of a session to a name."""
        session.participants.pop(name, None)
        change = self.known.withdraw(session.address.data, name, self._now())
        if change is not None:
            self._apply(change, why)

    def _note_lowest(self, session: Session, owner: str, lowest: int) -> None:
        """End claims of sessions that have ended, as their owner says, and what they relayed."""
        if not 0 <= lowest < NUMBER_LIMIT:
            self._decline(session, f"invalid number {quote(lowest)} of a session")
            return
        if ":" in owner:
            return  # known by its name alone, which anybody can guess: nobody speaks for it
        if lowest <= self.known.lowest(owner):
            return
        self._apply_all(self.known.note_lowest(owner, lowest, self._now()), DEAD)
        if self.known.has_grown:
            self._kernel.hierarchy.announcements.lowest_grew()
        self._probe_below(lowest, _several(self._sessions.get(owner, ())))

    # How many

    def may_add(self, session: Session, name: str) -> bool:
        """Whether one more participant may be reached over a session."""
        limit = self._kernel.limits.participants
        if name in session.participants or len(session.participants) < limit:
            return True
        now = self._now()
        if now >= session.checked_at + CHECK_INTERVAL:
            session.checked_at = now
            self._prune_participants(session, now)
        return len(session.participants) < limit

    def _prune_participants(self, session: Session, now: int) -> None:
        """Forget participants that have expired, and what they subscribed to."""
        data, table = session.address.data, self._kernel.router.table
        for name in list(session.participants):
            change = self.known.expire(name, now)
            if change is not None:
                self._apply(change, EXPIRED)
            entry = table.lookup(name, now)
            if self.known.get(data, name) is None and (
                entry is None or entry.address != session.address
            ):
                session.participants.pop(name, None)

    def purge(self, now: int) -> None:
        """End claims that have expired."""
        self._apply_all(self.known.purge(now), EXPIRED)

    # Subscriptions

    def subscribe(self, session: Session, pattern: str, receiver: str) -> None:
        """Subscribe a participant that a session claims."""
        limit, data = self._kernel.limits.participants, session.address.data
        if self.known.get(data, receiver) is None:
            self._decline(session, f"{quote(receiver)} was not announced by {session.name}")
            return
        if not self._kernel.permissions.may(session, Action.SUBSCRIBE, pattern):
            who = session.identity or session.peer or session.name
            self._decline(session, f"{who} may not subscribe to {quote(pattern)}")
            return
        if session.subscriptions >= limit:
            self._decline(session, f"a session subscribes at most {limit} times")
            return
        try:
            session.subscriptions += self._subscribe(data, pattern, receiver)
        except LocalError as error:
            self._decline(session, str(error))

    def _subscribe(self, session: bytes, pattern: str, receiver: str) -> bool:
        if self._is_best(session, receiver):
            source = (Cause.ANNOUNCED, session.decode(), None)
            return self._kernel.broadcasts.add_subscriber(pattern, receiver, source)
        check_pattern(pattern)
        kept = self._kept.setdefault((session, receiver), {})
        is_new = pattern not in kept
        kept[pattern] = None
        return is_new

    def unsubscribe(self, session: Session, pattern: str, receiver: str) -> None:
        """End a subscription of a participant that a session claims."""
        data = session.address.data
        if self._is_best(data, receiver):
            source = (Cause.WITHDRAWN, session.name, None)
            broadcasts = self._kernel.broadcasts
            session.subscriptions -= broadcasts.remove_subscriber(pattern, receiver, source)
            return
        kept = self._kept.get((data, receiver), {})
        if pattern in kept:
            del kept[pattern]
            session.subscriptions -= 1

    def _is_best(self, session: bytes, name: str) -> bool:
        best = self.best(name)
        return best is not None and best.session == session

    # What becomes of it

    def own_name_gone(self, name: str) -> None:
        """Let the best claim have a name that this node itself no longer has."""
        claim = None if self._kernel.is_reserved(name) else self.best(name)
        if claim is not None:
            self._put(claim)

    def _apply_all(self, changes: Iterable[ClaimChange], why: str) -> None:
        for change in changes:
            self._apply(change, why)

    def _apply(self, change: ClaimChange, why: str) -> None:
        """Follow a change of the claims to a name; `why` some ended. Every one passes here."""
        hierarchy, name = self._kernel.hierarchy, change.participant
        before, after = change.before, change.after
        patterns_of = self._kernel.router.subscriptions.patterns_of
        subscribed = [] if before is None else patterns_of(name)
        for claim in change.ended:
            self._end(claim, why, was_best=claim is before)
        if before is not after:
            source = _source(before, why)
            self._replace(name, before, after, source)
            if subscribed or self._kept:
                self._move_subscriptions(name, before, after, subscribed, source)
            if after is None or change.is_news:
                is_move = after is None or change.is_move
                hierarchy.announcements.claim_changed(name, after, is_move=is_move)
            if after is not None:
                hierarchy.contests.holder_changed(name, after)
        if change.contest is not None and after is not None:
            hierarchy.contests.begin(change.contest, after)
        for claim in change.dead if change.doubted is None else (*change.dead, change.doubted):
            hierarchy.contests.probe(claim)
        if after is not None:
            self._watch_expiry(after)
        if change.contest is not None or name in hierarchy.contested:
            hierarchy.contested.note(change, self._now())

    def _end(self, claim: Claim, why: str, *, was_best: bool) -> None:
        if self._kernel.observers:
            self._note(ClaimKind.WITHDRAW, claim, why)
        data, name = claim.session, claim.participant
        self._kernel.hierarchy.contests.claim_ended(claim)
        if self._kernel.hierarchy.vouchers.kept:
            self._kernel.hierarchy.vouchers.forget(data, name)
        if self.known.find(name) is not None and self.known.get(data, name) is not None:
            return  # the session claims the name otherwise
        session = self._kernel.links.sessions.get(data)
        kept = self._kept.pop((data, name), {}) if self._kept else {}
        if session is not None:
            session.participants.pop(name, None)
            if not was_best:
                session.subscriptions -= len(kept)

    def _replace(
        self, name: str, before: Claim | None, after: Claim | None, source: Source
    ) -> None:
        """Put the best claim into the table: a remove, then a put (CL-7)."""
        if self._kernel.is_own_name(name):
            return
        same = before is not None and after is not None and before.session == after.session
        if same and before is not None and after is not None:
            if (before.visible, before.expiry) == (after.visible, after.expiry):
                return
            same = after.expiry >= before.expiry
        if before is not None and not same:
            self._kernel.remove_claimed(name, source)
        if after is not None:
            self._put(after, Cause.ANNOUNCED if before is None or same else Cause.CLAIM)

    def _put(self, claim: Claim, cause: Cause = Cause.CLAIM) -> None:
        session = self._kernel.links.sessions.get(claim.session)
        if session is not None:
            name, visible, expiry = claim.participant, claim.visible, claim.expiry
            self._kernel.put_route(
                RoutingEntry(name, session.address, local=True, visible=visible, expiry=expiry),
                (cause, session.name, None),
            )

    def _move_subscriptions(
        self,
        name: str,
        before: Claim | None,
        after: Claim | None,
        subscribed: list[str],
        source: Source,
    ) -> None:
        """Let the subscriptions of the best claim be those of the participant."""
        if before is not None and after is not None and before.session == after.session:
            return
        if before is not None and subscribed:
            if self.known.get(before.session, name) is not None:
                self._kept[before.session, name] = dict.fromkeys(subscribed)
            else:
                session = self._kernel.links.sessions.get(before.session)
                if session is not None:
                    session.subscriptions -= len(subscribed)
        wanted = {} if after is None else self._kept.pop((after.session, name), {})
        broadcasts = self._kernel.broadcasts
        for pattern in subscribed:
            if pattern not in wanted:
                broadcasts.remove_subscriber(pattern, name, source)
        if after is not None:
            source = (Cause.CLAIM, after.session.decode(), None)
        for pattern in wanted:
            broadcasts.add_subscriber(pattern, name, source)

    # Expiry

    def _watch_expiry(self, best: Claim) -> None:
        """Be woken when the best claim expires, if there are others."""
        if best.expiry == NEVER:
            return
        if len(self.known.all(best.participant, self._now())) > 1:
            heappush(self._expiries, (int(best.expiry), best.participant))
            if self._expiries[0][1] == best.participant:
                self._wake_later()

    def _wake_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._expiries:
            seconds = max(0, self._expiries[0][0] - self._now()) / 1000
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(min(seconds, 60.0), self._expire)

    def _expire(self) -> None:
        self._timer, now = None, self._now()
        while self._expiries and self._expiries[0][0] <= now:
            change = self.known.expire(heappop(self._expiries)[1], now)
            if change is not None:
                self._apply(change, EXPIRED)
        self._wake_later()

    def close(self) -> None:
        """Wait for nothing more."""
        self._expiries.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Telling

    @staticmethod
    def _holder_of(change: ClaimChange) -> str:
        if change.contest is None or change.after is None:
            return ""
        return f"{change.after.origin} has the name"

    def _refuse(self, claim: Claim, why: str, kind: str) -> None:
        """Record a claim that is refused, and count it under one of a few reasons."""
        self._kernel.hierarchy.contested.refused[kind] += 1
        self._note(ClaimKind.REFUSED, claim, why, Reason.REFUSED)

    def note(self, kind: ClaimKind, name: str, detail: str) -> None:
        """Record an event of the best claim to a name."""
        claim = self.best(name)
        if claim is not None:
            self._note(kind, claim, detail)

    def _note(
        self, kind: ClaimKind, claim: Claim, detail: str = "", reason: Reason | None = None
    ) -> None:
        kernel = self._kernel
        if kernel.observers:
            session = claim.session.decode()
            what = (kind, claim.participant, session, claim.owner, claim.origin, claim.number)
            proven = self.is_proven(claim)
            kernel.notify(ClaimRecord(*what, claim.path, detail, kernel.tick(), reason, proven))

    def is_proven(self, claim: Claim) -> bool:
        """Whether who claims has proven who it is: by its signature, or over its session (ID-2)."""
        if is_identifier(claim.owner):
            return True
        session = self._kernel.links.sessions.get(claim.session)
        return claim.is_direct and session is not None and bool(session.who)

    def _decline(self, session: Session, why: str) -> None:
        self._kernel.hierarchy.decline(session, why)

    def _now(self) -> int:
        return self._kernel.tick() // 1000


def _misfit(told: Announce) -> str:
    """What is wrong with the lists of an announcement, which belong together; empty if nothing."""
    number = len(told.participants)
    for items, kind in ((told.claims, "claims"), (told.vouched, "vouchers")):
        if items and len(items) != number:
            return f"{number} participants with {len(items)} {kind}"
    many = len(told.vouchers)
    return f"{many} vouchers in one announcement" if many > wire.ITEMS else ""


def _are_plain(names: Collection[str]) -> bool:
    """Whether all these names can be claimed plainly: no more is to be known of each of them.

    They are looked at together, which takes less time.
    """
    text = " ".join(("", *names))
    return (
        text.isprintable()
        and text.count(" ") == len(names)
        and "" not in names
        and "=>" not in text
        and " 0x" not in text
        and (len(text) <= NAME_LIMIT or max(map(len, names)) <= NAME_LIMIT)
        and "-" not in [name[-GENERATED - 1 : -GENERATED] for name in names]
    )


def _is_of_subscriber(name: str) -> bool:
    kind, digits = name[: -GENERATED - 1], name[-GENERATED:]
    return kind == SUBSCRIBER and name[-GENERATED - 1] == "-" and _DIGITS.issuperset(digits)


def _source(before: Claim | None, why: str) -> Source:
    """Whose word it was that the best claim to a name went."""
    if why == TAKEN_BACK:
        cause = _WITHDRAWN
    else:
        cause = Cause.SESSION_CLOSED if why.startswith(SESSION_ENDED) else Cause.CLAIM
    return cause, None if before is None else before.session.decode(), None


def _several(sessions: bytes | tuple[bytes, ...]) -> tuple[bytes, ...]:
    return (sessions,) if isinstance(sessions, bytes) else sessions
