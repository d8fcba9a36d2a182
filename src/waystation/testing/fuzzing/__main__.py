"""Fuzz the decoders and the life of a session, each for a while.

    python -m waystation.testing.fuzzing                     all of them, a minute each
    python -m waystation.testing.fuzzing smrf --seconds 600  one of them
    python -m waystation.testing.fuzzing smrf --again FILE   the bytes that a run has kept

It needs the package `atheris` (`make fuzz` installs it). Bytes that lead further are added to the
corpus, in DIR/<target>; bytes that fail are written to the working directory, and named.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from waystation.testing.fuzzing.targets import TARGETS, run

CORPUS: Final = Path("tests/testing/corpus")


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz what the command line names; ends with 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m waystation.testing.fuzzing")
    parser.description, parser.formatter_class = __doc__, argparse.RawDescriptionHelpFormatter
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60, help="time for each target")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="directory of the corpora")
    parser.add_argument("--again", type=Path, help="a file of bytes to try once more")
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.targets if name not in TARGETS]
    if unknown:
        parser.error(f"unknown target {unknown[0]!r}; give one of {', '.join(TARGETS)}")
    if asked.again is not None:
        for name in asked.targets:
            run(TARGETS[name], asked.again.read_bytes())
        return 0
    if find_spec("atheris") is None:
        parser.error("atheris is not installed; run `make fuzz`, or `pip install atheris`")
    failed = [name for name in asked.targets or TARGETS if _fuzz(name, asked.seconds, asked.corpus)]
    print(f"{len(asked.targets or TARGETS)} targets, {len(failed)} with findings {failed or ''}")
    return int(bool(failed))


def _fuzz(name: str, seconds: int, corpus: Path) -> int:
    """Fuzz a target in a process of its own: the fuzzer ends it."""
    directory = corpus / name
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "waystation.testing.fuzzing.one", name, str(directory)]
    options = [f"-max_total_time={seconds}", "-max_len=8192", "-timeout=10", "-rss_limit_mb=2048"]
    print(f"{name} for {seconds} s", flush=True)
    options += [f"-artifact_prefix=found-{name}-", "-verbosity=0", "-print_final_stats=0"]
    return subprocess.run([*command, *options], check=False).returncode  # noqa: S603


if __name__ == "__main__":
    sys.exit(main())
