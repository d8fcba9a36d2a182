"""`waystation send`: send one message or many, interactively or from scripts."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from typing import Any, Final

import click
from msgspec import Struct, structs

from waystation.cli.options import SECONDS, SETTINGS, Numbers, json_option, print_json
from waystation.cli.peer import URL, node_for, payload_fields, peer_options
from waystation.core.address import LOCAL, Address, Route
from waystation.core.message import Message
from waystation.core.multicast import ADDRESS_TYPE as MULTICAST
from waystation.core.multicast import MulticastId
from waystation.core.outcome import Outcome, Reason
from waystation.core.record import MessageRecord, Record
from waystation.errors import LocalError, quote
from waystation.node import Node, Session
from waystation.node.requests import REQUEST_PREFIX
from waystation.node.runner import run

_HELP: Final = """Send a message along ROUTE, which starts at the node given by --via.

PAYLOAD is text; - reads it from stdin. Prints the outcome, and with --request the reply. Exits with
1 if a message was dropped or got no reply.

\b
Examples:
  waystation send echo hello --via tcp://127.0.0.1:4000 --request
  waystation send "tcp#127.0.0.1:4000 => hop => echo" hello
  waystation send telemetry - --via ws://hub.example:80 --count 1000 --rate 100 < data
  waystation send truck7/position/eu 48.1,11.6 --publish --via tcp://127.0.0.1:4000
  waystation send truck-7 "come home" --durable --ttl 86400 --via tcp://127.0.0.1:4000
