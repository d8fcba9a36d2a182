"""Sessions over TCP: names, reuse, loss and return, types, tokens, back-pressure, closing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, ClassVar

import pytest

from tests.node.live import (
    QUICK,
    RawPeer,
    full_listener,
    nothing_is_left,
    place_address,
    raw_listener,
    runs_on_every_loop,
    serving,
)
from waystation.core.address import Address, Route
from waystation.core.message import Message
from waystation.core.outcome import Outcome, Reason
from waystation.core.session import State
from waystation.errors import LocalError, UndeliverableError, UnreachableError
from waystation.node import FAIL, Context, Limits, Node, Queue, Session, Wait
from waystation.testing import (
    DEADLINE,
    Gate,
    ManualClock,
    Recorder,
    async_test,
    collect,
    echo,
    reason_or_outcome,
    settle,
    tcp_path,
    until,
)
from waystation.transports.tcp import Tcp, TcpLimits
from waystation.transports.transport import Link, LinkOwner, Listener
from waystation.wire.ockam import PREFACE, encode_frame

SMALL = TcpLimits(unsent=16 * 1024, linger=1)
SECRET, GENERAL, SPECIAL = "secret", "general", "special"  # tokens


@asynccontextmanager
async def pair(**options: Any) -> AsyncIterator[tuple[Node, Recorder, Node, Recorder, str]]:
    """A node that dials, one that listens, and the place of the latter."""
    async with (
        serving(**options) as (server, there, place),
        Node("client", transports=[Tcp(limits=SMALL)], limits=QUICK) as client,
    ):
        echo(client)
        yield client, Recorder(client), server, there, place


def dead_place() -> str:
    """A place where nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


# --- The seven steps (WK-8) -----------------------------------------------------------------------


@pytest.mark.rule("WK-8")
@pytest.mark.rule("WK-10")
@runs_on_every_loop
async def test_a_route_to_a_place_opens_a_session_that_stands_in_the_return_routes() -> None:
    async with pair() as (client, here, server, there, place):
        got, answers = collect(server, "receiver"), collect(client, "sender")
        await client.route(
            Message(
                Route.parse(f"tcp#{place} => receiver"),
                Route.parse("sender"),
                b"1",
                client.new_id(),
            )
        )
        await until(lambda: got)
        (mine,), (theirs,) = client.sessions, server.sessions
        assert str(got[0].onward_route) == "0#receiver"
        assert str(got[0].return_route) == f"0#{theirs.name} => 0#sender"
        reply = got[0].reply_from(Address(0, b"receiver"), b"2", id=server.new_id())
        assert (await server.route(reply)).outcome is Outcome.FORWARDED
        await until(lambda: answers)
        assert str(answers[0].return_route) == f"0#{mine.name} => 0#receiver"
        # and from now on the names do, on both sides
        again = answers[0].reply_from(Address(0, b"sender"), b"3", id=client.new_id())
        await client.route(again)
        await until(lambda: len(got) == 2)
        assert got[1].return_route == got[0].return_route
        assert len(client.sessions) == len(server.sessions) == 1
        assert (mine.peer, theirs.peer) == ("server", "client")
        assert here.session_events() == there.session_events() == [("opened", None)]
        assert mine.place == place_address(place)


@pytest.mark.rule("WK-8")
@runs_on_every_loop
async def test_one_connection_serves_the_place_and_the_name() -> None:
    async with pair() as (client, here, server, _, place):
        for number in range(50):
            answer = await client.request(f"tcp#{place} => echo", b"%d" % number)
            name = str(answer.return_route.first)
            assert (await client.request(f"{name} => echo", b"by name")).payload == b"by name"
        await asyncio.gather(*(client.request(f"1#{place} => echo", b"") for _ in range(100)))
        assert len(client.sessions) == len(server.sessions) == 1
        assert here.session_events() == [("opened", None)]


@pytest.mark.rule("WK-8")
@async_test
async def test_many_messages_at_once_open_one_session() -> None:
    async with pair() as (client, _, server, there, place):
        answers = await asyncio.gather(
            *(client.request(f"tcp#{place} => echo", b"%d" % n) for n in range(200))
        )
        assert [answer.payload for answer in answers] == [b"%d" % n for n in range(200)]
        assert there.session_events() == [("opened", None)]
        assert len(server.sessions) == 1


@pytest.mark.rule("WK-8")
@pytest.mark.rule("OB-4")
@runs_on_every_loop
async def test_a_session_is_a_routing_entry_while_it_lives() -> None:
    async with pair() as (client, here, server, there, place):
        session = await client.connect(f"tcp://{place}", name="server")
        await until(lambda: server.sessions)
        (theirs,) = server.sessions
        for node, name, where in (
            (client, "server", f"1#{place}"),
            (server, theirs.name, str(theirs.place)),
        ):
            entry = node.router.table.lookup(name, 0)
            assert entry is not None
            assert (str(entry.address), entry.local) == (where, False)
        await session.close()
        await until(lambda: not server.sessions)
        for node, journal, name in ((client, here, "server"), (server, there, theirs.name)):
            assert node.router.table.lookup(name, 0) is None
            verdict = await node.send(f"{name} => echo", b"late")
            assert verdict.reason is Reason.NO_ROUTE
            kinds = [c.kind.value for c in journal.routes if c.entry.participant == name]
            assert kinds == ["put", "remove"]
        await nothing_is_left(client)
        await nothing_is_left(server)
        assert (
            here.session_events() == there.session_events() == [("opened", None), ("closed", None)]
        )


@pytest.mark.rule("WK-8")
@runs_on_every_loop
async def test_connecting_twice_gives_two_sessions() -> None:
    async with pair() as (client, _, server, _, place):
        one = await client.connect(f"tcp://{place}", name="one")
        two = await client.connect(f"tcp://{place}", name="two")
        await until(lambda: len(server.sessions) == 2)
        backs = {
            str((await client.request(f"{n} => echo", b"")).return_route) for n in ("one", "two")
        }
        assert backs == {"0#one => 0#echo", "0#two => 0#echo"}
        await one.close()
        assert (await client.request("two => echo", b"x")).payload == b"x"
        assert two.is_open
        assert not one.is_open


