"""Workers by import path, `package.module:name`, and two ready-made ones for trying things out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from waystation.core.message import Message
from waystation.errors import LocalError, quote
from waystation.node.worker import Context, Handler


async def echo(message: Message, context: Context) -> None:
    """Reply with the payload that came: `handler = "waystation.config.workers:echo"`."""
    await context.reply(message.payload)


def discard(message: Message, context: Context) -> None:
    """Accept every message and ignore it."""


def find_handler(text: str) -> Callable[..., Any]:
    """Import the function or class of this import path.

    >>> find_handler("waystation.config.workers:discard") is discard
    True
    >>> find_handler("waystation.config.workers")
    Traceback (most recent call last):
    waystation.errors.LocalError: invalid handler 'waystation.config.workers'; write ...
    """
    module, mark, name = text.partition(":")
    if not (module and mark and name):
        raise LocalError(
            f"invalid handler {quote(text)}",
            rule="WK-1",
            hint="write package.module:function",
        )
    try:
        found: Any = import_module(module)
    except Exception as error:  # a user's module may raise anything when imported
        raise LocalError(
            f"{module} cannot be imported ({type(error).__name__}: {error})",
            rule="WK-1",
            hint="install it, or add its directory to node.path",
        ) from error
    for step in name.split("."):
        found = getattr(found, step, None)
    if not callable(found):
        raise LocalError(
            f"{module} has no function or class {quote(name)}",
            rule="WK-1",
            hint="check the name",
        )
    return found  # type: ignore[no-any-return]


def check_options(handler: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Check that a handler accepts these options besides a message and its context."""
    arguments = () if inspect.isclass(handler) else (None, None)
    try:
        inspect.signature(handler).bind(*arguments, **options)
    except TypeError as error:
        raise LocalError(
            f"{getattr(handler, '__name__', 'it')} cannot be called with these options ({error})",
            rule="WK-1",
            hint="give the arguments that it accepts",
        ) from error
    except ValueError:  # some functions written in C have no signature
        return


def make_handler(handler: Callable[..., Any], options: Mapping[str, Any]) -> Handler:
    """The handler with its options bound: an instance of the class, or a partial function."""
    if not inspect.isclass(handler):
        return partial(handler, **options) if options else handler
    try:
        made: Any = handler(**options)
    except Exception as error:  # a user's class may raise anything
        raise LocalError(
            f"{handler.__name__} cannot be created ({type(error).__name__}: {error})",
            rule="WK-1",
            hint="check its options",
        ) from error
    return made  # type: ignore[no-any-return]
