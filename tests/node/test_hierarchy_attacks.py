"""Leaves that lie, flood and break: each costs itself at most, and leaves nothing behind.

The leaf is raw bytes, so that it can do what none of ours does. After every attack the hub serves
an honest peer, and when the attacker is gone, nothing is left of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.node.live import RawPeer, nothing_is_left, raw_listener, serves_an_honest_peer
from tests.node.test_hubs import QUIET, hub, knows, leaf
from waystation.core.address import Address, Route
from waystation.core.message import Message
from waystation.core.outcome import Outcome, Reason
from waystation.core.record import SessionKind
from waystation.core.routing import RoutingEntry
from waystation.errors import LocalError
from waystation.node import Limits, Node, Queue, Wait
from waystation.node.waiting import Waiting
from waystation.testing import (
    DEADLINE,
    ManualClock,
    Recorder,
    async_test,
    collect,
    echo,
    settle,
    until,
)
from waystation.wire.hierarchy import (
    Announce,
    Declined,
    Payload,
    Resolve,
    Resolved,
    Subscribe,
    Unsubscribe,
    Withdraw,
    encode,
    read,
)
from waystation.wire.ockam import PREFACE, encode_control, encode_frame

TRUCK = "truck-7"
TOKEN = b"secret"
MEGABYTES = 4 * 1024 * 1024


class Attacker(RawPeer):
    """A leaf that says whatever the test wants."""

    def tell(self, *said: Payload) -> None:
        """Say things to the hub's session."""
        for one in said:
            self.control(encode(one))

    def announce(self, *names: str, expiry: int | None = None) -> None:
        """Announce participants."""
        self.tell(Announce([(name, True, expiry) for name in names]))

    async def was_heard(self) -> None:
        """Return when the hub has taken everything that was said so far."""
        self.send("echo", b"heard?")
        assert (await self.hear()).payload == b"heard?"

    def unsent(self) -> int:
        """Bytes that the hub has not taken yet."""
        size: int = self.writer.transport.get_write_buffer_size()
        return size

    def declined(self) -> list[str]:
        """What the hub did not take, as it said until now."""
        said = [read(payload) for payload in self.controls]
        return [one.why for one in said if isinstance(one, Declined)]


@asynccontextmanager
async def attacked(**options: Any) -> AsyncIterator[tuple[Node, Recorder, str]]:
    """A hub with an echo that must be sound when the attack is over."""
    options = {"limits": QUIET, **options}
    async with Node("hub", hub=True, **options) as center:
        journal = Recorder(center)
        echo(center)
        listening = await center.listen("tcp://127.0.0.1:0")
        yield center, journal, listening.place
        await serves_an_honest_peer(listening.place)
        await nothing_is_left(center)
        assert len(center.router.subscriptions) == 0
        journal.check_outcomes()


def entries(node: Node) -> dict[str, Address]:
    table = node.router.table.snapshot(node.now())
    return {name: entry.address for name, entry in table.items()}


# Names that are not the leaf's


@pytest.mark.rule("RE-3")
@pytest.mark.parametrize(
    "name", ["echo", "waystation.directory", "waystation.anything", "request-1", "request-"]
)
@async_test
async def test_a_name_of_the_hub_itself_cannot_be_announced(name: str) -> None:
    async with attacked() as (center, _, place):
        attacker = await Attacker.dial(place)
        before = entries(center).get(name)
        attacker.announce(name, "honest")
        await attacker.was_heard()
        assert entries(center).get(name) == before
        assert knows(center, "honest")  # what stands beside it is taken
        assert any(name in why for why in attacker.declined())
        attacker.tell(Withdraw([name]), Subscribe([("p/b", name)]))
        await attacker.was_heard()
        assert entries(center).get(name) == before
        assert len(center.router.subscriptions) == 0
        attacker.close()


@async_test
async def test_the_session_of_another_leaf_cannot_be_announced() -> None:
    async with attacked() as (center, _, place):
        victim, attacker = await Attacker.dial(place), await Attacker.dial(place)
        await victim.was_heard()
        await attacker.was_heard()
        for session in center.sessions:
            attacker.announce(session.name)
        await attacker.was_heard()
        assert len(attacker.declined()) == 2
        victim.close()
        attacker.close()


