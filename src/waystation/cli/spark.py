"""Shared by the commands that need Spark: a session that is always stopped, and a progress display.

Spark is an optional extra, so it is imported only when a command runs. The output of Java goes to a
file, which is read only if the session does not start. The display goes to stderr, and only if that
is a terminal.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from threading import Timer
from typing import IO, TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from waystation.interruptions import deferred

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COMPLAINT: Final = re.compile(r"^\S.*(?:Exception|Error): (.*)$", re.MULTILINE)
_LAST_OF_TRACEBACK: Final = re.compile(
    r"^.*Traceback \(most recent call last\):\n(?:[ \t].*\n)*(\S.*)$", re.MULTILINE
)
_NOTICE_SECONDS: Final = 20.0


@contextmanager
def spark_session(master: str, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session for one command; it is stopped at the end, unless it existed before."""
    import_module("waystation.pipeline").check_spark_installed()
    trouble = _errors_of_spark()
    there: SparkSession | None = import_module("pyspark.sql").SparkSession.getActiveSession()
    if there is not None:
        yield there
        return
    logging.getLogger().addHandler(logging.NullHandler())  # py4j logs every interrupted call
    with tempfile.TemporaryFile() as said:
        session: SparkSession | None = None
        try:
            with deferred():  # interrupting Spark's start would leave a Java process behind
                session = _started(master, conf or {}, said, trouble)
            # Spark's own handler calls Java in the middle of other calls to Java.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            yield session
        except trouble as error:
            from waystation.pipeline.shipping import explained  # noqa: PLC0415

            raise explained(error) or click.ClickException(_cause(error)) from error
        finally:
            if session is not None:
                with warnings.catch_warnings(action="ignore"):  # after Ctrl-C Java may be gone
                    session.stop()


def _started(
    master: str,
    conf: Mapping[str, str],
    said: IO[bytes],
    trouble: tuple[type[Exception], ...],
) -> SparkSession:
    from waystation import pipeline  # noqa: PLC0415

    try:
        with _redirected(said) as stderr, _waiting_notice(master, stderr):
            return pipeline.session(master=master, config=conf)
    except trouble as error:
        why = _java_error(said) or _first_line(error)
        raise click.ClickException(f"cannot start Spark at {master}: {why}") from error


def _errors_of_spark() -> tuple[type[Exception], ...]:
    found = [import_module("pyspark.errors").PySparkException]
    if find_spec("py4j"):  # a Spark Connect client has no py4j
        found.append(import_module("py4j.protocol").Py4JError)
    return tuple(found)


@contextmanager
def _waiting_notice(master: str, stderr: int) -> Iterator[None]:
    """Print a notice if starting takes long: a cluster may have no free executors."""
    notice = f"waystation: waiting for executors of {master}; check its free cores and memory\n"
    timer = Timer(_NOTICE_SECONDS, os.write, (stderr, notice.encode()))
    timer.daemon = True
    if not master.startswith("local"):
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _redirected(file: IO[bytes]) -> Iterator[int]:
    """Redirect stdout and stderr, also those of child processes, to a file.

    Yields a descriptor of the original stderr.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [(descriptor, os.dup(descriptor)) for descriptor in (1, 2)]
    try:
        for descriptor, _ in kept:
            os.dup2(file.fileno(), descriptor)
        yield kept[1][1]
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, copy in kept:
            os.dup2(copy, descriptor)
            os.close(copy)


def _java_error(file: IO[bytes]) -> str:
    """The last error message of Java, or an empty string."""
    file.seek(0)
    found = _COMPLAINT.findall(file.read().decode(errors="replace"))
    return found[-1] if found else ""


def _cause(error: Any) -> str:
    """What went wrong in a task, in the last line of Python's report; else what Spark says."""
    told = _LAST_OF_TRACEBACK.findall(str(error))
    return str(told[-1]).strip() if told else _first_line(error)


def _first_line(error: Any) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextmanager
def progress_display() -> Iterator[Progress]:
    """A progress display; it prints nothing if stderr is not a terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:<24}"),
        BarColumn(),
        TextColumn("{task.fields[done]}"),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, disable=not console.is_terminal, transient=True
    ) as progress:
        yield progress
