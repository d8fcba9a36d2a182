"""`waystation completion`: a script that lets a shell complete commands, options and values."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

SHELLS: Final = ("bash", "fish", "zsh")

_PROGRAM: Final = "waystation"
_VARIABLE: Final = "_WAYSTATION_COMPLETE"  # click looks for it under this name
_HELP: Final = """Print the script by which SHELL (bash, fish or zsh) completes `waystation`.

Let the shell read it at its start, or keep it where the shell looks for completions.

\b
Examples:
  eval "$(waystation completion bash)"       for this shell; in ~/.bashrc, for all to come
  eval "$(waystation completion zsh)"        the same, in ~/.zshrc after compinit
  waystation completion fish > ~/.config/fish/completions/waystation.fish
"""


@click.command(help=_HELP)
@click.argument("shell", type=click.Choice(SHELLS), metavar="SHELL")
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script for a shell."""
    kind = get_completion_class(shell)
    assert kind is not None, shell
    root = context.find_root().command
    source = kind(root, {}, _PROGRAM, _VARIABLE).source()
    click.echo(source.replace('string split ","', 'string split --max 1 ","'))  # fish: keep commas