@async_test
async def test_a_name_is_taken_once_and_free_after_the_session() -> None:
    async with pair() as (client, _, _, _, place):
        session = await client.connect(f"tcp://{place}", name="hub")
        with pytest.raises(LocalError, match="already"):
            await client.connect(f"tcp://{place}", name="hub")
        with pytest.raises(LocalError, match="already"):
            await client.connect(f"tcp://{place}", name="echo")
        await session.close()
        await client.connect(f"tcp://{place}", name="hub")


@pytest.mark.rule("RE-15")
@async_test
async def test_a_session_of_a_node_with_itself_frees_its_name_too() -> None:
    async with serving() as (node, _, place):
        for _ in range(2):
            session = await node.connect(f"tcp://{place}", name="self")
            assert session.is_open
            await session.close()
        await nothing_is_left(node)


@async_test
async def test_a_name_that_was_given_up_and_taken_again_outlives_the_old_link() -> None:
    async with pair() as (client, _, _, _, place):
        session = await client.connect(f"tcp://{place}", name="hub")
        session.give_up()
        again = await client.connect(f"tcp://{place}", name="hub")
        await until(lambda: not session.has_link)
        assert session.state is State.ENDED
        assert again.is_open
        assert (await client.request("hub => echo", b"x")).payload == b"x"


@pytest.mark.parametrize(
    "places",
    [(), ("mqtt://127.0.0.1:1",), ("127.0.0.1:1",), ("echo",), ("tcp#0xff",), ("7#x", "tcp#a:1")],
)
@async_test
async def test_places_that_no_transport_reaches_are_refused_at_once(
    places: tuple[str, ...],
) -> None:
    async with Node("client") as client:
        with pytest.raises(LocalError):
            await client.connect(*places, name="x")
        await nothing_is_left(client)


def _has_opened(session: Session, times: int) -> bool:
    return session.openings == times


@pytest.mark.rule("WK-8")
@runs_on_every_loop
async def test_a_kept_session_has_its_name_whatever_happens_to_its_links() -> None:
    async with pair() as (client, here, server, _, place), tcp_path(place) as path:
        session = await client.connect(f"tcp://{path.place}", name="hub")
        for number in range(1, 4):
            answer = await client.request("hub => echo", b"%d" % number)
            assert str(answer.return_route) == "0#hub => 0#echo"
            old = server.sessions[0].name
            path.cut()
            await until(partial(_has_opened, session, number + 1))
            assert (await server.send(f"{old} => echo", b"")).reason is Reason.NO_ROUTE
        assert [r for r in here.routes if r.entry.participant == "hub"][1:] == []
        assert here.session_events()[:2] == [("opened", None), ("closed", "TRANSPORT_DOWN")] or (
            here.session_events()[:2] == [("opened", None), ("closed", None)]
        )
        await session.close()
        await nothing_is_left(client)


@runs_on_every_loop
async def test_a_session_that_is_not_kept_ends_with_its_link() -> None:
    async with pair() as (client, _, _, _, place), tcp_path(place) as path:
        session = await client.connect(f"tcp://{path.place}", name="hub", keep=False)
        path.cut()
        await until(lambda: not session.is_open)
        await nothing_is_left(client)
        assert (await client.send("hub => echo", b"")).reason is Reason.NO_ROUTE
        assert session.ended


# --- Dialling -------------------------------------------------------------------------------------


@runs_on_every_loop
async def test_of_several_places_one_that_answers_is_taken() -> None:
    with full_listener() as stuck:
        async with pair() as (client, _, _, _, place):
            session = await client.connect(
                f"tcp://{dead_place()}", f"tcp://{stuck}", f"tcp://{place}", name="hub"
            )
            assert session.is_open
            assert (await client.request("hub => echo", b"x")).payload == b"x"
            assert len(client.sessions) == 1


@async_test
async def test_a_session_says_which_of_its_places_it_reached() -> None:
    async with pair() as (client, here, _, _, place):
        session = await client.connect(f"tcp://{dead_place()}", f"tcp://{place}", name="hub")
        assert session.place == place_address(place)
        assert here.sessions[-1].place == f"1#{place}"


@runs_on_every_loop
async def test_connect_says_why_nobody_could_be_reached() -> None:
    place = dead_place()
    async with Node("client") as client:
        with pytest.raises(UnreachableError) as caught:
            await client.connect(f"tcp://{place}", name="hub", wait=0.3)
        assert str(caught.value).startswith(f"cannot connect to {place}: ")
        assert str(caught.value).count(place) == 1
        await nothing_is_left(client)
        with pytest.raises(UnreachableError):
            await client.connect(f"tcp://{place}", keep=False)
        await nothing_is_left(client)
        with pytest.raises(LocalError):
            await client.connect(f"tcp://{place}", wait=-1)
        await nothing_is_left(client)


@async_test
async def test_connect_that_is_cancelled_leaves_nothing() -> None:
    async with Node("client") as client:
        waits = asyncio.ensure_future(client.connect(f"tcp://{dead_place()}", name="hub"))
        await asyncio.sleep(0.05)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        await nothing_is_left(client)


@runs_on_every_loop
async def test_connect_need_not_wait() -> None:
    place = dead_place()
    async with Node("client", limits=QUICK) as client:
        session = await client.connect(f"tcp://{place}", name="hub", wait=None)
        assert not session.is_open
        assert (await client.send("hub => echo", b"", policy=FAIL)).reason is Reason.TRANSPORT_DOWN
        waits = asyncio.ensure_future(client.request("hub => echo", b"patience"))
        await asyncio.sleep(0.05)
        async with Node("server", limits=QUICK) as server:
            echo(server)
            await server.listen(f"tcp://{place}")
            assert (await waits).payload == b"patience"
            assert session.is_open


@pytest.mark.parametrize("moment", [0.0, 0.001, 0.05])
@runs_on_every_loop
async def test_a_session_closed_while_it_is_dialled_stays_closed(moment: float) -> None:
    async with pair() as (client, _, server, _, place):
        session = await client.connect(f"tcp://{place}", name="hub", wait=None)
        await asyncio.sleep(moment)
        await session.close()
        await asyncio.sleep(0.1)
        assert not session.is_open
        await nothing_is_left(client)
        await nothing_is_left(server)


