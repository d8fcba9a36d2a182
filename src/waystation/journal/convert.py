"""Records to Arrow: which records get a row, and how a batch of them becomes columns.

This runs for every message, so the work per record is a few attribute look-ups in comprehensions.
Routes, verdicts and ids of broadcasts repeat: each distinct value is converted once and cached, and
Arrow copies it to its rows (`take`). No files and no clock here.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from struct import error as StructError  # noqa: N812 - it is a class
from struct import pack
from typing import Any, Final, Generic, TypeAlias, TypeVar
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from waystation.core.address import LOCAL, Route
from waystation.core.custody import CustodyArrival
from waystation.core.expiry import NEVER, Expiry
from waystation.core.gossip import MemberChange
from waystation.core.identity import uuid_text
from waystation.core.message import INTERNAL, Arrival
from waystation.core.multicast import SubscriptionChange
from waystation.core.outcome import Outcome, Verdict
from waystation.core.record import (
    ChangeRecord,
    ClaimRecord,
    ClockRecord,
    MessageRecord,
    PeerClockRecord,
    Record,
    SessionKind,
    SessionRecord,
)
from waystation.core.routing import RouteChange
from waystation.core.who import is_first_hand
from waystation.errors import LocalError, quote
from waystation.journal.peers import Peers
from waystation.journal.schema import (
    CLAIMS,
    INSTANT,
    MEMBERS,
    MESSAGES,
    NODES,
    ROUTES,
    SCHEMAS,
    SESSIONS,
    SUBSCRIPTIONS,
    TEXT,
    TEXTS,
    NodeKind,
    NodeRecord,
)

Batches: TypeAlias = list[tuple[str, pa.RecordBatch]]
"""Tables and the rows for each."""

Row: TypeAlias = Record | NodeRecord

CACHED_VALUES: Final = 16_384
"""The cache of distinct routes (or verdicts, or broadcasts) is cleared when it exceeds this."""

_ID_DIGITS: Final = 32
# Typed scalars: inferring the type of a bare value takes Arrow a hundred times as long.
_FALSE: Final = pa.scalar(False, pa.bool_())
_NO_TEXT: Final = pa.scalar(None, TEXT)
_NO_NUMBER: Final = pa.scalar(None, pa.int32())
_FORWARDED: Final = pa.scalar("FORWARDED", TEXT)
_THOUSAND: Final = pa.scalar(1_000, pa.int64())
_UNICAST: Final = pa.scalar("unicast", TEXT)
_ASCENDING: Final = pa.array(range(16_385), pa.int64())
_ID_OFFSETS: Final = pa.py_buffer(array("i", range(0, _ID_DIGITS * 16_385, _ID_DIGITS)))
_NULLS: Final = {type: pa.nulls(16_385, type) for type in (TEXT, pa.bool_(), pa.int32())}
_VERDICT: Final = pa.struct({"outcome": TEXT, "reason": TEXT, "next_hop": TEXT, "recipient": TEXT})
_BROADCAST: Final = pa.struct({"kind": TEXT, "multicast_id": TEXT})
_ROUTE: Final = pa.struct({"addresses": TEXTS, "last_name": TEXT, "internal": pa.bool_()})
_PEER: Final = pa.struct({"session": TEXT, "node": TEXT})
_SOURCE: Final = pa.struct({"begins": pa.bool_(), "sender": TEXT})

K = TypeVar("K", bound=Hashable)


# Sampling depends on the message id alone, so that all nodes with the same share keep the same
# messages and traces stay complete. Spark can compute it too: `crc32(message_id)`.


def sample_threshold(share: float) -> int:
    """The CRC-32 below which a message id is kept, for this share of messages.

    >>> sample_threshold(1.0) == 2**32, sample_threshold(0.0)
    (True, 0)
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise LocalError(
            f"invalid share of messages to keep: {quote(share)}",
            rule="OB-4",
            hint="give a number from 0 to 1",
        )
    return round(share * 2**32)