ABSURD = ["", " ", "two words", "a=>b", "0xff", "line\nbreak", "\x00", "\u202e", "tab\t"]


@pytest.mark.rule("RE-1")
@async_test
async def test_a_name_that_no_route_can_name_is_declined() -> None:
    async with attacked() as (center, _, place):
        attacker = await Attacker.dial(place)
        for name in ABSURD:
            attacker.announce(name)
        attacker.announce(*ABSURD, "honest")
        await attacker.was_heard()
        assert not entries(center).keys() & set(ABSURD)
        assert knows(center, "honest")
        assert len(attacker.declined()) == len(ABSURD)
        attacker.close()


@async_test
async def test_a_name_as_long_as_a_book_is_declined() -> None:
    async with attacked() as (center, _, place):
        attacker = await Attacker.dial(place)
        attacker.announce("x" * 1_000_000)
        await attacker.was_heard()
        attacker.close()
        assert max(map(len, entries(center))) < 100_000


@pytest.mark.rule("RE-1", "RE-16")
@pytest.mark.parametrize("expiry", [-1, 253_402_300_800_000, 10**30])
@async_test
async def test_an_expiry_that_is_no_instant_is_declined(expiry: int) -> None:
    async with attacked() as (center, _, place):
        attacker = await Attacker.dial(place)
        attacker.announce(TRUCK, expiry=expiry)
        await attacker.was_heard()
        assert not knows(center, TRUCK)
        assert "invalid expiry" in attacker.declined()[0]
        attacker.close()


@pytest.mark.rule("RE-10")
@async_test
async def test_what_was_over_before_it_was_announced_is_not_there() -> None:
    async with hub() as (center, url):
        attacker = await Attacker.dial(url.removeprefix("tcp://"))
        attacker.announce(TRUCK, expiry=1)
        attacker.announce("after")
        await until(lambda: knows(center, "after"))
        assert not knows(center, TRUCK)
        attacker.close()


# Too many


@async_test
async def test_no_leaf_announces_more_participants_than_it_may() -> None:
    async with attacked(limits=Limits(heartbeat=0, participants=3)) as (center, _, place):
        attacker = await Attacker.dial(place)
        attacker.announce("a", "b", "c", "d", "e")
        attacker.announce("a", "b", "c")  # known ones do not count twice
        await attacker.was_heard()
        assert [name for name in "abcde" if knows(center, name)] == ["a", "b", "c"]
        assert attacker.declined() == ["a session announces at most 3 participants"]
        attacker.tell(Withdraw(["a", "a", "nobody"]))
        attacker.announce("d", "e")
        await attacker.was_heard()
        assert [name for name in "abcde" if knows(center, name)] == ["b", "c", "d"]
        attacker.close()
        other = await Attacker.dial(place)  # the limit is each leaf's own
        other.announce("x", "y", "z")
        await other.was_heard()
        assert knows(center, "z")
        other.close()


@async_test
async def test_participants_whose_time_is_over_make_room_for_others() -> None:
    clock = ManualClock()
    limits = Limits(heartbeat=0, participants=2)
    async with Node("hub", hub=True, limits=limits, clock=clock) as center:
        echo(center)
        listening = await center.listen("tcp://127.0.0.1:0")
        attacker = await Attacker.dial(listening.place)
        attacker.announce("a", "b", expiry=center.now() + 1_000)
        await attacker.was_heard()
        clock.advance(2)
        attacker.announce("c")
        await attacker.was_heard()
        attacker.close()
        assert knows(center, "c")


@async_test
async def test_a_name_that_went_to_another_leaf_does_not_count_any_more() -> None:
    async with attacked(limits=Limits(heartbeat=0, participants=1)) as (center, _, place):
        first, second = await Attacker.dial(place), await Attacker.dial(place)
        first.announce("a")
        await first.was_heard()
        second.announce("a")
        await second.was_heard()
        first.announce("b")
        await first.was_heard()
        first.close()
        second.close()
        assert knows(center, "b")


