"""Journeys of one message over made-up nodes, and what is true of each."""

from __future__ import annotations

from random import Random

from msgspec import Struct

from waystation.core.coverage import Life
from waystation.core.visits import Evidence, Fate, Step

MESSAGE = "4bf92f3577b34da6a3ce929d0e0e4736"
BEGIN = 1_700_000_000_000_000
SECOND = 1_000_000
MINUTE = 60 * SECOND
LATER = BEGIN + 3600 * SECOND
SILENT = frozenset({"silent-1", "silent-2"})
"""Nodes that keep no journal."""

SHORT = frozenset({"short-1", "short-2"})
"""Nodes whose record does not reach far."""

NODES = ("a", "b", "c", "d", "e", *sorted(SILENT), *sorted(SHORT))


class Truth(Struct):
    """What is true of a visit."""

    follows: tuple[str, int] | None  # its node and received_at
    fates: list[Fate]


def role_of(session: str) -> str:
    """The role of a session, by its name."""
    return "global" if session.startswith("mqtt") else "peer"


class Journey:
    """A message on its way: writes rows, and notes what is true of them."""

    def __init__(
        self,
        seed: int,
        ahead: dict[str, int] | None = None,
        begin: int = BEGIN,
        first: int = 0,
        answers: str | None = None,
        start: str | None = None,
    ) -> None:
        self._random = random = Random(seed)
        self.ahead = ahead or {node: random.choice((0, 3, -3)) * MINUTE for node in NODES}
        self.steps: list[Step] = []
        self.truth: dict[tuple[str, int], Truth] = {}
        self.answers = answers
        self._now = begin
        self._count = first
        self.is_multicast = random.random() < 0.5
        onward = ("255#a/news",) if self.is_multicast else ("0#x", "0#y", "0#z")
        back = random.choice(((), ("0#request-1",)))
        start = start or random.choice([node for node in NODES if node not in SILENT])
        self.origin = f"{start}/1"
        self._visit(start, onward, back, None, None, 4)

    @property
    def evidence(self) -> Evidence:
        lives = {
            node: [Life(1, 0, 1 if node in SHORT else LATER)]
            for node in NODES
            if node not in SILENT
        }
        return Evidence(
            correction=lambda node, _at: self.ahead[node],
            role=lambda _node, _incarnation, session: role_of(session),
            lives=lives,
        )

    def _tick(self) -> int:
        self._now += self._random.randint(1, 5 * SECOND)
        return self._now

    def _new(self) -> int:
        self._count += 1
        return self._count

    def _visit(
        self,
        node: str,
        onward: tuple[str, ...],
        back: tuple[str, ...],
        came: tuple[str, str | None] | None,
        follows: tuple[str, int] | None,
        depth: int,
    ) -> None:
        visit = self._arrive(node, onward, back, came, follows)
        if self._random.random() < 0.2:
            if self._random.random() < 0.3:
                visit.write("QUEUED", Fate.WAITING, recipient="waiting")
                return
            visit.write("QUEUED", Fate.SETTLED, recipient="x")
            if self._random.random() < 0.5:  # it waited for somebody absent, and enters anew
                visit = self._arrive(node, onward, back, came, follows)
        if depth == 0 or self._random.random() < 0.2:
            visit.end(self._random)
            return
        if not self.is_multicast and len(onward) > 1 and self._random.random() < 0.3:
            visit.write("DELIVERED", Fate.DELIVERED, recipient=onward[0][2:])
            back = (f"0#worker-{self._new()}", *back)
            self._visit(node, onward[1:], back, None, visit.name, depth - 1)
            return
        self._go_on(visit, depth)

    def _arrive(
        self,
        node: str,
        onward: tuple[str, ...],
        back: tuple[str, ...],
        came: tuple[str, str | None] | None,
        follows: tuple[str, int] | None,
    ) -> _Here:
        received = self._tick() + self.ahead[node]
        true = self.truth[node, received] = Truth(follows, [])
        via, from_node = came or (None, None)
        return _Here(self, node, onward, back, via, from_node, received, true)

    def _go_on(self, visit: _Here, depth: int) -> None:
        others = [other for other in NODES if other != visit.node]
        count = self._random.randint(1, 3) if self.is_multicast else 1
        for next_node in self._random.sample(others, count):
            self._leave(visit, next_node, visit.name, depth)
        if self.is_multicast and not visit.from_global and self._random.random() < 0.3:
            self._publish(visit, depth)

    def _publish(self, visit: _Here, depth: int) -> None:
        """Let a copy go over a broker, to any number of nodes."""
        reached = self._random.sample(["a", "b", "c", "d"], self._random.randint(0, 2))
        fate = Fate.PASSED_ON if reached else Fate.LEFT
        visit.write("FORWARDED", fate, out=f"mqtt-{self._new()}", next_node=None)
        for node in reached:
            via = (f"mqtt-{self._new()}", None)
            self._visit(node, visit.onward, visit.back, via, visit.name, depth - 1)

    def _leave(self, visit: _Here, next_node: str, here: tuple[str, int], depth: int) -> None:
        """Let a copy go to another node, or vanish on the way."""
        lost = self._random.random() < 0.25
        silent = next_node in SILENT
        relayed = silent and not lost and self._random.random() < 0.6
        if silent:
            fate = Fate.PASSED_ON if relayed else Fate.LEFT
        elif lost:
            fate = Fate.UNKNOWN if next_node in SHORT else Fate.VANISHED
        else:
            fate = Fate.PASSED_ON
        visit.write("FORWARDED", fate, out=f"tcp-{self._new()}", next_node=next_node, recipient="x")
        if fate is not Fate.PASSED_ON:
            return
        via = f"tcp-{self._new()}"
        back, from_node = (f"0#{via}", *visit.back), visit.node
        if relayed:
            from_node = next_node
            next_node = self._random.choice([n for n in NODES if n not in SILENT])
            via = f"tcp-{self._new()}"
            back = (f"0#{via}", *back)
        onward = visit.onward
        if len(onward) > 1 and self._random.random() < 0.3:
            onward = onward[1:]
        self._visit(next_node, onward, back, (via, from_node), here, depth - 1)


class _Here:
    """A visit that is being written."""

    def __init__(
        self,
        journey: Journey,
        node: str,
        onward: tuple[str, ...],
        back: tuple[str, ...],
        via: str | None,
        from_node: str | None,
        received: int,
        true: Truth,
    ) -> None:
        self._journey = journey
        self.node, self.onward, self.back = node, onward, back
        self.name = (node, received)
        self.from_global = via is not None and role_of(via) == "global"
        self._via, self._from_node, self._received = via, from_node, received
        self._true = true

    def write(self, outcome: str, fate: Fate, **columns: object) -> None:
        journey = self._journey
        begun = self._true.follows is None
        journey.steps.append(
            Step(
                node=self.node,
                incarnation=1,
                seq=journey._new(),
                at=journey._tick() + journey.ahead[self.node],
                received_at=self._received,
                outcome=outcome,
                onward=self.onward,
                back=self.back,
                via=self._via,
                from_node=self._from_node,
                from_global=self.from_global,
                multicast_id="a/news" if journey.is_multicast else None,
                origin=journey.origin if begun else None,
                answers=journey.answers if begun else None,
                version=2,
                **columns,  # type: ignore[arg-type]
            )
        )
        self._true.fates.append(fate)

    def end(self, random: Random) -> None:
        if random.random() < 0.5:
            self.write("DELIVERED", Fate.DELIVERED, recipient="x")
        else:
            self.write("DROPPED", Fate.DROPPED, reason="QUEUE_FULL", recipient="x")
