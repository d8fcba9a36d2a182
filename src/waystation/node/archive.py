"""An archive of journals at a hub, for nodes that reach nothing but their parent.

A worker takes the files that nodes ship over their sessions, part by part, and keeps them in a
directory; `FabricArchive` is the other end. A request asks what is there, brings a part, or removes
the copy of a tail; the answer says how much of a file has arrived. So whoever is interrupted,
anywhere and on either side, asks and goes on from there.

    [archive]
    directory = "/var/lib/waystation/archive"
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from waystation.core.message import Message
from waystation.errors import (
    LocalError,
    NoReplyError,
    UndeliverableError,
    UnreachableError,
    quote,
)
from waystation.journal.archive import CHUNK, DirectoryArchive, RefusedError, checked_name
from waystation.journal.layout import SEALED, Stem, files_in
from waystation.journal.ship import covers
from waystation.journal.shipped import Content
from waystation.node.worker import Context

if TYPE_CHECKING:
    from waystation.node.node import Node

ARCHIVE: Final = "waystation.archive"
"""The name of the worker."""

_TIMEOUT: Final = 30.0
_LOG: Final = logging.getLogger("waystation.archive")


class Look(Struct, frozen=True, tag="look"):
    """Asks what is there under a name."""

    name: str


class Begun(Struct, frozen=True, tag="begun"):
    """Asks how much of a file has arrived in earlier attempts."""

    name: str
    content: Content


class Part(Struct, frozen=True, tag="part"):
    """Brings a part of a file."""

    name: str
    content: Content
    offset: int
    data: bytes
    replaces: Content | None = None


class Remove(Struct, frozen=True, tag="remove"):
    """Asks to remove a file whose rows are in another one."""

    name: str


class Answer(Struct, frozen=True):
    """What became of a request."""

    held: Content | None = None
    have: int = 0
    refused: str = ""
    failed: str = ""  # for the moment


Request: TypeAlias = Look | Begun | Part | Remove
_decode: Final = msgspec.msgpack.Decoder(Request)


def start_archive(node: Node, directory: Path) -> None:
    """Start the worker at a node; raises a LocalError if it cannot write to the directory."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        worker = ArchiveWorker(directory)
    except OSError as error:
        raise LocalError(
            f"cannot keep an archive in {quote(str(directory))}: {error.strerror}",
            rule="OB-5",
            hint="give a directory that this process may write to",
        ) from error
    node.start_worker((ARCHIVE,), worker, reserved=True)


class ArchiveWorker:
    """Takes files of journals; the handler of a worker."""

    def __init__(self, directory: Path) -> None:
        self._archive = DirectoryArchive(directory)

    async def __call__(self, message: Message, context: Context) -> None:
        """Do what one request asks for."""
        answer = await asyncio.to_thread(self.answer, message.payload)
        await context.reply(msgspec.msgpack.encode(answer))

    def answer(self, payload: bytes) -> Answer:
        """The answer to a request; whatever the request is, this does not raise."""
        try:
            return self._done(_decode.decode(payload))
        except (RefusedError, LocalError, msgspec.MsgspecError) as error:
            return Answer(refused=str(error))
        except OSError as error:
            _LOG.warning("archive %s: %s", self._archive.directory, error)
            return Answer(failed=error.strerror or str(error))

    def _done(self, request: Request) -> Answer:
        match request:
            case Look(name):
                return Answer(held=self._archive.held(name))
            case Begun(name, content):
                return Answer(have=self._archive.begun(name, content))
            case Part(name, content, offset, data, replaces):
                have = self._archive.receive(name, content, offset, data, replaces)
                return Answer(have=have)
            case Remove(name):
                if not self._is_elsewhere(checked_name(name)):
                    return Answer(refused=f"the rows of {name} are in no other file")
                self._archive.remove(name)
        return Answer()

    def _is_elsewhere(self, name: str) -> bool:
        """Whether the rows of a file are in another one: no request makes the archive lose any."""
        path = self._archive.directory / name
        stem = Stem.parse(path.name)
        if stem is None or not path.exists():
            return True
        if path.suffix != SEALED:
            return (path.parent / stem.sealed).exists()
        before = [other for other in files_in(path.parent, SEALED) if other < stem]
        return bool(before) and covers(path.parent / before[-1].sealed, stem)


class FabricArchive:
    """The archive behind a route of the fabric; for a thread beside the node's event loop."""

    def __init__(self, node: Node, route: str, loop: asyncio.AbstractEventLoop) -> None:
        self._node, self._route, self._loop = node, route, loop

    def held(self, name: str) -> Content | None:
        """What is there under a name."""
        return self._ask(Look(name)).held

    def put(self, name: str, source: Path, content: Content, replaces: Content | None) -> None:
        """Send a file, from where an earlier attempt ended."""
        have = self._ask(Begun(name, content)).have
        with source.open("rb") as file:
            while True:
                file.seek(have)
                data = file.read(min(CHUNK, content.size - have))
                before = have
                have = self._ask(Part(name, content, have, data, replaces)).have
                if have == content.size:
                    return
                if have <= before:
                    raise OSError(f"{name} did not arrive as it was sent")

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._ask(Remove(name))

    def _ask(self, request: Any) -> Answer:
        asked = self._node.request(self._route, msgspec.msgpack.encode(request), timeout=_TIMEOUT)
        try:
            reply = asyncio.run_coroutine_threadsafe(asked, self._loop).result()
            answer = msgspec.msgpack.decode(reply.payload, type=Answer)
        except (NoReplyError, UndeliverableError, UnreachableError) as error:
            raise OSError(str(error)) from error
        except msgspec.MsgspecError as error:
            raise OSError(f"{self._route} is no archive: {error}") from error
        except (RuntimeError, asyncio.CancelledError) as error:
            raise OSError(f"the node is closed: {error}") from error
        if answer.refused:
            raise RefusedError(answer.refused)
        if answer.failed:
            raise OSError(f"the archive failed: {answer.failed}")
        return answer
