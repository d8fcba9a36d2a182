"""`waystation listen`: a name that messages can be sent to, and that prints what comes."""

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

_HELP: Final = """Print what is sent to NAME, one line each, until interrupted.

\b
Examples:
  waystation listen echo --at tcp://127.0.0.1:4000 --echo
  waystation listen truck-7 --parent ws://hub.example:80
  waystation listen me --parent tcp://127.0.0.1:4000 --subscribe "truck7/position/+"
"""
_SHOWN: Final = 200  # bytes of a payload; JSON has them all


class Wish(Struct, frozen=True, kw_only=True):
    """What to listen to, and where."""

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
                raise click.BadParameter(f"{pattern!r} names no broadcast", param=parameter)
        except LocalError as error:
            raise click.BadParameter(f"{error.problem}; {error.hint}", param=parameter) from error
    return value


@click.command(help=_HELP, context_settings=SETTINGS)
@click.argument("name")
@click.option("--at", multiple=True, type=URL, metavar="URL", help="Let peers connect here.")
@click.option("--parent", type=URL, metavar="URL", help="Connect to this hub, as its leaf.")
@click.option(
    "--subscribe",
    multiple=True,
    metavar="PATTERN",
    callback=_check_patterns,
    help="Print broadcasts too: provider/broadcast[/partition], with + and *.",
)
@click.option("--echo", is_flag=True, help="Answer each message with its own payload.")
@click.option("--hub", is_flag=True, help="Let peers announce names, and pass messages on.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many messages.")
@json_option
@peer_options
def listen(*, as_json: bool, **options: Any) -> None:
    """Listen, and print."""
    wish = Wish(**{name: options.pop(name) for name in Wish.__struct_fields__})
    if not wish.at and wish.parent is None:
        raise click.UsageError("nobody could reach it; give --at, --parent or both")
    run(_listen(wish, options, _Printer(wish.count, as_json=as_json)))


async def _listen(wish: Wish, options: dict[str, Any], printer: _Printer) -> None:
    urls = [*wish.at, *([] if wish.parent is None else [wish.parent])]
    with stop_signals() as told_to_end:
        async with node_for(wish.name, urls, options, hub=wish.hub) as node:
            printer.done = told_to_end
            starting = asyncio.ensure_future(_start(node, wish, printer))
            ending = asyncio.ensure_future(told_to_end.wait())
            try:  # a parent may take long to be reached
                await asyncio.wait((starting, ending), return_when=asyncio.FIRST_COMPLETED)
                if starting.done():
                    starting.result()  # or what it raised
                    await ending
            finally:
                starting.cancel()
                ending.cancel()


async def _start(node: Node, wish: Wish, printer: _Printer) -> None:
    async def handle(message: Message, context: Context) -> None:
        printer.show(message)
        if wish.echo:
            await context.reply(message.payload)

    node.start_worker((wish.name,), handle)
    for pattern in wish.subscribe:
        provider, broadcast, *partition = pattern.split("/")
        show = partial(printer.show, pattern=pattern)
        node.subscribe(provider, broadcast, partition, callback=show)
    for url in wish.at:
        listening = await node.listen(url)
        printer.say(f"listening on {listening.url}")
    if wish.parent is not None:
        session = await node.connect(wish.parent, parent=True)
        printer.say(f"connected to {session.peer or 'a peer without a name'} at {wish.parent}")


class _Printer:
    """Prints messages until there were enough of them, or nobody reads any more."""

    def __init__(self, count: int | None, *, as_json: bool) -> None:
        self.done = asyncio.Event()
        self._left = count
        self._as_json = as_json

    def say(self, text: str) -> None:
        """Tell people how it goes; programs read what comes after it."""
        click.echo(text, err=True)

    def show(self, message: Message, pattern: str | None = None) -> None:
        """Print a message, with the pattern that a broadcast matched."""
        if self.done.is_set():
            return
        try:
            click.echo(_json(message, pattern) if self._as_json else _line(message))
        except OSError:  # whoever read it is gone
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
    back = " => ".join(address.name for address in hops) or "nowhere to answer to"
    what = message.onward_route.addresses[0].name
    return f"{now} {what} from {back}: {_shown(message.payload)}"


def _shown(payload: bytes) -> str:
    """A payload on one line, and harmless to a terminal."""
    part = payload[:_SHOWN]
    text = part.decode("utf-8", "replace")
    if not text.isprintable():
        text = repr(part)
    return text if len(part) == len(payload) else f"{text}… ({len(payload)} bytes)"
