"""`waystation console`: a fleet on a page in a browser.

The console is an extra (Starlette, uvicorn, Jinja2): without it, the command says so.
"""

from __future__ import annotations

from typing import Any, Final

import click

from waystation.cli.options import DIRECTORY, SECONDS, SETTINGS
from waystation.cli.peer import URL, node_for, peer_options
from waystation.cli.process import log_to_stderr
from waystation.cli.serving import check_place
from waystation.core.access import Access
from waystation.node.runner import run, stop_signals

_HELP: Final = """Show a fleet on a page: topology, connections, routes, subscriptions, messages.

Each --connect is a node to watch, which must have [status] enabled = true and access rules that let
this end ask waystation.status. With --journal or --tables the page also explains messages. On
another host than this machine the page needs a token: --page-token, or one that is made and
printed.

\b
Examples:
  waystation console --connect tcp://127.0.0.1:4000
  waystation console --connect tcp://10.0.0.1:4000 --connect tcp://10.0.0.2:4000 --journal J
  waystation console --connect tcp://127.0.0.1:4000 --listen 0.0.0.0:8480 --allow-host ops.example
"""
_ANSWERS_ONLY: Final = Access(())
"""No watched node can reach another one through the console, in its name."""


@click.command(help=_HELP, context_settings=SETTINGS)
@click.option(
    "--connect",
    multiple=True,
    required=True,
    type=URL,
    metavar="URL",
    help="A node to watch (repeatable).",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:8480",
    callback=check_place,
    help="Where the page is.",
)
@click.option("--page-token", help="What a browser has to prove; better in WAYSTATION_PAGE_TOKEN.")
@click.option(
    "--allow-host",
    multiple=True,
    metavar="NAME",
    help="A further name that the page may be asked for under, as behind a proxy.",
)
@click.option("--journal", type=DIRECTORY, metavar="DIR", help="The journal of the nodes.")
@click.option(
    "--tables", type=DIRECTORY, metavar="DIR", help="What `waystation pipeline build` wrote."
)
@click.option("--interval", type=SECONDS, default=1.0, help="Seconds between two looks.")
@click.option("--name", default="console", help="What this end calls itself.")
@click.option("--verbose", is_flag=True, help="Log more, to stderr.")
@peer_options
def console(*, verbose: bool, **options: Any) -> None:
    """Show a fleet."""
    from waystation.console import Settings  # noqa: PLC0415 - an extra

    log_to_stderr(verbose=verbose)
    settings = Settings(
        connect=options.pop("connect"),
        listen=options.pop("listen"),
        token=options.pop("page_token"),
        allowed=options.pop("allow_host"),
        journal=options.pop("journal"),
        tables=options.pop("tables"),
        interval=options.pop("interval"),
    )
    run(_show(options.pop("name"), settings, options))


async def _show(name: str, settings: Any, options: dict[str, Any]) -> None:
    from waystation.console import Console  # noqa: PLC0415

    with stop_signals() as told_to_end:
        async with (
            node_for(name, settings.connect, options, access=_ANSWERS_ONLY) as node,
            Console.running(node, settings) as shown,
        ):
            click.echo(f"the console is at {shown.url}")
            await told_to_end.wait()
