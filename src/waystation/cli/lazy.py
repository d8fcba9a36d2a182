"""A group of commands that are imported when they are called for.

Nobody who asks for a rule waits for a router, a web server or Spark to be imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """A group whose commands lie in modules of their own: `modules` leads from name to module.

    Each module has a command of the same name. Commands that were added as usual come with them.
    """

    def __init__(self, *args: Any, modules: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all, sorted."""
        return sorted([*super().list_commands(ctx), *self._modules])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, if there is one."""
        module = self._modules.get(cmd_name)
        if module is None:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(import_module(module), cmd_name)
        return command