def is_sampled(message_id: str, threshold: int) -> bool:
    """Whether messages with this id are kept.

    >>> [is_sampled(f"{number:032x}", sample_threshold(0.5)) for number in range(1, 5)]
    [False, True, True, False]
    """
    return crc32(message_id.encode()) < threshold


def is_kept(record: object, threshold: int) -> bool:
    """Whether a record is kept: sampled messages, all drops, and everything but messages."""
    if not isinstance(record, MessageRecord) or record.verdict.outcome is Outcome.DROPPED:
        return True
    return is_sampled(record.arrival.message.id, threshold)


# Conversion.


class Distinct(dict[K, int], Generic[K]):
    """A cache of distinct values: each has a number and is converted to Arrow once."""

    def __init__(self, type: pa.DataType, convert: Callable[[K], object], limit: int) -> None:
        super().__init__()
        self._type = type
        self._convert = convert
        self._limit = limit
        self._new: list[object] = []
        self._converted = pa.array([], type)

    def __missing__(self, key: K) -> int:
        self._new.append(self._convert(key))
        number = self[key] = len(self)
        return number

    def column(self, keys: Iterable[K]) -> pa.Array:
        """One row for each key."""
        if len(self) > self._limit:
            self.clear()
            self._converted = pa.array([], self._type)
        numbers = list(map(self.__getitem__, keys))
        if self._new:
            added = pa.array(self._new, self._type)
            self._new.clear()
            self._converted = pa.concat_arrays([self._converted, added])
        if len(self) <= 256:  # building bytes takes a third of the time
            return self._converted.take(_packed(pa.uint8(), len(numbers), bytes(numbers)))
        return self._converted.take(_packed(pa.int32(), len(numbers), array("i", numbers)))


def _verdict_row(verdict: Verdict) -> dict[str, str | None]:
    """The columns of a verdict: where it was sent, who received it, or why neither."""
    outcome, address = verdict.outcome, verdict.address
    sent = outcome is Outcome.FORWARDED and address is not None
    return {
        "outcome": str(outcome),
        "reason": None if verdict.reason is None else str(verdict.reason),
        "next_hop": str(address) if sent else None,
        "recipient": verdict.recipient,
    }


def _route_row(route: Route) -> tuple[list[str], str | None, bool]:
    """The columns of a route: its addresses, the last name in it, and whether it is our own."""
    names = [address.name for address in route.addresses if address.type == LOCAL]
    internal = any(name.startswith(INTERNAL) for name in names)
    return [str(address) for address in route.addresses], names[-1] if names else None, internal


def _broadcast_row(multicast_id: str | None) -> tuple[str, str | None]:
    return ("unicast" if multicast_id is None else "multicast", multicast_id)


