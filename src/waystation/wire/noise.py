"""Noise XX as Ockam has it: who both are, and two keys that nobody between them knows (ID-4).

Three messages: `e`, then `e, ee, s, es`, then `s, se`, each with a payload. Ockam's form differs
from Noise's in two points: the name of the protocol, and which side uses which key afterwards. Both
are parameters here, so that the handshake is tested with Noise's own vectors too.

Pure: private keys are arguments. Diffie-Hellman and AES come from the `cryptography` package, which
is imported when the first handshake begins.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Any, Final

from waystation.errors import RemoteError

NAME: Final = b"OCKAM_XX_25519_AES256_GCM_SHA256"
"""The name of the protocol, which both sides begin with."""

KEY_SIZE: Final = 32
TAG_SIZE: Final = 16
MESSAGE_LIMIT: Final = 65_535
"""Maximum size of a message of a handshake, in bytes."""

_EMPTY: Final = b""


class Handshake:
    """One side of a handshake, driven by the messages of the other.

    `static` and `ephemeral` are private keys. The initiator calls `write_first`, `read_second` and
    `write_third`, the responder `read_first`, `write_second` and `read_third`; then both have the
    two `keys`: that of the initiator's messages, and that of the responder's.
    """

    def __init__(
        self, static: bytes, ephemeral: bytes, *, name: bytes = NAME, prologue: bytes = b""
    ) -> None:
        padded = name.ljust(KEY_SIZE, b"\0")
        self._hash = padded if len(padded) == KEY_SIZE else sha256(name).digest()
        self._chain = self._hash
        self._cipher: Any = None
        self._count = 0
        self._static, self._ephemeral = _private(static), _private(ephemeral)
        self._peer_ephemeral: Any = None
        self.peer_static = b""
        """The static key of the peer, which has proven to have it once the handshake is done."""
        self._mix_hash(prologue)

    # The initiator

    def write_first(self, payload: bytes = b"") -> bytes:
        """Begin: the first message."""
        return self._write_ephemeral() + self._seal(payload)

    def read_second(self, message: bytes) -> bytes:
        """The payload of the second message."""
        rest = self._read_ephemeral(message)
        self._mix_key(self._exchanged(self._ephemeral, self._peer_ephemeral))
        rest = self._read_static(rest)
        self._mix_key(self._exchanged(self._ephemeral, _public(self.peer_static)))
        return self._open(rest)

    def write_third(self, payload: bytes) -> bytes:
        """The last message, after which the keys are there."""
        sealed = self._seal(_raw(self._static))
        self._mix_key(self._exchanged(self._static, self._peer_ephemeral))
        return sealed + self._seal(payload)

    # The responder

    def read_first(self, message: bytes) -> bytes:
        """The payload of the first message."""
        return self._open(self._read_ephemeral(message))

    def write_second(self, payload: bytes) -> bytes:
        """The second message."""
        ephemeral = self._write_ephemeral()
        self._mix_key(self._exchanged(self._ephemeral, self._peer_ephemeral))
        sealed = self._seal(_raw(self._static))
        self._mix_key(self._exchanged(self._static, self._peer_ephemeral))
        return ephemeral + sealed + self._seal(payload)

    def read_third(self, message: bytes) -> bytes:
        """The payload of the last message, after which the keys are there."""
        rest = self._read_static(message)
        self._mix_key(self._exchanged(self._ephemeral, _public(self.peer_static)))
        return self._open(rest)

    # Both

    @property
    def hash(self) -> bytes:
        """What stands for this handshake and no other."""
        return self._hash

    def keys(self) -> tuple[bytes, bytes]:
        """The two keys that follow from a handshake that is done, in Noise's order."""
        first, second = _derived(self._chain, _EMPTY)
        return first, second

    def _write_ephemeral(self) -> bytes:
        key = _raw(self._ephemeral)
        self._mix_hash(key)
        return key

    def _read_ephemeral(self, message: bytes) -> bytes:
        if not KEY_SIZE <= len(message) <= MESSAGE_LIMIT:
            raise RemoteError(f"a message of {len(message)} bytes is none of a handshake")
        key = message[:KEY_SIZE]
        self._mix_hash(key)
        self._peer_ephemeral = _public(key)
        return message[KEY_SIZE:]

    def _read_static(self, message: bytes) -> bytes:
        size = KEY_SIZE + TAG_SIZE
        if not size <= len(message) <= MESSAGE_LIMIT:
            raise RemoteError(f"a message of {len(message)} bytes is none of a handshake")
        self.peer_static = self._open(message[:size])
        return message[size:]

    def _exchanged(self, private: Any, public: Any) -> bytes:
        try:
            shared: bytes = private.exchange(public)
        except ValueError as error:  # a point of small order: the result would be known to all
            raise RemoteError("the peer's key is none that can be used") from error
        return shared

    def _mix_hash(self, data: bytes) -> None:
        self._hash = sha256(self._hash + data).digest()

    def _mix_key(self, shared: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - see above

        self._chain, key = _derived(self._chain, shared)
        self._cipher = AESGCM(key)
        self._count = 0

    def _seal(self, data: bytes) -> bytes:
        if self._cipher is not None:
            data = self._cipher.encrypt(nonce(self._count), data, self._hash)
            self._count += 1
        self._mix_hash(data)
        return data

    def _open(self, data: bytes) -> bytes:
        plain = data
        if self._cipher is not None:
            plain = opened(self._cipher, nonce(self._count), data, self._hash)
            self._count += 1
        self._mix_hash(data)
        return plain


def nonce(number: int) -> bytes:
    """The nonce of AES-GCM for a counter, as Noise writes it."""
    return b"\0\0\0\0" + number.to_bytes(8, "big")


def opened(cipher: Any, number: bytes, data: bytes, bound: bytes | None) -> bytes:
    """What was sealed; a RemoteError if it was not sealed with this key, or was changed since."""
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - see above

    try:
        plain: bytes = cipher.decrypt(number, data, bound)
    except (InvalidTag, ValueError) as error:  # the latter for less than a tag
        raise RemoteError("it was not sealed with the key of this channel") from error
    return plain


def _derived(chain: bytes, shared: bytes) -> tuple[bytes, bytes]:
    """HKDF with SHA-256: two keys from a former one and a secret."""
    base = hmac.digest(chain, shared, "sha256")
    first = hmac.digest(base, b"\x01", "sha256")
    return first, hmac.digest(base, first + b"\x02", "sha256")


def _private(key: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.x25519 import (  # noqa: PLC0415 - see above
        X25519PrivateKey,
    )

    return X25519PrivateKey.from_private_bytes(key)


def _public(key: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.x25519 import (  # noqa: PLC0415 - see above
        X25519PublicKey,
    )

    return X25519PublicKey.from_public_bytes(key)


def _raw(private: Any) -> bytes:
    key: bytes = private.public_key().public_bytes_raw()
    return key


def public_key(private: bytes) -> bytes:
    """The public key of a private one."""
    return _raw(_private(private))
