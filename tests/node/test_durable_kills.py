"""Durable messages in a fleet of real processes, under every fault at random moments (DU-3).

`durable_fleet` has the fleet and its faults, `durable_checker` what is checked.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.node import durable_fleet
from tests.node.durable_disks import Disk, with_disks
from waystation.core.outcome import Reason
from waystation.errors import LocalError
from waystation.node import Node

ROOT = Path(__file__).parents[2]


@pytest.mark.rule("DU-3", "DU-4", "DU-5")
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(24, marks=pytest.mark.timeout(600)),
        pytest.param(500, marks=[pytest.mark.fault, pytest.mark.timeout(3_600)]),
    ],
)
def test_kill_any_node_at_any_moment(tmp_path: Path, kills: int) -> None:
    given = os.environ.get("WAYSTATION_KILLS_SEED")
    anew = kills if kills < 100 else random.SystemRandom().getrandbits(32)
    seed = int(given) if given else anew
    module = [sys.executable, "-m", durable_fleet.__name__]
    command = [*module, str(tmp_path), str(kills), str(seed)]
    places = [durable_fleet.disk_of(tmp_path, name) for name in durable_fleet.NAMES]
    small = with_disks(places, [*command, "--disks"])
    done = subprocess.run(small or command, cwd=ROOT, check=False, capture_output=True, text=True)
    again = f"again with WAYSTATION_KILLS_SEED={seed}"
    assert done.returncode == 0, f"{done.stdout}{done.stderr}{again}"


@pytest.mark.rule("DU-5")
def test_a_disk_that_is_really_full_refuses_what_is_new_and_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", __name__, str(tmp_path / "disk")]
    small = with_disks([tmp_path / "disk"], command)
    if small is None:
        pytest.skip("this user may not mount a small disk")
    done = subprocess.run(small, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert done.stderr.count("cannot be written") == 1


@pytest.mark.rule("DU-5")
def test_a_store_on_a_disk_that_can_only_be_read_is_not_started_and_loses_nothing(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", __name__, str(tmp_path / "disk"), "--read-only"]
    small = with_disks([tmp_path / "disk"], command)
    if small is None:
        pytest.skip("this user may not mount a small disk")
    done = subprocess.run(small, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


async def only_read(disk: Disk) -> None:
    store = disk.path / "store"
    async with Node("hub", store=store) as node:
        for number in range(3):
            await node.send("archive", b"%d" % number, durable=True)
    disk.remount("ro")
    for _ in range(2):
        with pytest.raises(LocalError, match="Read-only file system; give a directory"):
            Node("hub", store=store)
    disk.remount("rw")
    async with Node("hub", store=store) as node:
        assert node.custody is not None
        assert node.custody.messages == 3


async def fill_up(disk: Disk) -> None:
    store, big = disk.path / "store", b"x" * 5_000_000
    async with Node("hub", store=store) as node:
        for number in range(3):
            await node.send("archive", b"%d" % number, durable=True)
        disk.fill()
        refused = [await node.send("archive", big, durable=True) for _ in range(2)]
        assert [one.reason for one in refused] == [Reason.QUEUE_FULL] * 2
        assert node.custody is not None
        assert (node.custody.messages, node.custody.trouble) == (3, "database or disk is full")
        disk.clear()
        assert (await node.send("archive", big, durable=True)).reason is None
    async with Node("hub", store=store) as node:
        assert node.custody is not None
        assert node.custody.messages == 4


if __name__ == "__main__":
    scenario = only_read if "--read-only" in sys.argv else fill_up
    asyncio.run(scenario(Disk(Path(sys.argv[1]))))
