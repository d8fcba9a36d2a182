"""Where a journal or tables are: in a local directory, or in a store that a URI names.

Only text: nothing here opens anything, and nothing needs an extra.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from waystation.errors import LocalError, quote

S3: Final = "s3"
HDFS: Final = "hdfs"
STORES: Final = (S3, HDFS)
"""The schemes of the stores that journals and tables can be in."""

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")  # a Path has one slash less
_SAME: Final = {"s3a": S3, "s3n": S3}
_TAKEN: Final = "give a directory, file:///DIR, s3://BUCKET/PREFIX or hdfs://HOST:PORT/DIR"


def located(place: str | os.PathLike[str]) -> str:
    """An absolute path, or the URI of a place in a store; raises a LocalError for any other.

    >>> located("s3a://fleet/journal/"), located("file:///var/journal")
    ('s3://fleet/journal', '/var/journal')
    >>> located("ftp://fleet/journal")
    Traceback (most recent call last):
    waystation.errors.LocalError: 'ftp://fleet/journal' is in no store that is supported; give ...
    """
    text = os.fspath(place)
    scheme = scheme_of(text)
    if scheme is None:
        return str(Path(text).absolute())
    if not isinstance(place, str):
        raise LocalError(
            f"{quote(text)} was a URI before it became a path",
            rule="SP-7",
            hint="give it as a string",
        )
    if scheme == "file":
        return _local_path(text)
    if scheme not in STORES:
        raise LocalError(
            f"{quote(text)} is in no store that is supported", rule="SP-7", hint=_TAKEN
        )
    rest = text.partition("://")[2].rstrip("/")
    if not rest or (rest.startswith("/") and scheme == S3):
        what = "a bucket" if scheme == S3 else "a host"
        raise LocalError(f"{quote(text)} does not name {what}", rule="SP-7", hint=_TAKEN)
    if "?" in rest or "#" in rest or "@" in rest.partition("/")[0]:
        raise LocalError(
            f"{quote(text)} has more than a place in it",
            rule="SP-7",
            hint="set the endpoint and the credentials in the environment (AWS_ENDPOINT_URL, …)",
        )
    return f"{scheme}://{rest}"


def scheme_of(place: str | os.PathLike[str]) -> str | None:
    """The scheme of a URI, or None for a path.

    >>> scheme_of("S3A://fleet/journal"), scheme_of(Path("s3://fleet")), scheme_of("a/b:/c")
    ('s3', 's3', None)
    """
    found = _SCHEME.match(os.fspath(place))
    if found is None:
        return None
    scheme = found[1].lower()
    return _SAME.get(scheme, scheme)


def is_route(target: str) -> bool:
    """Whether a target is a route of the fabric rather than a directory or a URI.

    >>> is_route("tcp#10.0.0.5:4000 => archive"), is_route("0#archive"), is_route("s3://fleet/a")
    (True, True, False)
    """
    return scheme_of(target) is None and ("=>" in target or "#" in target)


def is_remote(place: str | os.PathLike[str]) -> bool:
    """Whether a place is in a store rather than on the local disk."""
    return scheme_of(place) not in (None, "file")


def local_directory(place: str | os.PathLike[str], what: str) -> Path:
    """The path of a place that must be on the local disk; raises a LocalError if it is not.

    >>> local_directory("s3://fleet/journal", "a node's journal")
    Traceback (most recent call last):
    waystation.errors.LocalError: a node's journal cannot be in 's3://fleet/journal'; ...
    """
    scheme = scheme_of(place)
    if scheme is None:
        return Path(place)
    if scheme == "file":
        return Path(_local_path(os.fspath(place)))
    raise LocalError(
        f"{what} cannot be in {quote(os.fspath(place))}",
        rule="SP-7",
        hint="give a local directory",
    )


def _local_path(text: str) -> str:
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost") or not text.lower().startswith("file://"):
        raise LocalError(
            f"{quote(text)} is on another machine", rule="SP-7", hint="write file:///DIR"
        )
    return str(Path(unquote(parts.path)).absolute())
