"""Send the package to the executors, and check what it needs there.

Executors run functions of this package. It need not be installed there: the session sends it
as a zip, so that they always run the same version as the program. Compiled dependencies cannot be
sent that way; they are checked before the first step, as are the directories that all must see.

The checks themselves run in executors that may lack this package, so they are plain functions that
use only Python's standard library.
"""

from __future__ import annotations

import atexit
import hashlib
import platform
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final
from uuid import uuid4
from weakref import WeakSet

import msgspec
from msgspec import Struct
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from waystation.errors import LocalError

NEEDED: Final[Mapping[str, str]] = {
    "msgspec": "0.19",
    "numpy": "1.26",
    "pandas": "2.2",
    "pyarrow": "16",
}
"""The packages that the executors' Python needs, with the oldest version of each that works."""

_PROBES: Final = 32  # tasks that check: more than one per executor of most clusters
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can store
_fit: Final[WeakSet[SparkSession]] = WeakSet()


def is_connect(spark: SparkSession) -> bool:
    """Whether a session uses a Spark Connect server, which supports only data frames."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def is_local(spark: SparkSession) -> bool:
    """Whether the executors of a session are in this process, with its Python and its disk."""
    return not is_connect(spark) and str(spark.conf.get("spark.master")).startswith("local")


@cache
def packed_package() -> Path:
    """This package as a zip, which exists until the process ends.

    The same package gives the same bytes and the same name.
    """
    package = Path(__file__).parents[1]
    directory = Path(tempfile.mkdtemp(prefix="waystation-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    unnamed = directory / "package.zip"
    with zipfile.ZipFile(unnamed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(package.rglob("*.py")):
            name = path.relative_to(package.parent).as_posix()
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    digest = hashlib.sha256(unnamed.read_bytes()).hexdigest()[:12]
    return unnamed.rename(directory / f"{package.name}-{digest}.zip")


class Surroundings(Struct, frozen=True):
    """What a task found on its executor."""

    host: str
    python: str
    packages: dict[str, str | None]  # None if it is not installed
    unseen: list[str]  # of the files that it looked for

    def lacks(self) -> list[str]:
        """What is missing or too old, as text."""
        found = []
        for name, least in NEEDED.items():
            version = self.packages[name]
            if version is None:
                found.append(f"no {name}")
            elif _numbers(version) < _numbers(least):
                found.append(f"{name} {version}, older than {least}")
        return found


def _numbers(version: str) -> list[int]:
    """The leading numbers of a version; an unknown version counts as the newest.

    >>> _numbers("16.1.0.dev3"), _numbers("")
    ([16, 1, 0], [1000000])
    """
    leading = re.match(r"\d+(\.\d+)*", version)
    return [int(part) for part in leading[0].split(".")] if leading else [1_000_000]


def check_executors(spark: SparkSession) -> None:
    """Check that the executors can run this package; a LocalError says what they lack.

    It checks the present executors, once per session.
    """
    if is_local(spark) or spark in _fit:
        return
    for found in look_around(spark):
        lacks = found.lacks()
        if lacks:
            here = " ".join(f"'{name}=={metadata.version(name)}'" for name in NEEDED)
            raise LocalError(
                f"the executors on {found.host} (Python {found.python}) have {', '.join(lacks)}",
                rule="SP-4",
                hint=f"install the versions that are installed here: pip install {here}",
            )
    _fit.add(spark)


def check_shared(spark: SparkSession, *, read: Iterable[str] = (), write: Iterable[Path]) -> None:
    """Check that the executors have the same directories as this process, to read and to write.

    Otherwise a step would find nothing, or leave its rows on another machine's disk.
    """
    if is_local(spark):
        return
    marks = [directory / f".waystation-{uuid4().hex}" for directory in write]
    looked_for = [*(place for place in read if "://" not in place), *map(str, marks)]
    for mark in marks:
        mark.touch()
    try:
        results = look_around(spark, looked_for)
    finally:
        for mark in marks:
            mark.unlink(missing_ok=True)
    for found in results:
        for path in found.unseen:
            directory = str(Path(path).parent) if Path(path) in marks else path
            raise LocalError(
                f"the executors on {found.host} cannot see this machine's {directory!r}",
                rule="SP-4",
                hint="give a directory that all machines share at the same path",
            )


def look_around(spark: SparkSession, paths: Iterable[str] = ()) -> list[Surroundings]:
    """What tasks find on all executors, each distinct result once."""
    look = f.udf(_looking(tuple(NEEDED), tuple(paths)), "string", useArrow=False)
    tasks = spark.range(0, _PROBES, 1, _PROBES)
    try:
        results = {row[0] for row in tasks.select(look("id")).collect()}
    except PySparkException as error:
        raise explained(error) or error from None
    return [msgspec.json.decode(told, type=Surroundings) for told in sorted(results)]


def _looking(packages: tuple[str, ...], paths: tuple[str, ...]) -> Callable[[int], str]:
    """The check that a task runs. It refers to nothing in this module."""

    def look(_: int) -> str:
        import json  # noqa: PLC0415
        import os  # noqa: PLC0415
        import platform  # noqa: PLC0415
        from importlib import metadata, util  # noqa: PLC0415

        found: dict[str, str | None] = {}
        for name in packages:
            try:
                found[name] = metadata.version(name) if util.find_spec(name) else None
            except metadata.PackageNotFoundError:
                found[name] = ""
        told = {
            "host": platform.node(),
            "python": platform.python_version(),
            "packages": found,
            "unseen": [path for path in paths if not os.path.exists(path)],  # noqa: PTH110
        }
        return json.dumps(told, sort_keys=True)

    return look


_TROUBLES: Final = (
    (
        re.compile(r"Python in worker has different version: (\d+\.\d+)"),
        "the executors run Python {0}, but this is Python {here}",
        "set PYSPARK_PYTHON to a Python {here} that all machines have at the same path",
    ),
    (
        re.compile(r"Cannot run program \"([^\"]+)\""),
        "the executors have no program {0}",
        "set PYSPARK_PYTHON to a Python {here} that all machines have at the same path",
    ),
    (
        re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'"),
        "the executors have no {0}",
        "install it for the Python that runs there, the one that PYSPARK_PYTHON names",
    ),
)


def explained(error: Exception) -> LocalError | None:
    """The meaning of a Spark error, if it is one that executors without Python cause."""
    text = str(error)
    for pattern, problem, hint in _TROUBLES:
        found = pattern.search(text)
        if found:
            here = ".".join(platform.python_version_tuple()[:2])
            return LocalError(
                problem.format(*found.groups(), here=here),
                rule="SP-4",
                hint=hint.format(here=here),
            )
    return None