@runs_on_every_loop
async def test_a_place_that_failed_is_left_alone_for_a_while_and_then_tried_again() -> None:
    place = dead_place()
    async with Node("client", limits=QUICK) as client:
        journal = Recorder(client)
        for _ in range(20):
            verdict = await client.send(f"tcp#{place} => echo", b"")
            assert verdict.reason is Reason.TRANSPORT_DOWN
        assert 1 <= len(journal.sessions) < 20  # not a dial for each
        assert set(journal.session_events()) == {("refused", "TRANSPORT_DOWN")}
        async with Node("server", limits=QUICK) as server:
            got = collect(server, "sink")
            await server.listen(f"tcp://{place}")
            async with asyncio.timeout(DEADLINE):
                while (await client.send(f"tcp#{place} => sink", b"back")).reason is not None:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            await until(lambda: got)
        assert place_address(place) not in client._links.unreachable
        journal.check_outcomes()


@async_test
async def test_what_waits_for_a_place_that_is_not_there_is_told_so() -> None:
    async with Node("client") as client:
        with pytest.raises(UndeliverableError, match="TRANSPORT_DOWN"):
            await client.request(f"tcp#{dead_place()} => echo", b"")


@pytest.mark.rule("OB-3")
@async_test
async def test_what_is_queued_for_a_place_that_is_not_there_is_transport_down() -> None:
    async with Node("client") as client:
        journal = Recorder(client)
        await client.send(f"tcp#{dead_place()} => echo", b"", policy=Queue(30))
        await until(lambda: len(journal.messages) == 2)
        assert [reason_or_outcome(r.verdict) for r in journal.messages] == [
            "QUEUED",
            "TRANSPORT_DOWN",
        ]


@runs_on_every_loop
async def test_messages_of_peers_do_not_make_a_node_dial_unless_it_says_so() -> None:
    async with (
        serving("far") as (far, _, target),
        pair() as (client, _, server, there, place),
    ):
        got = collect(far, "sink")
        await client.send(f"tcp#{place} => tcp#{target} => sink", b"no")
        await until(lambda: there.messages)
        assert there.outcomes() == [(b"no", "REFUSED")]
        await server.connect(f"tcp://{target}", name="far")
        await client.send(f"tcp#{place} => far => sink", b"by name")
        await until(lambda: got)
        await client.send(f"tcp#{place} => tcp#{target} => sink", b"still no")
        await until(lambda: (b"still no", "REFUSED") in there.outcomes())
        server._links.dial_for_peers = True
        await client.send(f"tcp#{place} => tcp#{target} => sink", b"now")
        await until(lambda: len(got) == 2)


# --- Links that end when they should not (LinkOwner) ----------------------------------------------


class HastyLink:
    """A link that ends as soon as it is told to, before the call returns."""

    place = "somewhere"

    def __init__(self, owner: LinkOwner) -> None:
        self._owner = owner
        self.controls: list[bytes] = []
        self.ended = False

    def send(self, message: Message) -> Reason | None:
        raise AssertionError(message)

    def send_control(self, payload: bytes) -> None:
        self.controls.append(payload)

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        self.end(None, "closed")

    def abort(self) -> None:
        self.end(Reason.TRANSPORT_DOWN, "aborted")

    def end(self, reason: Reason | None, detail: str) -> None:
        if not self.ended:
            self.ended = True
            self._owner.closed(reason, detail)


class Hasty:
    """Makes such links; one that is `late` says that it failed although there is a link."""

    type_name: ClassVar[str] = "hasty"

    def __init__(self, *, late: bool = False) -> None:
        self._late = late
        self.links: list[HastyLink] = []

    async def listen(self, place: str, accept: Callable[[], LinkOwner | None]) -> Listener:
        raise OSError(f"{place}: {accept}")

    async def dial(self, places: Sequence[str], owner: LinkOwner) -> Link:
        link = HastyLink(owner)
        self.links.append(link)
        owner.opened(link)
        owner.answered()
        if self._late:
            raise TimeoutError(f"{places}: no answer in time")
        return link


@async_test
async def test_a_link_that_is_refused_and_ends_at_once_may_still_say_that_it_was_answered() -> None:
    transport = Hasty()
    limits = Limits(sessions=0, heartbeat=0)
    async with Node("client", transports=[transport], limits=limits) as client:
        journal = Recorder(client)
        with pytest.raises(UnreachableError, match="limit of sessions"):
            await client.connect("hasty://place", keep=False)
        assert journal.session_events() == [("refused", "REFUSED")]
        assert [link.controls for link in transport.links] == [[]]
        await nothing_is_left(client)


@async_test
async def test_an_attempt_that_fails_with_a_link_in_its_hands_is_no_reason_for_another() -> None:
    transport = Hasty(late=True)
    async with Node("client", transports=[transport], limits=QUICK) as client:
        journal = Recorder(client)
        session = await client.connect("hasty://place", name="hub")
        assert session.is_open
        await settle()
        assert len(transport.links) == 1
        transport.links[0].end(Reason.TRANSPORT_DOWN, "lost")
        await until(lambda: len(transport.links) == 2)
        assert session.failure == "lost"
        await session.close()
        assert session.state is State.ENDED
        closed = ("closed", "TRANSPORT_DOWN")
        assert journal.session_events() == [
            ("opened", None),
            closed,
            ("opened", None),
            ("closed", None),
        ]
        await nothing_is_left(client)


@async_test
async def test_a_link_that_comes_after_the_end_of_its_session_is_ended() -> None:
    transport = Hasty()
    async with Node("client", transports=[transport], limits=QUICK) as client:
        journal = Recorder(client)
        session = await client.connect("hasty://place", name="hub")
        await session.close()
        late = HastyLink(session)
        session.opened(late)
        session.answered()
        assert late.ended
        assert not late.controls
        assert session.state is State.ENDED
        assert journal.session_events()[2:] == [("refused", "TRANSPORT_DOWN")]
        await nothing_is_left(client)


