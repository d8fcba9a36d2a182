"""A member in a process of its own that counts: `python -m benchmarks.groups.receiver VIA COUNT`.

It prints how many messages came per second, from the first to the last.
"""

from __future__ import annotations

import sys
import time

from waystation.groups import Group
from waystation.node import run

GROUP = "bench"


async def receive(via: str, count: int) -> float:
    options = {"interface": "127.0.0.1"} if via.startswith("udp") else {}
    async with Group(GROUP, name="receiver", via=via, **options) as group:  # type: ignore[arg-type]
        print("ready", flush=True)
        got, start = 0, 0.0
        async for _ in group.messages():
            if not got:
                start = time.perf_counter()
            got += 1
            if got == count:
                break
        return (count - 1) / (time.perf_counter() - start)


if __name__ == "__main__":
    print(run(receive(sys.argv[1], int(sys.argv[2]))), flush=True)
