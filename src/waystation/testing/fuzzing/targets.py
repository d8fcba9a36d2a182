"""What is fuzzed: for each decoder a function that takes bytes, and bytes to begin with.

A decoder gives a value or raises a WaystationError, within the limits that it is given. Whatever
else it does is a finding.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from waystation.core.address import Address, Route
from waystation.core.message import Message
from waystation.core.session import Event, State, step
from waystation.errors import LocalError, WaystationError
from waystation.groups import packets, pipe
from waystation.journal.frames import Damage, Frame, frame_header, read_frames
from waystation.mqtt.packets import PING, PacketReader
from waystation.node import Context, Limits, Node
from waystation.testing.simulation import Machine, Simulation
from waystation.transports.http import json_messages
from waystation.wire import (
    acknowledged,
    bare,
    cbor,
    clock,
    custody,
    flow,
    hello,
    hierarchy,
    jgroups2,
    jgroups5,
    jgroups5_members,
    joynr,
    joynr_frames,
    joynr_services,
    ockam,
    ockam_udp,
    ockam_ws,
    secure_channel,
    smrf,
)
from waystation.wire.identity import Identity, PrivateIdentity
from waystation.wire.noise import Handshake
from waystation.wire.vouchers import Voucher, vouch

LIMIT: Final = 4_096
"""Bytes of the largest frame: small, so that its bounds are met."""

_VIA: Final = Address(0, b"link")
_MESSAGE: Final = Message(Route.parse("echo"), Route.parse("app => b"), b"hello", "4bf9" * 8)


class Target(Struct, frozen=True):
    """Something that takes bytes."""

    take: Callable[[bytes], object]
    examples: tuple[bytes, ...]
    """What it takes gladly: the beginning of a corpus."""


def run(target: Target, data: bytes) -> None:
    """Let a target take bytes; raises what nobody may raise."""
    with contextlib.suppress(WaystationError):
        target.take(data)


def _pieces(data: bytes) -> Iterator[bytes]:
    """The bytes in the pieces that their first one tells, so that ends come anywhere."""
    size = 1 + data[0] if data else 1
    rest = data[1:]
    for start in range(0, len(rest), size):
        yield rest[start : start + size]


def _fed(make: Callable[[], Any]) -> Callable[[bytes], None]:
    """A decoder that is fed in pieces, and holds no more than one frame."""

    def take(data: bytes) -> None:
        decoder = make()
        for piece in _pieces(data):
            decoder.feed(piece)
            held = getattr(decoder, "held", 0)
            assert held <= 2 * LIMIT + 256, f"it holds {held} bytes"

    return take


def _frames(data: bytes) -> None:
    """What is found of a journal's tail covers all of it, in order."""
    end = 0
    for found in read_frames(data):
        assert isinstance(found, Frame | Damage)
        assert found.start == end
        end = found.end
    assert end == len(data)


def _greeting(data: bytes) -> None:
    own = hello.Hello("a", {"tcp": 1}, 15.0, "00" * 16)
    greeting = hello.Greeting(own, None, initiator=True)
    for piece in _pieces(data):
        greeting.hear(piece)


def _control(data: bytes) -> None:
    control = acknowledged.ControlStream()
    for piece in _pieces(data):
        control.hear(piece)
        control.due()


def _responder(data: bytes) -> None:
    """A handshake whose first and third message a stranger wrote: it fails, and says so."""
    split = 1 + data[0] if data else 0
    handshake = Handshake(b"\x01" * 32, b"\x02" * 32)
    handshake.read_first(data[1:split])
    handshake.write_second(b"")
    handshake.read_third(data[split:])


def _initiator(data: bytes) -> None:
    handshake = Handshake(b"\x01" * 32, b"\x02" * 32)
    handshake.write_first()
    handshake.read_second(data)


def _posted(data: bytes) -> None:
    """What is posted gives messages, or a ValueError for whoever posted it."""
    with contextlib.suppress(ValueError):
        json_messages.read_messages(data, _VIA)


