"""The load generator: a process that sends and one that receives, the same for every router.

Both speak the router's format with raw sockets, from frames that were made before. All frames of a
run have one size, so a receiver only counts bytes. The parent says what to do in a line of JSON on
the command line; a receiver tells its count whenever it is asked, by a line on standard input.

`steady` load writes as fast as TCP takes it, in pieces of 64 KiB, and tells now and then how much
that was. `paced` load writes so many
messages every millisecond; each carries the time, and the receiver keeps how long the first of each
piece that it reads has travelled.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import sys
import time
from typing import Literal

import msgspec

from benchmarks.live.measure import end_with_parent
from waystation.wire import jgroups2, jgroups5
from waystation.wire.jgroups import PhysicalAddress, UuidAddress

GROUP = "bench"
CHUNK = 64 * 1024
STAMP = struct.Struct(">Q")
_HERE = PhysicalAddress("127.0.0.1", 7800)

Shape = Literal["one to one", "one to eight", "eight to eight"]
RECEIVERS: dict[Shape, int] = {"one to one": 1, "one to eight": 8, "eight to eight": 8}
SENDERS: dict[Shape, int] = {"one to one": 1, "one to eight": 1, "eight to eight": 8}


class Job(msgspec.Struct, frozen=True):
    """What a process is to do; `rate` is in messages per second, 0 for as many as go."""

    role: Literal["send", "receive"]
    generation: Literal[2, 5]
    port: int
    shape: Shape
    size: int
    rate: int = 0


def member(number: int) -> UuidAddress:
    return UuidAddress(number.to_bytes(16, "big"))


def registration(generation: int, number: int) -> bytes:
    if generation == 5:
        return jgroups5.encode(jgroups5.Register(GROUP, member(number), f"m{number}", _HERE))
    return jgroups2.encode(jgroups2.Connect(GROUP, member(number), f"m{number}", (_HERE,)))


def frame(job: Job, to: int | None, payload: bytes) -> bytes:
    """A message as it is sent."""
    address = None if to is None else member(to)
    if job.generation == 5:
        return jgroups5.encode(jgroups5.Message(GROUP, address, member(999), payload))
    return jgroups2.encode(jgroups2.Message(GROUP, address, payload))


def arriving(job: Job) -> int:
    """The size of a message as it arrives: a router of 2.12 leaves out the group."""
    to = None if job.shape == "one to eight" else 1
    size = len(frame(job, to, bytes(job.size)))
    return size if job.generation == 5 else size - 2 - len(GROUP)


def connect(port: int) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", port), 20)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def join(job: Job, number: int) -> socket.socket:
    """A connection with one member."""
    found = connect(job.port)
    found.sendall(registration(job.generation, number))
    if job.generation == 2 and found.recv(1) != b"\x0e":
        sys.exit("the router did not take a member")
    return found


# --- receiving -------------------------------------------------------------------------------


def receive(job: Job) -> None:
    sockets = {found.fileno(): found for found in members(job)}
    poll = select.epoll()
    for number, found in sockets.items():
        found.setblocking(False)
        poll.register(number, select.EPOLLIN)
    poll.register(sys.stdin.fileno(), select.EPOLLIN)
    print("ready", flush=True)
    buffer = bytearray(1 << 20)
    view = memoryview(buffer)
    size, offset = arriving(job), arriving(job) - job.size
    counts = dict.fromkeys(sockets, 0)
    delays: list[int] = []
    while True:
        for number, _ in poll.poll():
            if number == sys.stdin.fileno():
                if not sys.stdin.readline():
                    return
                say_counts(counts, size, delays)
                continue
            got = sockets[number].recv_into(view)
            if job.rate:
                start = -counts[number] % size  # where the first whole message begins
                if start + size <= got:
                    sent = STAMP.unpack_from(buffer, start + offset)[0]
                    delays.append(time.monotonic_ns() - sent)
            counts[number] += got
            if not got:
                sys.exit("the router closed a connection")


def members(job: Job) -> list[socket.socket]:
    return [join(job, number) for number in range(1, RECEIVERS[job.shape] + 1)]


def say_counts(counts: dict[int, int], size: int, delays: list[int]) -> None:
    """Tell the messages so far, when that was, and the delays since the last time."""
    now = time.monotonic()
    total = sum(counts.values()) / size
    ordered = sorted(delays) or [0]
    p50, p99 = (ordered[int((len(ordered) - 1) * share)] / 1000 for share in (0.5, 0.99))
    delays.clear()
    print(f"{now} {total} {p50} {p99}", flush=True)


# --- sending ---------------------------------------------------------------------------------


def send(job: Job) -> None:
    sockets = [connect(job.port) for _ in range(SENDERS[job.shape])]
    print("ready", flush=True)
    sys.stdin.readline()
    if job.rate:
        send_paced(job, sockets)
    else:
        send_steadily(job, sockets)


def targets(job: Job) -> list[int | None]:
    if job.shape == "one to one":
        return [1]
    if job.shape == "one to eight":
        return [None]
    return list(range(1, 9))


def send_steadily(job: Job, sockets: list[socket.socket]) -> None:
    chosen = random.Random(job.size)
    frames = [frame(job, to, chosen.randbytes(job.size)) for to in targets(job)]
    count = max(1, CHUNK // len(frames[0]))
    chunks = [b"".join(chosen.choices(frames, k=count)) for _ in range(32)]
    tell = Teller(len(frames[0]))
    if len(sockets) == 1:
        while True:
            sockets[0].sendall(chosen.choice(chunks))
            tell.sent(len(chunks[0]))
    waiting = {found.fileno(): memoryview(chunks[0]) for found in sockets}
    by_number = {found.fileno(): found for found in sockets}
    poll = select.epoll()
    for found in sockets:
        found.setblocking(False)
        poll.register(found.fileno(), select.EPOLLOUT)
    while True:
        for number, _ in poll.poll():
            sent = by_number[number].send(waiting[number])
            tell.sent(sent)
            waiting[number] = waiting[number][sent:] or memoryview(chosen.choice(chunks))


class Teller:
    """Tells the messages sent so far, and when that was, now and then."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._bytes = 0
        self._due = 0.0

    def sent(self, size: int) -> None:
        self._bytes += size
        now = time.monotonic()
        if now >= self._due:
            self._due = now + 0.1
            print(f"{now} {self._bytes / self._size}", flush=True)


def send_paced(job: Job, sockets: list[socket.socket]) -> None:
    chosen = random.Random(job.size)
    filler = chosen.randbytes(job.size - STAMP.size)
    ends = [frame(job, to, bytes(STAMP.size) + filler) for to in targets(job)]
    stamp_at = len(ends[0]) - job.size
    share = max(1, job.rate // len(sockets) // 1000)
    tick = share * len(sockets) / job.rate
    due = time.monotonic()
    while True:
        for found in sockets:
            stamp = STAMP.pack(time.monotonic_ns())
            picked = chosen.choices(ends, k=share)
            found.sendall(
                b"".join(
                    part
                    for whole in picked
                    for part in (whole[:stamp_at], stamp, whole[stamp_at + STAMP.size :])
                )
            )
        due += tick
        pause = due - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        elif pause < -1:
            due = time.monotonic()  # it cannot keep up; no storm to make up for it


if __name__ == "__main__":
    end_with_parent()
    job = msgspec.json.decode(sys.argv[1], type=Job)
    (send if job.role == "send" else receive)(job)
