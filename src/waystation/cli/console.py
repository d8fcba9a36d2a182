"""`waystation console`: watch a fleet in a web browser.

The console is an optional extra (Starlette, uvicorn, Jinja2); without it the command explains how
to install it.
"""

from __future__ import annotations

from typing import Any, Final

import click

from waystation.cli.options import DIRECTORY, SECONDS, SETTINGS, json_option, print_json
from waystation.cli.peer import URL, node_for, peer_options
from waystation.cli.process import log_to_stderr
from waystation.cli.serving import check_place
from waystation.core.access import Access
from waystation.node.runner import run, stop_signals

_HELP: Final = """Serve a web page that shows a fleet: topology, connections, routes, messages.

Each --connect names a node to watch. The node must have [status] enabled = true and access rules
that allow requests to waystation.status. With --journal or --tables the page also explains
messages. If the page listens on a non-loopback address it requires a token: the one given with
--page-token, or a random one that is printed.

\b
Examples:
  waystation console --connect tcp://127.0.0.1:4000
  waystation console --connect tcp://10.0.0.1:4000 --connect tcp://10.0.0.2:4000 --journal J
  waystation console --connect tcp://127.0.0.1:4000 --listen 0.0.0.0:8480 --allow-host ops.example
"""
_ANSWERS_ONLY: Final = Access(())
"""Watched nodes can reply, but cannot send to each other through the console."""


@click.command(help=_HELP, context_settings=SETTINGS)
@click.option(
    "--connect",
    multiple=True,
    required=True,
    type=URL,
    metavar="URL",
    help="Node to watch (repeatable).",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:8480",
    callback=check_place,
    help="Address to serve the page on.",
)
@click.option(
    "--page-token", help="Token that browsers must present; prefer WAYSTATION_PAGE_TOKEN."
)
@click.option(
    "--allow-host",
    multiple=True,
    metavar="NAME",
    help="Additional host name to accept, such as that of a proxy (repeatable).",
)
@click.option("--journal", type=DIRECTORY, metavar="DIR", help="Journal of the nodes.")
@click.option(
    "--tables", type=DIRECTORY, metavar="DIR", help="Tables built by `waystation pipeline build`."
)
@click.option(
    "--store",
    multiple=True,
    type=DIRECTORY,
    metavar="DIR",
    help="Store of a node on this machine: show, retry and drop its durable messages (repeatable).",
)
@click.option("--interval", type=SECONDS, default=1.0, help="Seconds between polls.")
@click.option("--name", default="console", help="Name of this node.")
@click.option("--verbose", is_flag=True, help="Log details to stderr.")
@json_option
@peer_options
def console(*, verbose: bool, as_json: bool, **options: Any) -> None:
    """Serve the console."""
    from waystation.console import Settings  # noqa: PLC0415 - an extra

    log_to_stderr(verbose=verbose)
    settings = Settings(
        connect=options.pop("connect"),
        listen=options.pop("listen"),
        token=options.pop("page_token"),
        allowed=options.pop("allow_host"),
        journal=options.pop("journal"),
        tables=options.pop("tables"),
        stores=options.pop("store"),
        interval=options.pop("interval"),
    )
    run(_show(options.pop("name"), settings, options, as_json=as_json))


async def _show(name: str, settings: Any, options: dict[str, Any], *, as_json: bool) -> None:
    from waystation.console import Console  # noqa: PLC0415

    with stop_signals() as stop:
        async with (
            node_for(name, settings.connect, options, access=_ANSWERS_ONLY) as node,
            Console.running(node, settings) as served,
        ):
            if as_json:
                print_json({"url": served.url})
            else:
                click.echo(f"the console is at {served.url}")
            await stop.wait()
