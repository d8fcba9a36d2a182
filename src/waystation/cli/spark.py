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
from typing import IO, TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COMPLAINT: Final = re.compile(r"^\S.*(?:Exception|Error): (.*)$", re.MULTILINE)


@contextmanager
def spark_session(master: str) -> Iterator[SparkSession]:
    """A session for one command; it is stopped however that ends, unless it was there before."""
    from waystation import pipeline  # noqa: PLC0415 - it says what to install

    trouble = (
        import_module("pyspark.errors").PySparkException,
        import_module("py4j.protocol").Py4JError,
    )
    there: SparkSession | None = import_module("pyspark.sql").SparkSession.getActiveSession()
    if there is not None:
        yield there
        return
    logging.getLogger().addHandler(logging.NullHandler())  # py4j tells of every interrupted call
    with tempfile.TemporaryFile() as said:
        try:
            with _redirected(said):
                session = pipeline.session(master=master)
        except trouble as error:
            why = _last_words(said) or _first_line(error)
            raise click.ClickException(f"no Spark at {master}: {why}") from error
        # Spark's own handler talks to Java in the middle of whatever Java is being told.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            yield session
        except trouble as error:
            raise click.ClickException(_first_line(error)) from error
        finally:
            with warnings.catch_warnings(action="ignore"):  # after Ctrl-C Java may be gone already
                session.stop()


@contextmanager
def _redirected(file: IO[bytes]) -> Iterator[None]:
    """Let whatever is started meanwhile write to a file what it writes to the terminal."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [(descriptor, os.dup(descriptor)) for descriptor in (1, 2)]
    try:
        for descriptor, _ in kept:
            os.dup2(file.fileno(), descriptor)
        yield
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
