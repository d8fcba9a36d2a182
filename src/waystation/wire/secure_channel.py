"""What runs inside a secure channel of Ockam's: sealed messages, and who the peer is (ID-4).

A sealed message is a number of 8 bytes and AES-256-GCM of the array [message, padding], where the
message is [0, [[onward route, return route, payload]]], [1, …] with new credentials, or [2, []] for
the end of the channel. The key changes every REKEY messages. Whoever opens them takes each number
once, and none that is WINDOW or more behind the highest.

In a handshake each side shows [change history, attestation, credentials]: the attestation is signed
by the identity and names the key that the handshake proves (wire/identity.py). Pure.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from waystation.core.address import Route
from waystation.core.message import Message
from waystation.errors import DecodeError, RemoteError
from waystation.wire import cbor, noise
from waystation.wire.identity import Identity, PrivateIdentity
from waystation.wire.ockam import decode_body, encode_parts

REKEY: Final = 32
"""How many messages one key seals."""

WINDOW: Final = 32
"""A number this far behind the highest is refused, whether it came before or not."""

AHEAD: Final = 64 * REKEY
"""A number this far ahead of the highest is refused: each REKEY of them cost a new key."""

LAST: Final = 2**64 - 2
"""The highest number of a message."""

_HEAD: Final = 8
_PAYLOAD: Final = b"\x82\x82\x00\x81"  # [[0, [ …
_CLOSE: Final = b"\x82\x82\x02\x80\x40"  # [[2, []], padding]
_REFRESH: Final = b"\x82\x82\x01"
_NO_PADDING: Final = b"\x40"
_USUAL: Final = _PAYLOAD + b"\x83"  # of three parts
_FOUR: Final = b"\x84"
_NULL: Final = b"\xf6"
_REKEY_NONCE: Final = b"\0\0\0\0" + b"\xff" * 8
_ZEROS: Final = bytes(noise.KEY_SIZE)


# Messages


def encode(onward: Route, back: Route, payload: bytes) -> bytes:
    """A message, to be sealed."""
    return b"".join((_PAYLOAD, encode_parts(onward, back, payload), _NO_PADDING))


def encode_close() -> bytes:
    """The end of a channel, to be sealed."""
    return _CLOSE


def decode(data: bytes) -> Message | None:
    """The message that was sealed, without id and expiry; None for the end of the channel.

    New credentials are passed over: a message without an onward route stands for these.
    """
    if data.startswith(_USUAL) and data.endswith(_NO_PADDING):
        with suppress(DecodeError):  # as a body with tracing that is null, which is read fast
            return decode_body(_FOUR + data[len(_USUAL) : -1] + _NULL)
    if data.startswith(_PAYLOAD):
        return decode_body(data[len(_PAYLOAD) :])
    if data.startswith(_CLOSE[:-1]):
        return None
    if data.startswith(_REFRESH):
        return Message(Route(), Route(), b"")
    raise DecodeError("it is no message of a secure channel", format="ockam")


# Seals


def _cipher(key: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - see noise.py

    return AESGCM(key)


def _next_key(key: bytes) -> bytes:
    sealed: bytes = _cipher(key).encrypt(_REKEY_NONCE, _ZEROS, None)
    return sealed[: noise.KEY_SIZE]


class Sealer:
    """Seals the messages of one side, one after the other."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._cipher = _cipher(key)
        self._number = 0

    def seal(self, data: bytes) -> bytes:
        """Seal a message."""
        number = self._number
        if number > LAST:
            raise RemoteError("the channel has sealed as many messages as it can")
        if number and number % REKEY == 0:
            self._key = _next_key(self._key)
            self._cipher = _cipher(self._key)
        self._number = number + 1
        head = number.to_bytes(_HEAD, "big")
        sealed: bytes = self._cipher.encrypt(b"\0\0\0\0" + head, data, None)
        return head + sealed


class Opener:
    """Opens the messages of one side, each once, in about the order in which they were sealed."""

    def __init__(self, key: bytes) -> None:
        self._keys: dict[int, tuple[bytes, Any]] = {0: (key, _cipher(key))}  # two at most
        self._highest = -1
        self._seen = 0  # of the last WINDOW numbers, a bit each; the lowest is the highest number

    @property
    def highest(self) -> int:
        """The highest number so far; -1 before the first."""
        return self._highest

    def open(self, sealed: bytes) -> bytes:
        """Open a message; a RemoteError if it is forged, changed, repeated or much too late.

        Nothing changes unless it is opened.
        """
        if len(sealed) < _HEAD + noise.TAG_SIZE:
            raise RemoteError(f"{len(sealed)} bytes are no sealed message")
        number = int.from_bytes(sealed[:_HEAD], "big")
        behind = self._highest - number
        if behind >= WINDOW or (behind >= 0 and self._seen >> behind & 1):
            raise RemoteError("a message came again, or much too late")
        if -behind > AHEAD or number > LAST:
            raise RemoteError("a message came much too early")
        keys = self._keys_until(number // REKEY)
        _, cipher = keys[number // REKEY]
        plain = noise.opened(cipher, b"\0\0\0\0" + sealed[:_HEAD], sealed[_HEAD:], None)
        if behind >= 0:
            self._seen |= 1 << behind
        else:
            self._seen = (self._seen << -behind | 1) & (1 << WINDOW) - 1
            self._highest, self._keys = number, keys
        return plain

    def _keys_until(self, era: int) -> dict[int, tuple[bytes, Any]]:
        """The keys of an era and of the one before, which the window reaches back into."""
        keys = self._keys
        newest = max(keys)
        while newest < era:
            key = _next_key(keys[newest][0])
            keys = {newest: keys[newest], newest + 1: (key, _cipher(key))}
            newest += 1
        return keys


# Who the peer is


def proof(identity: PrivateIdentity, static: bytes, now: int) -> bytes:
    """What one side shows in a handshake: its history, and that its static key is its own."""
    attestation = identity.attested(static, now)
    history = cbor.decode(identity.public.history)
    return cbor.encode([history, cbor.decode(attestation), []])


def check_proof(payload: bytes, static: bytes, now: int) -> Identity:
    """The identity that was shown and proven; a RemoteError says what is wrong with it."""
    match cbor.decode(payload):
        case [list(history), attestation, list()]:
            identity = Identity.read(cbor.encode(history))
        case _:
            raise RemoteError("the peer shows no identity")
    identity.check_attestation(cbor.encode(attestation), static, now)
    return identity