@async_test
async def test_a_message_to_a_session_whose_link_is_being_aborted_waits_for_the_next_link() -> None:
    async with pair() as (client, here, server, _, place):
        got = collect(server, "sink")
        session = await client.connect(f"tcp://{place}", name="hub")
        session.abort_link()
        assert session.state is State.BREAKING
        assert (await client.send("hub => sink", b"fail", policy=FAIL)).reason is (
            Reason.TRANSPORT_DOWN
        )
        assert (await client.send("hub => sink", b"wait")).outcome is Outcome.FORWARDED
        await until(lambda: got)
        assert session.openings == 2
        here.check_outcomes()


# --- Outcomes -------------------------------------------------------------------------------------


@pytest.mark.rule("OB-1")
@runs_on_every_loop
async def test_forwarded_is_told_once_the_system_has_taken_it() -> None:
    async with pair() as (client, here, server, there, place):
        collect(server, "sink")
        sent = await client.send(f"tcp#{place} => sink", b"x")
        assert (sent.outcome, sent.address) == (Outcome.FORWARDED, place_address(place))
        await until(lambda: here.messages)
        assert here.messages[0].verdict == sent.verdict
        await until(lambda: there.messages)
        assert here.messages[0].arrival.message.id == there.messages[0].arrival.message.id


@pytest.mark.rule("OB-1")
@async_test
async def test_the_verdict_on_what_is_sent_by_name_is_that_of_the_rules() -> None:
    async with pair() as (client, here, _, _, place):
        await client.connect(f"tcp://{place}", name="hub")
        await client.send("hub => echo", b"x")
        await until(lambda: here.messages)
        record = here.messages[0]
        assert record.verdict == client.router.decide(record.arrival.message, 0)


@pytest.mark.rule("OB-1")
@runs_on_every_loop
async def test_what_is_written_at_the_close_is_forwarded_and_not_lost() -> None:
    async with pair() as (client, here, server, _, place):
        got = collect(server, "sink")
        session = await client.connect(f"tcp://{place}", name="hub")
        for number in range(100):
            await client.send("hub => sink", b"%d" % number)
        await session.close()
        await until(lambda: len(got) == 100)
        here.check_outcomes()
        assert here.counts() == {"FORWARDED": 100}


@pytest.mark.rule("OB-1")
@runs_on_every_loop
async def test_a_lost_link_drops_what_it_had_not_written_and_each_message_ends_once() -> None:
    async def never_reads(peer: RawPeer) -> None:
        peer.say(PREFACE)
        await asyncio.sleep(0.2)
        peer.reset()

    async with (
        Node("client", transports=[Tcp(limits=SMALL)], limits=QUICK) as client,
        raw_listener(never_reads) as place,
    ):
        journal = Recorder(client)
        verdicts = await asyncio.gather(
            *(client.send(f"tcp#{place} => x", bytes(1_000_000)) for _ in range(20))
        )
        await until(lambda: len(journal.messages) == 20)
        journal.check_outcomes()
        assert Reason.TRANSPORT_DOWN in {verdict.reason for verdict in verdicts}
        assert journal.counts()["TRANSPORT_DOWN"] >= 10
        await nothing_is_left(client)


@pytest.mark.rule("OB-1")
@async_test
async def test_a_busy_link_to_a_slower_peer_settles_as_it_goes() -> None:
    async def reads_slowly(peer: RawPeer) -> None:
        peer.say(PREFACE)
        while await peer.reader.read(65536):  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    limits = TcpLimits(unsent=256 * 1024)
    async with (
        Node("client", transports=[Tcp(limits=limits)], limits=QUICK) as client,
        raw_listener(reads_slowly) as place,
    ):
        Recorder(client)
        most = 0
        for _ in range(1500):
            await client.send(f"tcp#{place} => x", bytes(32 * 1024))
            (session,) = client.sessions
            most = max(most, len(session._unsettled))
        assert most * 32 * 1024 < 16 * limits.unsent


@pytest.mark.rule("OB-1")
@runs_on_every_loop
async def test_closing_a_busy_node_drains_it_and_each_message_ends_once() -> None:
    async with pair() as (client, here, server, there, place):
        stop = False

        async def stream(number: int) -> None:
            while not stop:
                await client.send(f"tcp#{place} => {'echo' if number % 2 else 'slow'}", bytes(500))
                await asyncio.sleep(0)

        @server.worker("slow", inbox=5)
        async def slow(message: Message, context: Context) -> None:  # noqa: ARG001
            await asyncio.sleep(0.001)

        streams = [asyncio.ensure_future(stream(number)) for number in range(4)]
        await until(lambda: len(there.messages) > 200)
        await server.close(drain=2)
        count = len(there.messages)
        assert server._kernel.receivers == {}
        stop = True
        await asyncio.wait_for(asyncio.gather(*streams), DEADLINE)
        await client.close()
        there.check_outcomes()
        here.check_outcomes()
        assert len(there.messages) == count
        await nothing_is_left(server)
        await nothing_is_left(client)


@async_test
async def test_a_stalled_session_takes_nothing_more_while_the_node_drains() -> None:
    async with serving(tcp=TcpLimits(linger=0.3)) as (node, journal, place):
        gate = Gate(node, "gate", inbox=1)
        peer = await RawPeer.dial(place)
        for number in range(4):
            peer.send("gate", b"%d" % number)
        await until(lambda: node.sessions and node.sessions[0].is_stalled)
        closing = asyncio.ensure_future(node.close(drain=2))
        await settle()
        for _ in range(20):
            peer.send("gate", b"new")
        await asyncio.sleep(0.05)
        gate.free.set()
        await closing
        peer.close()
        journal.check_outcomes()
        assert b"new" not in gate.got


@pytest.mark.rule("OB-1")
@async_test
async def test_answers_arrive_although_the_peer_was_still_sending_at_the_close() -> None:
    async with serving(tcp=TcpLimits(linger=1)) as (node, journal, place):
        peer = await RawPeer.dial(place, room=4096)
        for _ in range(40):
            peer.send("echo", bytes(4096))
        await until(lambda: journal.counts()["FORWARDED"] == 40)
        node._links.stop_listening()
        peer.send("echo", b"never read")
        await asyncio.sleep(0.05)
        closing = asyncio.ensure_future(node.close())
        answers = 0
        try:
            while await peer.hear():
                answers += 1
        except (EOFError, ConnectionError):
            pass
        await closing
        peer.close()
        assert answers == journal.counts()["FORWARDED"]


