"""Announcements: what a node tells its parents (CL-1 .. CL-3, UP-2).

Of each name the parents are told the best claim: the node's own names plainly, those of its leaves
with their owners and paths. Changes are told together at the end of a turn of the event loop. What
changes too often waits, except that a claim is taken back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from waystation.core.claims import PATH_LIMIT, Claim
from waystation.core.damping import Damping
from waystation.core.multicast import SubscriptionChange, SubscriptionKind
from waystation.core.record import ClaimKind
from waystation.core.routing import RoutingEntry
from waystation.wire import hierarchy as wire
from waystation.wire.hello import CAPABILITY as IDENTITY
from waystation.wire.hierarchy import (
    Announce,
    Payload,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Withdraw,
)
from waystation.wire.vouchers import Voucher, vouch

if TYPE_CHECKING:
    from waystation.node.kernel import Kernel
    from waystation.node.session import Session
    from waystation.node.vouchers import Vouchers

_log = logging.getLogger("waystation.node")

_Named: TypeAlias = tuple[RoutingEntry, Claim | None]  # with the claim of a leaf, if it is one's


class Announcements:
    """What one node has to tell its parents."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        # What the parents are to be told at the end of this turn of the event loop:
        self._names: dict[str, None] = {}
        self._subscriptions: dict[Subscribed, bool] = {}  # False: unsubscribed
        self._own_lowest = False  # ours has
        self._is_due = False
        self.damping = Damping()
        self._timer: asyncio.TimerHandle | None = None

    # What happens

    def link_opened(self, parent: Session) -> None:
        """Announce everything to a parent: it may have forgotten us, or never have known us."""
        kernel = self._kernel
        table = kernel.router.table.snapshot(kernel.tick() // 1000)
        named = [
            self._named(entry)
            for name, entry in table.items()
            if self._is_announced(entry) and not self.damping.is_waiting(name)
        ]
        subscribed = kernel.router.subscriptions.snapshot()
        _log.debug(
            "session %s: announcing %d participants and %d subscriptions",
            *(parent.name, len(named), len(subscribed)),
        )
        owners = [owner for owner, _ in kernel.hierarchy.claims.known.lowest_numbers()]
        self._tell(parent, named, subscribed=subscribed, owners=owners, own_lowest=True)

    def link_lost(self) -> None:
        """Tell the other parents that a session has ended."""
        self._own_lowest = True
        self._tell_soon()

    def entry_changed(self, entry: RoutingEntry) -> None:
        """Tell the parents of a name of this node."""
        if self._kernel.hierarchy.claims.relayed(entry) is None and self._is_announced(entry):
            self._names[entry.participant] = None
            self._tell_soon()

    def claim_changed(self, name: str, best: Claim | None, *, is_move: bool) -> None:
        """Tell the parents of a name of a leaf, later if it changes too often (CL-3).

        `tick` was called just now, when its claims changed.
        """
        if not self._kernel.hierarchy.parents:
            return
        if is_move:
            self._damp(name, best, self._kernel.latest // 1000)
        self._names[name] = None
        self._tell_soon()

    def claims_came(self, claims: Mapping[str, Claim]) -> None:
        """Tell the parents of names of a leaf that nobody had, by their claims."""
        now, names = self._kernel.latest // 1000, self._names
        for name, claim in claims.items():
            self._damp(name, claim, now)
            names[name] = None
        self._tell_soon()

    def lowest_grew(self) -> None:
        """Tell the parents that claims of some owners are dead, wherever they stand."""
        if self._kernel.hierarchy.parents:
            self._tell_soon()

    def subscription_changed(self, change: SubscriptionChange) -> None:
        """Tell the parents of a subscription that came or went."""
        subscribed = change.kind is SubscriptionKind.SUBSCRIBE
        self._subscriptions[change.pattern, change.receiver] = subscribed
        self._tell_soon()

    def _tell_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self.tell_now)

    def _is_announced(self, entry: RoutingEntry) -> bool:
        return entry.local and not self._kernel.is_reserved(entry.participant)

    def _named(self, entry: RoutingEntry) -> _Named:
        return entry, self._kernel.hierarchy.claims.relayed(entry)

    # Damping

    def _damp(self, name: str, best: Claim | None, now: int) -> None:
        was_waiting = self.damping.is_waiting(name)
        wait = self.damping.changed(name, now)
        if wait and not was_waiting:
            if best is not None:
                detail = f"it changes too often: announced in {wait / 1000:g} s"
                self._kernel.hierarchy.claims.note(ClaimKind.HELD, name, detail)
            self._wake_later()

    def _wake_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.damping.next_due()
        if due is not None:
            seconds = max(0, due - self._kernel.tick() // 1000) / 1000
            self._timer = asyncio.get_running_loop().call_later(seconds, self._release)

    def _release(self) -> None:
        self._timer = None
        for name in self.damping.due(self._kernel.tick() // 1000):
            self._kernel.hierarchy.claims.note(ClaimKind.RELEASED, name, "")
            self._names[name] = None
            self._tell_soon()
        self._wake_later()

    def close(self) -> None:
        """Tell nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Telling

    def tell_now(self) -> None:
        """Tell the parents of all changes now: what is sent after this counts on it."""
        self._is_due = False
        names, self._names = self._names, {}
        subscriptions, self._subscriptions = self._subscriptions, {}
        known = self._kernel.hierarchy.claims.known
        grown = [owner for owner, _ in known.take_grown()] if known.has_grown else []
        own_lowest, self._own_lowest = self._own_lowest, False
        if not (names or subscriptions or grown or own_lowest):
            return
        named, gone = self._look_up(names)
        unsubscribed: list[Subscribed] = []
        subscribed: dict[Subscribed, None] = {}
        if subscriptions:
            unsubscribed = [pair for pair, wanted in subscriptions.items() if not wanted]
            subscribed = {pair: None for pair, wanted in subscriptions.items() if wanted}
        patterns_of = self._kernel.router.subscriptions.patterns_of
        for entry, claim in named:  # a parent that knew another claim may not know them
            if claim is not None:
                for pattern in patterns_of(entry.participant):
                    subscribed[pattern, entry.participant] = None
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug(
                "node %s announces %d participants and %d subscriptions, and withdraws %d and %d",
                *(self._kernel.name, len(named), len(subscribed)),
                *(len(gone), len(unsubscribed)),
            )
        for parent in self._kernel.hierarchy.parents:
            self._tell(parent, named, gone, list(subscribed), unsubscribed, grown, own_lowest)

    def _look_up(self, names: Iterable[str]) -> tuple[list[_Named], list[str]]:
        """Which names there are now, and which there are not."""
        named: list[_Named] = []
        gone: list[str] = []
        now = self._kernel.tick() // 1000
        lookup, relayed = self._kernel.router.table.lookup, self._kernel.hierarchy.claims.relayed
        for name in names:
            entry = lookup(name, now)
            if entry is None or not entry.local:
                gone.append(name)
            else:
                named.append((entry, relayed(entry)))
        return named, gone

    def _tell(
        self,
        parent: Session,
        named: Sequence[_Named],
        gone: Sequence[str] = (),
        subscribed: Sequence[Subscribed] = (),
        unsubscribed: Sequence[Subscribed] = (),
        owners: Sequence[str] = (),
        own_lowest: bool = False,
    ) -> None:
        own: list[wire.Participant] = []
        relayed: list[tuple[RoutingEntry, Claim]] = []
        withdrawn = list(gone)
        for entry, claim in named:
            if claim is None:
                own.append(wire.participant_of(entry))
            elif self._is_hidden(parent, claim):
                withdrawn.append(entry.participant)
            elif not self.damping.is_waiting(entry.participant):
                relayed.append((entry, claim))
        _send(parent, Unsubscribe, unsubscribed)
        _send(parent, Withdraw, withdrawn)
        hello = parent.hello
        if hello is None or wire.CAPABILITY in hello.can:
            if own or own_lowest:
                self._announce_own(parent, own, own_lowest=own_lowest)
            if relayed or owners:
                self._announce_relayed(parent, relayed, owners)
        else:
            relayed_plainly = [wire.participant_of(entry) for entry, _ in relayed]
            _send(parent, Announce, own + relayed_plainly)
        _send(parent, Subscribe, [pair for pair in subscribed if self._may_tell(parent, pair[1])])

    def _is_hidden(self, parent: Session, claim: Claim) -> bool:
        """Whether a parent would refuse a claim, so that it is taken back instead (CL-2)."""
        return len(claim.path) >= PATH_LIMIT or parent.peer in claim.path

    def _may_tell(self, parent: Session, receiver: str) -> bool:
        """Whether a parent knows a subscriber from us."""
        if self.damping.is_waiting(receiver):
            return False
        claim = self._kernel.hierarchy.claims.best(receiver)
        return claim is None or not self._is_hidden(parent, claim)

    def _announce_own(
        self, parent: Session, own: list[wire.Participant], *, own_lowest: bool
    ) -> None:
        """Announce names of this node; with the last of them, which of its sessions still live."""
        lowest = self._kernel.hierarchy.lowest
        parts = list(wire.in_payloads(own)) or ([[]] if own_lowest and lowest > 1 else [])
        identity = self._kernel.links.identities.own if parent.can(IDENTITY) else None
        for index, part in enumerate(parts, 1):
            last = lowest if index == len(parts) else 0
            vouchers = []
            if identity is not None:
                vouchers = [vouch(identity, parent.number, last, (name for name, _, _ in part))]
            parent.send_control(wire.encode(Announce(part, lowest=last, vouchers=vouchers)))

    def _announce_relayed(
        self,
        parent: Session,
        relayed: list[tuple[RoutingEntry, Claim]],
        owners: Iterable[str],
    ) -> None:
        """Announce names of leaves; after all of them, which sessions of their owners still live.

        A name must not be lost to somebody who stands by because its owner's new claim comes with
        the next payload.
        """
        lowest_of, node = self._kernel.hierarchy.claims.known.lowest, self._kernel.name
        signed = self._kernel.hierarchy.vouchers
        fits = len(relayed) <= wire.ITEMS
        words: dict[str, int | None] = dict.fromkeys(owners)
        for part in [relayed] if fits and relayed else wire.in_payloads(relayed):
            indexes: dict[str, int] = {}
            participants: list[wire.Participant] = []
            claims: list[wire.RelayedClaim] = []
            for entry, claim in part:
                index = indexes.setdefault(claim.owner, len(indexes))
                participants.append(wire.participant_of(entry))
                claims.append((index, claim.number, [*claim.path, node]))
            told = [(owner, lowest_of(owner) if fits else 0) for owner in indexes]
            proofs = _proofs(signed, part) if signed.kept else ()
            parent.send_control(wire.encode(Announce(participants, 0, told, claims, *proofs)))
            if not fits:
                words |= indexes
            elif words:
                words = {owner: None for owner in words if owner not in indexes}
        if words:
            grown = [(owner, lowest) for owner in words if (lowest := lowest_of(owner)) > 1]
            _send(parent, partial(_words_of, signed), grown)


def _proofs(
    signed: Vouchers, part: Iterable[tuple[RoutingEntry, Claim]]
) -> tuple[()] | tuple[list[Voucher], list[int]]:
    """The vouchers for claims, and which of them names each; empty if there are none."""
    vouchers: dict[Voucher, int] = {}
    vouched: list[int] = []
    for _, claim in part:
        voucher = signed.of(claim)
        vouched.append(-1 if voucher is None else vouchers.setdefault(voucher, len(vouchers)))
    return (list(vouchers), vouched) if vouchers else ()


def _words_of(signed: Vouchers, grown: list[wire.Owner]) -> Announce:
    return Announce([], owners=grown, vouchers=signed.words_of(owner for owner, _ in grown))


def _send(session: Session, kind: Callable[[Any], Payload], items: Sequence[Any]) -> None:
    """Send a list to a session, in as many payloads as it takes."""
    if items:
        for part in wire.in_payloads(items):
            session.send_control(wire.encode(kind(part)))