def _voucher(data: bytes) -> None:
    with contextlib.suppress(msgspec.ValidationError, msgspec.DecodeError):  # as whoever reads it
        voucher = msgspec.msgpack.decode(data, type=Voucher)
        voucher.names_it("truck-7")
        voucher.owner()


def _session_table(data: bytes) -> None:
    """Any order of events leads to a state; what cannot happen is said to be impossible."""
    events, state = list(Event), State.DISCONNECTED
    for byte in data:
        with contextlib.suppress(LocalError):
            state, _ = step(state, events[byte % len(events)])
    assert state in State


def _session(data: bytes) -> None:
    """A hub that a stranger sends bytes to goes on: it answers the next one."""

    async def hub() -> None:
        node = Node("hub", hub=True, limits=Limits(greeting=2.0, heartbeat=1.0))

        async def echo(message: Message, context: Context) -> None:
            await context.reply(message.payload)

        node.start_worker(("echo",), echo)
        await node.listen("tcp://hub:4000")
        await asyncio.Event().wait()

    async def stranger() -> None:
        sock = _loop().make_socket(2, 1)
        await sock.connect_stream((_loop()._network.resolve("hub"), 4000))  # noqa: SLF001
        transport = sock.take_stream()
        transport.begin(asyncio.Protocol())
        for piece in _pieces(data):
            transport.write(piece)
            await asyncio.sleep(0.01)
        await asyncio.sleep(3)

    async def guest() -> bytes:
        node = Node("guest")
        reply = await node.request("tcp#hub:4000 => echo", b"still there?", timeout=10.0)
        return reply.payload

    problems: list[Any] = []

    async def main(simulation: Simulation) -> bytes:
        simulation.loop.set_exception_handler(lambda _, told: problems.append(told))
        machines: list[Machine] = [
            simulation.network.machine(name) for name in ("hub", "stranger", "guest")
        ]
        machines[0].run(hub)
        await asyncio.sleep(0.1)
        await machines[1].run(stranger)
        answer: bytes = await machines[2].run(guest)
        return answer

    assert Simulation(1, most_events=200_000).run(main) == b"still there?"
    assert not problems, problems


def _loop() -> Any:
    return asyncio.get_running_loop()


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


_HELLO: Final = hello.Greeting(
    hello.Hello("b", {"tcp": 1}, 15.0, "11" * 16, can=("claims", "hold")), None, initiator=False
).first()
_BARE: Final = bytes.fromhex("01 01 00 066563686f6572 01 00 03617070 026869")
_IDENTITY: Final = PrivateIdentity.create(b"\x01" * 32, 1_700_000_000).public
_OCKAM: Final = ockam.PREFACE + ockam.encode_frame(_MESSAGE) + ockam.HEARTBEAT_FRAME
_SMRF: Final = smrf.encode(
    smrf.SmrfMessage("door-1", "app-1", 1_900_000_000_000, {"t": "rq", "id": "1"}, b"{}")
)
_OWNER: Final = PrivateIdentity.create(b"\x01" * 32, 1_700_000_000)
_ONE: Final = bytes(15) + b"\1"
_REQUEST: Final = joynr.encode_payload(joynr.Request(method_name="open", request_reply_id="1"))

