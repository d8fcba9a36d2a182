"""The names in a simulated fleet: of nodes, participants, sessions, routes, topics and messages.

What the other modules compute with are numbers; here each distinct one becomes a text, once, and
Arrow copies it to its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from waystation.core.multicast import ADDRESS_TYPE
from waystation.journal.schema import INSTANT, TEXT, TEXTS
from waystation.simulate.fleet import (
    APPS,
    HUB,
    MILLISECOND,
    NEVER,
    NOBODY,
    SENDERS,
    STRANGERS,
    WINDOWS,
    Array,
    Cell,
    Dice,
    Fleet,
    uptimes,
)
from waystation.simulate.links import Sessions, leaf_sessions
from waystation.simulate.traffic import (
    ACCEPTED,
    FIRST_NAME,
    FORMER_HUB,
    NEXT_HUB,
    SENDER,
    TO_HUB,
    Links,
    Outcome,
    Rows,
    Way,
)

BROADCAST_NAMES: Final = ("position", "temperature", "door", "battery", "lottery")
_OUR_OWN: Final = "waystation.status"  # the sender of messages between nodes themselves
_FORMER_CELL: Final = -10  # and below: nodes of the former cell
_FORMS: Final = 8
_ANSWERS: Final = 1 << 39
_LAPS: Final = 28  # a message that goes round has more addresses than this in its return route


class Names:
    """The names of the nodes, participants, sessions and routes of a cell."""

    def __init__(self, cell: Cell, links: Links) -> None:
        fleet, number = cell.fleet, cell.number
        self.cell = cell
        self._following, self._preceding = fleet.following(number), fleet.preceding(number)
        self._theirs = fleet.sizes(self._following)[0]
        self._leaf_names = cell.participants + STRANGERS
        self._app_names = self._leaf_names + cell.leaves + 1
        self._their_names = self._app_names + SENDERS
        self._session_names = self._their_names + self._theirs + STRANGERS
        self._own = _accepted(fleet, number, links.leaves)
        self._between = _accepted(fleet, self._preceding, links.former, hubs=True)
        alone = fleet.cells == 1
        ups = uptimes(fleet, self._preceding)
        there = links.leaves if alone else leaf_sessions(fleet, self._preceding, ups)
        self._former = _accepted(fleet, self._preceding, there)
        self.sessions = [None, self.node(HUB), _hub(self._following), *self._own, *self._between]
        """By number, as traffic.py counts them."""
        begin = (cell.uptimes.begin + cell.clocks[:, None]) // MILLISECOND
        self.incarnations = begin.ravel()
        """By node and window."""
        places = [self.node(group // WINDOWS) for group in range(begin.size)]
        self._origins = pa.array(
            [f"{name}/{begun}" for name, begun in zip(places, self.incarnations, strict=True)]
        )
        self._nodes = [_hub(self._preceding), _hub(self._following), None]
        self._nodes += [self.node(node) for node in range(cell.leaves + 1)]

    # Nodes

    def node(self, number: int) -> str:
        """The name of a node of this cell."""
        return _node(self.cell.number, number)

    def nodes(self, numbers: Array) -> pa.Array:
        """The names of nodes of this cell, and of the hubs beside it."""
        return pa.array(self._nodes, TEXT).take(pa.array(numbers - FORMER_HUB))

    def former_node(self, numbers: Array) -> Array:
        """Numbers for nodes of the former cell."""
        own: Array = _FORMER_CELL - numbers
        return own

    def any_node(self, number: int) -> str | None:
        """The name of a node, the former cell's included."""
        if number <= _FORMER_CELL:
            return _node(self._preceding, _FORMER_CELL - number)
        return self._nodes[number - FORMER_HUB]

    def address(self, number: int, cell: int | None = None) -> str:
        """The address of a node."""
        cell = self.cell.number if cell is None else cell
        network, subnet = divmod(cell, 64_000)  # so that 15 million cells have an address
        return f"1#{10 + network}.{subnet // 250}.{subnet % 250}.{number + 1}:4000"

    def place(self, number: int) -> str | None:
        """The address of a node of this cell, or of the hubs beside it, as a session has it."""
        if number == NEXT_HUB:
            return self.address(HUB, self._following)
        if number == FORMER_HUB:  # it dialled, from a port of the moment
            return self.address(HUB, self._preceding).replace(":4000", ":50001")
        return None if number == NOBODY else self.address(number)

    def origins(self, rows: Rows) -> pa.Array:
        """The nodes where messages began."""
        code = np.where(rows.foreign, self.former_node(rows.sender), rows.sender)
        return spelled(code, self.any_node, TEXT)

    def origins_here(self, rows: Rows) -> pa.Array:
        """The incarnations in which messages began, where they did."""
        group = pa.array(rows.node * WINDOWS + rows.window, mask=rows.stage > 0)
        return self._origins.take(group)

    # Participants

    def participant(self, number: int) -> str | None:
        """The name of a participant, a leaf, an application, a session, or somebody unknown."""
        if number >= self._session_names:
            return self.sessions[number - self._session_names]
        if number >= self._their_names:
            return self._truck(number - self._their_names, self._following, self._theirs)
        if number >= self._app_names:
            return _app(number - self._app_names)
        if number >= self._leaf_names:
            return self.node(number - self._leaf_names)
        return self._truck(number, self.cell.number, self.cell.participants)

    def app_as_participant(self, app: Any) -> Any:
        """The number of an application's entry at its node."""
        return self._app_names + app

    def _truck(self, number: int, cell: int, known: int) -> str | None:
        if number < 0:
            return None
        return f"truck-{cell}-{number}" if number < known else f"ghost-{number - known}"

    def recipient_codes(self, rows: Rows) -> Array:
        """A number for each distinct recipient."""
        there = (rows.way == Way.ACROSS) & ~rows.foreign
        first = np.where(rows.node == HUB, ACCEPTED + rows.across, TO_HUB)
        who = rows.recipient
        codes: Array = np.select(
            [who == SENDER, who == FIRST_NAME, there & (who != NOBODY)],
            [
                self.app_as_participant(rows.app),
                self._session_names + first,
                self._their_names + who,
            ],
            who,
        )
        return codes

    def recipients(self, rows: Rows) -> pa.Array:
        """For whom each row was."""
        return spelled(self.recipient_codes(rows), self.participant, TEXT)

    @staticmethod
    def copies(rows: Rows) -> pa.Array:
        """Which copy of a multicast each row is about."""
        return pa.array(rows.copy, pa.int32(), mask=rows.way != Way.PUBLISHED)

    # Routes

    def onward_codes(self, rows: Rows) -> Array:
        """A number for each distinct onward route."""
        across = (rows.way == Way.ACROSS) & ~rows.foreign
        first = (rows.way == Way.WITHIN) & (rows.stage == 0)
        published = rows.way == Way.PUBLISHED
        form = np.select(
            [rows.answer, published, across, first], [5 + rows.stage, 4, 2 + rows.stage, 0], 1
        )
        back = np.where(rows.stage < 2, rows.across, 0) * SENDERS + rows.app
        what = np.select([rows.answer, published], [back, rows.topic], rows.target)
        codes: Array = what * _FORMS + form
        return codes

    def onward(self, code: int) -> list[str]:
        """An onward route."""
        what, form = divmod(code, _FORMS)
        if form == 4:
            return [f"{ADDRESS_TYPE}#{self.topic(what)}"]
        if form > 4:
            session, app = divmod(what, SENDERS)
            back = [f"0#{self.node(HUB)}", f"0#{self._own[session]}", f"0#{_app(app)}"]
            return back[form - 5 :]
        own = f"0#{self._truck(what, self.cell.number, self.cell.participants)}"
        there = f"0#{self._truck(what, self._following, self._theirs)}"
        hub, next_hub = self.address(HUB), self.address(HUB, self._following)
        return [[hub, own], [own], [hub, next_hub, there], [next_hub, there]][form]

    def back_codes(self, rows: Rows) -> Array:
        """A number for each distinct return route."""
        padding = np.maximum(rows.padding - _LAPS, 0)
        tail = np.where(rows.answer, SENDERS * 4 + rows.target, rows.app * 4 + padding)
        up = np.where(rows.stage > 0, rows.up, NOBODY) + 1
        across = np.where(rows.foreign, rows.across, NOBODY) + 1
        from_hub = (rows.stage > 0) & (rows.via == TO_HUB)
        ups = 1 + max(len(self._own), len(self._former))
        tails = SENDERS * 4 + self._leaf_names
        way = (from_hub * (1 + len(self._between)) + across) * ups + up
        codes: Array = (way * 2 + rows.foreign) * tails + tail
        return codes

    def back(self, code: int) -> list[str]:
        """A return route: the sessions it came over, the last one first, and the sender."""
        ups = 1 + max(len(self._own), len(self._former))
        way, tail = divmod(code, SENDERS * 4 + self._leaf_names)
        way, foreign = divmod(way, 2)
        way, up = divmod(way, ups)
        from_hub, across = divmod(way, 1 + len(self._between))
        route = [f"0#{self.node(HUB)}"] if from_hub else []
        route += [f"0#{self._between[across - 1]}"] if across else []
        route += [f"0#{(self._former if foreign else self._own)[up - 1]}"] if up else []
        if tail >= SENDERS * 4:
            return [*route, f"0#{self.participant(tail - SENDERS * 4)}"]
        app, padding = divmod(tail, 4)
        laps = ["0#round"] * (padding + _LAPS if padding else 0)
        return [*route, f"0#{_app(app)}", *laps]

    def next_hops(self, rows: Rows) -> pa.Array:
        """The addresses that messages were sent to: of the node, or of a multicast the session."""
        places = [self.place(number + FORMER_HUB) for number in range(len(self._nodes))]
        named = [None if name is None else f"0#{name}" for name in self.sessions]
        hops = pa.array([*places, *named], TEXT)
        published = rows.way == Way.PUBLISHED
        which = np.where(published, len(places) + rows.out, rows.next - FORMER_HUB)
        return hops.take(pa.array(which, mask=rows.outcome != Outcome.FORWARDED))

    def session_names(self, numbers: Array) -> pa.Array:
        """The local names of sessions."""
        return pa.array(self.sessions, TEXT).take(pa.array(numbers))

    # Topics

    def topic(self, code: int) -> str | None:
        """A multicast id."""
        if code == NOBODY:
            return None
        code, zone = divmod(code, self.cell.zones)
        broadcast, region = divmod(code, self.cell.regions)
        return f"{self._channel(broadcast)}/r{region}/z{zone}"

    def pattern(self, kind: int, broadcast: int, region: int, zone: int) -> str:
        """A subscription pattern; kind 3 covers a whole broadcast."""
        partition = (f"r{region}/z{zone}", f"+/z{zone}", f"r{region}/*", "*")[kind]
        return f"{self._channel(broadcast)}/{partition}"

    def _channel(self, broadcast: int) -> str:
        return f"fleet-{self.cell.number}/{BROADCAST_NAMES[broadcast]}"

    # Messages

    def message_ids(self, rows: Rows) -> pa.Array:
        """The ids of messages."""
        return self.ids_of(rows.number, rows.answer, rows.foreign)

    def answered(self, rows: Rows) -> pa.Array:
        """The ids of the requests that answers belong to, where these begin."""
        begins = rows.answer & (rows.stage == 0)
        answers = rows.where(begins)
        ids = self.ids_of(answers.number, ~answers.answer, answers.foreign)
        return ids.take(pa.array(np.cumsum(begins) - 1, mask=~begins))

    def ids_of(self, number: Array, answer: Array, foreign: Array) -> pa.Array:
        """The ids of messages; an answer has the number of its request."""
        fleet = self.cell.fleet
        number = number + answer * _ANSWERS
        if foreign.any():
            digits = np.empty((len(number), 32), np.uint8)
            for theirs, origin in ((False, self.cell.number), (True, self._preceding)):
                chosen = foreign == theirs
                digits[chosen] = hex_ids(fleet, origin, number[chosen])
        else:
            digits = hex_ids(fleet, self.cell.number, number)
        offsets = np.arange(len(digits) + 1, dtype=np.int32) * 32
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(digits))]
        return pa.Array.from_buffers(TEXT, len(digits), buffers)


