"""A provider of joynr's that a node serves: calls in, replies out.

Calls are served in tasks, since a reply may have to come from elsewhere. There are never more than
a number of them at once; who asks then gets an error.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Final

from waystation.core.grants import Action
from waystation.core.message import Message
from waystation.errors import DecodeError, WaystationError, quote
from waystation.net.tasks import Tasks
from waystation.node import Context, Node
from waystation.wire.joynr import OneWayRequest, Request, decode_payload, encode_payload
from waystation.wire.joynr_frames import name_of
from waystation.wire.joynr_services import (
    CallError,
    Parameters,
    answer_to,
    error_to,
    failed_call,
    unknown_call,
)

OPEN_CALLS: Final = 1_000
"""Maximum number of calls that are served at once."""

_log = logging.getLogger("waystation.joynr")


class Service(ABC):
    """Something that a node answers calls for, under a name of its own."""

    name: str

    def __init__(self, node: Node) -> None:
        self.node = node
        self._open = Tasks()

    def start(self) -> None:
        """Answer from now on."""
        self.node.start_worker((self.name,), self._handle, reserved=True)

    async def stop(self) -> None:
        """Answer no more."""
        await self._open.stop()

    @abstractmethod
    async def call(self, method: str, parameters: Parameters, message: Message) -> Any:
        """Do what a call asks for: what it returns, or NotImplemented if there is no such call."""

    def check_granted(self, participants: Iterable[str], message: Message) -> None:
        """Let nobody list, or take off a list, what it may not register (ID-3)."""
        for participant in participants:
            name = name_of(participant)
            if not self.node.may_sender(message, Action.REGISTER, name):
                raise failed_call(f"to register {quote(name)} is not granted")

    async def _handle(self, message: Message, context: Context) -> None:
        try:
            request = decode_payload(message.payload)
        except DecodeError as error:
            _log.warning("%s: %s", self.name, error)
            return
        if isinstance(request, OneWayRequest):
            request = Request(
                method_name=request.method_name,
                param_datatypes=request.param_datatypes,
                params=request.params,
                request_reply_id="",
            )
        if not isinstance(request, Request):
            return  # nothing else is for a provider without attributes
        if len(self._open) >= OPEN_CALLS:
            await self._reply(request, context, failed_call("too many calls at once"))
            return
        self._open.start(self._serve(request, message, context), self.name)

    async def _serve(self, request: Request, message: Message, context: Context) -> None:
        try:
            result = await self.call(request.method_name, Parameters(request), message)
            if result is NotImplemented:
                raise unknown_call(request)
        except CallError as error:
            await self._reply(request, context, error)
        except WaystationError as error:
            await self._reply(request, context, failed_call(str(error)))
        else:
            await self._reply(request, context, result)

    async def _reply(self, request: Request, context: Context, result: Any) -> None:
        if not request.request_reply_id:
            return
        if isinstance(result, CallError):
            reply = error_to(request, result)
        else:
            reply = answer_to(request, () if result is None else (result,))
        await context.reply(encode_payload(reply))