class Converter:
    """Turns the records of one incarnation of a node into Arrow batches."""

    def __init__(self, node: str, incarnation: int, cached_values: int = CACHED_VALUES) -> None:
        self._incarnation = pa.scalar(incarnation, pa.int64())
        self._here = pa.scalar(f"{node}/{incarnation}", TEXT)
        self._cached_values = cached_values
        self._peers = Peers()
        self._clear_caches()

    def _clear_caches(self) -> None:
        limit = self._cached_values
        self._routes: Distinct[Route] = Distinct(_ROUTE, _route_row, limit)
        self._broadcasts: Distinct[str | None] = Distinct(_BROADCAST, _broadcast_row, limit)
        self._verdicts: Distinct[Verdict] = Distinct(_VERDICT, _verdict_row, limit)
        self._forget_peers()

    def _forget_peers(self) -> None:
        """Look anew who is behind each session."""
        limit = self._cached_values
        self._sessions_of: Distinct[str | None] = Distinct(_PEER, self._session_row, limit)
        self._sources: Distinct[tuple[str | None, Route]] = Distinct(
            _SOURCE, self._source_row, limit
        )

    def convert(self, rows: Sequence[Row], first_seq: int) -> Batches:
        """Convert records to batches, one per table, with seqs from `first_seq` in their order.

        A record that has no place in the journal gets neither row nor seq. Raises any exception
        if a record's fields do not have their declared types; then nothing is converted.
        """
        try:
            return self._convert(rows, first_seq)
        except Exception:
            self._clear_caches()  # a value cached half-way would spoil later batches
            raise

    def _convert(self, rows: Sequence[Row], first_seq: int) -> Batches:
        try:  # nearly always there are only messages
            return [(MESSAGES, self._messages(rows, _consecutive(first_seq, len(rows))))]
        except AttributeError:
            return self._convert_each_table(rows, first_seq)

    def _convert_each_table(self, rows: Sequence[Row], first_seq: int) -> Batches:
        """Convert records of several kinds; where a session changes its peer, a new part begins."""
        batches: Batches = []
        begin = 0
        for index, row in enumerate(rows):
            if isinstance(row, SessionRecord | PeerClockRecord):
                if self._peers.contradicts(row):
                    part = self._convert_part(rows[begin:index], first_seq)
                    first_seq += sum(batch.num_rows for _, batch in part)
                    batches += part
                    begin = index
                if self._peers.learn(row):
                    self._forget_peers()
        return batches + self._convert_part(rows[begin:], first_seq)

    def _convert_part(self, rows: Sequence[Row], first_seq: int) -> Batches:
        by_table: dict[str, tuple[list[Any], list[int]]] = {}
        journalled = (row for row in rows if _is_journalled(row))
        for seq, row in enumerate(journalled, first_seq):
            table_rows, seqs = by_table.setdefault(_table_of(row), ([], []))
            table_rows.append(row)
            seqs.append(seq)
        return [
            (table, _CONVERT[table](self, table_rows, pa.array(seqs, pa.int64())))
            for table, (table_rows, seqs) in by_table.items()
        ]

    def _batch(self, table: str, seqs: pa.Array, ats: list[int], columns: list[Any]) -> Any:
        incarnation = pa.repeat(self._incarnation, len(seqs))
        every = [incarnation, seqs, _instants(ats)]
        return pa.RecordBatch.from_arrays([*every, *columns], schema=SCHEMAS[table])

    def _messages(self, rows: Sequence[Any], seqs: pa.Array) -> pa.RecordBatch:
        records: Sequence[MessageRecord] = rows
        arrivals = [record.arrival for record in records]
        messages = [arrival.message for arrival in arrivals]
        sizes = [len(message.payload) for message in messages]
        kind, multicast_id = self._broadcasts_of(arrivals)
        verdicts = self._verdicts.column([record.verdict for record in records])
        outcome, reason, next_hop, recipient = verdicts.flatten()
        onward, last_name, to_us = self._routes.column(
            [message.onward_route for message in messages]
        ).flatten()
        back, _, from_us = self._routes.column(
            [message.return_route for message in messages]
        ).flatten()
        *ways, sender = self._ways(records, arrivals)
        if recipient.null_count:  # OB-8; of a multicast, the onward route has no name
            recipient = pc.coalesce(recipient, last_name)
        columns = [
            _message_ids([message.id for message in messages]),
            kind,
            onward,
            back,
            multicast_id,
            outcome,
            reason,
            next_hop,
            recipient,
            _packed(pa.int32(), len(sizes), array("i", sizes)),
            _expiries([message.expiry for message in messages]),
            _flags([arrival.from_global for arrival in arrivals]),
            _instants([arrival.received_at for arrival in arrivals]),
            *ways,
            _copies(multicast_id, outcome, recipient),
            sender,
            *_custody(arrivals),
            pc.or_(to_us, from_us),
        ]
        return self._batch(MESSAGES, seqs, [record.at for record in records], columns)

    def _ways(
        self, records: Sequence[MessageRecord], arrivals: Sequence[Arrival]
    ) -> list[pa.Array]:
        """The columns origin, answers, via, from_node, out, next_node, and sender."""
        vias = [arrival.via for arrival in arrivals]
        backs = [arrival.message.return_route for arrival in arrivals]
        begins, sender = self._sources.column(zip(vias, backs, strict=True)).flatten()
        inside = [arrival.sender for arrival in arrivals]  # by a secure channel
        if inside.count(None) < len(inside):
            sender = pc.coalesce(pa.array(inside, TEXT), sender)
        replies_to = [arrival.replies_to for arrival in arrivals]
        return [
            pc.if_else(begins, self._here, _NO_TEXT),
            _texts(replies_to),
            *self._sessions_of.column(vias).flatten(),
            *self._sessions_of.column([record.out for record in records]).flatten(),
            sender,
        ]

    def _session_row(self, session: str | None) -> tuple[str | None, str | None]:
        """A session, and the node behind it."""
        peer = None if session is None else self._peers.get(session)
        return session, None if peer is None else peer.name

    def _source_row(self, way: tuple[str | None, Route]) -> tuple[bool, str | None]:
        """Whether a message entered the fabric here, and who sent it, if that is proven (ID-2)."""
        via, back = way
        peer = None if via is None else self._peers.get(via)
        sender = peer.identity if peer is not None and is_first_hand(back) else None
        return self._enters_here(way), sender

    def _enters_here(self, way: tuple[str | None, Route]) -> bool:
        """Whether a message entered the fabric here: sent here, or by a stranger.

        What a worker sent on came over no session, but one is in its return route.
        """
        via, back = way
        if via is not None:
            peer = self._peers.get(via)
            return peer is not None and peer.is_stranger
        names = (address.name for address in back.addresses if address.type == LOCAL)
        return not any(self._peers.get(name) for name in names)

    def _broadcasts_of(self, arrivals: Sequence[Arrival]) -> list[pa.Array]:
        ids = [arrival.multicast_id for arrival in arrivals]
        if ids.count(None) == len(ids):
            return [pa.repeat(_UNICAST, len(ids)), pa.nulls(len(ids), TEXT)]
        columns: list[pa.Array] = self._broadcasts.column(ids).flatten()
        return columns

    def _route_changes(self, rows: list[ChangeRecord], seqs: pa.Array) -> pa.RecordBatch:
        changes: list[Any] = [row.change for row in rows]
        entries = [change.entry for change in changes]
        columns = [
            pa.array([str(change.kind) for change in changes], TEXT),
            pa.array([entry.participant for entry in entries], TEXT),
            pa.array([str(entry.address) for entry in entries], TEXT),
            _flags([entry.local for entry in entries]),
            _flags([entry.visible for entry in entries]),
            _expiries([entry.expiry for entry in entries]),
            _flags([entry.sticky for entry in entries]),
            _flags([change.accepted for change in changes]),
            *_sources(rows),
        ]
        return self._batch(ROUTES, seqs, [row.at for row in rows], columns)

    def _subscription_changes(self, rows: list[ChangeRecord], seqs: pa.Array) -> pa.RecordBatch:
        changes: list[Any] = [row.change for row in rows]
        columns = [
            pa.array([str(change.kind) for change in changes], TEXT),
            pa.array([change.pattern for change in changes], TEXT),
            pa.array([change.receiver for change in changes], TEXT),
            *_sources(rows),
        ]
        return self._batch(SUBSCRIPTIONS, seqs, [row.at for row in rows], columns)

    def _member_changes(self, rows: list[ChangeRecord], seqs: pa.Array) -> pa.RecordBatch:
        changes: list[Any] = [row.change for row in rows]
        mappings = [change.mapping for change in changes]
        columns = [
            pa.array([str(change.kind) for change in changes], TEXT),
            pa.array([change.group for change in changes], TEXT),
            pa.array([uuid_text(mapping.uuid) for mapping in mappings], TEXT),
            pa.array([mapping.member.name for mapping in mappings], TEXT),
            pa.array([list(mapping.physical) for mapping in mappings], TEXTS),
            pa.array(
                [getattr(row, "dialect", None) for row in rows], TEXT
            ),  # only a router sets it
        ]
        return self._batch(MEMBERS, seqs, [row.at for row in rows], columns)

    def _nodes(self, rows: list[NodeRecord | ClockRecord], seqs: pa.Array) -> pa.RecordBatch:
        records = [_node_record(row) for row in rows]
        columns = [
            pa.array([str(row.kind) for row in records], TEXT),
            pa.array([row.detail for row in records], TEXT),
            pa.array([row.lost for row in records], pa.int64()),
            pa.array([row.offset_us for row in records], pa.int64()),
        ]
        return self._batch(NODES, seqs, [row.at for row in records], columns)

    def _sessions(
        self, rows: list[SessionRecord | PeerClockRecord], seqs: pa.Array
    ) -> pa.RecordBatch:
        clocks = [row if isinstance(row, PeerClockRecord) else None for row in rows]
        events = [row.session if isinstance(row, PeerClockRecord) else row for row in rows]
        kinds = [
            _SESSION_KINDS[event.kind] if clock is None else "clock"
            for event, clock in zip(events, clocks, strict=True)
        ]
        columns = [
            pa.array(kinds, TEXT),
            pa.array([event.session for event in events], TEXT),
            pa.array([str(event.role) for event in events], TEXT),
            pa.array([event.transport for event in events], TEXT),
            pa.array([event.place for event in events], TEXT),
            pa.array([event.peer for event in events], TEXT),
            pa.array([event.peer_incarnation for event in events], pa.int64()),
            pa.array([event.identity for event in events], TEXT),
            pa.array([event.reason and str(event.reason) for event in events], TEXT),
            pa.array([event.detail or None for event in events], TEXT),
            pa.array([clock and clock.offset_us for clock in clocks], pa.int64()),
            pa.array([clock and clock.rtt_us for clock in clocks], pa.int64()),
        ]
        return self._batch(SESSIONS, seqs, [row.at for row in rows], columns)

    def _claims(self, rows: list[ClaimRecord], seqs: pa.Array) -> pa.RecordBatch:
        columns = [
            pa.array([str(row.kind) for row in rows], TEXT),
            pa.array([row.participant for row in rows], TEXT),
            pa.array([row.session for row in rows], TEXT),
            pa.array([row.owner for row in rows], TEXT),
            _flags([row.proven for row in rows]),
            pa.array([row.origin for row in rows], TEXT),
            pa.array([row.number for row in rows], pa.int64()),
            pa.array([list(row.path) for row in rows], TEXTS),
            pa.array([row.reason and str(row.reason) for row in rows], TEXT),
            pa.array([row.detail or None for row in rows], TEXT),
        ]
        return self._batch(CLAIMS, seqs, [row.at for row in rows], columns)


