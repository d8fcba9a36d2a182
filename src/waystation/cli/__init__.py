"""The command line: it parses, calls, and prints. Nothing else happens here.

Exit codes: 0 success, 2 wrong usage, 1 anything else; an error is one line on stderr.
"""

from __future__ import annotations

import sys
from typing import Final

import click

from waystation import __version__
from waystation.cli.lazy import LazyGroup
from waystation.errors import WaystationError

COMMANDS: Final = (
    "broker",
    "completion",
    "console",
    "demo",
    "journal",
    "listen",
    "node",
    "pipeline",
    "router",
    "rules",
    "send",
    "simulate",
    "top",
    "why",
)
"""Each is a module of this package with a command of the same name."""

_HELP: Final = """Messages that find their way, and a record of every step.

\b
Examples:
  waystation demo
  waystation node --config hub.toml
  waystation why 4bf92f3577b34da6a3ce929d0e0e4736 --journal J
"""


@click.group(
    cls=LazyGroup,
    help=_HELP,
    modules={name: f"{__name__}.{name}" for name in COMMANDS},
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every option can also be given as the environment variable WAYSTATION_<OPTION>.",
)
@click.version_option(__version__, prog_name="waystation")
@click.pass_context
def waystation(context: click.Context) -> None:
    """Say what there is when nothing was asked for."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: list[str] | None = None) -> None:
    """Run the command line, and end the process with its exit code."""
    try:
        code = waystation.main(arguments, prog_name="waystation", standalone_mode=False)
    except click.UsageError as error:
        sys.exit(_complain(error.format_message(), f"try `{_help_command(error)}`", 2))
    except click.ClickException as error:
        sys.exit(_complain(error.format_message(), "", 1))
    except (WaystationError, OSError) as error:
        sys.exit(_complain(str(error), "", 1))
    except (KeyboardInterrupt, click.Abort):
        sys.exit(_complain("interrupted", "", 1))
    sys.exit(code if isinstance(code, int) else 0)


def _help_command(error: click.UsageError) -> str:
    return f"{error.ctx.command_path if error.ctx else 'waystation'} --help"


def _complain(problem: str, advice: str, code: int) -> int:
    line = " ".join(problem.split()).rstrip(".?")
    print(f"waystation: {line}{f'; {advice}' if advice else ''}", file=sys.stderr)  # noqa: T201
    return code
