"""Run a fleet for hours, in simulated time and in real time, and see that it does not grow.

    python -m waystation.testing.soak --hours 8 --minutes 60

In simulated time a star with stores runs for `--hours`, with a leaf that is killed every minute. In
real time two nodes exchange messages for `--minutes`, over connections that are cut every few
seconds. Memory, descriptors, tasks and what nodes remember are looked at again and again: after a
first quarter, in which everything gets to its size, the last quarter may not exceed the second by
more than a tenth and a little. The last line is `soak: flat`, or says what grew.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from waystation.testing.soak.real import soak_real
from waystation.testing.soak.simulated import soak_simulated
from waystation.testing.soak.watching import Growth


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak; ends with 1 if anything grew."""
    parser = argparse.ArgumentParser(prog="python -m waystation.testing.soak")
    parser.description, parser.formatter_class = __doc__, argparse.RawDescriptionHelpFormatter
    parser.add_argument("--hours", type=float, default=8.0, help="simulated hours; 0 for none")
    parser.add_argument("--minutes", type=float, default=60.0, help="real minutes; 0 for none")
    asked = parser.parse_args(arguments)
    grown: list[Growth] = []
    if asked.hours:
        grown += soak_simulated(asked.hours * 3600).grown()
    if asked.minutes:
        grown += asyncio.run(soak_real(asked.minutes * 60)).grown()
    for growth in grown:
        print(growth)
    print("soak: " + ("it grew" if grown else "flat"))
    return int(bool(grown))


if __name__ == "__main__":
    sys.exit(main())