_CONVERT: Final[dict[str, Callable[[Converter, list[Any], pa.Array], pa.RecordBatch]]] = {
    NODES: Converter._nodes,  # noqa: SLF001 - of this module
    ROUTES: Converter._route_changes,  # noqa: SLF001
    SUBSCRIPTIONS: Converter._subscription_changes,  # noqa: SLF001
    MEMBERS: Converter._member_changes,  # noqa: SLF001
    SESSIONS: Converter._sessions,  # noqa: SLF001
    CLAIMS: Converter._claims,  # noqa: SLF001
    MESSAGES: Converter._messages,  # noqa: SLF001
}

_SESSION_KINDS: Final = {
    SessionKind.OPENED: "open",
    SessionKind.CLOSED: "close",
    SessionKind.REFUSED: "refused",
    SessionKind.DENIED: "denied",
}

_TABLE_OF_CHANGE: Final = {
    RouteChange: ROUTES,
    SubscriptionChange: SUBSCRIPTIONS,
    MemberChange: MEMBERS,
}


def _is_journalled(row: Row) -> bool:
    change = row.change if isinstance(row, ChangeRecord) else None
    return not isinstance(change, RouteChange) or change.journalled


def _table_of(row: Row) -> str:
    if isinstance(row, MessageRecord):
        return MESSAGES
    if isinstance(row, ChangeRecord):
        return _TABLE_OF_CHANGE[type(row.change)]
    if isinstance(row, NodeRecord | ClockRecord):
        return NODES
    if isinstance(row, SessionRecord | PeerClockRecord):
        return SESSIONS
    if isinstance(row, ClaimRecord):
        return CLAIMS
    raise TypeError(f"the journal has no table for a {type(row).__name__}")