@async_test
async def test_no_leaf_subscribes_without_bound() -> None:
    async with attacked(limits=Limits(heartbeat=0, participants=100)) as (center, _, place):
        attacker = await Attacker.dial(place)
        attacker.announce("a")
        for part in range(20):
            attacker.tell(Subscribe([(f"p/b/{part}x{i}", "a") for i in range(100)]))
        await attacker.was_heard()
        held = len(center.router.subscriptions)
        attacker.close()
        assert held < 2_000


@async_test
async def test_ten_thousand_participants_go_with_the_leaf_that_announced_them() -> None:
    async with attacked() as (center, _, place):
        attacker = await Attacker.dial(place)
        for part in range(50):
            names = [f"p{part}x{number}" for number in range(200)]
            attacker.announce(*names)
            attacker.tell(Subscribe([("p/b/*", name) for name in names[:10]]))
        await attacker.was_heard()
        assert len(center.router.table) > 10_000
        assert len(center.router.subscriptions) == 500
        attacker.reset()


# What belongs to others


@pytest.mark.rule("RE-12", "MC-8")
@async_test
async def test_a_leaf_cannot_withdraw_subscribe_or_unsubscribe_for_another() -> None:
    async with attacked() as (center, _, place):
        victim, attacker = await Attacker.dial(place), await Attacker.dial(place)
        victim.announce(TRUCK)
        victim.tell(Subscribe([("p/b", TRUCK)]))
        await victim.was_heard()
        attacker.tell(
            Subscribe([("p/secret", TRUCK), ("p/b", "nobody"), ("p/b", "echo")]),
            Unsubscribe([("p/b", TRUCK)]),
            Withdraw([TRUCK, "echo", "nobody"]),
        )
        await attacker.was_heard()
        assert knows(center, TRUCK)
        assert knows(center, "echo")
        assert list(center.router.subscriptions.snapshot()) == [("p/b", TRUCK)]
        assert len(attacker.declined()) == 3
        victim.close()
        attacker.close()


@pytest.mark.rule("RE-3", "RE-12")
@async_test
async def test_of_two_leaves_with_one_name_the_newest_has_it_until_it_goes() -> None:
    async with attacked() as (center, _, place):
        first, second = await Attacker.dial(place), await Attacker.dial(place)
        first.announce(TRUCK)
        await first.was_heard()
        second.announce(TRUCK)
        await second.was_heard()
        at_second = entries(center)[TRUCK]
        first.tell(Withdraw([TRUCK]))
        await first.was_heard()
        assert entries(center)[TRUCK] == at_second
        await center.send(TRUCK, b"to the newest")
        assert (await second.hear()).payload == b"to the newest"
        first.close()
        await until(lambda: len(center.sessions) == 1)
        assert entries(center)[TRUCK] == at_second
        second.close()
        await until(lambda: not knows(center, TRUCK))


@pytest.mark.rule("MC-8", "RE-12")
@async_test
async def test_the_subscriptions_of_a_participant_whose_time_is_over_go_with_its_leaf() -> None:
    clock = ManualClock()
    async with Node("hub", hub=True, limits=QUIET, clock=clock) as center:
        echo(center)
        listening = await center.listen("tcp://127.0.0.1:0")
        attacker = await Attacker.dial(listening.place)
        attacker.announce(TRUCK, expiry=center.now() + 1_000)
        attacker.tell(Subscribe([("p/b", TRUCK)]))
        await attacker.was_heard()
        clock.advance(2)
        attacker.close()
        await until(lambda: not center.sessions)
        await settle()
        assert len(center.router.subscriptions) == 0


@async_test
async def test_a_leaf_cannot_answer_a_question_that_was_put_to_another() -> None:
    async with attacked() as (center, _, place):
        victim, attacker = await Attacker.dial(place), await Attacker.dial(place)
        victim.announce(TRUCK)
        await victim.was_heard()
        asking = asyncio.ensure_future(center.request(TRUCK, b"?"))
        question = await victim.hear()
        for number in range(10):
            attacker.send(f"request-{number}", b"forged")
        await attacker.was_heard()
        victim.say(encode_frame(Message(question.return_route, Route(), b"true")))
        answer = (await asking).payload
        victim.close()
        attacker.close()
        assert answer == b"true"


