"""joynr's SMRF frames: our codec, written with `struct`, against the `flatbuffers` library.

Both read a frame into the same value and write a frame from it. The library has no verifier for
Python, so its side checks nothing; ours checks every offset.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

import flatbuffers
from flatbuffers import number_types
from flatbuffers.table import Table

from benchmarks.harness import Report
from waystation.wire.smrf import SmrfMessage, decode, encode

PACKAGES = ("flatbuffers",)

ROUNDS = 5_000

REQUEST = SmrfMessage(
    "provider-1",
    "proxy-1",
    1_893_456_000_000,
    {
        "t": "rq",
        "id": "msgid-0001",
        "re": '{"_typeName":"joynr.system.RoutingTypes.MqttAddress",'
        '"brokerUri":"joynrdefaultgbid","topic":"consumerchannel"}',
        "c-z4": "rrid-0001",
    },
    b'{"_typeName":"joynr.Request","methodName":"add","paramDatatypes":["Integer","Integer"],'
    b'"params":[1,2],"requestReplyId":"rrid-0001"}',
)
"""A frame of 500 bytes."""

PUBLICATION = SmrfMessage(
    "provider-1/location/EU/DE",
    "provider-1",
    1_893_456_000_000,
    {"t": "m", "id": "msgid-0005"},
    b'{"_typeName":"joynr.MulticastPublication","multicastId":"provider-1/location/EU/DE",'
    b'"response":[12]}',
)
"""A body of 100 bytes."""

_Argument = TypeVar("_Argument")
_PREFIX = struct.Struct("<HHI")


def library_encode(message: SmrfMessage) -> bytes:
    builder = flatbuffers.Builder(512)
    recipient = builder.CreateString(message.recipient)
    sender = builder.CreateString(message.sender)
    tables = []
    for key, value in sorted(message.headers.items()):
        key_at = builder.CreateString(key)
        value_at = builder.CreateString(value)
        builder.StartObject(2)
        builder.PrependUOffsetTRelativeSlot(0, key_at, 0)
        builder.PrependUOffsetTRelativeSlot(1, value_at, 0)
        tables.append(builder.EndObject())
    builder.StartVector(4, len(tables), 4)
    for table in reversed(tables):
        builder.PrependUOffsetTRelative(table)
    headers = builder.EndVector()
    body = builder.CreateByteVector(message.body)
    builder.StartObject(10)
    builder.PrependUOffsetTRelativeSlot(0, recipient, 0)
    builder.PrependUOffsetTRelativeSlot(1, sender, 0)
    builder.PrependInt64Slot(2, int(message.ttl), 0)
    builder.PrependUOffsetTRelativeSlot(7, headers, 0)
    builder.PrependUOffsetTRelativeSlot(8, body, 0)
    builder.PrependBoolSlot(4, False, True)
    builder.PrependBoolSlot(5, False, True)
    builder.Finish(builder.EndObject())
    flatbuffer = bytes(builder.Output())
    return _PREFIX.pack(1, 0, len(flatbuffer)) + flatbuffer


def library_decode(data: bytes) -> SmrfMessage:
    _, signature_size, size = _PREFIX.unpack_from(data)
    flatbuffer = data[8 : 8 + size]
    root = flatbuffers.encode.Get(flatbuffers.packer.uoffset, flatbuffer, 0)
    table = Table(flatbuffer, root)

    def flag(slot: int, default: bool) -> bool:
        at = table.Offset(slot)
        return bool(table.Get(number_types.BoolFlags, table.Pos + at)) if at else default

    def text(owner: Table, slot: int) -> str:
        return str(owner.String(owner.Pos + owner.Offset(slot)).decode())

    headers = {}
    vector = table.Offset(18)
    start = table.Vector(vector)
    for index in range(table.VectorLen(vector)):
        header = Table(flatbuffer, table.Indirect(start + 4 * index))
        headers[text(header, 4)] = text(header, 6)
    body = table.Offset(20)
    body_start = table.Vector(body)
    return SmrfMessage(
        text(table, 4),
        text(table, 6),
        table.Get(number_types.Int64Flags, table.Pos + table.Offset(8)),
        headers,
        flatbuffer[body_start : body_start + table.VectorLen(body)],
        flag(10, True),
        flag(12, True),
        flag(14, True),
        flag(16, False),
        flag(22, False),
        data[8 + size : 8 + size + signature_size],
    )


def _repeated(function: Callable[[_Argument], object], argument: _Argument) -> Callable[[], int]:
    def work() -> int:
        for _ in range(ROUNDS):
            function(argument)
        return ROUNDS

    return work


def run(report: Report) -> None:
    for name, message in (("500 B request", REQUEST), ("100 B publication", PUBLICATION)):
        frame = library_encode(message)
        for data in (encode(message), frame):  # nobody is fast by being wrong
            if not decode(data) == library_decode(data) == message:
                raise AssertionError(name)
        report.compare(
            f"smrf: write a {name}",
            {
                "waystation": _repeated(encode, message),
                "flatbuffers": _repeated(library_encode, message),
            },
        )
        report.compare(
            f"smrf: read a {name}",
            {
                "waystation": _repeated(decode, frame),
                "flatbuffers": _repeated(library_decode, frame),
            },
        )
