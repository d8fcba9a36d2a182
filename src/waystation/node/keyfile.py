"""The file that keeps a node's identity: its change history and its private key (ID-1, ID-5).

Only its owner may read or write it (mode 0600), else it is not used: a key that others could have
read proves nothing. It is replaced as a whole, so that a crash leaves the old file or the new one.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from waystation.core.clock import current_clock
from waystation.errors import LocalError, RemoteError
from waystation.wire.identity import LIFETIME, SEED_SIZE, Identity, PrivateIdentity

MODE: Final = 0o600
SIZE_LIMIT: Final = 64 * 1024
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class _Content(Struct, frozen=True, tag="identity", tag_field="waystation"):
    identifier: str  # for people who look into it; what counts is the history
    history: str
    key: str

    def __repr__(self) -> str:
        return f"<key file of {self.identifier}>"


def create(path: Path, *, lifetime: int = LIFETIME) -> PrivateIdentity:
    """Make a new identity and the file for it, which must not exist."""
    seed = secrets.token_bytes(SEED_SIZE)
    made = PrivateIdentity.create(seed, now(), lifetime=lifetime)
    _write(path, _content(made, seed))
    return made


def load(path: Path) -> PrivateIdentity:
    """The identity in a file, if only its owner can read it."""
    content = _read(path)
    try:
        return PrivateIdentity(bytes.fromhex(content.history), bytes.fromhex(content.key))
    except (ValueError, RemoteError):  # its own words could show parts of the key
        raise _unusable(path, "its history and key do not belong together") from None


def rotate(path: Path, *, lifetime: int = LIFETIME) -> PrivateIdentity:
    """Give the identity in a file a new key; the old one is gone then."""
    seed = secrets.token_bytes(SEED_SIZE)
    rotated = load(path).rotated(seed, now(), lifetime=lifetime)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        _write(fresh, _content(rotated, seed))
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)
    return rotated


def read_public(path: Path) -> Identity:
    """The identity in a key file or in an exported one, which anybody may read."""
    text = _text_of(path)
    if text.lstrip().startswith("{"):
        return load(path).public
    try:
        return Identity.read(bytes.fromhex(text.strip()))
    except (ValueError, RemoteError) as error:
        raise _unusable(path, str(error)) from error


def now() -> int:
    """The time as identities have it: seconds since the epoch, by the machine's own clock.

    Not the node's: that goes on as it was started when a clock is set right by hours (TM-1), and
    nobody would accept what it signs until its process is started anew.
    """
    return current_clock().wall() // 10**9


def _content(identity: PrivateIdentity, seed: bytes) -> bytes:
    public = identity.public
    content = _Content(public.identifier, public.history.hex(), seed.hex())
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"


def _read(path: Path) -> _Content:
    _check_mode(path)
    try:
        return msgspec.json.decode(_text_of(path), type=_Content)
    except msgspec.DecodeError:
        raise _unusable(path, "it is no key file") from None


def _check_mode(path: Path) -> None:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise _unusable(path, "it is no file")
    if found.st_mode & _OTHERS:
        mode = stat.S_IMODE(found.st_mode)
        raise LocalError(
            f"the key file {path} has mode {mode:04o}, so that others than its owner can use it",
            rule="ID-1",
            hint=f"run `chmod 600 {path}`, and rotate the key if somebody may have read it",
        )
    if found.st_uid not in (os.geteuid(), 0):
        raise _unusable(path, "it belongs to another user")


def _text_of(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(SIZE_LIMIT + 1)
    if len(data) > SIZE_LIMIT:
        raise _unusable(path, "it is too long")
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise _unusable(path, "it is no key file") from None


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unusable(path: Path, why: str) -> LocalError:
    return LocalError(
        f"the key file {path} cannot be used: {why}",
        rule="ID-1",
        hint="give one that `waystation identity create` made",
    )