@pytest.mark.rule("RE-6")
@async_test
async def test_a_session_does_not_get_a_name_that_a_leaf_has() -> None:
    async with attacked() as (center, _, place), Node("other", limits=QUIET) as other:
        listening = await other.listen("tcp://127.0.0.1:0")
        attacker = await Attacker.dial(place)
        attacker.announce("up")
        await attacker.was_heard()
        try:
            with pytest.raises(LocalError, match="up"):
                await center.connect(listening.url, name="up")
        finally:
            attacker.close()


# Questions and answers


@async_test
async def test_a_flood_of_questions_is_answered_in_order_and_holds_up_nobody() -> None:
    async with attacked() as (_, _, place):
        attacker = await Attacker.dial(place)
        attacker.announce(TRUCK)
        for number in range(2_000):
            attacker.tell(Resolve(number, "echo" if number % 2 else f"nobody-{number}"))
        attacker.tell(Resolve(2_000, TRUCK, ["x"] * 1_000))
        await serves_an_honest_peer(place)
        await attacker.was_heard()
        answers = [one for one in map(read, attacker.controls) if isinstance(one, Resolved)]
        assert [answer.number for answer in answers] == list(range(2_001))
        assert [answer.found for answer in answers] == [False, True] * 1_000 + [False]
        attacker.close()


@async_test
async def test_a_leaf_that_asks_and_never_reads_does_not_fill_the_hubs_memory() -> None:
    async with attacked() as (center, _, place):
        attacker = await Attacker.dial(place, room=4_096)
        attacker.writer.transport.pause_reading()  # type: ignore[attr-defined]
        attacker.say(encode_control(encode(Resolve(10**300, "x"))) * 80_000)
        await until(lambda: center.sessions)
        deadline = asyncio.get_running_loop().time() + DEADLINE
        unsent = 0
        while center.sessions and unsent < MEGABYTES and attacker.unsent():
            unsent = max(unsent, *map(_unsent, center.sessions))
            if asyncio.get_running_loop().time() > deadline:  # the hub reads no more
                break
            await asyncio.sleep(0.002)
        attacker.writer.transport.abort()
        assert unsent < MEGABYTES


def _unsent(session: Any) -> int:
    link = session._link
    size: int = 0 if link is None else link.unsent
    return size


@async_test
async def test_an_answer_to_a_question_that_nobody_asked_changes_nothing() -> None:
    async with attacked() as (center, _, place):
        attacker = await Attacker.dial(place)
        await attacker.was_heard()
        before = entries(center)
        attacker.tell(*(Resolved(number, found=True) for number in range(-5, 100)))
        await attacker.was_heard()
        assert entries(center) == before
        attacker.close()


@async_test
async def test_only_the_parent_that_was_asked_can_answer() -> None:
    asked: list[bytes] = []

    async def silent_parent(peer: RawPeer) -> None:
        peer.say(PREFACE)
        while True:
            asked.append(await peer.hear_control())

    async with raw_listener(silent_parent) as above, attacked() as (center, journal, place):
        parent = await center.connect(f"tcp://{above}", name="up", parent=True)
        attacker = await Attacker.dial(place)
        await attacker.was_heard()
        waiting = asyncio.ensure_future(center.send(TRUCK, b"secret", policy=Wait(persist=True)))
        await until(lambda: any(b"resolve" in said for said in asked))
        attacker.tell(*(Resolved(number, found=True) for number in range(10)))
        await attacker.was_heard()
        assert not knows(center, TRUCK)
        waiting.cancel()
        await settle()
        attacker.close()
        parent.abort_link()
        await parent.close()
        assert journal.outcomes()[-1] == (b"secret", "NO_ROUTE")


