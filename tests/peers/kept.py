"""Peers of another make: fetched and built once, and kept outside of the checkout.

They lie below WAYSTATION_PEER_CACHE, by default ~/.cache/waystation/peers, each under a name made
from all that goes into it. The benchmarks use them too, so nothing here needs pytest, but `needed`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class PeerMissing(Exception):  # noqa: N818 - the peer is missing; nobody did anything wrong
    """The peer cannot be had here: a tool, a registry, or success in building it is missing."""


def kept(
    name: str, sources: dict[str, bytes], make: Callable[[dict[str, bytes], Path], None]
) -> Path:
    """The directory of a peer; `make` fills it from these very sources if it was not made before.

    It has to appear whole or not at all, by a rename. One at a time makes it.
    """
    cache = Path(
        os.environ.get("WAYSTATION_PEER_CACHE") or Path.home() / ".cache" / "waystation" / "peers"
    )
    home = cache / f"{name}-{hashlib.sha256(b'|'.join(sources.values())).hexdigest()[:16]}"
    if home.is_dir():
        return home
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.is_dir():
            make(sources, home)
    return home


def from_npm(name: str, program: Path, seconds: float) -> Path:
    """The directory with the packages that the lock file of a program pins."""

    def make(sources: dict[str, bytes], home: Path) -> None:
        del sources  # the lock file names the directory; npm wants package.json beside it
        with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
            workshop = Path(scratch) / name
            workshop.mkdir()
            for file in ("package.json", "package-lock.json"):
                shutil.copy(program / file, workshop)
            options = ("--prefix", str(workshop), "--ignore-scripts", "--no-audit", "--no-fund")
            patience = (
                "--fetch-retries=1",
                "--fetch-retry-mintimeout=1000",
                "--fetch-timeout=30000",
            )
            run = called(["npm", "ci", *options, *patience], workshop, seconds)
            if run.returncode:
                errors = [line for line in run.stderr.splitlines() if line.startswith("npm error")]
                raise PeerMissing(f"npm could not install it: {'; '.join(errors)[:300]}")
            workshop.rename(home)  # seen whole or not at all

    lock = "package-lock.json"
    return kept(name, {lock: (program / lock).read_bytes()}, make)


def tool(name: str) -> str:
    """Where a program is."""
    path = shutil.which(name)
    if path is None:
        raise PeerMissing(f"there is no {name}")
    return path


def called(
    command: Sequence[str], workshop: Path, seconds: float, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What became of a program; without it, or when it does not end in time, PeerMissing."""
    program = tool(command[0])
    try:
        return subprocess.run(
            [program, *command[1:]],
            cwd=workshop,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PeerMissing(f"{command[0]} did not end within {seconds} s") from None


def needed(peer: str, build: Callable[[], T]) -> T:
    """A peer, for a test: without it the test is skipped, or fails where CI is set."""
    import pytest  # noqa: PLC0415 - the benchmarks do without

    try:
        return build()
    except PeerMissing as missing:
        reason = f"{peer} is missing: {missing}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
