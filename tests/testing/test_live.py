"""The live lab and the soak: their parts, and long runs of them (`make faults`)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.peers.mosquitto_peer import build, built
from waystation.testing.lab.history import Got, Sent
from waystation.testing.live import __main__ as live
from waystation.testing.live.namespaces import SmallDisk, missing
from waystation.testing.live.running import TOPOLOGY, read_lines
from waystation.testing.soak import __main__ as soak
from waystation.testing.soak.watching import Growth, Watch


def test_lines_of_killed_processes_become_a_history(tmp_path: Path) -> None:
    for name in TOPOLOGY.parents:
        (tmp_path / f"{name}-told.lines").write_bytes(b"")
    sent = Sent("u", 1.0, "leaf-1", 1, "send", "work-leaf-2", 1)
    told = Sent("u", 1.0, "leaf-1", 1, "send", "work-leaf-2", 1, 1.5, "FORWARDED")
    got = Got("u", 1.2, "leaf-2", 1, "work-leaf-2")
    facts: list[object] = [["started", [0.5, "leaf-1", 1]], ["sent", sent], ["told", told]]
    lines = b"\n".join(map(msgspec.json.encode, facts))
    (tmp_path / "leaf-1-told.lines").write_bytes(lines + b'\n["got", {"uid"')  # and it was killed
    (tmp_path / "leaf-2-told.lines").write_bytes(msgspec.json.encode(["got", got]) + b"\n")
    history = read_lines(tmp_path, 3)
    assert (history.sent, history.got) == ([told], [got])
    assert [start.node for start in history.starts] == ["leaf-1"]


def test_where_it_cannot_run_the_live_lab_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert live.main(["--minutes", "1"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("the live lab cannot run: ip is not installed")


@pytest.mark.parametrize("pages", [0, 1, 2, 15])
def test_a_small_disk_is_filled_however_much_is_on_it(tmp_path: Path, pages: int) -> None:
    try:
        disk = SmallDisk(tmp_path / "disk", 1)
    except OSError as error:
        pytest.skip(f"no disk can be mounted: {error}")
    try:
        (tmp_path / "disk/held").write_bytes(bytes(4096 * pages))
        disk.fill()
        with pytest.raises(OSError, match="No space left on device"):
            (tmp_path / "disk/more").write_bytes(b"more")
        disk.clear()
        (tmp_path / "disk/more").write_bytes(b"more")
    finally:
        disk.unmount()


def test_what_grows_is_told() -> None:
    watch = Watch()
    for look in range(40):
        watch.note(tasks=20 + look % 3, receivers=100 + 10 * look)
    assert watch.grown() == [Growth("receivers", 250.0, 450.0)]
    assert str(watch.grown()[0]) == "receivers grew from 250 to 450"


def test_a_short_soak_tells_what_came_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    soak.main(["--hours", "0.05", "--minutes", "0"])
    assert capsys.readouterr().out.splitlines()[-1] in {"soak: flat", "soak: it grew"}


@pytest.mark.fault
@pytest.mark.timeout(7200)
def test_a_live_fleet_keeps_its_promises() -> None:
    built()
    program, _ = build()
    if lacking := missing(program):
        pytest.skip(f"the live lab cannot run: {lacking}")
    assert live.main(["--minutes", "15", "--kills", "500", "--mosquitto", str(program)]) == 0


@pytest.mark.fault
@pytest.mark.timeout(7200)
def test_eight_hours_are_flat() -> None:
    assert soak.main(["--hours", "8", "--minutes", "10"]) == 0