def _node_record(row: NodeRecord | ClockRecord) -> NodeRecord:
    if isinstance(row, NodeRecord):
        return row
    return NodeRecord(NodeKind.CLOCK, row.detail, row.at, offset_us=row.offset_us)


def _sources(rows: list[ChangeRecord]) -> list[pa.Array]:
    """The columns that say whose word each change was."""
    return [
        pa.array([row.session for row in rows], TEXT),
        pa.array([row.cause and str(row.cause) for row in rows], TEXT),
        pa.array([row.message_id for row in rows], TEXT),
    ]


def _texts(values: list[str | None]) -> pa.Array:
    """Texts that are mostly null for all rows."""
    if values.count(None) == len(values):
        return _nulls(TEXT, len(values))
    return pa.array(values, TEXT)


def _copies(multicast_id: pa.Array, outcome: pa.Array, recipient: pa.Array) -> pa.Array:
    """Which copy of a multicast a row is about: 1 for the one upward, which is for nobody here."""
    if multicast_id.null_count == len(multicast_id):
        return _nulls(pa.int32(), len(multicast_id))
    upward = pc.and_(pc.equal(outcome, _FORWARDED), pc.is_null(recipient))
    return pc.if_else(pc.is_valid(multicast_id), pc.cast(upward, pa.int32()), _NO_NUMBER)


