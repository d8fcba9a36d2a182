"""Who may connect: names and passwords from a file. No sockets here.

The file is Mosquitto's: a line `name:$7$iterations$salt$hash` for each user, PBKDF2 over SHA-512,
as `mosquitto_passwd` of version 2.0 writes it. So one file serves both brokers.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from base64 import b64decode, b64encode
from binascii import Error as BinasciiError
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from msgspec import Struct

from waystation.errors import LocalError

Authenticate: TypeAlias = Callable[[str, str | None, bytes | None], bool]
"""Says whether a client may connect, by its id, user name and password; called in a thread."""

ITERATIONS: Final = 20_000
MAX_ITERATIONS: Final = 1_000_000
_SCHEME: Final = "7"


class _Secret(Struct, frozen=True):
    iterations: int
    salt: bytes
    hash: bytes

    def fits(self, password: bytes) -> bool:
        found = hashlib.pbkdf2_hmac(
            "sha512", password, self.salt, self.iterations, dklen=len(self.hash)
        )
        return hmac.compare_digest(found, self.hash)


def password_line(user: str, password: str, *, iterations: int = ITERATIONS) -> str:
    """The line of the file for a user.

    >>> password_line("garage", "secret").startswith("garage:$7$20000$")
    True
    """
    if not user or ":" in user or not user.isprintable():
        raise LocalError(
            f"invalid user name {user!r}", rule="MC-12", hint="use printable characters without ':'"
        )
    salt = os.urandom(12)
    hash = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, iterations)
    coded = "$".join(b64encode(part).decode() for part in (salt, hash))
    return f"{user}:${_SCHEME}${iterations}${coded}"


class Passwords:
    """The users of a broker; `allows` is the callback that it takes.

    >>> passwords = Passwords.parse(password_line("garage", "secret", iterations=10))
    >>> passwords.allows("any", "garage", b"secret"), passwords.allows("any", "garage", b"guess")
    (True, False)
    """

    def __init__(self, secrets: Mapping[str, _Secret]) -> None:
        self._secrets = dict(secrets)
        # An unknown user takes as much time as a wrong password, so that neither can be told.
        most = max((secret.iterations for secret in self._secrets.values()), default=ITERATIONS)
        self._nobody = _Secret(most, b"", bytes(64))

    @classmethod
    def load(cls, path: Path) -> Passwords:
        """Read the file."""
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeError) as error:
            raise LocalError(
                f"cannot read the password file {path}: {error}",
                rule="MC-12",
                hint="give a text file with a line for each user",
            ) from error
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, where: str = "the password file") -> Passwords:
        """Read the text of a file."""
        secrets: dict[str, _Secret] = {}
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip() and not line.startswith("#"):
                user, mark, secret = line.strip().partition(":")
                parsed = _parse_secret(secret) if mark and user else None
                if parsed is None:
                    raise LocalError(
                        f"invalid line {number} in {where}: no user with a hashed password",
                        rule="MC-12",
                        hint="write it with mosquitto_passwd, or with "
                        "waystation.mqtt.broker.password_line",
                    )
                secrets[user] = parsed
        return cls(secrets)

    def changed(self, since: Passwords) -> frozenset[str]:
        """The users that had a password before, and have none now or another one."""
        before = since._secrets
        return frozenset(user for user in before if before[user] != self._secrets.get(user))

    def allows(self, client_id: str, user: str | None, password: bytes | None) -> bool:
        """Whether somebody may connect."""
        del client_id
        secret = self._secrets.get(user or "")
        fits = (secret or self._nobody).fits(password or b"")
        return fits and secret is not None


def _parse_secret(secret: str) -> _Secret | None:
    parts = secret.split("$")
    if len(parts) != 5 or parts[:2] != ["", _SCHEME] or not parts[2].isdecimal():
        return None
    iterations = int(parts[2][:9])
    try:
        salt, hash = b64decode(parts[3], validate=True), b64decode(parts[4], validate=True)
    except BinasciiError:
        return None
    if not 0 < iterations <= MAX_ITERATIONS or not hash:
        return None
    return _Secret(iterations, salt, hash)
