"""The file system of a place: the local disk, an S3-compatible store, or HDFS, as Arrow has them.

The settings of a store are in the environment, where other programs look for them as well: those of
S3 in AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and so on, or wherever AWS keeps credentials;
those of HDFS in the directory that HADOOP_CONF_DIR names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow.fs import FileSelector, FileType, LocalFileSystem, PyFileSystem

from waystation.errors import LocalError
from waystation.locations import HDFS, S3, located

_HERE: Final = LocalFileSystem()
_CONNECT_SECONDS: Final = 5.0
_REQUEST_SECONDS: Final = 60.0
_ATTEMPTS: Final = 4
_KERBEROS: Final = re.compile(
    r"<name>\s*hadoop\.security\.authentication\s*</name>\s*<value>\s*kerberos", re.IGNORECASE
)


def file_system(place: str | os.PathLike[str]) -> tuple[Any, str]:
    """Arrow's file system of a place, and the path of the place there.

    Raises a LocalError if the place is in no store that is supported, or if what it needs is not
    installed. Nothing is opened yet: what does not exist or answer is found out on use.
    """
    found = located(place)
    scheme, separator, rest = found.partition("://")
    if not separator:
        return _HERE, found
    host, _, path = rest.partition("/")
    if scheme == S3:
        return _s3(host, _s3_settings(), os.environ.get("AWS_ACCESS_KEY_ID")), rest
    return _hdfs(host), f"/{path}"


def storage_options(place: str) -> dict[str, str]:
    """The settings of a store as delta-rs takes them; the credentials it finds for itself."""
    if not place.startswith(f"{S3}://"):
        return {}
    endpoint, region = _s3_settings()
    found = {"aws_region": region or "us-east-1"}
    if endpoint:
        found["aws_endpoint_url"] = endpoint
        found["aws_allow_http"] = str(endpoint.startswith("http://")).lower()
    return found


def required(module: str, purpose: str) -> None:
    """Raise a LocalError that says what to install if a module of the extra `stores` is missing."""
    if find_spec(module) is None:
        raise LocalError(
            f"{purpose} needs {module.replace('_', '-')}, which is not installed",
            rule="SP-7",
            hint="pip install 'waystation[stores]'",
        )


@contextmanager
def complaining(place: object, doing: str) -> Iterator[None]:
    """Turn what a store says into a LocalError of one line."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        told = " ".join(str(error).split()) or type(error).__name__
        raise LocalError(
            f"cannot {doing} {place}: {told[:300]}",
            rule="SP-7",
            hint="check the place, that it can be reached, and the credentials",
        ) from error


# S3

_SETTINGS: Final = (
    *("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
)


def settings_here() -> dict[str, str]:
    """The settings of S3 in the environment of this process, for tasks elsewhere."""
    return {name: os.environ[name] for name in _SETTINGS if name in os.environ}


def adopt_settings(settings: Mapping[str, str]) -> None:
    """Use the settings of another process. Without any, this process has its own."""
    if settings:
        for name in _SETTINGS:
            os.environ.pop(name, None)
        os.environ.update(settings)


def _s3_settings() -> tuple[str, str]:
    """The endpoint, empty for that of AWS, and the region, empty if it is not set."""
    said = os.environ.get
    endpoint = said("AWS_ENDPOINT_URL_S3") or said("AWS_ENDPOINT_URL") or ""
    region = said("AWS_REGION") or said("AWS_DEFAULT_REGION") or ""
    return endpoint.rstrip("/"), region


@cache
def _s3(bucket: str, settings: tuple[str, str], key: str | None) -> Any:
    del key  # of another user there is another
    from pyarrow.fs import (  # noqa: PLC0415 - loading it takes long, and few need it
        AwsStandardS3RetryStrategy,
        S3FileSystem,
        resolve_s3_region,
    )

    endpoint, region = settings
    if not endpoint and not region:
        with complaining(f"the region of the bucket {bucket}", "find"):
            region = resolve_s3_region(bucket)
    scheme, _, address = endpoint.partition("://")
    return S3FileSystem(
        region=region or "us-east-1",
        endpoint_override=address or None,
        scheme=scheme or "https",
        connect_timeout=_CONNECT_SECONDS,
        request_timeout=_REQUEST_SECONDS,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
    )


# HDFS


@cache
def _hdfs(host: str) -> Any:
    required("hdfs_native", "HDFS")
    _refuse_kerberos()
    from hdfs_native import Client  # noqa: PLC0415 - an extra

    from waystation.journal.hdfs import HdfsHandler  # noqa: PLC0415 - it needs the same

    with complaining(f"{HDFS}://{host}", "connect to"):
        return PyFileSystem(HdfsHandler(Client(f"{HDFS}://{host}")))


def _refuse_kerberos() -> None:
    """Kerberos is not supported: nobody has tried it."""
    home = os.environ.get("HADOOP_HOME")
    directory = os.environ.get("HADOOP_CONF_DIR") or (home and f"{home}/etc/hadoop")
    if not directory:
        return
    try:
        settings = Path(directory, "core-site.xml").read_text("utf-8", "replace")
    except OSError:
        return
    if _KERBEROS.search(settings):
        raise LocalError(
            f"{directory}/core-site.xml asks for Kerberos, which is not supported",
            rule="SP-7",
            hint="use a cluster with simple authentication, or copy the files to a local directory",
        )


# What all of them do


def files_below(system: Any, directory: str) -> Iterator[Any]:
    """All files below a directory, in any depth; none if it does not exist."""
    selector = FileSelector(directory, allow_not_found=True, recursive=True)
    for info in system.get_file_info(selector):
        if info.type is FileType.File:
            yield info


def exists(system: Any, path: str) -> bool:
    """Whether there is a file or a directory."""
    return bool(system.get_file_info(path).type is not FileType.NotFound)


def read_whole(system: Any, path: str) -> bytes | None:
    """The content of a file; None if there is none."""
    if system.get_file_info(path).type is not FileType.File:
        return None
    with system.open_input_stream(path) as stream:
        return bytes(stream.read())


def write_whole(system: Any, path: str, content: bytes) -> None:
    """Write a file so that a reader sees all of it or what was there before."""
    target = path if _appears_whole(system) else _aside(path)
    _with_parent(system, target, lambda: _write(system, target, content))
    if target != path:
        system.move(target, path)


def _write(system: Any, path: str, content: bytes) -> None:
    with system.open_output_stream(path) as stream:
        stream.write(content)


def _with_parent(system: Any, path: str, write: Callable[[], None]) -> None:
    """Write a file, after its directory was made, where there are directories."""
    if not _appears_whole(system):
        system.create_dir(path.rpartition("/")[0], recursive=True)
    write()


def _appears_whole(system: Any) -> bool:
    """Whether a file is seen when it is complete, as in an object store, which has no renames."""
    return bool(system.type_name == S3)


def _aside(path: str) -> str:
    directory, _, name = path.rpartition("/")
    return f"{directory}/.{name}.new"