@async_test
async def test_what_waits_for_a_session_is_told_when_the_node_closes() -> None:
    async with Node("client", limits=QUICK) as client:
        journal = Recorder(client)
        await client.connect(f"tcp://{dead_place()}", name="hub", wait=None)
        waits = [asyncio.ensure_future(client.send("hub => x", b"%d" % n)) for n in range(3)]
        await settle()
        await client.close()
        assert {(await wait).reason for wait in waits} == {Reason.TRANSPORT_DOWN}
        journal.check_outcomes()
        await nothing_is_left(client)


@async_test
async def test_a_request_without_an_answer_ends_with_the_node() -> None:
    async with pair() as (client, _, server, _, place):
        collect(server, "silent")
        waits = asyncio.ensure_future(client.request(f"tcp#{place} => silent", b"", timeout=60))
        await until(lambda: server.sessions)
        await client.close()
        done, _ = await asyncio.wait([waits], timeout=DEADLINE)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        assert done


# --- Back-pressure (WK-6) -------------------------------------------------------------------------


@pytest.mark.rule("WK-6")
@pytest.mark.rule("WK-5")
@runs_on_every_loop
async def test_a_full_inbox_delays_nobody_else_and_order_is_kept() -> None:
    async with pair() as (client, here, server, there, place):
        gate = Gate(server, "gate", inbox=3)
        for number in range(500):
            await client.send(f"tcp#{place} => gate", b"%d" % number)
        await until(lambda: server.sessions[0].is_stalled)
        async with Node("other", limits=QUICK) as other:
            answer = await other.request(f"tcp#{place} => echo", b"not me", timeout=DEADLINE)
            assert answer.payload == b"not me"
        answer = await client.request(f"tcp#{place} => echo", b"me neither", timeout=DEADLINE)
        assert answer.payload == b"me neither"  # on the same connection
        gate.free.set()
        await until(lambda: len(gate.got) == 500)
        assert gate.got == [b"%d" % number for number in range(500)]
        assert (await client.request(f"tcp#{place} => echo", b"me")).payload == b"me"
        await until(lambda: there.counts()["DELIVERED"] >= 500)
        here.check_outcomes()
        there.check_outcomes()


@pytest.mark.rule("WK-6")
@runs_on_every_loop
async def test_what_a_peer_sent_waits_no_longer_than_the_stall_limit() -> None:
    limits = Limits(stall=0.1, heartbeat=0)
    async with pair(limits=limits) as (client, _, server, there, place):
        gate = Gate(server, "gate", inbox=1)
        for number in range(4):  # one at work, one in the inbox, two without room
            await client.send(f"tcp#{place} => gate", b"%d" % number)
        answer = await client.request(f"tcp#{place} => echo", b"after", timeout=DEADLINE)
        assert answer.payload == b"after"
        await until(lambda: there.counts()["QUEUE_FULL"] == 2)
        dropped = [o for o in there.outcomes() if o[1] == "QUEUE_FULL"]
        assert dropped == [(b"2", "QUEUE_FULL"), (b"3", "QUEUE_FULL")]
        gate.free.set()
        await until(lambda: gate.got == [b"0", b"1"])
        await until(lambda: there.counts()["DELIVERED"] >= 2)
        there.check_outcomes()


async def _never_reads(peer: RawPeer) -> None:
    peer.say(PREFACE)
    await asyncio.Event().wait()


@asynccontextmanager
async def a_clogged_session() -> AsyncIterator[tuple[Node, Recorder, str]]:
    """A node with a session that takes no more, since its peer does not read."""
    async with (
        Node("client", transports=[Tcp(limits=SMALL)], limits=QUICK) as client,
        raw_listener(_never_reads) as place,
    ):
        journal = Recorder(client)
        route = f"tcp#{place} => x"
        while (  # noqa: ASYNC110
            await client.send(route, bytes(65536), policy=FAIL)
        ).outcome is Outcome.FORWARDED or (not client.sessions or not client.sessions[0].is_paused):
            await asyncio.sleep(0)
        try:
            yield client, journal, route
        finally:
            for session in client.sessions:
                session.abort_link()


@pytest.mark.rule("WK-6")
@runs_on_every_loop
async def test_a_clogged_link_makes_its_senders_fail_wait_or_queue() -> None:
    async with a_clogged_session() as (client, journal, route):
        assert (await client.send(route, b"fail", policy=FAIL)).reason is Reason.QUEUE_FULL
        assert (await client.send(route, b"wait", policy=Wait(0.05))).reason is Reason.QUEUE_FULL
        assert (await client.send(route, b"queue", policy=Queue(0.05))).outcome is Outcome.QUEUED
        await until(lambda: (b"queue", "EXPIRED") in journal.outcomes())
        waits = asyncio.ensure_future(client.send(route, b"lost"))
        await settle()
        client.sessions[0].abort_link()
        assert (await waits).reason is Reason.TRANSPORT_DOWN
        await nothing_is_left(client)
        journal.check_outcomes()
        small = [o for o in journal.outcomes() if len(o[0]) < 10]
        assert small == [
            (b"fail", "QUEUE_FULL"),
            (b"wait", "QUEUE_FULL"),
            (b"queue", "QUEUED"),
            (b"queue", "EXPIRED"),
            (b"lost", "TRANSPORT_DOWN"),
        ]


@pytest.mark.rule("WK-6")
@runs_on_every_loop
async def test_a_link_that_is_down_makes_its_senders_fail_wait_or_queue() -> None:
    place = dead_place()
    async with Node("client", limits=QUICK) as client:
        journal = Recorder(client)
        await client.connect(f"tcp://{place}", name="hub", wait=None)
        down = Reason.TRANSPORT_DOWN
        assert (await client.send("hub => sink", b"fail", policy=FAIL)).reason is down
        assert (await client.send("hub => sink", b"wait", policy=Wait(0.05))).reason is down
        short = await client.send("hub => sink", b"short", policy=Queue(0.02))
        await client.send("hub => sink", b"1", policy=Queue(DEADLINE))
        waits = asyncio.ensure_future(client.send("hub => sink", b"2", policy=Wait(DEADLINE)))
        await settle()
        await client.send("hub => sink", b"3", policy=Queue(DEADLINE))
        assert short.outcome is Outcome.QUEUED
        await until(lambda: (b"short", "EXPIRED") in journal.outcomes())
        async with Node("server", limits=QUICK) as server:
            got = collect(server, "sink")
            await server.listen(f"tcp://{place}")
            assert (await waits).outcome is Outcome.FORWARDED
            await until(lambda: len(got) == 3)
            assert [message.payload for message in got] == [b"1", b"2", b"3"]
        await until(lambda: journal.counts()["FORWARDED"] == 3)
        journal.check_outcomes()