"""
_VIA: Final = "via"  # the name of the session

DEPOSITS: Final = 1_000
"""Messages that are given into custody at once."""


class SendOptions(Struct, frozen=True, kw_only=True):
    """What to send, and how."""

    route: str
    payload: bytes
    via: tuple[str, ...]
    name: str
    request: bool
    publish: bool
    durable: bool
    timeout: float
    ttl: float | None
    count: int
    rate: float | None
    wait: float


class Report(Struct, frozen=True, kw_only=True):
    """The result; dropped messages are counted by reason."""

    id: str  # of the first message
    messages: int
    seconds: float
    outcomes: dict[str, int]
    dropped: int
    replies: list[bytes]


@click.command(help=_HELP, context_settings=SETTINGS)
@click.argument("route")
@click.argument("payload", default="")
@click.option(
    "--via",
    multiple=True,
    type=URL,
    metavar="URL",
    help="Peer to send through; give several for several addresses of that peer (repeatable).",
)
@click.option("--request", is_flag=True, help="Wait for the reply and print it.")
@click.option(
    "--publish",
    is_flag=True,
    help="Publish; ROUTE is a multicast id: provider/broadcast[/partition].",
)
@click.option(
    "--durable",
    is_flag=True,
    help="Give the message into the custody of the peer; QUEUED when its store has it.",
)
@click.option(
    "--timeout", type=SECONDS, default=30.0, help="Seconds to wait for a reply, or for custody."
)
@click.option("--ttl", type=SECONDS, help="Time to live of the message in seconds.")
@click.option(
    "--count", type=click.IntRange(min=1), default=1, help="Number of times to send the message."
)
@click.option("--rate", type=Numbers(min=0, min_open=True), help="Messages per second.")
@click.option("--wait", type=SECONDS, default=10.0, help="Seconds to wait for the session to open.")
@click.option("--name", default="send", help="Name of this node.")
@json_option
@peer_options
def send(
    *,
    payload: str,
    as_json: bool,
    **options: Any,
) -> int:
    """Send and report."""
    order = SendOptions(
        payload=sys.stdin.buffer.read() if payload == "-" else payload.encode(),
        **{name: options.pop(name) for name in SendOptions.__struct_fields__ if name in options},
    )
    if order.publish and order.request:
        raise click.UsageError(
            "--request and --publish exclude each other: a publication gets no reply"
        )
    if order.durable and order.request:
        raise click.UsageError("--request and --durable exclude each other: a reply is not durable")
    if order.publish and not order.via:
        raise click.UsageError("--publish needs a hub; give --via")
    if order.durable and not order.via:
        raise click.UsageError("--durable needs a node that has a store; give --via")
    _check_destination(order)
    report = run(_send_all(order, options))
    (_print_json if as_json else _print)(order, report)
    return 1 if report.dropped else 0


def _check_destination(order: SendOptions) -> None:
    """Reject an invalid route or multicast id, and a route that cannot start at this node."""
    try:
        if order.publish:
            MulticastId.parse(order.route)
            return
        first = Route.parse(order.route).addresses[0]
    except LocalError as error:
        raise click.UsageError(str(error)) from error
    if first.type == LOCAL and not order.via:
        raise click.UsageError(
            f"this node has no {quote(first.name)};"
            " give --via URL, or start the route with an address such as tcp#host:port"
        )


def _print(order: SendOptions, report: Report) -> None:
    outcomes = report.outcomes
    if order.request:
        for reply in report.replies:
            sys.stdout.buffer.write(reply + b"\n")
        sys.stdout.flush()
    elif report.messages == 1:
        click.echo(f"{' '.join(outcomes)} {report.id}")
    else:
        rate = report.messages / max(report.seconds, 1e-6)
        counts = ", ".join(f"{word} {count}" for word, count in outcomes.items())
        click.echo(f"{report.messages} messages in {report.seconds:.2f} s, {rate:.0f}/s: {counts}")


def _print_json(order: SendOptions, report: Report) -> None:
    fields = structs.asdict(report)
    replies = fields.pop("replies")
    if order.request:
        fields["answers"] = [payload_fields(reply) for reply in replies]
    print_json(fields)


async def _send_all(order: SendOptions, options: dict[str, Any]) -> Report:
    heard = _Outcomes()
    node = node_for(order.name, order.via, options)
    node.observe(heard.note)
    replies: list[bytes] = []
    async with node:
        if order.via:
            session = await node.connect(
                *order.via, name=_VIA, wait=order.wait, parent=order.publish
            )
            if order.durable:
                return await _deposit_all(node, session, order)
        started = time.monotonic()
        for number in range(order.count):
            if order.rate is not None:
                await asyncio.sleep(started + number / order.rate - time.monotonic())
            replies += await _send_one(node, order)
        seconds = time.monotonic() - started
    # Outcomes are final only when the node has closed.
    return Report(
        id=heard.first,
        messages=order.count,
        seconds=seconds,
        outcomes=dict(sorted(heard.outcomes.items())),
        dropped=heard.dropped,
        replies=replies,
    )


async def _deposit_all(node: Node, session: Session, order: SendOptions) -> Report:
    """Give the message into the custody of the peer, as often as wanted (DU-1)."""
    if order.publish:
        onward = Route((Address(MULTICAST, order.route.encode()),))
    else:
        node.router.types.reserve_usual(order.route)
        onward = Route.parse(order.route, node.router.types.numbers)
    found: Counter[str] = Counter()
    first, dropped, started = "", 0, time.monotonic()
    size = 1 if order.rate is not None else DEPOSITS
    for begin in range(0, order.count, size):
        if order.rate is not None:
            await asyncio.sleep(started + begin / order.rate - time.monotonic())
        messages = [
            Message(onward, Route(), order.payload, node.new_id(), node.expiry_in(order.ttl))
            for _ in range(begin, min(begin + size, order.count))
        ]
        first = first or messages[0].id
        reasons = await node.deposit(session, messages, timeout=order.timeout)
        found.update(str(reason or Outcome.QUEUED) for reason in reasons)
        dropped += sum(reason is not None for reason in reasons)
    return Report(
        id=first,
        messages=order.count,
        seconds=time.monotonic() - started,
        outcomes=dict(sorted(found.items())),
        dropped=dropped,
        replies=[],
    )


async def _send_one(node: Node, order: SendOptions) -> list[bytes]:
    """Send the message once; return the reply, if one was requested."""
    if order.publish:
        id = MulticastId.parse(order.route)
        await node.publish(
            id.broadcast, order.payload, partition=id.partition, provider=id.provider, ttl=order.ttl
        )
        return []
    route = f"{_VIA} => {order.route}" if order.via else order.route
    if order.request:
        reply = await node.request(route, order.payload, timeout=order.timeout)
        return [reply.payload]
    await node.send(route, order.payload, ttl=order.ttl)
    return []


class _Outcomes:
    """Counts the outcomes of the sent messages."""

    def __init__(self) -> None:
        self.first = ""
        self.outcomes: Counter[str] = Counter()
        self.dropped = 0

    def note(self, record: Record) -> None:
        """Count the final outcome of a message, unless it is an incoming reply."""
        if not isinstance(record, MessageRecord) or record.verdict.outcome is Outcome.QUEUED:
            return
        verdict = record.verdict
        if verdict.recipient and verdict.recipient.startswith(REQUEST_PREFIX):
            return
        if verdict.reason is Reason.NO_SUBSCRIBER:  # this node has no subscribers; the hub may have
            return
        self.first = self.first or record.arrival.message.id
        self.outcomes[verdict.reason or verdict.outcome] += 1
        self.dropped += verdict.reason is not None
