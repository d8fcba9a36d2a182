"""ZeroMQ: DEALER to ROUTER over TCP, with zmq.asyncio on uvloop, and with plain blocking sockets.

Two subjects: zmq.asyncio is what an asyncio program uses; blocking sockets, each process doing only
this one thing, are the upper bound of what pyzmq can do.

One hop: the driver is a DEALER, the sink a ROUTER that binds. Two hops: a ROUTER in the middle,
which routes by an identity frame; driver and sink are DEALERs that connect to it. The id of a
message is a frame of its own. Frames as an application sees them:

    one hop     driver [id, payload]            -> sink [driver, id, payload]
    two hops    driver [to, id, payload]        -> middle [from, to, id, payload]
                middle [to, from, id, payload]  -> sink [from, id, payload]

So a sink receives and answers the same three frames in both cases. High-water marks are libzmq's
own (1000 messages), except that the middle's towards its receivers is off: a ROUTER at its mark
drops messages, or refuses them without a word of when to go on.
"""

from __future__ import annotations

import time

import uvloop
import zmq
import zmq.asyncio

from benchmarks.live import measure
from benchmarks.live.measure import Company, Part, Subject, Work

PACKAGES = ("pyzmq", "uvloop")
DRIVER, SINK = b"driver", b"sink"
_HOST = "tcp://127.0.0.1"


def stage(company: Company) -> int:
    """Start the sink, and the middle before it when there is one."""
    if company.work.hops == 1:
        return company.start("sink")
    port = company.start("middle")
    company.start("sink", port)
    return port


# What both styles share: how the sockets are set up. A zmq.asyncio socket is given its options and
# addresses by the same calls, so these take either kind.

_AnySocket = zmq.Socket[bytes] | zmq.asyncio.Socket


def _joined(socket: _AnySocket, identity: bytes, port: int) -> None:
    socket.setsockopt(zmq.IDENTITY, identity)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(f"{_HOST}:{port}")


def _bound(socket: _AnySocket) -> int:
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # an unknown identity is an error, not a loss
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.LINGER, 0)
    return int(socket.bind_to_random_port(_HOST))


def _head(work: Work) -> list[bytes]:
    """The frames before the id of a message that the driver sends."""
    return [] if work.hops == 1 else [SINK]


def _message(frames: list[bytes]) -> tuple[str, bytes]:
    """The id and the payload of a message, which are the last two frames."""
    return frames[-2].decode(), frames[-1]


# --- zmq.asyncio -----------------------------------------------------------------------------


async def _sink(part: Part) -> None:
    context, every = zmq.asyncio.Context(), part.work.answer_every
    if part.work.hops == 1:
        socket = context.socket(zmq.ROUTER)
        measure.say_ready(_bound(socket))
    else:
        socket = context.socket(zmq.DEALER)
        _joined(socket, SINK, part.port)
        await socket.send_multipart([SINK, b"", b""])  # to itself: then the middle knows it
        await socket.recv_multipart()
        measure.say_ready(0)
    seen = every - 1  # so that the greeting is answered
    while True:
        frames = await socket.recv_multipart()
        seen += 1
        if seen == every:
            seen = 0
            await socket.send_multipart(frames)


async def _middle() -> None:
    socket = zmq.asyncio.Context().socket(zmq.ROUTER)
    measure.say_ready(_bound(socket))
    while True:
        source, target, id, payload = await socket.recv_multipart()
        await socket.send_multipart([target, source, id, payload])


async def _driver(part: Part) -> None:
    work, head = part.work, _head(part.work)
    socket = zmq.asyncio.Context().socket(zmq.DEALER)
    _joined(socket, DRIVER, part.port)
    await socket.send_multipart([*head, b"greeting", b""])
    await socket.recv_multipart()
    if work.kind == "one way":
        await _one_way(socket, head, work)
    else:
        await _round_trips(socket, head, work)