@pytest.mark.rule("AD-7")
@async_test
async def test_a_message_that_expires_while_it_waits_for_a_link_is_dropped_here() -> None:
    place, clock = dead_place(), ManualClock()
    async with Node("client", limits=QUICK, clock=clock) as client:
        journal = Recorder(client)
        await client.connect(f"tcp://{place}", name="hub", wait=None)
        waits = asyncio.ensure_future(client.send("hub => sink", b"x", ttl=5))
        await settle()
        clock.advance(10)
        async with Node("server", limits=QUICK) as server:
            await server.listen(f"tcp://{place}")
            assert (await waits).reason is Reason.EXPIRED
        journal.check_outcomes()


@pytest.mark.rule("WK-6")
@async_test
async def test_a_sender_that_gives_up_takes_its_message_along() -> None:
    async with Node("client", limits=QUICK) as client:
        journal = Recorder(client)
        session = await client.connect(f"tcp://{dead_place()}", name="hub", wait=None)
        waits = asyncio.ensure_future(client.send("hub => x", b"x"))
        await settle()
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        assert journal.outcomes() == [(b"x", "TRANSPORT_DOWN")]
        await session.close()
        journal.check_outcomes()


@pytest.mark.rule("WK-6")
@async_test
async def test_a_slow_worker_does_not_cost_the_session() -> None:
    limits = Limits(heartbeat=0.5, stall=30)
    async with (
        serving(limits=limits) as (server, there, place),
        Node("client", limits=limits) as client,
    ):
        gate = Gate(server, "gate", inbox=1)
        for number in range(10):
            await client.send(f"tcp#{place} => gate", b"%d" % number)
        await asyncio.sleep(2)  # longer than three heartbeats
        gate.free.set()
        await until(lambda: len(gate.got) == 10)
        assert there.session_events() == [("opened", None)]


@async_test
async def test_a_session_that_says_goodbye_sends_neither_heartbeats_nor_messages() -> None:
    tcp = TcpLimits(linger=0.5)
    async with serving(limits=Limits(heartbeat=0.05), tcp=tcp) as (node, journal, place):
        peer = await RawPeer.dial(place)  # which never says goodbye itself
        await until(lambda: node.sessions and node.sessions[0].is_open)
        session = node.sessions[0]
        closing = asyncio.ensure_future(session.close())
        await asyncio.sleep(0.1)
        late = await node.send(session.name, b"late", policy=FAIL)
        await closing
        peer.close()
        assert late.reason in (Reason.TRANSPORT_DOWN, Reason.NO_ROUTE)
        assert journal.outcomes() == [(b"late", late.reason.value)]


@pytest.mark.rule("WK-6")
@async_test
async def test_a_peer_that_does_not_read_for_long_is_not_dead() -> None:
    tcp = TcpLimits(dead=1.0, unsent=16 * 1024)
    async with (
        serving(tcp=tcp) as (server, there, place),
        Node("client", transports=[Tcp(limits=tcp)], limits=QUICK) as client,
    ):
        gate = Gate(server, "gate", inbox=1)

        async def stream() -> None:
            for number in range(600):
                await client.send(f"tcp#{place} => gate", b"%-32768d" % number)

        streaming = asyncio.ensure_future(stream())
        await until(lambda: client.sessions and client.sessions[0].is_paused)
        await asyncio.sleep(3)
        gate.free.set()
        await asyncio.wait_for(streaming, DEADLINE)
        await until(lambda: len(gate.got) == 600)
        assert there.session_events() == [("opened", None)]


@async_test
async def test_a_peer_in_the_middle_of_a_large_message_is_alive() -> None:
    limits = Limits(heartbeat=0.5)
    async with serving(limits=limits) as (_, journal, place):
        peer = await RawPeer.dial(place)
        said = {"waystation": "hello", "node": "slow", "types": {}, "beat": 0.5}
        peer.control(json.dumps(said).encode())
        frame = encode_frame(Message(Route.parse("echo"), Route.parse("app"), bytes(10_000)))
        for at in range(0, len(frame), 250):  # two seconds, longer than three heartbeats
            peer.say(frame[at : at + 250])
            await asyncio.sleep(0.05)
        try:
            assert len((await peer.hear()).payload) == 10_000
        finally:
            peer.close()
        assert journal.session_events()[:1] == [("opened", None)]


@runs_on_every_loop
async def test_a_peer_that_promised_heartbeats_and_is_silent_is_gone() -> None:
    async with serving(limits=Limits(heartbeat=0.05)) as (node, journal, place):
        peer = await RawPeer.dial(place)
        peer.control(b'{"waystation":"hello","node":"mute","types":{},"beat":0.05}')
        await peer.ended()
        await nothing_is_left(node)
        assert journal.session_events() == [("opened", None), ("closed", "TRANSPORT_DOWN")]
        assert "nothing was heard" in journal.sessions[-1].detail
        assert journal.sessions[-1].peer == "mute"


@runs_on_every_loop
async def test_a_peer_that_promised_nothing_may_be_silent() -> None:
    async with serving(limits=Limits(heartbeat=0.02)) as (_, journal, place):
        peer = await RawPeer.dial(place)
        await asyncio.sleep(0.3)
        peer.send("echo", b"here I am")
        assert (await peer.hear()).payload == b"here I am"
        assert journal.session_events() == [("opened", None)]
        peer.close()


# --- Address types (AD-3) -------------------------------------------------------------------------


