"""Contests: two owners claim one name, and the hub asks whether the holder lives (CL-4, CL-6).

The session of the holder is probed: a question for the name, which every version of a peer answers.
Whatever is heard over it afterwards is a sign of life. Who is silent for `Limits.contest` has lost:
its session is ended, and the next claim is the best. A holder behind another hub is asked by that
hub, which is probed in turn: all at the same time, so that the last word is there a little later.

Who lives keeps the name. Both are told, and told again when one who stood by has it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct

from waystation.core.claims import Claim
from waystation.errors import quote
from waystation.node.claims import NOT_THERE
from waystation.wire import hierarchy as wire
from waystation.wire.hierarchy import Contested, Resolve, Resolved

if TYPE_CHECKING:
    from waystation.node.kernel import Kernel
    from waystation.node.session import Session

PROBE_INTERVAL: Final = 1.0
"""Seconds for which a sign of life is good: no owner is probed again over the same session."""

RELAY_TIME: Final = 0.5
"""Seconds by which the word of a hub further down may be later than our own."""

_log = logging.getLogger("waystation.node")

Settled: TypeAlias = Callable[[], None]
_News: TypeAlias = list[tuple[bytes, wire.Contest]]  # for which sessions


class _Probe(Struct, eq=False):
    """A question whether one owner still lives behind a session."""

    session: Session
    owner: str
    name: str
    number: int
    reads: int  # how often the session was read before
    sent_at: float
    is_direct: bool
    is_heard: bool = False
    is_settled: bool = False  # it lives, and the contests are decided
    # Claims that stand by for what the owner holds.
    contests: list[Claim] = []

    @property
    def shows_life(self) -> bool:
        """Whether anything was heard since; nothing can be from a peer that is not read."""
        return self.is_heard or self.session.reads != self.reads or self.session.is_stopped


class Contests:
    """The contests at one node, with one timer for all of them."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._probes: dict[bytes, dict[str, _Probe]] = {}  # by session and owner
        self._by_number: dict[int, _Probe] = {}
        self._due: list[tuple[float, int, _Probe]] = []  # a heap
        self._order = count()
        self._timer: asyncio.TimerHandle | None = None
        self._undecided: dict[bytes, int] = {}  # by session: contests of its claims
        self._waiting: dict[bytes, list[Settled]] = {}  # who wants to know when there are none
        self._told: set[tuple[bytes, str]] = set()  # sessions, names that they stand by for
        # Names of this node that somebody else has, as the parents told: by session of a parent.
        self._taken: dict[bytes, dict[str, str]] = {}

    # Asking for a sign of life

    def begin(self, standby: Claim, holder: Claim) -> None:
        """Find out whether the holder of a name lives, and tell both if it does."""
        probe = self.probe(holder)
        if probe is None:
            return  # its session ends, and so do its claims
        if probe.is_settled:
            self._tell(self._decide([standby]))
            return
        probe.contests.append(standby)
        self._undecided[standby.session] = self._undecided.get(standby.session, 0) + 1

    def probe(self, claim: Claim) -> _Probe | None:
        """Ask the owner of a claim for a sign of life, unless it was asked just now."""
        session = self._kernel.links.sessions.get(claim.session)
        if session is None or not session.is_open:
            return None
        of_session = self._probes.setdefault(claim.session, {})
        probe = of_session.get(claim.owner)
        if probe is None:
            number = next(self._kernel.hierarchy.questions.numbers)
            now = asyncio.get_running_loop().time()
            probe = _Probe(
                session,
                claim.owner,
                claim.participant,
                number,
                session.reads,
                now,
                claim.is_direct,
            )
            of_session[claim.owner] = self._by_number[number] = probe
            self._file(probe, now + self._kernel.limits.contest)
            self._kernel.hierarchy.contested.probes += 1
            _log.debug("session %s: probed for %s", session.name, quote(claim.participant))
            session.send_control(wire.encode(Resolve(number, claim.participant, probe=True)))
        return probe

    def probe_session(self, session: bytes) -> None:
        """Ask the peer of a session for a sign of life, by any name that it claims."""
        claims = self._kernel.hierarchy.claims.known
        for name in claims.names_of(session):
            claim = claims.get(session, name)
            if claim is not None:
                self.probe(claim)
            return

    def probed(self, session: Session, question: Resolve) -> None:
        """Reply to a probe at once, and probe in turn whoever has the name behind us."""
        hierarchy, name = self._kernel.hierarchy, question.participant
        hierarchy.announcements.tell_now()  # what was before the reply is to be told before it
        found = hierarchy.questions.is_elsewhere(name, session)
        session.answer(wire.encode(Resolved(question.number, found)))
        claim = hierarchy.claims.best(name)
        if claim is not None and claim.session != session.address.data:
            self.probe(claim)

    def receive_answer(self, session: Session, answer: Resolved) -> bool:
        """Take the reply to a probe; False if it is none."""
        probe = self._by_number.get(answer.number)
        if probe is None or probe.session is not session:
            return False
        probe.is_heard = True
        if not answer.found:
            self._kernel.hierarchy.claims.withdrawn(session, probe.name, NOT_THERE)
        if probe.is_direct and not probe.is_settled:
            self._settle(probe)
        return True

    # How it ends

    def session_ended(self, session: Session) -> None:
        """Forget the probes of a session: its claims have ended."""
        data = session.address.data
        for probe in list(self._probes.get(data, {}).values()):
            self._settle(probe)
            self._forget(probe)
        self._undecided.pop(data, None)
        self._waiting.pop(data, None)

    def parent_lost(self, parent: Session) -> None:
        """Forget what a parent said: it says it again, or no longer."""
        self._taken.pop(parent.address.data, None)

    def when_settled(self, session: Session, settled: Settled) -> None:
        """Call a function when it is decided who has the names that a session claims."""
        data = session.address.data
        if data in self._undecided:
            self._waiting.setdefault(data, []).append(settled)
        else:
            settled()

    def _file(self, probe: _Probe, due: float) -> None:
        heappush(self._due, (due, next(self._order), probe))
        if self._due[0][2] is probe:
            self._wake_later()

    def _wake_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due:
            self._timer = asyncio.get_running_loop().call_at(self._due[0][0], self._wake)

    def _wake(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._due and self._due[0][0] <= now:
            self._look_at(heappop(self._due)[2], now)
        self._wake_later()

    def _look_at(self, probe: _Probe, now: float) -> None:
        """Decide about a probe whose time is over."""
        contest = self._kernel.limits.contest
        if self._by_number.get(probe.number) is not probe:
            return
        if probe.is_settled:
            self._forget(probe)
        elif not probe.shows_life:
            self._forget(probe)
            self._settle(probe, tells=False)
            self._kernel.hierarchy.contested.silent += 1
            probe.session.break_off(
                f"silent for {contest:g} s while somebody else claims {quote(probe.name)}"
            )
        elif probe.is_direct or now >= probe.sent_at + contest + RELAY_TIME:
            self._settle(probe)
        else:
            self._file(probe, probe.sent_at + contest + RELAY_TIME)

    def _settle(self, probe: _Probe, *, tells: bool = True) -> None:
        """Decide the contests of an owner that lives."""
        if probe.is_settled:
            return
        probe.is_settled = True
        contests, probe.contests = probe.contests, []
        if tells:
            now = asyncio.get_running_loop().time()
            self._tell(self._decide(contests))
            self._file(probe, max(now, probe.sent_at + PROBE_INTERVAL))
        for claim in contests:
            self._decided(claim.session)

    def _decided(self, session: bytes) -> None:
        left = self._undecided.get(session, 0) - 1
        if left > 0:
            self._undecided[session] = left
            return
        self._undecided.pop(session, None)
        for settled in self._waiting.pop(session, ()):
            settled()

    def _forget(self, probe: _Probe) -> None:
        del self._by_number[probe.number]
        of_session = self._probes[probe.session.address.data]
        del of_session[probe.owner]
        if not of_session:
            del self._probes[probe.session.address.data]

    # Telling both

    def _decide(self, contests: Iterable[Claim]) -> _News:
        """What is to be told of claims that stand by for what somebody else holds."""
        claims, news = self._kernel.hierarchy.claims, []
        for claim in contests:
            name = claim.participant
            holder, standby = claims.best(name), claims.known.get(claim.session, name)
            if holder is None or standby is None or standby.owner == holder.owner:
                continue
            self._told.add((standby.session, name))
            self._warn(holder, standby)
            news.append((standby.session, (name, holder.origin, True)))
            news.append((holder.session, (name, standby.origin, False)))
        return news

    def _warn(self, holder: Claim, standby: Claim) -> None:
        """Log that two nodes claim a name, as a complaint about the one that came later."""
        session = self._kernel.links.sessions.get(standby.session)
        if session is not None:
            name = quote(standby.participant)
            who = f"node {quote(holder.origin)} has it, node {quote(standby.origin)} stands by"
            self._kernel.hierarchy.complain(session, f"{name} is claimed by two owners: {who}")

    def _tell(self, news: _News) -> None:
        by_session: dict[bytes, list[wire.Contest]] = {}
        for data, contest in news:
            by_session.setdefault(data, []).append(contest)
        for data, contests in by_session.items():
            session = self._kernel.links.sessions.get(data)
            if session is not None and session.can(wire.CAPABILITY):
                for part in wire.in_payloads(contests):
                    session.send_control(wire.encode(Contested(part)))

    def held_here(self, claim: Claim) -> None:
        """Tell who claims a name that this node itself has: that claim is not kept."""
        self._tell([(claim.session, (claim.participant, self._kernel.name, True))])

    def holder_changed(self, name: str, holder: Claim | None) -> None:
        """Tell who stood by for a name and has it now."""
        if holder is not None and (holder.session, name) in self._told:
            self._told.discard((holder.session, name))
            self._tell([(holder.session, (name, "", False))])

    def claim_ended(self, claim: Claim) -> None:
        """Forget that a claim stood by."""
        if self._told:
            self._told.discard((claim.session, claim.participant))

    # Hearing of it

    @property
    def taken(self) -> dict[str, str]:
        """Names of this node that somebody else has, with the node that has it."""
        is_own = self._kernel.is_own_name
        told = (names.items() for names in self._taken.values())
        return {name: holder for names in told for name, holder in names if is_own(name)}

    def heard(self, parent: Session, told: Contested) -> None:
        """Note who has names of this node, or pass it down to who claims them here."""
        news: _News = []
        for name, other, is_taken in told.contests:
            if self._kernel.is_own_name(name):
                self._note_own(parent, name, other, is_taken=is_taken)
                continue
            claim = self._kernel.hierarchy.claims.best(name)
            if claim is not None and claim.session != parent.address.data:
                news.append((claim.session, (name, other, is_taken)))
        self._tell(news)

    def own_name_gone(self, name: str) -> None:
        """Forget who has a name that this node no longer has: it may begin anew with it."""
        for names in self._taken.values():
            names.pop(name, None)

    def _note_own(self, parent: Session, name: str, other: str, *, is_taken: bool) -> None:
        complain = self._kernel.hierarchy.complain
        of_parent = self._taken.setdefault(parent.address.data, {})
        if is_taken:
            of_parent[name] = other
            hub = quote(parent.peer or parent.name)
            held = f"{quote(name)} is held by node {quote(other)} at hub {hub}"
            complain(parent, f"{held}; this node stands by")
        else:
            of_parent.pop(name, None)
            if other:
                complain(parent, f"node {quote(other)} also claims {quote(name)}")

    def close(self) -> None:
        """Wait for nothing more."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