@pytest.mark.rule("RE-14")
@async_test
async def test_the_answer_of_a_parent_does_not_take_the_name_of_a_session() -> None:
    asked: list[bytes] = []
    answer, over = asyncio.Event(), asyncio.Event()

    async def slow_parent(peer: RawPeer) -> None:
        peer.say(PREFACE)
        while not any(b"resolve" in one for one in asked):
            asked.append(await peer.hear_control())
        await answer.wait()
        peer.control(encode(Resolved(1, found=True)))
        peer.send("sink", b"after the answer")
        await over.wait()
        peer.close()

    async with (
        raw_listener(slow_parent) as above,
        attacked() as (_, _, place),
        Node("leaf", limits=QUIET) as node,
    ):
        got = collect(node, "sink")
        await node.connect(f"tcp://{above}", name="up", parent=True, keep=False)
        waiting = asyncio.ensure_future(node.send("depot", b"?", policy=Wait(persist=True)))
        await until(lambda: any(b"resolve" in one for one in asked))
        session = await node.connect(f"tcp://{place}", name="depot")
        await waiting
        answer.set()
        await until(lambda: got)
        entry = node.router.table.lookup("depot", node.now())
        assert entry is not None
        assert entry.address == session.place
        assert (await node.request("depot => echo", b"hello")).payload == b"hello"
        over.set()


@async_test
async def test_a_parent_takes_back_only_what_was_found_through_it() -> None:
    told: list[bytes] = []

    async def parent_that_withdraws(peer: RawPeer) -> None:
        peer.say(PREFACE)
        peer.control(encode(Withdraw(["echo", "found", "other"])))
        peer.control(encode(Announce([(TRUCK, True, None)])))
        while True:
            told.append(await peer.hear_control())

    async with raw_listener(parent_that_withdraws) as above, attacked() as (center, _, _):
        center.put_route(RoutingEntry("found", Address(0, b"up"), local=False))
        center.put_route(RoutingEntry("other", Address(1, b"127.0.0.1:1"), local=False))
        parent = await center.connect(f"tcp://{above}", name="up", parent=True)
        await until(lambda: any(b"declined" in one for one in told))
        assert [knows(center, name) for name in ("echo", "found", "other")] == [True, False, True]
        center.remove_route("other")
        parent.abort_link()
        await parent.close()


@pytest.mark.parametrize(
    "said",
    [Announce([(TRUCK, True, None)]), Subscribe([("p/b", "echo")])],
    ids=lambda said: type(said).__name__,
)
@async_test
async def test_a_parent_cannot_announce_to_its_leaf(said: Payload) -> None:
    told: list[bytes] = []

    async def lying_parent(peer: RawPeer) -> None:
        peer.say(PREFACE)
        peer.control(encode(said))
        while True:
            told.append(await peer.hear_control())

    async with raw_listener(lying_parent) as above, attacked() as (center, _, _):
        parent = await center.connect(f"tcp://{above}", name="up", parent=True)
        await until(lambda: any(b"declined" in one for one in told))
        assert not knows(center, TRUCK)
        assert knows(center, "echo")
        assert len(center.router.subscriptions) == 0
        parent.abort_link()
        await parent.close()


# Bytes that are nothing


GARBAGE = [
    b"{",
    b"null",
    b"[]",
    b"\xff\xfe",
    b'{"waystation": "announce"}',
    b'{"waystation": "announce", "participants": [["a", true]]}',
    b'{"waystation": "announce", "participants": [["a", true, 1.5]]}',
    b'{"waystation": "resolve", "number": "one", "participant": "a"}',
    b'{"waystation": "announce", "participants": [["\\ud800", true, null]]}',
    b'{"waystation": "withdraw", "participants": ' + b"[" * 10_000,
    b'{"waystation": "dance"}',
    b'{"waystation": ' * 1_000,
]


@async_test
async def test_garbage_for_the_session_is_left_alone() -> None:
    async with attacked() as (center, journal, place):
        attacker = await Attacker.dial(place)
        for payload in GARBAGE:
            attacker.control(payload)
            attacker.announce("honest")
            await attacker.was_heard()
            assert knows(center, "honest")
            assert "a" not in entries(center)
            attacker.tell(Withdraw(["honest"]))
        assert [record.kind for record in journal.sessions] == [SessionKind.OPENED]
        attacker.close()


# Who may speak