class Shelf:
    """A carrier that keeps what it gets, on a node that numbers its type in its own way."""

    def __init__(self, node: Node, number: int) -> None:
        self.kept: list[Message] = []
        node.register_type("shelf", self.carry, number)

    def carry(self, message: Message, address: Address) -> Reason | None:
        assert message.onward_route.first == address
        self.kept.append(message)
        return None


@pytest.mark.rule("AD-3")
@runs_on_every_loop
async def test_peers_that_number_a_type_differently_understand_each_other() -> None:
    async with pair() as (client, _, server, _, place):
        here, there = Shelf(client, 20), Shelf(server, 30)
        await client.send(f"tcp#{place} => shelf#one", b"there", policy=Wait(5))
        await until(lambda: there.kept)
        assert str(there.kept[0].onward_route) == "30#one"
        (session,) = server.sessions
        await server.route(
            Message(
                Route.parse(f"{session.name} => 30#two => 31#rest"),
                Route.parse("30#back"),
                b"here",
                server.new_id(),
            )
        )
        await until(lambda: here.kept)
        assert str(here.kept[0].onward_route).startswith("20#two => ")
        assert str(here.kept[0].return_route.addresses[-1]) == "20#back"


@pytest.mark.rule("AD-3")
@runs_on_every_loop
async def test_types_are_translated_on_the_way_through_a_node_that_has_them_not() -> None:
    async with (
        serving("last") as (last, _, last_place),
        serving("middle", dial_for_peers=True) as (_, _, middle_place),
        Node("first", limits=QUICK) as first,
    ):
        here, there = Shelf(first, 20), Shelf(last, 30)
        await first.connect(f"tcp://{middle_place}", name="middle")
        onward = Route.parse(f"middle => tcp#{last_place} => 20#far")
        await first.route(Message(onward, Route.parse("20#near"), b"x", first.new_id()))
        await until(lambda: there.kept)
        got = there.kept[0]
        assert str(got.onward_route) == "30#far"
        assert str(got.return_route.addresses[-1]) == "30#near"
        await last.route(got.reply_from(Address(0, b"y"), b"back", id=last.new_id()))
        await until(lambda: here.kept)
        assert str(here.kept[0].onward_route) == "20#near"


@pytest.mark.rule("AD-3")
@runs_on_every_loop
async def test_even_tcp_may_have_another_number() -> None:
    async with (
        serving("far") as (far, _, target),
        serving("server", dial_for_peers=True) as (_, _, place),
        Node("client", transports=[], limits=QUICK) as client,
    ):
        Shelf(client, 1)
        client.use(Tcp())
        assert client.router.types.numbers["tcp"] != 1
        got = collect(far, "sink")
        await client.send(f"tcp#{place} => tcp#{target} => sink", b"x")
        await until(lambda: got)


@pytest.mark.rule("AD-3")
@runs_on_every_loop
async def test_a_plain_ockam_peer_is_taken_to_use_the_standard_numbers() -> None:
    async with Node("server", transports=[], limits=QUICK) as server:
        shelf = Shelf(server, 1)
        server.use(Tcp())
        tcp = server.router.types.numbers["tcp"]
        got = collect(server, "sink")
        listening = await server.listen("tcp://127.0.0.1:0")
        peer = await RawPeer.dial(listening.place)
        peer.send("sink", b"x", back="1#10.0.0.1:1 => app")
        await until(lambda: got)
        assert got[0].return_route.addresses[1] == Address(tcp, b"10.0.0.1:1")
        await server.route(got[0].reply_from(Address(0, b"sink"), b"y", id=server.new_id()))
        assert str((await peer.hear()).onward_route) == "1#10.0.0.1:1 => 0#app"
        assert shelf.kept == []
        peer.close()


@pytest.mark.rule("AD-3")
@async_test
async def test_a_dialler_with_its_own_numbers_waits_briefly_for_those_of_the_peer() -> None:
    async def plain_ockam(peer: RawPeer) -> None:
        peer.say(PREFACE)
        message = await peer.hear()
        peer.say(
            encode_frame(
                Message(
                    message.return_route, message.onward_route, str(message.onward_route).encode()
                )
            )
        )
        await peer.hear()

    async with (
        Node("client", transports=[], limits=QUICK) as client,
        raw_listener(plain_ockam) as at,
    ):
        Shelf(client, 1)
        client.use(Tcp())
        answer = await client.request(f"tcp#{at} => tcp#10.0.0.1:1 => x", b"")
        assert answer.payload == b"1#10.0.0.1:1 => 0#x"


@pytest.mark.rule("AD-8")
@runs_on_every_loop
async def test_id_and_expiry_go_through_a_node_between_and_a_plain_peer_s_tracing_too() -> None:
    async with (
        serving("last") as (last, _, last_place),
        serving("middle") as (middle, _, middle_place),
        Node("first", limits=QUICK) as first,
    ):
        got = collect(last, "sink")
        await middle.connect(f"tcp://{last_place}", name="last")
        await first.connect(f"tcp://{middle_place}", name="middle")
        message = Message(
            Route.parse("middle => last => sink"),
            Route.parse("app"),
            b"x",
            first.new_id(),
            first.expiry_in(60),
        )
        await first.route(message)
        await until(lambda: got)
        assert (got[0].id, got[0].expiry) == (message.id, message.expiry)
        peer = await RawPeer.dial(middle_place)
        tracing = (
            b'{"traceparent":"00-' + b"4b" * 16 + b"-" + b"5c" * 8 + b'-00","tracestate":"a=b"}'
        )
        body = b"\x84\x82\x82\x00\x44last\x82\x00\x44sink\x81\x82\x00\x43app\x41y"
        body += bytes((0x78, len(tracing))) + tracing
        peer.say(len(body).to_bytes(4, "big") + body)
        await until(lambda: len(got) == 2)
        assert (got[1].id, got[1].trace_context) == ("4b" * 16, tracing.decode())
        peer.close()


# --- Tokens ---------------------------------------------------------------------------------------


@runs_on_every_loop
async def test_the_right_token_opens_a_session() -> None:
    async with pair(token=SECRET) as (client, here, server, there, place):
        session = await client.connect(f"tcp://{place}", name="hub", token=SECRET)
        assert (await client.request("hub => echo", b"x")).payload == b"x"
        (theirs,) = server.sessions
        assert (await server.request(f"{theirs.name} => echo", b"y")).payload == b"y"
        assert here.session_events() == there.session_events() == [("opened", None)]
        assert session.peer == "server"


