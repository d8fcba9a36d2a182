"""What a command asks of its process: open files, and where its log goes."""

from __future__ import annotations

import logging
import resource
from typing import Final

_SPARE_FILES: Final = 64


def allow_files(connections: int) -> None:
    """Each connection is an open file; ask for as many as the system grants."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _SPARE_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def log_to_stderr(*, verbose: bool) -> None:
    """Log warnings, and with `verbose` also what goes on, one line each."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(message)s",
    )