TARGETS: Final[Mapping[str, Target]] = {
    "ockam": Target(_fed(lambda: ockam.FrameDecoder(limit=LIMIT, via=_VIA)), (b"\xff" + _OCKAM,)),
    "ockam_body": Target(ockam.decode_body, (ockam.encode_body(_MESSAGE),)),
    "ockam_udp": Target(
        _fed(lambda: ockam_udp.PeerReassembly(limit=LIMIT)),
        (b"\xff" + ockam.fragments(ockam.encode_body(_MESSAGE), 1)[0],),
    ),
    "ockam_ws": Target(
        lambda data: ockam_ws.BodyDecoder(_VIA, limit=LIMIT).decode(data),
        (_BARE, ockam_ws.encode_control(b"hello")),
    ),
    "bare": Target(lambda data: bare.decode(data, limit=LIMIT), (_BARE,)),
    "cbor": Target(cbor.decode, (_IDENTITY.history,)),
    "hello": Target(_greeting, (b"\xff" + _HELLO,)),
    "control": Target(_control, (b"\xff" + _HELLO,)),
    "hierarchy": Target(
        hierarchy.read,
        (
            _json({"waystation": "announce", "participants": [["a", True, 0]]}),
            _json({"waystation": "subscribe", "subscriptions": [["a/b", "c"]]}),
        ),
    ),
    "flow": Target(flow.read, (_json({"waystation": "hold", "names": ["0#a"]}),)),
    "clock": Target(clock.read, (_json({"waystation": "clock", "asked": 1}),)),
    "custody": Target(custody.read, (b'{"waystation":"take"}', b'{"waystation":"answer"}')),
    "letter": Target(lambda data: custody.letter_of(data, {"tcp": 1}), (b"\x93\x01\x02\x03",)),
    "secure_channel": Target(
        secure_channel.decode,
        (secure_channel.encode(Route.parse("a"), Route.parse("b"), b"x"),),
    ),
    "sealed": Target(
        lambda data: secure_channel.Opener(b"\x01" * 32).open(data),
        (secure_channel.Sealer(b"\x01" * 32).seal(b"hello"),),
    ),
    "identity": Target(Identity.read, (_IDENTITY.history,)),
    "smrf": Target(lambda data: smrf.decode(data, max_size=LIMIT), (_SMRF,)),
    "joynr": Target(lambda data: joynr.decode_payload(data, max_size=LIMIT), (_REQUEST,)),
    "joynr_frame": Target(lambda data: joynr_frames.decode_frame(data, limit=LIMIT), (_SMRF,)),
    "joynr_opening": Target(joynr_services.read_opening, (joynr_services.encode_opening("app-1"),)),
    "jgroups2_requests": Target(_fed(jgroups2.RequestDecoder), (b"\xff\x00\x05",)),
    "jgroups2_answers": Target(_fed(jgroups2.AnswerDecoder), (b"\xff\x00\x05",)),
    "jgroups5": Target(
        _fed(jgroups5.Decoder), (b"\xff\0\0\0\x0c\x05\0\1\1\0\0\0\1\0\0\0\0\xff\xff\xff\xfb",)
    ),
    "jgroups2_head": Target(
        jgroups2.read_head, (b"\x0a\x01\x00\x04demo\x01\x00\xff\xff\xff\xff\x01",)
    ),
    "jgroups5_head": Target(jgroups5.read_head, (b"\x04\x01\x00\x04demo\x01\x01",)),
    "jgroups5_members": Target(
        jgroups5_members.read_messages,
        (jgroups5_members.encode_plain(b"hello", None, None, "demo", (5, 5, 7)),),
    ),
    "group_packet": Target(
        packets.decode,
        (
            packets.encode_data(packets.Data(_ONE, _ONE, False, 1, 1, [b"hello", None])),
            packets.encode_ack(packets.Ack(_ONE, _ONE, 7, 0, 1024, gap_one=True)),
        ),
    ),
    "group_pipe": Target(
        lambda data: pipe.read_head(data, _ONE),
        (pipe.head(pipe.Kind.OPEN, (_ONE, 7, True)),),
    ),
    "http_json": Target(
        _posted, (b'{"to": "hop => echo", "payload": "hi"}', b'[{"to": "a", "ttl": 1.5}]')
    ),
    "noise_responder": Target(
        _responder, (b"\x20" + Handshake(b"\x03" * 32, b"\x04" * 32).write_first() + b"x" * 80,)
    ),
    "noise_initiator": Target(_initiator, (b"\x09" * 112,)),
    "voucher": Target(_voucher, (msgspec.msgpack.encode(vouch(_OWNER, 7, 3, ["truck-7"])),)),
    "mqtt": Target(_fed(lambda: PacketReader(LIMIT, check_text=True)), (b"\xff" + PING,)),
    "journal": Target(_frames, (frame_header(memoryview(b"rows"), 3, 0) + b"rows",)),
    "session_table": Target(_session_table, (bytes(range(12)),)),
    "session": Target(_session, (b"\xff" + _OCKAM, b"\xff" + ockam.encode_control(_HELLO))),
}
