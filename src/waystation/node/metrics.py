"""Under which names Prometheus reads what a node counts. No sockets here.

Messages and sessions are counted by node/status.py; everything else is looked up when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from waystation.core.outcome import Reason
from waystation.net.metrics import Family, counter, exposition, gauge
from waystation.net.monitor import Health
from waystation.net.tasks import COUNTS
from waystation.node.contested import ClaimsSnapshot
from waystation.node.custody import CustodySnapshot
from waystation.node.flow import Snapshot
from waystation.node.node import Node
from waystation.node.status import Question, Status

_TOTALS: Final = Question(routes=0, sessions=0)


class NodeMetrics:
    """What is monitored of a node, from now on: `Monitor(NodeMetrics(node))`."""

    def __init__(
        self,
        node: Node,
        status: Status | None = None,
        also: Callable[[], Iterable[Family]] | None = None,
    ) -> None:
        self._node = node
        self._status = Status(node) if status is None else status
        self._also = also

    def metrics(self) -> str:
        """The text for Prometheus."""
        also = () if self._also is None else self._also()
        return exposition("waystation_node", [*self._families(), *also])

    def health(self) -> Health:
        """Whether it takes messages."""
        urls = [listening.url for listening in self._node.listening]
        return Health(draining=self._node.draining, listening=urls)

    def _families(self) -> Iterator[Family]:
        totals = self._status.snapshot(_TOTALS)
        counts, reasons = totals.counts.items(), set(Reason)
        drops = {name: count for name, count in counts if name in reasons}
        outcomes = {name: count for name, count in counts if name not in reasons}
        yield counter("messages", "Messages that were not dropped.", outcomes, "outcome")
        yield counter("messages_dropped", "Messages that were dropped.", drops, "reason")
        internal = "Messages of the nodes themselves that were dropped; they are no losses."
        dropped = totals.internal_drops
        yield counter("internal_messages_dropped", internal, dropped, "reason")
        yield counter("payload_bytes", "Bytes of payload in all messages.", totals.bytes)
        events = self._status.session_events
        happened = "Sessions that opened, closed or were refused."
        yield counter("session_events", happened, events, "event", "transport")
        proofs = "Sessions that opened with a peer proven or unproven, or were refused."
        yield counter("handshakes", proofs, self._node.handshakes, "result")
        denied = "What peers asked for and is not granted to them."
        yield counter("denied", denied, self._node.denied, "action")
        channels = self._node.secure_channels
        opened = "Secure channels whose handshake succeeded, and what came to them and was refused."
        ends = {"opened": channels.handshakes, "refused": channels.refusals}
        yield counter("secure_channel_events", opened, ends, "event")
        states = {"open": channels.open, "half_open": channels.half_open}
        yield gauge("secure_channels", "Secure channels, and handshakes begun.", states, "state")
        if totals.journal_lost is not None:
            lost = "Records that the journal could not keep."
            yield counter("journal_lost_records", lost, totals.journal_lost)
        by_transport = self._status.sessions_by_transport()
        yield gauge("sessions", "Sessions that have a link.", by_transport, "transport")
        waiting = sum(session.waiting() for session in self._node.sessions)
        yield gauge("waiting_messages", "Messages that wait for a session.", waiting)
        yield gauge("routes", "Entries of the routing table.", totals.routes_total)
        yield gauge("subscriptions", "Subscriptions to broadcasts.", totals.subscriptions_total)
        yield gauge("uptime_seconds", "Seconds for which the node was counted.", totals.uptime)
        yield counter("tasks_failed", "Tasks of this process that failed.", COUNTS.failed)
        offset = "Seconds that the wall clock is ahead of the clock of the node."
        yield gauge("clock_offset_seconds", offset, totals.clock_offset_us / 1e6)
        off = "Whether the wall clock is too far off to be followed."
        yield gauge("clock_off", off, int(totals.clock_off))
        slewing = "Whether the clock of the node is slewed towards the wall clock."
        yield gauge("clock_slewing", slewing, int(totals.clock_slewing))
        offsets = [session.clock_offset_us or 0 for session in self._node.sessions]
        largest = max(map(abs, offsets), default=0) / 1e6
        farthest = "Seconds that the clock of any peer is off, at most."
        yield gauge("peer_clock_offset_max_seconds", farthest, largest)
        yield gauge("draining", "Whether the node is closing.", int(self._node.draining))
        yield from _claims(self._node.contested.snapshot())
        yield from _flow(self._node.flow)
        if self._node.custody is not None:
            yield from _custody(self._node.custody, self._node.now())


def _claims(claims: ClaimsSnapshot) -> Iterator[Family]:
    """Who claims names, and what became of it (CL-1, CL-3, CL-4, CL-6)."""
    yield gauge("claims", "Claims of peers to names.", claims.claims)
    waiting = "Claims that stand by, since another owner has the name."
    yield gauge("standby_claims", waiting, claims.standbys)
    contested = "Names that several owners claim."
    yield gauge("contested_names", contested, claims.contested)
    often = "Names that change so often that parents are told of them later."
    yield gauge("held_back_names", often, claims.held_back)
    probes = {"sent": claims.probes, "unanswered": claims.silent}
    asked = "How often the holder of a name was asked whether it is there, and did not answer."
    yield counter("probes", asked, probes, "event")
    refused = "Claims that were refused."
    yield counter("claims_refused", refused, claims.refused, "reason")


def _custody(custody: CustodySnapshot, now: int) -> Iterator[Family]:
    """Durable messages in the store of the node (DU-5)."""
    yield gauge("custody_messages", "Durable messages in the store.", custody.messages)
    yield gauge("custody_bytes", "Bytes of durable messages in the store.", custody.bytes)
    waiting = "Durable messages whose receiver is not there."
    yield gauge("custody_parked_messages", waiting, custody.parked)
    age = 0.0 if custody.oldest_us is None else max(0.0, now / 1e3 - custody.oldest_us / 1e6)
    yield gauge("custody_oldest_seconds", "Age of the oldest durable message.", round(age, 3))
    yield counter("custody_commits", "Transactions of the store.", custody.commits)
    yield gauge("dead_letters", "Durable messages that ended undelivered.", custody.dead)
    failing = "Whether the store cannot be written, so that nothing new is taken."
    yield gauge("custody_failing", failing, int(bool(custody.trouble)))


def _flow(flow: Snapshot) -> Iterator[Family]:
    """What the node holds of others' messages, and who has to wait (FL-1, FL-3)."""
    yield gauge("budget_used_bytes", "Bytes of messages that the node holds.", flow.used)
    aside = "Bytes of the budget set aside for messages that inboxes have not counted yet."
    yield gauge("budget_aside_bytes", aside, flow.aside)
    yield gauge("budget_limit_bytes", "Bytes of messages that the node may hold.", flow.limit)
    by_session = {load.name: load.bytes for load in flow.sessions}
    brought = "Bytes that the node holds of what a session brought; the largest ten."
    yield gauge("session_bytes", brought, by_session, "session")
    by_receiver = {load.name: load.bytes for load in flow.receivers}
    waiting = "Bytes that wait for a receiver; the largest ten."
    yield gauge("receiver_bytes", waiting, by_receiver, "receiver")
    names = {"here": flow.holds, "there": flow.held}
    held = "Names whose senders wait, since there is little room here, or at a peer."
    yield gauge("held_names", held, names, "room")
    yield gauge("unread_sessions", "Sessions that are not read at the moment.", flow.unread)
    changes = {"pressed": flow.pressed, "eased": flow.eased}
    asked = "How often a session was asked to wait for a receiver, and to go on."
    yield counter("flow_changes", asked, changes, "change")
    shed = "Messages that were dropped since the node held too much."
    yield counter("shed_messages", shed, flow.shed)
    unasked = "Questions for names that were not passed on, since their asker had too many."
    yield counter("questions_refused", unasked, flow.unanswered)
