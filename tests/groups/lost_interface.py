"""Members in a network of their own, whose first address is taken away under traffic.

Started by test_group_direct.py in a new network namespace; prints what the receiver got.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.groups.crowd import Ear, everybody_knows, named, numbers, routers, stream
from waystation.groups import Group, GroupLimits
from waystation.testing import until

FIRST, SECOND = "10.9.0.1", "10.9.0.2"
LIMITS = GroupLimits(beat=5.0, grace=60.0)


def ip(*words: str) -> None:
    """Change the network."""
    subprocess.run(["ip", *words], check=True)  # noqa: S607


async def main() -> None:
    for address in (FIRST, SECOND):
        ip("addr", "add", f"{address}/32", "dev", "lo")
    async with routers() as found:
        via = found.via("gossip+tcp")
        listen = [f"{FIRST}:0", f"{SECOND}:0"]
        async with (
            Group("fleet", name="a", via=via, limits=LIMITS) as a,
            Group("fleet", name="b", via=via, listen=listen, limits=LIMITS) as b,
        ):
            await everybody_knows([a, b])
            await until(lambda: len(named(a, "b").physical) == 2)
            ear = Ear(b)
            before = b.me
            sending = asyncio.ensure_future(stream(a, 2_000, to=before))
            await until(lambda: len(ear.heard) > 200)
            ip("addr", "del", f"{FIRST}/32", "dev", "lo")
            await sending
            await until(lambda: len(ear.heard) == 2_000, 60)
            assert ear.payloads() == numbers(2_000)
            assert b.me == before
            assert ear.events() == []
            sys.stdout.write("everything arrived\n")


if __name__ == "__main__":
    ip("link", "set", "lo", "up")
    asyncio.run(main())
