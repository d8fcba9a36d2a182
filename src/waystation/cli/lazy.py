"""A group of commands that are imported on first use, and listed under headings.

So that `waystation rules` does not wait for a router, a web server or Spark to be imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Final

import click

_LONGEST: Final = 300
"""Maximum length of the sentence that a list says of a command."""


class HelpfulGroup(click.Group):
    """A group that knows which command was meant, and lists its commands in full."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is meant; for a mistyped one the error names those like it."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            close = get_close_matches(name, self.list_commands(ctx), 3)
            meant = f"; did you mean {' or '.join(f'`{one}`' for one in close)}?" if close else ""
            raise click.UsageError(f"there is no command {name!r}{meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their whole first sentence: click would cut it."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, each.get_short_help_str(_LONGEST)) for name, each in commands if each]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class LazyGroup(HelpfulGroup):
    """A group whose commands are in separate modules: `modules` maps each name to its module.

    Each module defines a command of the same name. Commands can also be added in the usual way.
    `headings` has the names that the help lists together; all others stand under "Commands".
    """

    def __init__(
        self,
        *args: Any,
        modules: Mapping[str, str],
        headings: Mapping[str, Mapping[str, str]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._modules = modules
        self._headings = headings or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, sorted."""
        return sorted([*super().list_commands(ctx), *self._modules])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command with this name, or None."""
        module = self._modules.get(cmd_name)
        if module is None:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(import_module(module), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands under their headings, without importing any of them."""
        if not self._headings:
            super().format_commands(ctx, formatter)
        for heading, commands in self._headings.items():
            with formatter.section(heading):
                formatter.write_dl(list(commands.items()))
