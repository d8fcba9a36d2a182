"""Five real nodes in network namespaces, broken by chance; the lab's checks judge what happened.

    python -m waystation.testing.live --minutes 60           an hour of faults
    python -m waystation.testing.live --kills 500            until so many nodes were killed
    python -m waystation.testing.live --minutes 1 --keep DIR keep the history, and all else

The way between the two hubs is Mosquitto, and one leaf is behind a router that translates its
address. The lab kills nodes with `kill -9`, and the broker, stops and continues them, cuts links in
one direction or both, loses packets, changes addresses on both sides of the router, and fills
disks. It needs root, ip, nftables and Mosquitto, and says so where they are missing. The last line
is `N kills, M faults, K messages, V violations`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from waystation.testing.lab.running import judge
from waystation.testing.live.broker import find_mosquitto
from waystation.testing.live.namespaces import missing
from waystation.testing.live.running import run_live


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the live lab; ends with 1 if a promise was violated, and with 2 if it cannot run."""
    parser = argparse.ArgumentParser(prog="python -m waystation.testing.live")
    parser.description, parser.formatter_class = __doc__, argparse.RawDescriptionHelpFormatter
    parser.add_argument("--minutes", type=float, default=5.0, help="how long faults go on")
    parser.add_argument("--kills", type=int, default=0, help="go on until so many were killed")
    parser.add_argument("--mosquitto", type=Path, default=find_mosquitto(), help="the program")
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    parser.add_argument("--keep", type=Path, help="directory for everything that was written")
    asked = parser.parse_args(arguments)
    if lacking := missing(asked.mosquitto):
        print(f"the live lab cannot run: {lacking}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="waystation-live-") as name:
        directory = Path(name) if asked.keep is None else asked.keep
        directory.mkdir(parents=True, exist_ok=True)
        seconds = asked.minutes * 60
        history = run_live(directory, asked.mosquitto, asked.seed, seconds, asked.kills)
        history.write(directory / "history.json")
        violated = judge(history, directory / "journal")
    for promise, sentences in violated.items():
        for sentence in sentences[:20]:
            print(f"{promise}: {sentence}")
    kills = sum(fault.kind == "kill" for fault in history.faults)
    counts = f"{kills} kills, {len(history.faults)} faults, {len(history.sent)} messages"
    print(f"{counts}, {len(violated)} violations")
    return int(bool(violated))


if __name__ == "__main__":
    sys.exit(main())
