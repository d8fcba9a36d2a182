"""Channels: frames that wait for the other end, and the link of a listener's client.

A client comes and goes with its requests. What is kept for it is bounded, and numbered, so that it
can say up to where it has everything and ask for the rest again. No requests and no bytes of HTTP
here: those are the business of http/server.py and http/client.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from waystation.core.budget import OVERHEAD
from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.errors import DecodeError
from waystation.net.connection import ConnectionState
from waystation.net.held import FREE, HeldBytes
from waystation.transports.http.transport import HttpLimits
from waystation.transports.link import CONTROL, QueuedLink
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

    __slots__ = ("_dropped", "_frames", "_keep", "_settled", "_totals", "given")

    def __init__(self, keep: int) -> None:
        self.given = 0  # the number of the last frame that was given out
        self._settled = 0  # the number of the last frame that is out of our hands
        self._dropped = 0  # the number of the last frame that is not kept any more
        self._keep = keep  # bytes of what is settled that can be asked for again
        self._frames: list[Frame] = []  # all behind that
        self._totals = [(0, 0)]  # bytes and messages up to `_dropped`, and up to each of those

    @property
    def size(self) -> int:
        """How many bytes wait."""
        return self._totals[-1][0] - self._totals[self.given - self._dropped][0]

    @property
    def kept(self) -> int:
        """How many bytes are here: those that wait, and those that can be asked for again."""
        return self._totals[-1][0] - self._totals[0][0]

    @property
    def messages(self) -> int:
        """How many messages wait."""
        return self._totals[-1][1] - self._total(self.given)[1]

    @property
    def done(self) -> bool:
        """Whether the client has every message."""
        return self._totals[-1][1] == self._total(self._settled)[1]

    def put(self, frame: Frame) -> None:
        """Let a frame wait behind the others."""
        size, messages = self._totals[-1]
        self._frames.append(frame)
        self._totals.append((size + len(frame.data), messages + frame.is_message))

    def take(self, limit: int) -> list[Frame]:
        """Give out what waits, until it is `limit` bytes or more; nothing if that is 0."""
        first = last = self.given - self._dropped
        enough = self._totals[first][0] + limit
        while last < len(self._frames) and self._totals[last][0] < enough:
            last += 1
        self.given = self._dropped + last
        return self._frames[first:last]

    def rewind(self, number: int) -> bool:
        """Let everything behind a number wait once more; False when it is no longer there."""
        if not self._dropped <= number <= self.given:
            return False
        self.given = number
        self._settled = min(self._settled, number)
        return True

    def settle(self, number: int) -> int:
        """Note that frames up to a number are out of our hands; how many messages more that is."""
        before = self._total(self._settled)[1]
        self._settled = max(self._settled, min(number, self.given))
        messages = self._total(self._settled)[1] - before
        kept_from = self._total(self.given)[0] - self._keep
        too_many = bisect_left(self._totals, (kept_from, 0))
        self.forget(min(self._settled, self._dropped + too_many))
        return messages

    def forget(self, number: int) -> None:
        """Keep nothing up to a number: the client said that it has that."""
        frames = max(0, number - self._dropped)
        del self._frames[:frames]
        del self._totals[:frames]
        self._dropped += frames

    def _total(self, number: int) -> tuple[int, int]:
        """The bytes and the messages in all frames up to a number."""
        return self._totals[number - self._dropped]


class ChannelEnd(QueuedLink):
    """One end of a channel: frames wait in it for the other end."""

    def __init__(self, owner: LinkOwner, place: str, limits: HttpLimits, *, keep: int) -> None:
        super().__init__(owner, place, high_water=limits.unsent, linger=limits.linger)
        self._limits = limits
        self._frame_limit = limits.frame
        self._out = Outgoing(keep)
        self._control = 0  # bytes for the other session, since something waits
        self._news = asyncio.Event()  # for whoever takes frames
        self.room = asyncio.Event()  # the owner takes messages, or never will again
        self.room.set()

    def enqueue(self, message: Message) -> int:
        """Encode a message and let it wait for the other end."""
        self._put(Frame(encode_departure(message, limit=self._frame_limit), True))
        return self._out.size

    def send_control(self, payload: bytes) -> None:
        """Let a payload for the other session wait."""
        frame = Frame(encode_control(payload), False)
        waits = self._out.size
        self._control = self._control + len(frame.data) if waits else 0
        if self._control > CONTROL:
            self.end(Reason.QUEUE_FULL, "the peer takes no control messages")
            return
        self._put(frame)

    def pause_reading(self) -> None:
        """Take in nothing more; the other end has to wait."""
        if self.state is ConnectionState.OPEN:
            self.room.clear()

    def resume_reading(self) -> None:
        """Take in what comes again."""
        self.room.set()

    def _put(self, frame: Frame) -> None:
        if self.state is ConnectionState.OPEN:
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
        held: HeldBytes[Channel],
    ) -> None:
        super().__init__(owner, place, limits, keep=limits.unsent)
        self._held = held  # for all channels of the listener
        self.id = secrets.token_urlsafe(24)
        self.expired = False
        self.posting = asyncio.Lock()  # one request at a time hands in messages
        self.over = asyncio.Event()  # it has ended
        self._forget = forget
        self._requests = 0  # under way
        self._posted = 0  # bytes of the body that is being read
        self._decoder: FrameDecoder | None = None  # a new one at first, and after an error
        self.start_timer(limits.idle, self._expire)

    # What the owner asks for

    def send(self, message: Message) -> Reason | None:
        """Let a message wait for the client, unless too much waits for it and for others."""
        if self._held.is_tight and not self._held.allows(self, len(message.payload) + OVERHEAD):
            return Reason.QUEUE_FULL
        reason = super().send(message)
        if self._out.kept > FREE:
            self._held.count_soon(self)
        return reason

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
    def kept(self) -> int:
        """How many bytes are held for the client."""
        return self._out.kept

    @property
    def is_open(self) -> bool:
        """Whether the node takes what comes."""
        return self.state is ConnectionState.OPEN

    @property
    def ended(self) -> bool:
        """Whether nothing can be fetched any more, either."""
        return self.state is ConnectionState.CLOSED

    def begin(self) -> None:
        """Note that the client is there."""
        self._requests += 1
        if self.is_open:
            self.stop_timer()

    def done(self) -> None:
        """Note that a request has been answered; without another one, the channel ends."""
        self._requests -= 1
        if self.is_open and not self._requests:
            self.start_timer(self._limits.idle, self._expire)

    def note_posted(self, size: int) -> None:
        """Count what came so far of the body of a request that is being read."""
        if self.owner.account is not None:
            self.owner.account.take(size - self._posted)
        self._posted = size

    def end_post(self) -> None:
        """Let the next request hand in messages; what is left of this one is dropped."""
        self.note_posted(0)
        if self._decoder is not None and self._decoder.unfinished:
            self._decoder = None
        self.posting.release()

    def decode_front(self, body: bytes) -> list[Message]:
        """The messages with which a body begins; what `decode` gets then goes on behind it."""
        decoder, self._decoder = self._decoder or self._fresh_decoder(), None
        messages = decoder.feed(body)
        if decoder.error is not None:
            raise decoder.error
        self._decoder = decoder
        return messages

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

    def look_again(self) -> None:
        """Wake the request that waits: its client may be gone."""
        self._news.set()

    async def wait_for_frames(
        self,
        seconds: float,
        client_is_there: Callable[[], bool] = lambda: True,
        *,
        only_messages: bool = False,
    ) -> bool:
        """Wait until there is something to give out; False when another request asks for it now."""
        out = self._out
        self._news.set()  # whoever waited has to leave
        self._news = mine = asyncio.Event()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while (
                    not (out.messages if only_messages else out.size)
                    and not self.ended
                    and client_is_there()
                ):
                    mine.clear()
                    await mine.wait()
                    if self._news is not mine:
                        break
        return self._news is mine

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
        if self.state is ConnectionState.CLOSING:
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
        self._held.forget(self)
        self.room.set()
        self.over.set()
        self._news.set()

    # Inside

    def _end_if_done(self) -> None:
        if self._out.done and not self.ended:
            self.owner.sent()
            self.end(None, "closed")

    def _expire(self) -> None:
        """End what nobody asks for."""
        self.expired = True
        seconds = self._limits.idle
        self.end(Reason.TRANSPORT_DOWN, f"the client asked for nothing for {seconds:g} s")
