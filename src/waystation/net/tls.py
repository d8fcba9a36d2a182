"""TLS: our own certificate, and whose certificates we trust. The only file that makes contexts."""

from __future__ import annotations

import ssl
from pathlib import Path

from msgspec import Struct

from waystation.errors import LocalError


class Tls(Struct, frozen=True, kw_only=True):
    """The PEM files of a node's TLS: everything over this transport is then encrypted, or refused.

    `certificate` and `key` say who this node is: a listener needs them, and so does a dialler whose
    listener asks for them. `authorities` are the certificates to trust; without them, a dialler
    trusts those of the system. With `mutual` a listener refuses peers without a certificate that
    one of those authorities signed. `name` is the one that the peer's certificate must have, by
    default the host that was dialled.
    """

    certificate: str | Path | None = None
    key: str | Path | None = None
    authorities: str | Path | None = None
    mutual: bool = False
    name: str | None = None

    def for_listener(self) -> ssl.SSLContext:
        """The context of a listener."""
        if self.certificate is None:
            raise LocalError(
                "a TLS listener has no certificate", rule="WK-8", hint="give certificate and key"
            )
        if self.mutual and self.authorities is None:
            raise LocalError(
                "mutual TLS has no authorities to check peers against",
                rule="WK-8",
                hint="give the certificates to trust (authorities)",
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load(context)
        if self.mutual:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def for_dialler(self) -> ssl.SSLContext:
        """The context of a dialler."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.authorities is None:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
            if self.authorities is not None:
                context.load_verify_locations(self.authorities)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(f) for f in (self.certificate, self.key, self.authorities) if f)
            raise LocalError(
                f"the TLS files {files} cannot be used ({error})",
                rule="WK-8",
                hint="give PEM files that this process may read, the key fitting the certificate",
            ) from error
