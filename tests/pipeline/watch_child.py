"""A process that processes a journal, a few files at a time, until it is killed or done."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.pipeline.watched import engine, every_file


def main(journal: str, place: str, at_once: str) -> None:
    watch = engine(Path(journal), Path(place))
    print("ready", flush=True)  # noqa: T201
    paths = every_file(Path(journal))
    for first in range(0, len(paths), int(at_once)):
        watch.take_in(paths[: first + int(at_once)])
    watch.close()
    print("done", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
