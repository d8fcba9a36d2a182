"""Workers by import path: `package.module:name`. And two that need no writing, to try things."""

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
    """Answer with what came: `handler = "waystation.config.workers:echo"`."""
    await context.reply(message.payload)


def discard(message: Message, context: Context) -> None:
    """Take everything, and do nothing with it."""


def find_handler(text: str) -> Callable[..., Any]:
    """The function or class of this import path.

    >>> find_handler("waystation.config.workers:discard") is discard
    True
    >>> find_handler("waystation.config.workers")
    Traceback (most recent call last):
    waystation.errors.LocalError: 'waystation.config.workers' names no function...; write ...
    """
    module, mark, name = text.partition(":")
    if not (module and mark and name):
        raise LocalError(
            f"{quote(text)} names no function of a module",
            rule="WK-1",
            hint="write package.module:function",
        )
    try:
        found: Any = import_module(module)
    except Exception as error:  # whatever somebody's module raises when it is imported
        raise LocalError(
            f"{module} cannot be imported ({type(error).__name__}: {error})",
            rule="WK-1",
            hint="install it, or name its directory in node.path",
        ) from error
    for step in name.split("."):
        found = getattr(found, step, None)
    if not callable(found):
        raise LocalError(
            f"{module} has no function or class {quote(name)}",
            rule="WK-1",
            hint="name one that it has",
        )
    return found  # type: ignore[no-any-return]


def check_options(handler: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """See whether a function takes these options beside a message and its context."""
    arguments = () if inspect.isclass(handler) else (None, None)
    try:
        inspect.signature(handler).bind(*arguments, **options)
    except TypeError as error:
        raise LocalError(
            f"{getattr(handler, '__name__', 'it')} cannot be called so ({error})",
            rule="WK-1",
            hint="give the arguments that it takes",
        ) from error
    except ValueError:  # some that are written in C do not tell what they take
        return


def make_handler(handler: Callable[..., Any], options: Mapping[str, Any]) -> Handler:
    """The handler with its options: an object of the class, or the function with them."""
    if not inspect.isclass(handler):
        return partial(handler, **options) if options else handler
    try:
        made: Any = handler(**options)
    except Exception as error:  # whatever somebody's class raises
        raise LocalError(
            f"{handler.__name__} cannot be made ({type(error).__name__}: {error})",
            rule="WK-1",
            hint="see what it needs",
        ) from error
    return made  # type: ignore[no-any-return]
