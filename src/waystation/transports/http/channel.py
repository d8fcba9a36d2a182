"""Channels: frames that wait for the other end, and the link of a listener's client.

A client comes and goes with its requests. What is kept for it is bounded, and numbered, so that it
can say up to where it has everything and ask for the rest again. No requests and no bytes of HTTP
here: those are the business of http/server.py and http/client.py.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.errors import DecodeError
from waystation.transports.http.transport import HttpLimits
from waystation.transports.link import LinkState, QueuedLink
from waystation.transports.transport import LinkOwner
from waystation.wire.ockam import PREFACE, FrameDecoder, encode_control, encode_departure

PART: Final = 64 * 1024
PART_MESSAGES: Final = 1_000
"""Bytes that are read, and messages that are handed in, in one turn of the event loop."""

ACKNOWLEDGE: Final = 1.0
"""Seconds in which a client that has fetched everything acknowledges it, when a channel closes."""


class Frame(Struct, frozen=True, gc=False):
    """Some bytes for the other end."""

    data: bytes
    is_message: bool  # or else for the other session


class Outgoing:
    """Frames, numbered from 1: those that wait, and the last that were given out.

    >>> out = Outgoing(keep=1000)
    >>> for data in (b"a", b"b", b"c"):
    ...     out.put(Frame(data, True))
    >>> [frame.data for frame in out.take(2)], out.given
    ([b'a', b'b'], 2)
    >>> out.rewind(1), [frame.data for frame in out.take(1000)], out.settle(3)
    (True, [b'b', b'c'], 3)
    """

    __slots__ = (
        "_keep", "_kept", "_kept_size", "_settled", "_unsettled", "_waiting", "given", "messages",
        "size",
    )  # fmt: skip

    def __init__(self, keep: int) -> None:
        self._keep = keep  # bytes of what is settled that can be asked for again
        self._waiting: deque[Frame] = deque()
        self._kept: deque[Frame] = deque()  # given out
        self._kept_size = 0
        self._settled = 0  # the number of the last frame that is out of our hands
        self._unsettled = 0  # messages that were given out and may still be in our hands
        self.given = 0  # the number of the last frame that was given out
        self.size = 0  # bytes that wait
        self.messages = 0  # that wait

    @property
    def done(self) -> bool:
        """Whether the client has every message."""
        return not self.messages and not self._unsettled

    def put(self, frame: Frame) -> None:
        """Let a frame wait behind the others."""
        self._waiting.append(frame)
        self.size += len(frame.data)
        self.messages += frame.is_message

    def take(self, limit: int) -> list[Frame]:
        """Give out what waits, until it is `limit` bytes or more; nothing if that is 0."""
        frames: list[Frame] = []
        size = 0
        while self._waiting and size < limit:
            frame = self._waiting.popleft()
            size += len(frame.data)
            self.messages -= frame.is_message
            self._unsettled += frame.is_message
            frames.append(frame)
        self.size -= size
        self.given += len(frames)
        self._kept.extend(frames)
        self._kept_size += size
        return frames

    def rewind(self, number: int) -> bool:
        """Let everything behind a number wait once more; False when it is no longer there."""
        if not self.given - len(self._kept) <= number <= self.given:
            return False
        while self.given > number:
            frame = self._kept.pop()
            self._kept_size -= len(frame.data)
            self._waiting.appendleft(frame)
            self.size += len(frame.data)
            self.messages += frame.is_message
            if self.given > self._settled:
                self._unsettled -= frame.is_message
            else:
                self._settled = self.given - 1
            self.given -= 1
        return True

    def settle(self, number: int) -> int:
        """Note that frames up to a number are out of our hands; how many messages more that is."""
        first = self.given - len(self._kept) + 1  # the number of the first that is kept
        fresh = range(max(self._settled + 1, first), min(number, self.given) + 1)
        messages = sum(self._kept[index - first].is_message for index in fresh)
        self._unsettled -= messages
        self._settled = max(self._settled, min(number, self.given))
        while self._kept and self._kept_size > self._keep and first <= self._settled:
            self._kept_size -= len(self._kept.popleft().data)
            first += 1
        return messages

    def forget(self, number: int) -> None:
        """Keep nothing up to a number: the client said that it has that."""
        while self._kept and self.given - len(self._kept) < number:
            self._kept_size -= len(self._kept.popleft().data)


class ChannelEnd(QueuedLink):
    """One end of a channel: frames wait in it for the other end."""

    def __init__(self, owner: LinkOwner, place: str, limits: HttpLimits, *, keep: int) -> None:
        super().__init__(owner, place, high_water=limits.unsent, linger=limits.linger)
        self._limits = limits
        self._frame_limit = limits.frame
        self._out = Outgoing(keep)
        self._news = asyncio.Event()  # for whoever takes frames

    def enqueue(self, message: Message) -> int:
        """Encode a message and let it wait for the other end."""
        self._put(Frame(encode_departure(message, limit=self._frame_limit), True))
        return self._out.size

    def send_control(self, payload: bytes) -> None:
        """Let a payload for the other session wait."""
        self._put(Frame(encode_control(payload), False))

    def _put(self, frame: Frame) -> None:
        if self.state is LinkState.OPEN:
            self._out.put(frame)
            self._news.set()

    def _fresh_decoder(self) -> FrameDecoder:
        decoder = FrameDecoder(limit=self._limits.frame, via=self.owner.address)
        decoder.feed(PREFACE)
        return decoder


class Channel(ChannelEnd):
    """A link to a client of a listener."""

    def __init__(
        self,
        owner: LinkOwner,
        limits: HttpLimits,
        place: str,
        forget: Callable[[Channel, Reason | None, str], None],
    ) -> None:
        super().__init__(owner, place, limits, keep=limits.unsent)
        self.id = secrets.token_urlsafe(24)
        self.expired = False
        self.posting = asyncio.Lock()  # one request at a time hands in messages
        self.room = asyncio.Event()  # there is some, or there will never be any
        self.room.set()
        self.over = asyncio.Event()  # it has ended
        self._forget = forget
        self._receiver = 0  # number of the request that waits for frames; a later one replaces it
        self._requests = 0  # under way
        self._last_request = self._loop.time()  # when it ended
        self._decoder: FrameDecoder | None = None  # a new one at first, and after an error
        self._idle = self._loop.call_later(limits.idle, self._expire)

    # What the owner asks for

    def pause_reading(self) -> None:
        """Take in nothing more; what the client posts has to wait."""
        if not self.ended:
            self.room.clear()

    def resume_reading(self) -> None:
        """Take in what is posted again."""
        self.room.set()

    def say_goodbye(self) -> None:
        """Let the client fetch what is left, and acknowledge it."""
        if not self._out.messages:  # a client that is there asks again at once, and so says it
            self._linger = min(self._linger, ACKNOWLEDGE)
        self._loop.call_soon(self._end_if_done)
        self.room.set()

    # What requests ask for

    @property
    def given(self) -> int:
        """The number of the last frame that was given out."""
        return self._out.given

    @property
    def is_open(self) -> bool:
        """Whether the node takes what comes."""
        return self.state is LinkState.OPEN

    @property
    def ended(self) -> bool:
        """Whether nothing can be fetched any more, either."""
        return self.state is LinkState.CLOSED

    def begin(self) -> None:
        """Note that the client is there."""
        self._requests += 1

    def done(self) -> None:
        """Note that a request has been answered."""
        self._requests -= 1
        self._last_request = self._loop.time()

    async def decode(self, body: bytes) -> list[Message]:
        """The messages in the body of a request, all of them or a DecodeError.

        A long body is read in parts, so that others have their turn meanwhile.
        """
        decoder, self._decoder = self._decoder or self._fresh_decoder(), None
        messages: list[Message] = []
        for start in range(0, len(body), PART):
            if start:
                await asyncio.sleep(0)
            messages += decoder.feed(body[start : start + PART] if len(body) > PART else body)
            if decoder.error is not None:
                raise decoder.error
        if decoder.unfinished:
            raise DecodeError("the body ends in the middle of a frame", format="ockam")
        self._decoder = decoder
        return messages

    async def hand_in(self, messages: Sequence[Message]) -> None:
        """Give the owner what the client posted; what comes after the end is lost."""
        for start in range(0, len(messages), PART_MESSAGES):
            if start:
                await asyncio.sleep(0)
            if self.is_open:
                self.owner.received(messages[start : start + PART_MESSAGES])

    async def wait_for_frames(self, seconds: float, *, only_messages: bool = False) -> bool:
        """Wait until there is something to give out; False when another request asks for it now."""
        self._receiver = mine = self._receiver + 1
        self._news.set()  # whoever waited has to leave
        self._news = asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                while self._receiver == mine and not self.ended and not self._has(only_messages):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            pass
        return self._receiver == mine

    def take(self, limit: int) -> list[Frame]:
        """Give out the next frames, or none if there are none."""
        frames = self._out.take(limit)
        self.note_room(self._out.size)
        return frames

    def settle(self, number: int) -> None:
        """Note that the frames up to a number are out of our hands."""
        messages = self._out.settle(number)
        if messages and not self.ended:
            self.owner.sent(messages)
        if self.state is LinkState.CLOSING:
            self._loop.call_soon(self._end_if_done)

    def go_back_to(self, number: int) -> bool:
        """Go on behind a number, up to which the client has everything; False if that is gone."""
        if not self._out.rewind(number):
            return False
        self.settle(number)
        self._out.forget(number)
        return True

    def end(self, reason: Reason | None, detail: str) -> None:
        """Tell the owner and the listener, once."""
        if not self.ended:
            super().end(reason, detail)
            self._forget(self, reason, detail)

    def on_end(self) -> None:
        """Tell the requests that wait."""
        self._idle.cancel()
        self.room.set()
        self.over.set()
        self._news.set()

    # Inside

    def _has(self, only_messages: bool) -> bool:
        return bool(self._out.messages if only_messages else self._out.size)

    def _end_if_done(self) -> None:
        if self._out.done and not self.ended:
            self.owner.sent()
            self.end(None, "closed")

    def _expire(self) -> None:
        """End what nobody asks for; look again later if somebody did."""
        latest = self._loop.time() if self._requests else self._last_request
        left = latest + self._limits.idle - self._loop.time()
        if left > 0:
            self._idle = self._loop.call_later(left, self._expire)
        else:
            self.expired = True
            seconds = self._limits.idle
            self.end(Reason.TRANSPORT_DOWN, f"the client asked for nothing for {seconds:g} s")