async def _one_way(socket: zmq.asyncio.Socket, head: list[bytes], work: Work) -> None:
    payload = measure.payload_of(work.size)
    start = time.perf_counter()
    for number in range(work.count):
        await socket.send_multipart([*head, measure.id_of(number).encode(), payload])
    answer = await socket.recv_multipart()
    seconds = time.perf_counter() - start
    measure.check_answer(_message(answer), (measure.id_of(work.count - 1), payload))
    measure.say_rate(work.count, seconds)


async def _round_trips(socket: zmq.asyncio.Socket, head: list[bytes], work: Work) -> None:
    payload = measure.payload_of(work.size)
    trips = []
    for number in range(measure.WARM_UP + work.count):
        start = time.perf_counter_ns()
        id = measure.id_of(number)
        await socket.send_multipart([*head, id.encode(), payload])
        answer = await socket.recv_multipart()
        trips.append(time.perf_counter_ns() - start)
        measure.check_answer(_message(answer), (id, payload))
    measure.say_trips(trips[measure.WARM_UP :])


# --- plain blocking sockets: the same, word for word, without `await` --------------------------


def _plain_sink(part: Part) -> None:
    context, every = zmq.Context(), part.work.answer_every
    if part.work.hops == 1:
        socket = context.socket(zmq.ROUTER)
        measure.say_ready(_bound(socket))
    else:
        socket = context.socket(zmq.DEALER)
        _joined(socket, SINK, part.port)
        socket.send_multipart([SINK, b"", b""])
        socket.recv_multipart()
        measure.say_ready(0)
    seen = every - 1
    while True:
        frames = socket.recv_multipart()
        seen += 1
        if seen == every:
            seen = 0
            socket.send_multipart(frames)


def _plain_middle() -> None:
    socket = zmq.Context().socket(zmq.ROUTER)
    measure.say_ready(_bound(socket))
    while True:
        source, target, id, payload = socket.recv_multipart()
        socket.send_multipart([target, source, id, payload])


def _plain_driver(part: Part) -> None:
    work, head = part.work, _head(part.work)
    socket = zmq.Context().socket(zmq.DEALER)
    _joined(socket, DRIVER, part.port)
    socket.send_multipart([*head, b"greeting", b""])
    socket.recv_multipart()
    if work.kind == "one way":
        _plain_one_way(socket, head, work)
    else:
        _plain_round_trips(socket, head, work)


def _plain_one_way(socket: zmq.Socket[bytes], head: list[bytes], work: Work) -> None:
    payload = measure.payload_of(work.size)
    start = time.perf_counter()
    for number in range(work.count):
        socket.send_multipart([*head, measure.id_of(number).encode(), payload])
    answer = socket.recv_multipart()
    seconds = time.perf_counter() - start
    measure.check_answer(_message(answer), (measure.id_of(work.count - 1), payload))
    measure.say_rate(work.count, seconds)


def _plain_round_trips(socket: zmq.Socket[bytes], head: list[bytes], work: Work) -> None:
    payload = measure.payload_of(work.size)
    trips = []
    for number in range(measure.WARM_UP + work.count):
        start = time.perf_counter_ns()
        id = measure.id_of(number)
        socket.send_multipart([*head, id.encode(), payload])
        answer = socket.recv_multipart()
        trips.append(time.perf_counter_ns() - start)
        measure.check_answer(_message(answer), (id, payload))
    measure.say_trips(trips[measure.WARM_UP :])


_MODULE = "benchmarks.live.zmq_subject"
ASYNCIO = Subject("pyzmq, zmq.asyncio on uvloop", _MODULE, PACKAGES, stage, "asyncio")
PLAIN = Subject("pyzmq, blocking sockets", _MODULE, ("pyzmq",), stage, "plain")
SUBJECTS = (ASYNCIO, PLAIN)

one_way = ASYNCIO.one_way
round_trip = ASYNCIO.round_trip


def _play(part: Part) -> None:
    if part.style == "plain":
        plain = {"sink": _plain_sink, "driver": _plain_driver, "middle": lambda _: _plain_middle()}
        plain[part.role](part)
    else:
        coroutines = {"sink": _sink, "driver": _driver, "middle": lambda _: _middle()}
        uvloop.run(coroutines[part.role](part))


if __name__ == "__main__":
    measure.play(_play)
