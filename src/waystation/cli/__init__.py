"""The command line: parse arguments, call the library, print results. No other logic lives here.

Exit codes: 0 for success, 2 for incorrect usage, 1 for any other error; an error is one line on
stderr, and with --json also a JSON object on stdout.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import Final, NoReturn

import click

from waystation import __version__
from waystation.cli.lazy import LazyGroup
from waystation.errors import WaystationError

HEADINGS: Final = {
    "Run": {
        "demo": "Run a small fleet here, break it, and explain what happened",
        "node": "Run a node from a TOML file",
        "router": "Run a gossip router for JGroups and our own groups",
        "broker": "Run a small MQTT 5 broker",
        "identity": "Create, show, export and rotate the identity of a node",
    },
    "Use": {
        "send": "Send a message, or publish one",
        "listen": "Print the messages that are sent to a name",
        "top": "Watch one node or several in the terminal",
        "console": "Serve a web page that shows a fleet, now and in the past",
        "parked": "List, retry and drop durable messages that wait",
        "dead": "List, send again and remove durable messages that ended undelivered",
    },
    "Ask the past": {
        "lost": "List what was lost, and why",
        "why": "Explain where a message went, hop by hop",
        "journal": "Read, check, seal and compact a journal",
        "pipeline": "Build history tables and reports with Spark",
        "simulate": "Write the journal of a simulated fleet",
    },
    "Learn": {
        "rules": "List the rules, with their code and tests",
        "completion": "Print the completion script for a shell",
    },
}
"""The commands, as the help lists them."""

COMMANDS: Final = tuple(sorted(name for commands in HEADINGS.values() for name in commands))
"""Each is a module of this package with a command of the same name."""

_ON_SPARK: Final = ("demo", "pipeline", "simulate")
_FOR_PANDAS: Final = ("pandas", "dateutil", "cloudpickle")
_WITHOUT_NUMPY: Final = ("journal", "why")
_HIDES_NOTHING: Final = "_WAYSTATION_HIDES_NOTHING"
_HELP: Final = """Route messages between nodes, and record every hop.

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
    headings=HEADINGS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every option can also be given as the environment variable WAYSTATION_<OPTION>.",
)
@click.version_option(__version__, prog_name="waystation")
@click.pass_context
def waystation(context: click.Context) -> None:
    """Print the help if no command is given."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: list[str] | None = None) -> None:
    """Run the command line, and end the process with its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    hidden = _hide_unused(given) if arguments is None else frozenset()
    _print_error = partial(print_error, as_json=wants_json(given))
    try:
        code = waystation.main(arguments, prog_name="waystation", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:  # a group without a command: print its help
        click.echo(error.ctx.get_help())
        sys.exit(0)
    except ModuleNotFoundError as error:
        if error.name not in hidden:
            raise
        _start_again()
    except click.UsageError as error:
        sys.exit(_print_error(error.format_message(), f"try `{_help_command(error)}`", 2))
    except click.ClickException as error:
        sys.exit(_print_error(error.format_message(), "", 1))
    except WaystationError as error:
        sys.exit(_print_error(str(error), "", 1))
    except OSError as error:
        sys.exit(_print_error(_os_error_text(error), "", 1))
    except (KeyboardInterrupt, click.Abort):
        sys.exit(_print_error("interrupted", "", 1))
    sys.exit(code if isinstance(code, int) else 0)


class _Hidden:
    """An import finder that reports some packages as not installed."""

    def __init__(self, packages: frozenset[str]) -> None:
        self._packages = packages

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname in self._packages:
            raise ModuleNotFoundError(f"{fullname} is not used here", name=fullname)


def _start_again() -> NoReturn:
    """Run the same command anew with nothing hidden: its data needs what it hardly ever needs.

    It has printed nothing yet. A package cannot be shown later: pyarrow looks for numpy once.
    """
    os.environ[_HIDES_NOTHING] = "1"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606


def _hide_unused(arguments: list[str]) -> frozenset[str]:
    """Hide pandas from this process unless the command uses Spark, and numpy from some commands.

    Returns what is hidden.

    If pandas is installed, pyarrow imports it when it converts its first value, as every comparison
    with a constant and the import of `pyarrow.dataset` do: a quarter of a second, of one that
    `why` takes, and 40 MiB for a library that no other command uses. pyarrow has no switch for it,
    and fails if `sys.modules` says None of pandas, so it is told by a finder. It also tries what
    comes with pandas and Spark, and does without. numpy takes a tenth of a second, which is half of
    what the smallest commands take.
    """
    command = next((argument for argument in arguments if not argument.startswith("-")), "")
    hidden = set() if command in _ON_SPARK else set(_FOR_PANDAS)
    if command in _WITHOUT_NUMPY and not _finds_losses(arguments):
        hidden.add("numpy")
    if os.environ.get(_HIDES_NOTHING):
        hidden.clear()
    if hidden:
        sys.meta_path.insert(0, _Hidden(frozenset(hidden)))
    return frozenset(hidden)


def _finds_losses(arguments: Sequence[str]) -> bool:
    """Whether `why` is to find a loss, which takes numpy."""
    return "--last-loss" in arguments or bool(os.environ.get("WAYSTATION_LAST_LOSS"))


def _os_error_text(error: OSError) -> str:
    """The system's message and the file it is about, without the error number."""
    if not error.strerror:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


def _help_command(error: click.UsageError) -> str:
    return f"{error.ctx.command_path if error.ctx else 'waystation'} --help"


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether a command is asked for JSON only.

    >>> wants_json(["why", "X", "--json"]), wants_json(["send", "echo", "--", "--json"])
    (True, False)
    """
    options = takewhile(lambda argument: argument != "--", arguments)
    return "--json" in options or _is_true(os.environ.get("WAYSTATION_JSON", ""))


def _is_true(value: str) -> bool:
    """Whether a variable turns a flag on, as click reads it."""
    try:
        return bool(value) and click.BOOL.convert(value, None, None)
    except click.BadParameter:  # which the command itself reports
        return False


def print_error(problem: str, advice: str, code: int, *, as_json: bool) -> int:
    """Print an error as one line on stderr, and for programs also as JSON on stdout."""
    line = " ".join(problem.split()).rstrip(".?")
    print(f"waystation: {line}{f'; {advice}' if advice else ''}", file=sys.stderr)  # noqa: T201
    if as_json:
        from msgspec import json  # noqa: PLC0415 - when needed

        told = {"error": line, "advice": advice or None, "exit_code": code}
        print(json.encode(told).decode())  # noqa: T201
    return code
