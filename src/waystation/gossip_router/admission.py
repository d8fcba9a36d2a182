"""Who may use which group, by the certificate of a connection or by a token. No sockets here.

A JGroups client can bring a certificate, and nothing else: its protocol has no place for a secret.
Members of our own make can also bring a token when they register (wire/jgroups5.py, Register). A
group that asks for a token alone is therefore closed to JGroups.
"""

from __future__ import annotations

import hmac
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from waystation.core.grants import Action, Grants
from waystation.core.tokens import Token
from waystation.core.who import Who
from waystation.errors import LocalError

EVERY_OTHER: Final = "*"


class Door(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may use a group: clients with one of these certificates or tokens, or everybody."""

    certificates: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    open: bool = False


class Admission:
    """The door of each group; `*` is that of every group that is not named.

    >>> admission = Admission({"fleet": Door(certificates=("truck-7",)), "news": Door(open=True)})
    >>> admission.by_name("fleet", {"truck-7"}), admission.by_name("fleet", {"truck-8"})
    (True, False)
    >>> admission.by_name("news", set()), admission.by_name("others", {"truck-7"})
    (True, False)
    """

    def __init__(self, doors: Mapping[str, Door]) -> None:
        self._doors = dict(doors)
        self._other = self._doors.get(EVERY_OTHER, Door())

    @classmethod
    def load(cls, path: Path) -> Admission:
        """Read the doors from a TOML file."""
        try:
            found = tomllib.loads(path.read_text("utf-8"))
            doors = msgspec.convert(found.pop("groups", {}), dict[str, Door])
        except (OSError, ValueError) as error:  # its bytes, its TOML or its tables
            raise _bad_file(path, error) from error
        if found or not doors:
            raise _bad_file(path, "it may only contain tables [groups.NAME]")
        return cls(doors)

    @property
    def wants_certificates(self) -> bool:
        """Whether any group asks for a certificate."""
        return any(door.certificates for door in self._doors.values())

    def by_name(self, group: str, names: Iterable[str]) -> bool:
        """Whether a connection whose certificate has these names may use a group."""
        door = self._doors.get(group, self._other)
        return door.open or not frozenset(door.certificates).isdisjoint(names)

    def by_token(self, group: str, token: bytes) -> bool:
        """Whether this token opens a group."""
        door = self._doors.get(group, self._other)
        return any(hmac.compare_digest(known.encode(), token) for known in door.tokens)


class GrantedAdmission:
    """Who may use which group, by grants: whoever may `register` it (ID-3).

    >>> from waystation.core.grants import Grant, Grants
    >>> grants = Grants([Grant(certificate=("truck-*",), register=("fleet",))])
    >>> GrantedAdmission(grants).by_name("fleet", {"truck-7"})
    True
    """

    def __init__(self, grants: Grants, tokens: Iterable[Token] = ()) -> None:
        self._grants = grants
        self._tokens = tuple(tokens)

    @property
    def wants_certificates(self) -> bool:
        """Whether anything is granted to a certificate."""
        return any(grant.certificate for grant in self._grants)

    def by_name(self, group: str, names: Iterable[str]) -> bool:
        """Whether a connection whose certificate has these names may use a group."""
        return self._grants.allows(Who(certificate=tuple(sorted(names))), Action.REGISTER, group)

    def by_token(self, group: str, token: bytes) -> bool:
        """Whether this token opens a group."""
        known = [each for each in self._tokens if hmac.compare_digest(each.secret, token)]
        return any(
            self._grants.allows(Who(token=each.names), Action.REGISTER, group) for each in known
        )


def _bad_file(path: Path, problem: object) -> LocalError:
    return LocalError(
        f"the admission file {path} cannot be used: {problem}",
        rule="GR-2",
        hint="write [groups.NAME] with certificates, tokens or open = true",
    )