@async_test
async def test_nothing_is_announced_before_the_token_is_proven() -> None:
    limits = Limits(heartbeat=0, greeting=0.2)
    async with Node("hub", hub=True, token=TOKEN, limits=limits) as center:
        journal = Recorder(center)
        listening = await center.listen("tcp://127.0.0.1:0")
        attacker = await Attacker.dial(listening.place)
        attacker.announce(TRUCK)
        attacker.tell(Subscribe([("p/b", TRUCK)]), Resolve(1, "waystation.directory"))
        await attacker.ended()
        await until(lambda: journal.sessions)
        assert journal.session_events() == [("refused", "REFUSED")]
        assert not knows(center, TRUCK)
        assert len(center.router.subscriptions) == 0
        await nothing_is_left(center)


@async_test
async def test_without_a_token_a_leaf_need_not_say_hello() -> None:
    async with attacked() as (center, _, place):
        attacker = await Attacker.dial(place)
        attacker.announce(TRUCK)
        await attacker.was_heard()
        assert knows(center, TRUCK)
        [session] = center.sessions
        assert session.peer is None
        attacker.close()


@async_test
async def test_who_comes_in_from_outside_is_no_leaf() -> None:
    async with Node("hub", hub=True, limits=QUIET) as center:
        echo(center)
        listening = await center.listen("tcp://127.0.0.1:0", outside=True)
        attacker = await Attacker.dial(listening.place)
        attacker.announce(TRUCK)
        await attacker.was_heard()
        attacker.close()
        assert not knows(center, TRUCK)


@async_test
async def test_a_request_from_outside_whose_sender_has_no_name_is_answered_like_any_other() -> None:
    async with Node("hub", limits=QUIET) as center:
        echo(center)
        listening = await center.listen("tcp://127.0.0.1:0", outside=True)
        attacker = await Attacker.dial(listening.place)
        nameless = Route((Address(0, b""),))
        attacker.say(encode_frame(Message(Route.parse("echo"), nameless, b"?")))
        try:
            assert (await attacker.hear()).payload == b"?"
        finally:
            attacker.close()


@pytest.mark.rule("RE-13")
@async_test
async def test_a_peer_from_outside_cannot_fill_the_table() -> None:
    async with Node("hub", limits=Limits(heartbeat=0, participants=10)) as center:
        collect(center, "sink")
        echo(center)
        listening = await center.listen("tcp://127.0.0.1:0", outside=True)
        attacker = await Attacker.dial(listening.place)
        for number in range(1_000):
            attacker.send("sink", b"", back=f"proxy-{number}")
        await attacker.was_heard()
        attacker.close()
        assert len(center.router.table) < 100


@pytest.mark.rule("RE-13")
@pytest.mark.parametrize("name", ["waystation.directory", "request-7"])
@async_test
async def test_a_peer_from_outside_does_not_get_a_reserved_name(name: str) -> None:
    async with Node("hub", limits=QUIET) as center:
        echo(center)
        listening = await center.listen("tcp://127.0.0.1:0", outside=True)
        attacker = await Attacker.dial(listening.place)
        attacker.send("echo", b"", back=name)
        await attacker.hear()
        attacker.close()
        assert not knows(center, name)


# What is written of it


@pytest.fixture
def lines() -> Any:
    """What a node logs, one text for each record."""

    class Lines(logging.Handler):
        def __init__(self) -> None:
            super().__init__()
            self.texts: list[str] = []

        def emit(self, record: logging.LogRecord) -> None:
            self.texts.append(record.getMessage())

    handler, logger = Lines(), logging.getLogger("waystation.node")
    logger.addHandler(handler)
    yield handler.texts
    logger.removeHandler(handler)


@async_test
async def test_a_cause_is_logged_and_told_once(lines: list[str]) -> None:
    async with attacked() as (_, _, place):
        attacker = await Attacker.dial(place)
        for _ in range(500):
            attacker.announce("echo")
        await attacker.was_heard()
        assert len(attacker.declined()) == 1
        assert len([line for line in lines if "is a name of node hub" in line]) == 1
        attacker.close()


FLOODS: dict[str, Any] = {
    "names of the hub's": lambda number: Announce([(f"waystation.{number}", True, None)]),
    "receivers of nobody": lambda number: Subscribe([("p/b", f"nobody-{number}")]),
    "refusals of its own": lambda number: Declined(f"no {number}"),
}


