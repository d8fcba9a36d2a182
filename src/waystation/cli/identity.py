"""`waystation identity`: make, show, export and rotate the identity of a node."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from waystation.cli.lazy import HelpfulGroup
from waystation.cli.options import FILE, SETTINGS, json_option, print_json
from waystation.node import keyfile
from waystation.wire.identity import LIFETIME, Identity

_HELP: Final = """Create, show, export and rotate the identity of a node.

A node proves its identity to its peers: `identity = "FILE"` in the table [node] of its
configuration file. Grants name it by its identifier, which stays the same when the key changes.

\b
Examples:
  waystation identity create truck-7.key
  waystation identity show truck-7.key
  waystation identity rotate truck-7.key
"""

_CREATE_HELP: Final = """Create FILE with a new identity; print its identifier.

\b
Examples:
  waystation identity create truck-7.key
"""

_SHOW_HELP: Final = """Show the identity in FILE, a key file or an exported one; never its key.

\b
Examples:
  waystation identity show truck-7.key
"""

_EXPORT_HELP: Final = """Print the public part of the identity in FILE.

That is its change history, in hexadecimal, as Ockam stores it.

\b
Examples:
  waystation identity export truck-7.key > truck-7.public
"""

_ROTATE_HELP: Final = """Replace the key in FILE by a new one; the identifier stays.

Open sessions stay open. Send SIGHUP to a running node: it then proves itself with the new key.

\b
Examples:
  waystation identity rotate truck-7.key
"""

_DAY: Final = 24 * 3600

_days = click.option(
    "--days",
    type=click.IntRange(min=1, max=36_500),
    default=LIFETIME // _DAY,
    show_default=True,
    help="Days for which the new key is valid.",
)


@click.group(cls=HelpfulGroup, help=_HELP, context_settings=SETTINGS)
def identity() -> None:
    """Create, show, export and rotate the identity of a node."""


@identity.command(help=_CREATE_HELP, context_settings=SETTINGS)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@_days
@json_option
def create(file: Path, *, days: int, as_json: bool) -> None:
    """Create FILE with a new identity; print its identifier."""
    if file.exists():
        raise click.ClickException(f"{file} exists; remove it first, or rotate its key")
    made = keyfile.create(file, lifetime=days * _DAY)
    if as_json:
        print_json(_fields(made.public))
    else:
        click.echo(made.identifier)


@identity.command(help=_SHOW_HELP, context_settings=SETTINGS)
@click.argument("file", type=FILE)
@json_option
def show(file: Path, *, as_json: bool) -> None:
    """Show the identity in FILE, a key file or an exported one; never its private key."""
    found = keyfile.read_public(file)
    fields = _fields(found)
    if as_json:
        print_json(fields)
        return
    for name, value in fields.items():
        click.echo(f"{name.replace('_', ' ')}: {value}")
    if not found.is_valid(keyfile.now()):
        click.echo("its key has expired: rotate it", err=True)


@identity.command(help=_EXPORT_HELP, context_settings=SETTINGS)
@click.argument("file", type=FILE)
@json_option
def export(file: Path, *, as_json: bool) -> None:
    """Print what everybody may know of the identity in FILE: its change history, in hexadecimal."""
    found = keyfile.read_public(file)
    history = found.history.hex()
    if as_json:
        print_json({**_fields(found), "history": history})
    else:
        click.echo(history)


@identity.command(help=_ROTATE_HELP, context_settings=SETTINGS)
@click.argument("file", type=FILE)
@_days
@json_option
def rotate(file: Path, *, days: int, as_json: bool) -> None:
    """Replace the key in FILE by a new one; the identifier stays."""
    rotated = keyfile.rotate(file, lifetime=days * _DAY)
    if as_json:
        print_json(_fields(rotated.public))
    else:
        click.echo(f"{rotated.identifier} now has key {len(rotated.public.hashes)}")


def _fields(found: Identity) -> dict[str, str | int]:
    return {
        "identifier": found.identifier,
        "keys": len(found.hashes),
        "valid_from": _text(found.valid_from),
        "valid_until": _text(found.valid_until),
    }


def _text(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