def _custody(arrivals: Sequence[Arrival]) -> list[pa.Array]:
    """The columns durable, attempt, custodian; mostly there is no durable message at all."""
    if CustodyArrival not in set(map(type, arrivals)):
        return [_nulls(type_, len(arrivals)) for type_ in (pa.bool_(), pa.int32(), TEXT)]
    durable = [one if isinstance(one, CustodyArrival) else None for one in arrivals]
    return [
        pa.array([None if one is None else True for one in durable], pa.bool_()),
        pa.array([None if one is None else one.attempt for one in durable], pa.int32()),
        _texts([None if one is None else one.custodian for one in durable]),
    ]


def _nulls(type: pa.DataType, count: int) -> pa.Array:
    nulls = _NULLS[type]
    return nulls[:count] if count <= len(nulls) else pa.nulls(count, type)


def _packed(type: pa.DataType, count: int, values: array[int] | bytes) -> pa.Array:
    return pa.Array.from_buffers(type, count, [None, pa.py_buffer(values)])


def _longs(type: pa.DataType, values: list[Any]) -> pa.Array:
    """64-bit integers; struct.error for anything else. A third faster than `pa.array`."""
    return _packed(type, len(values), pack(f"{len(values)}q", *values))


def _consecutive(first: int, count: int) -> pa.Array:
    steps = _ASCENDING if count <= len(_ASCENDING) else pa.array(range(count), pa.int64())
    return pc.add(steps[:count], pa.scalar(first, pa.int64()))


def _instants(microseconds: list[int]) -> pa.Array:
    return _longs(INSTANT, microseconds)


def _flags(values: list[bool]) -> pa.Array:
    return pa.array(values, pa.bool_()) if any(values) else pa.repeat(_FALSE, len(values))


def _expiries(milliseconds: list[Expiry]) -> pa.Array:
    if milliseconds[0] == NEVER and milliseconds.count(NEVER) == len(milliseconds):
        return pa.nulls(len(milliseconds), INSTANT)
    try:
        values = _longs(pa.int64(), milliseconds)
    except StructError:  # some are NEVER
        optional = [None if expiry == NEVER else expiry for expiry in milliseconds]
        values = pa.array(optional, pa.int64())
    return pc.multiply_checked(values, _THOUSAND).view(INSTANT)


def _message_ids(ids: list[str]) -> pa.Array:
    """As `pa.array`, in less than half the time if every id has 32 digits."""
    count = len(ids)
    text = "".join(ids)
    if len(text) != count * _ID_DIGITS or not text.isascii() or count >= len(_ASCENDING):
        return pa.array(ids, TEXT)
    if "|".join(ids)[_ID_DIGITS :: _ID_DIGITS + 1] != "|" * (count - 1):
        return pa.array(ids, TEXT)
    buffers = [None, _ID_OFFSETS, pa.py_buffer(text.encode())]
    return pa.Array.from_buffers(TEXT, count, buffers)
