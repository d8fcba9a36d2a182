"""Write the report: read, count, draw, and replace the page atomically."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from msgspec import Struct

from waystation.errors import LocalError, quote
from waystation.locations import local_directory, located
from waystation.report.facts import gather
from waystation.report.reading import Tables

STAGES: Final = 9


class Progress(Struct, frozen=True):
    """The progress: the current stage, its number and the total."""

    stage: str
    number: int
    of: int = STAGES


class Written(Struct, frozen=True):
    """What was written."""

    out: str
    bytes: int
    nodes: int
    messages: int
    drops: int
    losses: int


def write_report(
    tables: str | Path,
    out: str | Path,
    *,
    title: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Written:
    """Write one self-contained HTML page about the tables in a directory.

    An existing file is replaced atomically at the end. The same tables give the same page.

    ```text
    pipeline.build("journal/", "tables/")
    write_report("tables/", "report.html", title="Tuesday")
    ```
    """
    if find_spec("jinja2") is None:
        raise LocalError(
            "the report needs Jinja2, which is not installed",
            rule="OB-4",
            hint="pip install 'waystation[spark]'",
        )
    from waystation.report.page import rendered  # noqa: PLC0415

    target = local_directory(out, "a report")
    tell = _Teller(progress)
    facts = gather(Tables(tables), tell)
    tell("page")
    heading = title or f"Report on {located(tables).rpartition('/')[2]}"
    page = rendered(facts, tables, heading).encode()
    _put(page, target)
    drops, losses = facts.total.dropped, facts.hops.lost.total()
    return Written(str(target), len(page), len(facts.loads), facts.messages, drops, losses)


class _Teller:
    """Counts the stages for the progress callback."""

    def __init__(self, progress: Callable[[Progress], None] | None) -> None:
        self._progress = progress
        self._number = 0

    def __call__(self, stage: str) -> None:
        self._number += 1
        if self._progress is not None:
            self._progress(Progress(stage, self._number))


def _put(page: bytes, target: Path) -> None:
    """Write beside the target, then rename: a reader sees the old page or the new one."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise _unwritable(target, error) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(page)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(target)
    except OSError as error:
        raise _unwritable(target, error) from error
    finally:
        Path(name).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _unwritable(target: Path, error: OSError) -> LocalError:
    return LocalError(
        f"cannot write the report to {quote(str(target))}: {error.strerror}",
        rule="OB-4",
        hint="give a file in a writable directory",
    )