def _app(number: int) -> str:
    return f"app-{number}" if number < APPS else _OUR_OWN


def _hub(cell: int) -> str:
    return _node(cell, HUB)


def _node(cell: int, number: int) -> str:
    return f"hub-{cell:04d}" if number == HUB else f"leaf-{cell:04d}-{number:02d}"


def _accepted(fleet: Fleet, cell: int, sessions: Sessions, *, hubs: bool = False) -> list[str]:
    """The names of sessions at the node that accepted them."""
    numbers = (sessions.link + (1_000 if hubs else 0)) * 64 + sessions.number
    bits = Dice(fleet.seed, cell, 11).bits("session", numbers)
    return [f"tcp-{number:016x}" for number in bits.tolist()]


def spelled(codes: Array, spell: Callable[[int], Any], type: pa.DataType) -> pa.Array:
    """The strings for these numbers; each distinct one is created once."""
    low, high = int(codes.min(initial=0)), int(codes.max(initial=0))
    if high - low <= 4 * len(codes):  # count them: sorting takes several times as long
        seen = np.zeros(high - low + 1, bool)
        seen[codes - low] = True
        distinct = np.flatnonzero(seen) + low
        which = (np.cumsum(seen) - 1)[codes - low]
    else:
        distinct, which = np.unique(codes, return_inverse=True)
    return pa.array([spell(code) for code in distinct.tolist()], type).take(pa.array(which))


def routes(codes: Array, spell: Callable[[int], list[str]]) -> pa.Array:
    """The routes for these numbers."""
    return spelled(codes, spell, TEXTS)


def instants(microseconds: Array) -> pa.Array:
    """Times; NEVER is null."""
    return pa.array(microseconds, pa.int64(), mask=microseconds == NEVER).cast(INSTANT)


_DIGITS: Final = np.frombuffer(
    bytes.fromhex("".join(f"{b:02x}".encode().hex() for b in range(256))), np.uint16
)


def hex_ids(fleet: Fleet, cell: int, numbers: Array) -> Array:
    """The ids of messages that began in a cell, as rows of 32 characters.

    One half is random; the other is a bijective mix of cell and number, so that all are different.
    """
    whole_fleet = np.uint64(cell << 40) + numbers.astype(np.uint64) % np.uint64(1 << 40)
    halves = np.column_stack(
        [
            Dice(fleet.seed, cell, 4).bits("id", numbers),
            Dice(fleet.seed, 5).bits("id, rest", whole_fleet),
        ]
    )
    return _DIGITS[halves.view(np.uint8)].view(np.uint8)
