"""`waystation listen`: receive messages under a name and print them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import click
import msgspec
from msgspec import Struct

from waystation.cli.options import SETTINGS, json_option
from waystation.cli.peer import URL, node_for, payload_fields, peer_options
from waystation.core.message import Message
from waystation.core.multicast import check_pattern
from waystation.errors import LocalError
from waystation.node import Context, Node
from waystation.node.runner import run, stop_signals

_HELP: Final = """Print the messages sent to NAME, one per line, until interrupted.

\b
Examples:
  waystation listen echo --at tcp://127.0.0.1:4000 --echo
  waystation listen truck-7 --parent ws://hub.example:80
  waystation listen me --parent tcp://127.0.0.1:4000 --subscribe "truck7/position/+"
"""
_MAX_SHOWN: Final = 200  # bytes of a payload printed as text; JSON output has all of them


class ListenOptions(Struct, frozen=True, kw_only=True):
    """What to listen for, and where."""

    name: str
    at: tuple[str, ...]
    parent: str | None
    subscribe: tuple[str, ...]
    echo: bool
    hub: bool
    count: int | None


def _check_patterns(
    _: click.Context, parameter: click.Parameter, value: Sequence[str]
) -> Sequence[str]:
    for pattern in value:
        try:
            if len(check_pattern(pattern)) < 2:
                raise click.BadParameter(f"{pattern!r} does not name a broadcast", param=parameter)
        except LocalError as error:
            raise click.BadParameter(f"{error.problem}; {error.hint}", param=parameter) from error
    return value


@click.command(help=_HELP, context_settings=SETTINGS)
@click.argument("name")
@click.option(
    "--at",
    multiple=True,
    type=URL,
    metavar="URL",
    help="Address on which to accept peers (repeatable).",
)
@click.option("--parent", type=URL, metavar="URL", help="Hub to connect to as a leaf.")
@click.option(
    "--subscribe",
    multiple=True,
    metavar="PATTERN",
    callback=_check_patterns,
    help="Also print broadcasts: provider/broadcast[/partition], with + and * (repeatable).",
)
@click.option("--echo", is_flag=True, help="Reply to each message with its own payload.")
@click.option(
    "--hub", is_flag=True, help="Accept announcements from peers and forward their messages."
)
@click.option("--count", type=click.IntRange(min=1), help="Exit after this many messages.")
@json_option
@peer_options
def listen(*, as_json: bool, **options: Any) -> None:
    """Listen and print."""
    wanted = ListenOptions(**{name: options.pop(name) for name in ListenOptions.__struct_fields__})
    if not wanted.at and wanted.parent is None:
        raise click.UsageError("no peer could reach this node; give --at, --parent or both")
    run(_listen(wanted, options, _Printer(wanted.count, as_json=as_json)))


async def _listen(wanted: ListenOptions, options: dict[str, Any], printer: _Printer) -> None:
    urls = [*wanted.at, *([] if wanted.parent is None else [wanted.parent])]
    with stop_signals() as stop:
        async with node_for(wanted.name, urls, options, hub=wanted.hub) as node:
            printer.done = stop
            starting = asyncio.ensure_future(_start(node, wanted, printer))
            stopping = asyncio.ensure_future(stop.wait())
            try:  # connecting to a parent may take a while
                await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
                if starting.done():
                    starting.result()  # raises if starting failed
                    await stopping
            finally:
                starting.cancel()
                stopping.cancel()


async def _start(node: Node, wanted: ListenOptions, printer: _Printer) -> None:
    async def handle(message: Message, context: Context) -> None:
        printer.show(message)
        if wanted.echo:
            await context.reply(message.payload)

    node.start_worker((wanted.name,), handle)
    for pattern in wanted.subscribe:
        provider, broadcast, *partition = pattern.split("/")
        show = partial(printer.show, pattern=pattern)
        node.subscribe(provider, broadcast, partition, callback=show)
    for url in wanted.at:
        listening = await node.listen(url)
        printer.say(f"listening on {listening.url}")
    if wanted.parent is not None:
        session = await node.connect(wanted.parent, parent=True)
        printer.say(f"connected to {session.peer or 'an unnamed peer'} at {wanted.parent}")


class _Printer:
    """Prints messages until there were enough of them, or until stdout is closed."""

    def __init__(self, count: int | None, *, as_json: bool) -> None:
        self.done = asyncio.Event()
        self._left = count
        self._as_json = as_json

    def say(self, text: str) -> None:
        """Print a status line to stderr; stdout is for messages only."""
        click.echo(text, err=True)

    def show(self, message: Message, pattern: str | None = None) -> None:
        """Print a message, with the pattern that a broadcast matched."""
        if self.done.is_set():
            return
        try:
            click.echo(_json(message, pattern) if self._as_json else _line(message))
        except OSError:  # the reader of stdout is gone
            self.done.set()
        if self._left is not None:
            self._left -= 1
            if not self._left:
                self.done.set()


def _json(message: Message, pattern: str | None) -> str:
    fields = {
        "id": message.id,
        "at": datetime.now(UTC).isoformat(),
        "onward": [str(address) for address in message.onward_route.addresses],
        "return": [str(address) for address in message.return_route.addresses],
        "subscription": pattern,
        **payload_fields(message.payload),
    }
    return msgspec.json.encode(fields).decode()


def _line(message: Message) -> str:
    now = datetime.now(UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]
    hops = message.return_route.addresses
    back = " => ".join(address.name for address in hops) or "no return route"
    what = message.onward_route.addresses[0].name
    return f"{now} {what} from {back}: {_payload_text(message.payload)}"


def _payload_text(payload: bytes) -> str:
    """A payload on one line, without control characters."""
    part = payload[:_MAX_SHOWN]
    text = part.decode("utf-8", "replace")
    if not text.isprintable():
        text = repr(part)
    return text if len(part) == len(payload) else f"{text}… ({len(payload)} bytes)"
