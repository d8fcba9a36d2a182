"""The gossip-router formats: how fast frames are found in a received buffer, and decoded.

`scan` is measured against what one writes first: a loop that unpacks the fields of each frame with
`struct` and notes where it goes. Both get the same 64 KiB buffers, as from a socket, and both give
what a router needs to forward: destination, first and last byte. Sizes are those of the payload.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

from benchmarks.harness import Report
from waystation.wire import jgroups2, jgroups5
from waystation.wire.jgroups import KnownHeads, UuidAddress

BUFFER = 64 << 10
FRAMES = 20_000

Frame = tuple[int, int, bytes, bytes | None]


def scan_by_fields_5(buffer: bytes, position: int, end: int) -> tuple[list[Frame], int]:
    """One frame after the other, field by field: type, group, destination, sender, payload."""
    frames: list[Frame] = []
    length_at = struct.Struct(">I").unpack_from
    size_at = struct.Struct(">H").unpack_from
    while position + 4 <= end:
        (length,) = length_at(buffer, position)
        after = position + 4 + length
        if after > end:
            break
        at = position + 5
        group = b""
        if buffer[at] == 1:
            (size,) = size_at(buffer, at + 1)
            group = buffer[at + 3 : at + 3 + size]
            at += 2 + size
        at += 1
        destination = None
        if buffer[at] == 2:
            destination = buffer[at + 1 : at + 17]
            at += 16
        at += 1
        if buffer[at] == 2:
            at += 16
        at += 1
        (payload,) = length_at(buffer, at)
        if at + 4 + payload != after:
            message = "a frame is malformed"
            raise ValueError(message)
        frames.append((position, after, group, destination))
        position = after
    return frames, position


def scan_by_fields_2(buffer: bytes, position: int, end: int) -> tuple[list[Frame], int]:
    """The same for 2.12, where nothing but the fields tells where a message ends."""
    frames: list[Frame] = []
    length_at = struct.Struct(">I").unpack_from
    size_at = struct.Struct(">H").unpack_from
    while position + 40 <= end:
        at = position + 1
        group = b""
        if buffer[at] == 1:
            (size,) = size_at(buffer, at + 1)
            group = buffer[at + 3 : at + 3 + size]
            at += 2 + size
        at += 1
        destination = None
        if buffer[at] == 2:
            destination = buffer[at + 1 : at + 17]
            at += 17
        at += 7  # no name, no members, no physical addresses, and a payload is there
        (payload,) = length_at(buffer, at)
        after = at + 4 + payload
        if after > end:
            break
        frames.append((position, after, group, destination))
        position = after
    return frames, position


def _cut(frames: Sequence[bytes]) -> list[bytes]:
    """Whole frames in buffers of at most 64 KiB."""
    buffers, current, held = [], list[bytes](), 0
    for frame in frames:
        if held + len(frame) > BUFFER:
            buffers.append(b"".join(current))
            current, held = [], 0
        current.append(frame)
        held += len(frame)
    return [*buffers, b"".join(current)]


def _each(work: Callable[[bytes], object], buffers: Sequence[bytes]) -> Callable[[], int]:
    def subject() -> int:
        for buffer in buffers:
            work(buffer)
        return FRAMES

    return subject


def _traffic(size: int, destinations: int, *, mixed: bool) -> tuple[list[bytes], list[bytes]]:
    """The same messages in both formats; `mixed` lets their sizes vary by half."""
    chance = random.Random(7)
    receivers = [UuidAddress(chance.randbytes(16)) for _ in range(destinations)]
    sender = UuidAddress(chance.randbytes(16))
    of_2, of_5 = [], []
    for _ in range(FRAMES):
        payload = chance.randbytes(chance.randint(size // 2, size * 3 // 2) if mixed else size)
        receiver = chance.choice(receivers)
        of_2.append(jgroups2.encode(jgroups2.Message("demo", receiver, payload)))
        of_5.append(jgroups5.encode(jgroups5.Message("demo", receiver, sender, payload)))
    return of_2, of_5


def _compare_scans(report: Report, case: str, of_2: list[bytes], of_5: list[bytes]) -> None:
    known_2, known_5 = KnownHeads(), KnownHeads()

    def scan_5(data: bytes) -> None:
        jgroups5.scan(data, 0, len(data), known=known_5)

    def scan_2(data: bytes) -> None:
        jgroups2.scan(data, 0, len(data), known=known_2)

    buffers = _cut(of_5)
    report.compare(
        f"5.x scan, {case}",
        {
            "waystation": _each(scan_5, buffers),
            "field by field": _each(lambda data: scan_by_fields_5(data, 0, len(data)), buffers),
        },
        unit="frames/s",
    )
    buffers = _cut(of_2)
    report.compare(
        f"2.12 scan, {case}",
        {
            "waystation": _each(scan_2, buffers),
            "field by field": _each(lambda data: scan_by_fields_2(data, 0, len(data)), buffers),
        },
        unit="frames/s",
    )


def _compare_decoders(report: Report, case: str, of_2: list[bytes], of_5: list[bytes]) -> None:
    buffers = _cut(of_5)
    decoder = jgroups5.Decoder()
    report.compare(f"5.x decode, {case}", {"waystation": _each(decoder.feed, buffers)})
    buffers = _cut(of_2)
    requests = jgroups2.RequestDecoder()
    report.compare(f"2.12 decode, {case}", {"waystation": _each(requests.feed, buffers)})
    known = KnownHeads()

    def forward(data: bytes) -> None:
        for run in jgroups2.scan(data, 0, len(data), known=known)[0]:
            jgroups2.forwarded(data, run)

    report.compare(f"2.12 scan and forward, {case}", {"waystation": _each(forward, buffers)})


def _measure_control(report: Report) -> None:
    address = UuidAddress(bytes(range(16)))
    of_5 = _cut([jgroups5.encode(jgroups5.Register("demo", address, "A"))] * FRAMES)
    decoder = jgroups5.Decoder()
    report.compare("5.x decode, REGISTER", {"waystation": _each(decoder.feed, of_5)})
    of_2 = _cut([jgroups2.encode(jgroups2.Connect("demo", address, "A"))] * FRAMES)
    requests = jgroups2.RequestDecoder()
    report.compare("2.12 decode, CONNECT", {"waystation": _each(requests.feed, of_2)})


def _measure_encoders(report: Report) -> None:
    address = UuidAddress(bytes(range(16)))
    of_5 = jgroups5.Message("demo", address, address, bytes(100))
    of_2 = jgroups2.Message("demo", address, bytes(100))
    nothing = [b""] * FRAMES
    encode_5, encode_2 = jgroups5.encode, jgroups2.encode
    report.compare("5.x encode, 100 B", {"waystation": _each(lambda _: encode_5(of_5), nothing)})
    report.compare("2.12 encode, 100 B", {"waystation": _each(lambda _: encode_2(of_2), nothing)})


def run(report: Report) -> None:
    for size in (100, 1000):
        for destinations in (1, 8):
            traffic = _traffic(size, destinations, mixed=False)
            case = f"{size} B, {destinations} destination{'s' * (destinations > 1)}"
            _compare_scans(report, case, *traffic)
        _compare_decoders(report, f"{size} B, 8 destinations", *traffic)
    _compare_scans(report, "50-150 B, 1 destination", *_traffic(100, 1, mixed=True))
    _measure_control(report)
    _measure_encoders(report)
