"""`waystation send`: one message or many, to try things and in scripts."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from typing import Any, Final

import click
import msgspec
from msgspec import Struct, structs

from waystation.cli.options import SECONDS, SETTINGS, Numbers, json_option
from waystation.cli.peer import URL, node_for, payload_fields, peer_options
from waystation.core.address import LOCAL, Route
from waystation.core.multicast import MulticastId
from waystation.core.outcome import Outcome, Reason
from waystation.core.record import MessageRecord, Record
from waystation.errors import LocalError, quote
from waystation.node import Node
from waystation.node.requests import REQUEST_PREFIX
from waystation.node.runner import run

_HELP: Final = """Send a message along ROUTE, which begins at the node that --via names.

PAYLOAD is text; - reads it from stdin. Prints what became of it, and with --request the answer.
Exits with 1 if a message was dropped or not answered.

\b
Examples:
  waystation send echo hello --via tcp://127.0.0.1:4000 --request
  waystation send "tcp#127.0.0.1:4000 => hop => echo" hello
  waystation send telemetry - --via ws://hub.example:80 --count 1000 --rate 100 < data
  waystation send truck7/position/eu 48.1,11.6 --publish --via tcp://127.0.0.1:4000
"""
_VIA: Final = "via"  # the name of the session


class Order(Struct, frozen=True, kw_only=True):
    """What to send, and how."""

    route: str
    payload: bytes
    via: tuple[str, ...]
    name: str
    request: bool
    publish: bool
    timeout: float
    ttl: float | None
    count: int
    rate: float | None
    wait: float


class Report(Struct, frozen=True, kw_only=True):
    """How it went; outcomes are by reason where there is one."""

    id: str  # of the first message
    messages: int
    seconds: float
    outcomes: dict[str, int]
    dropped: int
    answers: list[bytes]


@click.command(help=_HELP, context_settings=SETTINGS)
@click.argument("route")
@click.argument("payload", default="")
@click.option(
    "--via", multiple=True, type=URL, metavar="URL", help="The peer; several are its places."
)
@click.option("--request", is_flag=True, help="Wait for the answer and print it.")
@click.option("--publish", is_flag=True, help="ROUTE is a multicast id: provider/broadcast[/…].")
@click.option("--timeout", type=SECONDS, default=30.0, help="Seconds to wait for an answer.")
@click.option("--ttl", type=SECONDS, help="Seconds after which the message is worth nothing.")
@click.option("--count", type=click.IntRange(min=1), default=1, help="Send it so many times.")
@click.option("--rate", type=Numbers(min=0, min_open=True), help="So many a second.")
@click.option("--wait", type=SECONDS, default=10.0, help="Seconds to wait for the session.")
@click.option("--name", default="send", help="What this end calls itself.")
@json_option
@peer_options
def send(
    *,
    payload: str,
    as_json: bool,
    **options: Any,
) -> int:
    """Send, and report."""
    order = Order(
        payload=sys.stdin.buffer.read() if payload == "-" else payload.encode(),
        **{name: options.pop(name) for name in Order.__struct_fields__ if name in options},
    )
    if order.publish and order.request:
        raise click.UsageError("nobody answers a publication; leave --request or --publish out")
    if order.publish and not order.via:
        raise click.UsageError("a publication needs a hub; give --via")
    _check_aim(order)
    report = run(_carry_out(order, options))
    (_print_json if as_json else _print)(order, report)
    return 1 if report.dropped else 0


def _check_aim(order: Order) -> None:
    """Refuse a route or id that is none, and a route that leads nowhere from here."""
    try:
        if order.publish:
            MulticastId.parse(order.route)
            return
        first = Route.parse(order.route).addresses[0]
    except LocalError as error:
        raise click.UsageError(str(error)) from error
    if first.type == LOCAL and not order.via:
        raise click.UsageError(
            f"nobody is called {quote(first.name)} at this end;"
            " give --via URL, or begin the route with an address as tcp#host:port"
        )


def _print(order: Order, report: Report) -> None:
    outcomes = report.outcomes
    if order.request:
        for answer in report.answers:
            sys.stdout.buffer.write(answer + b"\n")
        sys.stdout.flush()
    elif report.messages == 1:
        click.echo(f"{' '.join(outcomes)} {report.id}")
    else:
        rate = report.messages / max(report.seconds, 1e-6)
        counts = ", ".join(f"{word} {count}" for word, count in outcomes.items())
        click.echo(
            f"{report.messages} messages in {report.seconds:.2f} s, {rate:.0f} a second: {counts}"
        )


def _print_json(order: Order, report: Report) -> None:
    fields = structs.asdict(report)
    answers = fields.pop("answers")
    if order.request:
        fields["answers"] = [payload_fields(answer) for answer in answers]
    click.echo(msgspec.json.encode(fields).decode())


async def _carry_out(order: Order, options: dict[str, Any]) -> Report:
    heard = _Heard()
    node = node_for(order.name, order.via, options)
    node.observe(heard.note)
    answers: list[bytes] = []
    async with node:
        if order.via:
            await node.connect(*order.via, name=_VIA, wait=order.wait, parent=order.publish)
        started = time.monotonic()
        for number in range(order.count):
            if order.rate is not None:
                await asyncio.sleep(started + number / order.rate - time.monotonic())
            answers += await _send_one(node, order)
        seconds = time.monotonic() - started
    # Only now it is known what the system took of it.
    return Report(
        id=heard.first,
        messages=order.count,
        seconds=seconds,
        outcomes=dict(sorted(heard.outcomes.items())),
        dropped=heard.dropped,
        answers=answers,
    )


async def _send_one(node: Node, order: Order) -> list[bytes]:
    """Send the message once; what came back, if something was asked for."""
    if order.publish:
        id = MulticastId.parse(order.route)
        await node.publish(
            id.broadcast, order.payload, partition=id.partition, provider=id.provider, ttl=order.ttl
        )
        return []
    route = f"{_VIA} => {order.route}" if order.via else order.route
    if order.request:
        answer = await node.request(route, order.payload, timeout=order.timeout)
        return [answer.payload]
    await node.send(route, order.payload, ttl=order.ttl)
    return []


class _Heard:
    """What became of the messages that went out."""

    def __init__(self) -> None:
        self.first = ""
        self.outcomes: Counter[str] = Counter()
        self.dropped = 0

    def note(self, record: Record) -> None:
        """Count a message's last outcome, unless it is an answer that came in."""
        if not isinstance(record, MessageRecord) or record.verdict.outcome is Outcome.QUEUED:
            return
        verdict = record.verdict
        if verdict.recipient and verdict.recipient.startswith(REQUEST_PREFIX):
            return
        if verdict.reason is Reason.NO_SUBSCRIBER:  # at this end nobody ever subscribes
            return
        self.first = self.first or record.arrival.message.id
        self.outcomes[verdict.reason or verdict.outcome] += 1
        self.dropped += verdict.reason is not None
