"""The command line: it parses, calls, and prints. Nothing else happens here.

Exit codes: 0 success, 2 wrong usage, 1 anything else; an error is one line on stderr.
"""

from __future__ import annotations

import sys

import click

from waystation import __version__
from waystation.cli.journal import journal as journal_command
from waystation.cli.router import router as router_command
from waystation.cli.rules import rules as rules_command
from waystation.errors import WaystationError


@click.group(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every option can also be given as the environment variable WAYSTATION_<OPTION>.",
)
@click.version_option(__version__, prog_name="waystation")
@click.pass_context
def waystation(context: click.Context) -> None:
    """Messages that find their way, and a record of every step."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


waystation.add_command(rules_command)
waystation.add_command(journal_command)
waystation.add_command(router_command)


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
