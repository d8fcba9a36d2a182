"""What the commands that need Spark have in common: a session that ends, and a progress display.

Spark is an extra: it is imported when a command runs, not by this module. What Java has to say goes
to a file, and is looked at only when there is no session: a command prints its own words and no
others. The display goes to stderr, and only to a terminal.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
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
_PATIENCE_SECONDS: Final = 20.0


@contextmanager
def spark_session(master: str) -> Iterator[SparkSession]:
    """A session for one command; it is stopped however that ends, unless it was there before."""
    import_module("waystation.pipeline")  # it says what to install
    trouble = _errors_of_spark()
    there: SparkSession | None = import_module("pyspark.sql").SparkSession.getActiveSession()
    if there is not None:
        yield there
        return
    logging.getLogger().addHandler(logging.NullHandler())  # py4j tells of every interrupted call
    with tempfile.TemporaryFile() as said:
        session: SparkSession | None = None
        try:
            with deferred():  # whoever interrupts Spark's start leaves a Java that never ends
                session = _started(master, said, trouble)
            # Spark's own handler talks to Java in the middle of whatever Java is being told.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            yield session
        except trouble as error:
            from waystation.pipeline.shipping import explained  # noqa: PLC0415

            raise explained(error) or click.ClickException(_first_line(error)) from error
        finally:
            if session is not None:
                with warnings.catch_warnings(action="ignore"):  # after Ctrl-C Java may be gone
                    session.stop()


def _started(master: str, said: IO[bytes], trouble: tuple[type[Exception], ...]) -> SparkSession:
    from waystation import pipeline  # noqa: PLC0415

    try:
        with _redirected(said) as stderr, _patience(master, stderr):
            return pipeline.session(master=master)
    except trouble as error:
        why = _last_words(said) or _first_line(error)
        raise click.ClickException(f"no Spark at {master}: {why}") from error


def _errors_of_spark() -> tuple[type[Exception], ...]:
    found = [import_module("pyspark.errors").PySparkException]
    if find_spec("py4j"):  # a client of Spark Connect alone has none
        found.append(import_module("py4j.protocol").Py4JError)
    return tuple(found)


@contextmanager
def _patience(master: str, stderr: int) -> Iterator[None]:
    """Say what is being waited for when it takes long: executors come when there is room."""
    told = f"waystation: waiting for executors of {master}; has it free cores and memory?\n"
    timer = Timer(_PATIENCE_SECONDS, os.write, (stderr, told.encode()))
    timer.daemon = True
    if not master.startswith("local"):
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _redirected(file: IO[bytes]) -> Iterator[int]:
    """Let whatever is started meanwhile write to a file what it writes to the terminal.

    What is still to be seen goes to the descriptor that this yields.
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


def _last_words(file: IO[bytes]) -> str:
    """What Java says went wrong, if it says so."""
    file.seek(0)
    found = _COMPLAINT.findall(file.read().decode(errors="replace"))
    return found[-1] if found else ""


def _first_line(error: Any) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextmanager
def drawn() -> Iterator[Progress]:
    """A display of stages; nothing at all where nobody looks."""
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