@runs_on_every_loop
async def test_the_token_of_a_listener_counts_before_that_of_its_node() -> None:
    async with pair(token=GENERAL, listen_token=SPECIAL) as (client, _, _, _, place):
        await client.connect(f"tcp://{place}", name="hub", token=SPECIAL)
        with pytest.raises(UnreachableError):
            await client.connect(f"tcp://{place}", token=GENERAL, keep=False)


@pytest.mark.parametrize(
    ("ours", "theirs", "why_here", "why_there"),
    [
        ("wrong", "secret", "a different token", "a different token"),
        ("secret", None, "has no token", "requires a token"),
    ],
)
@runs_on_every_loop
async def test_other_tokens_open_nothing_on_either_side(
    ours: str, theirs: str | None, why_here: str, why_there: str
) -> None:
    async with pair(token=theirs) as (client, here, server, there, place):
        with pytest.raises(UnreachableError):
            await client.connect(f"tcp://{place}", token=ours, keep=False)
        await nothing_is_left(client)
        await nothing_is_left(server)
        assert here.session_events()[-1][0] == "refused"
        details = [record.detail for record in (*here.sessions, *there.sessions)]
        assert any(why_here in detail or why_there in detail for detail in details)
        assert here.messages == there.messages == []


@runs_on_every_loop
async def test_without_a_token_nothing_opens_where_one_is_asked_for() -> None:
    async with pair(token=SECRET) as (client, _, server, there, place):
        with contextlib.suppress(UnreachableError):  # or it opens, and ends at once
            await client.connect(f"tcp://{place}", keep=False)
        await nothing_is_left(client)
        await nothing_is_left(server)
        assert [kind for kind, _ in there.session_events()] == ["refused"]
        assert there.messages == []


@pytest.mark.rule("OB-1")
@runs_on_every_loop
async def test_a_message_before_the_proof_is_refused_and_ends_the_session() -> None:
    async with serving(token=SECRET) as (node, journal, place):
        got = collect(node, "sink")
        peer = await RawPeer.dial(place)
        peer.send("sink", b"let me in")
        await peer.ended()
        await nothing_is_left(node)
        assert journal.outcomes() == [(b"let me in", "REFUSED")]
        assert journal.session_events() == [("refused", "REFUSED")]
        assert "before it proved" in journal.sessions[0].detail
        assert got == []


@runs_on_every_loop
async def test_a_peer_that_proves_nothing_is_ended_and_has_no_name_meanwhile() -> None:
    async with serving(token=SECRET) as (node, journal, place):
        peer = await RawPeer.dial(place)
        await until(lambda: node.sessions)
        assert not node.sessions[0].is_open
        assert len(node.router.table) == 1
        await peer.ended()
        await nothing_is_left(node)
        assert journal.session_events() == [("refused", "REFUSED")]
        assert "did not prove" in journal.sessions[0].detail


@runs_on_every_loop
async def test_somebody_else_s_proof_proves_nothing() -> None:
    recorded: list[bytes] = []
    async with serving(token=SECRET) as (node, journal, place):

        async def spy(peer: RawPeer) -> None:
            """Stand between an honest dialler and the node, and write down what it says."""
            far = await RawPeer.dial(place)
            peer.say(PREFACE)
            far.control(await peer.hear_control())
            recorded.append(b"")
            peer.control(await far.hear_control())
            recorded.append(await peer.hear_control())
            far.close()

        async with raw_listener(spy) as between, Node("honest", token=SECRET) as honest:
            with pytest.raises(UnreachableError):
                await honest.connect(f"tcp://{between}", keep=False, wait=0.5)
        proof = json.loads(recorded[1])
        assert proof["waystation"] == "proof"
        thief = await RawPeer.dial(place)
        said = {"waystation": "hello", "node": "honest", "types": {}, "nonce": "n", "token": True}
        thief.control(json.dumps(said).encode())
        thief.control(recorded[1])
        thief.send("echo", b"let me in")
        await thief.ended()
        await nothing_is_left(node)
        assert "a different token" in journal.sessions[-1].detail
        assert (b"let me in", "REFUSED") in journal.outcomes()


@runs_on_every_loop
async def test_a_node_s_own_proof_sent_back_to_it_proves_nothing() -> None:
    async with serving(token=SECRET) as (node, journal, place):
        mirror = await RawPeer.dial(place)
        hello = json.loads(await mirror.hear_control())
        mirror.control(json.dumps({**hello, "node": "mirror"}).encode())
        mirror.control(await mirror.hear_control())
        await mirror.ended()
        await nothing_is_left(node)
        assert journal.session_events() == [("refused", "REFUSED")]
        assert "a different token" in journal.sessions[0].detail


@pytest.mark.rule("OB-1")
@async_test
async def test_what_an_admitted_peer_sent_before_it_left_is_delivered() -> None:
    async with pair(token=SECRET) as (client, _, server, there, place):
        gate = Gate(server, "gate", inbox=1)
        session = await client.connect(f"tcp://{place}", name="hub", token=SECRET)
        for number in range(10):
            await client.send("hub => gate", b"%d" % number)
        await until(lambda: server.sessions and server.sessions[0].is_stalled)
        await session.close()
        await until(lambda: not server.sessions)
        gate.free.set()
        await until(lambda: len(gate.got) == 10, 2)
        there.check_outcomes()


@async_test
async def test_what_a_peer_sent_before_it_left_is_delivered() -> None:
    async with pair() as (client, _, server, there, place):
        gate = Gate(server, "gate", inbox=1)
        session = await client.connect(f"tcp://{place}", name="hub")
        for number in range(10):
            await client.send("hub => gate", b"%d" % number)
        await until(lambda: server.sessions and server.sessions[0].is_stalled)
        await session.close()
        gate.free.set()
        await until(lambda: len(gate.got) == 10)
        assert gate.got == [b"%d" % number for number in range(10)]
        await nothing_is_left(server)
        there.check_outcomes()