@pytest.mark.parametrize("name", FLOODS)
@async_test
async def test_a_leaf_cannot_flood_the_log(lines: list[str], name: str) -> None:
    async with attacked() as (_, _, place):
        attacker = await Attacker.dial(place)
        attacker.tell(*(FLOODS[name](number) for number in range(2_000)))
        await attacker.was_heard()
        attacker.close()
        assert len(lines) < 1_500


@pytest.mark.parametrize(
    "said",
    [
        Declined("no\nCRITICAL the hub is on fire"),
        Announce([("waystation.\nCRITICAL the hub is on fire", True, None)]),
        Subscribe([("p/b", "x\nCRITICAL the hub is on fire")]),
    ],
    ids=lambda said: type(said).__name__,
)
@async_test
async def test_a_leaf_cannot_write_lines_of_its_own_into_the_log(
    lines: list[str], said: Payload
) -> None:
    async with attacked() as (_, _, place):
        attacker = await Attacker.dial(place)
        attacker.tell(said)
        await attacker.was_heard()
        attacker.close()
        assert [line for line in lines if "\n" in line] == []


# Broadcasts


NO_IDS = [
    b"",
    b"alone",
    b"p/+",
    b"p/b/*",
    b"p//b",
    b"p/b/\xff",
    b"p/b/" + b"a/" * 5_000,
    b"p/b/x y",
]


@pytest.mark.rule("MC-5", "OB-2")
@async_test
async def test_a_broadcast_under_no_such_id_is_malformed_and_goes_to_nobody() -> None:
    async with attacked() as (center, journal, place):
        subscription = center.subscribe("+", "+", "*")
        attacker = await Attacker.dial(place)
        for multicast_id in NO_IDS:
            onward = Route((Address(255, multicast_id),))
            attacker.say(encode_frame(Message(onward, Route(), b"bad")))
        await attacker.was_heard()
        ended = [word for payload, word in journal.outcomes() if payload == b"bad"]
        assert ended == ["MALFORMED"] * len(NO_IDS)
        await subscription.close()
        attacker.close()


@pytest.mark.rule("MC-9", "OB-1")
@async_test
async def test_a_leaf_that_subscribes_and_never_reads_costs_only_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Waiting, "QUEUE_LIMIT", 10)
    async with Node("hub", hub=True, limits=QUIET) as center:
        journal = Recorder(center)
        listening = await center.listen("tcp://127.0.0.1:0")
        attacker = await Attacker.dial(listening.place, room=4_096)
        attacker.writer.transport.pause_reading()  # type: ignore[attr-defined]
        attacker.announce("stuck")
        attacker.tell(Subscribe([("hub/news/*", "stuck")]))
        async with leaf("healthy", listening.url) as healthy:
            got: list[bytes] = []
            healthy.subscribe("hub", "news", callback=lambda message: got.append(message.payload))
            await until(lambda: len(center.router.subscriptions) == 2)
            sent = 0
            while not journal.counts()["QUEUE_FULL"]:
                sent += 1
                assert sent < 5_000
                await center.publish("news", bytes(32_768), policy=Queue(60))
                await until(lambda: len(got) == sent)  # noqa: B023 - it is waited for here
            stuck = next(s for s in center.sessions if s.peer is None)
            assert stuck.waiting() == 10
            attacker.reset()
            await until(lambda: len(center.sessions) == 1)
            await center.publish("news", b"last", policy=Queue(60))
            await until(lambda: got[-1] == b"last")
        await settle()
        ended = [r.verdict for r in journal.messages if r.verdict.recipient == "stuck"]
        assert len(ended) == sent  # each exactly once
        assert {v.reason for v in ended if v.outcome is Outcome.DROPPED} == {
            Reason.QUEUE_FULL,
            Reason.TRANSPORT_DOWN,
        }


# The end


@async_test
async def test_a_hub_closes_well_although_a_leaf_has_just_reset_its_connection() -> None:
    center = Node("hub", hub=True, limits=QUIET)
    listening = await center.listen("tcp://127.0.0.1:0")
    attacker = await Attacker.dial(listening.place)
    await until(lambda: center.sessions)
    attacker.reset()
    await asyncio.sleep(0)  # the reset is out, and the hub has not heard of it
    try:
        await center.close()
    finally:
        for session in center.sessions:
            session.abort_link()
        await settle()
