"""`waystation completion`: print a shell completion script."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

SHELLS: Final = ("bash", "fish", "zsh")

_PROGRAM: Final = "waystation"
_VARIABLE: Final = "_WAYSTATION_COMPLETE"  # click looks for it under this name
_HELP: Final = """Print the completion script for SHELL (bash, fish or zsh).

Load it in the shell's startup file, or save it where the shell looks for completions.

\b
Examples:
  eval "$(waystation completion bash)"      # current shell; for all shells, put it in ~/.bashrc
  eval "$(waystation completion zsh)"       # in ~/.zshrc, after compinit
  waystation completion fish > ~/.config/fish/completions/waystation.fish
"""


@click.command(help=_HELP)
@click.argument("shell", type=click.Choice(SHELLS), metavar="SHELL")
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for a shell."""
    kind = get_completion_class(shell)
    assert kind is not None, shell
    root = context.find_root().command
    source = kind(root, {}, _PROGRAM, _VARIABLE).source()
    click.echo(source.replace('string split ","', 'string split --max 1 ","'))  # fish: keep commas
