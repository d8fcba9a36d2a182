"""Certificates of an authority that exists for the length of a test run."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

import trustme

from waystation.net.tls import Tls


class Authority:
    """An authority, and what it signed."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="waystation-certificates-"))
        atexit.register(shutil.rmtree, self._folder, ignore_errors=True)
        self._authority = trustme.CA()
        self.file = self._folder / "authority.pem"
        self._authority.cert_pem.write_to_path(self.file)

    @functools.cache  # noqa: B019 - lives as long as the run
    def issue(self, *names: str) -> tuple[Path, Path]:
        """The files of a certificate for these names, and of its key."""
        issued = self._authority.issue_cert(*names)
        stem = "-".join(names).replace("*", "any")
        certificate, key = self._folder / f"{stem}.pem", self._folder / f"{stem}.key"
        issued.private_key_pem.write_to_path(key)
        for blob in issued.cert_chain_pems:
            blob.write_to_path(certificate, append=True)
        return certificate, key

    def tls(self, *names: str, mutual: bool = False, name: str | None = None) -> Tls:
        """The TLS of a node: with a certificate for these names, or with none."""
        certificate, key = self.issue(*names) if names else (None, None)
        return Tls(
            certificate=certificate, key=key, authorities=self.file, mutual=mutual, name=name
        )


@functools.cache
def authority() -> Authority:
    """The one that everybody believes."""
    return Authority()


@functools.cache
def stranger() -> Authority:
    """One that nobody believes."""
    return Authority()
