"""Zenoh: the Python package `eclipse-zenoh`, whose sessions are in Rust, over TCP.

One hop: the sink is a peer that listens, the driver a client of it. Two hops: a router in the
middle, as a session of the same package, and two clients. Nobody scouts. Messages are published;
the id of one is its attachment. A sample is received in a thread of Zenoh's, as its examples do.

One-way work lets a publisher wait where there is no room (BLOCK), since nothing else is reliable.
Round trips are published `express`, which Zenoh has for that: they wait for no batch.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from queue import SimpleQueue
from typing import Any, cast

import zenoh

from benchmarks.live import measure
from benchmarks.live.measure import Company, LiveError, Part, Subject, Work

PACKAGES = ("eclipse-zenoh",)
DRIVER, SINK = "driver", "sink"
_MATCH_S = 20.0
_LOOK_S = 0.01


def stage(company: Company) -> int:
    """Start the sink, and the router before it when there is one."""
    if company.work.hops == 1:
        return company.start("sink")
    port = company.start("middle")
    company.start("sink", port)
    return port


def _session(mode: str, *, listen: int = 0, connect: int = 0) -> zenoh.Session:
    config = zenoh.Config()
    settings = {
        "mode": mode,
        "scouting/multicast/enabled": False,
        "scouting/gossip/enabled": False,
        "listen/endpoints": [f"tcp/127.0.0.1:{listen}"] if listen else [],
        "connect/endpoints": [f"tcp/127.0.0.1:{connect}"] if connect else [],
    }
    for name, value in settings.items():
        config.insert_json5(name, json.dumps(value))
    return zenoh.open(config)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def _publisher(session: zenoh.Session, key: str, work: Work) -> zenoh.Publisher:
    return session.declare_publisher(
        key,
        congestion_control=zenoh.CongestionControl.BLOCK,
        express=work.kind == "round trip",
    )


def _message(sample: zenoh.Sample) -> tuple[str, bytes]:
    assert sample.attachment is not None
    return sample.attachment.to_string(), sample.payload.to_bytes()


def _sink(part: Part) -> None:
    every = part.work.answer_every
    port = 0 if part.port else _free_port()
    session = _session("client", connect=part.port) if part.port else _session("peer", listen=port)
    answers = _publisher(session, DRIVER, part.work)
    seen = every - 1  # so that the greeting is answered

    def receive(sample: zenoh.Sample) -> None:
        nonlocal seen
        seen += 1
        if seen == every:
            seen = 0
            answers.put(sample.payload, attachment=sample.attachment)

    subscriber = session.declare_subscriber(SINK, receive)
    measure.say_ready(port)
    threading.Event().wait()
    del subscriber


def _middle() -> None:
    port = _free_port()
    session = _session("router", listen=port)
    measure.say_ready(port)
    threading.Event().wait()
    session.close()


def _driver(part: Part) -> None:
    work = part.work
    session = _session("client", connect=part.port)
    answers: SimpleQueue[tuple[str, bytes]] = SimpleQueue()
    subscriber = session.declare_subscriber(DRIVER, lambda sample: answers.put(_message(sample)))
    publisher = _publisher(session, SINK, work)
    _wait_for_sink(publisher)
    _greet(publisher, answers)
    if work.kind == "one way":
        _one_way(publisher, answers, work)
    else:
        _round_trips(publisher, answers, work)
    subscriber.undeclare()
    session.close()


def _wait_for_sink(publisher: zenoh.Publisher) -> None:
    deadline = time.monotonic() + _MATCH_S
    while not cast("Any", publisher).matching_status.matching:  # its stub says less
        if time.monotonic() > deadline:
            raise LiveError("the sink's subscription did not come")
        time.sleep(_LOOK_S)


def _greet(publisher: zenoh.Publisher, answers: SimpleQueue[tuple[str, bytes]]) -> None:
    publisher.put(b"", attachment="greeting")
    answers.get(timeout=_MATCH_S)


def _one_way(
    publisher: zenoh.Publisher, answers: SimpleQueue[tuple[str, bytes]], work: Work
) -> None:
    payload = measure.payload_of(work.size)
    start = time.perf_counter()
    for number in range(work.count):
        publisher.put(payload, attachment=measure.id_of(number))
    answer = answers.get()
    seconds = time.perf_counter() - start
    measure.check_answer(answer, (measure.id_of(work.count - 1), payload))
    measure.say_rate(work.count, seconds)


def _round_trips(
    publisher: zenoh.Publisher, answers: SimpleQueue[tuple[str, bytes]], work: Work
) -> None:
    payload = measure.payload_of(work.size)
    trips = []
    for number in range(measure.WARM_UP + work.count):
        start = time.perf_counter_ns()
        id = measure.id_of(number)
        publisher.put(payload, attachment=id)
        answer = answers.get()
        trips.append(time.perf_counter_ns() - start)
        measure.check_answer(answer, (id, payload))
    measure.say_trips(trips[measure.WARM_UP :])


ZENOH = Subject("Zenoh", "benchmarks.live.zenoh_subject", PACKAGES, stage)


def _play(part: Part) -> None:
    roles = {"sink": _sink, "driver": _driver, "middle": lambda _: _middle()}
    roles[part.role](part)


if __name__ == "__main__":
    measure.play(_play)
