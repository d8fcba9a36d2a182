"""Alerts: which batches raise them, and how often."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.small import put_rows, row
from tests.pipeline.test_command_line import Run
from tests.pipeline.test_command_line import run as run  # noqa: PLC0414 - a fixture
from waystation import Message, Node
from waystation.cli import pipeline_watch
from waystation.errors import LocalError
from waystation.node import Context
from waystation.pipeline.watching import Alert, Alerts, Batch
from waystation.pipeline.watching.alerts import Watchman
from waystation.pipeline.watching.node_step import Report
from waystation.testing import async_test, until

MINUTE = 60_000_000


def batch(**reports: Report) -> Batch:
    return Batch(1, 1, 1, 1, {}, 0, 0, 1.0, 0.0, reports)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_drops_over_the_limit_are_reported_once_and_again_later() -> None:
    told: list[Alert] = []
    clock = Clock()
    watchman = Watchman(Alerts(told.append, drops=0.1, again=60), clock)
    report = Report(messages=100, dropped={"NO_ROUTE": 3, "EXPIRED": 8})
    watchman.look_at(batch(hub=report, quiet=Report(messages=100, dropped={"EXPIRED": 10})))
    [alert] = told
    assert (alert.kind, alert.node, alert.value, alert.limit) == ("drops", "hub", 0.11, 0.1)
    assert alert.text == "hub dropped 11 of 100 messages, most EXPIRED"
    clock.now = 59
    watchman.look_at(batch(hub=report))
    assert len(told) == 1
    clock.now = 60
    watchman.look_at(batch(hub=report))
    assert len(told) == 2
    few = Report(messages=10, dropped={"NO_ROUTE": 10})  # too few to alert
    watchman.look_at(batch(leaf=few))
    assert len(told) == 2


def test_a_route_that_changes_often_within_a_minute_flaps() -> None:
    told: list[Alert] = []
    watchman = Watchman(Alerts(told.append, flaps=5))
    watchman.look_at(batch(hub=Report(changes={"truck": [n * MINUTE // 4 for n in range(20)]})))
    assert not told  # five in a minute, no more
    later = [5 * MINUTE + n for n in range(3)]
    watchman.look_at(batch(hub=Report(changes={"truck": later, "car": [1, 2, 3]})))
    [alert] = told
    assert (alert.kind, alert.participant, alert.value) == ("flapping", "truck", 6)


def test_missing_messages_raise_an_alert_unless_the_limit_is_zero() -> None:
    told: list[Alert] = []
    report = Report(messages=100, missing=2, dropped={"NO_ROUTE": 99})
    Watchman(Alerts(told.append, drops=0, flaps=0, missing=0)).look_at(batch(hub=report))
    assert not told
    Watchman(Alerts(told.append, drops=None, missing=2)).look_at(batch(hub=report))
    assert [alert.kind for alert in told] == ["missing"]
    with pytest.raises(LocalError, match="invalid limit for flaps: -1"):
        Alerts(told.append, flaps=-1)


def test_the_line_of_a_batch_shows_rate_lag_and_drops() -> None:
    told = Batch(7, 3, 1_000, 900, {"NO_ROUTE": 12, "EXPIRED": 1}, 2, 1, 0.5, 3.14)
    assert pipeline_watch._line(told) == (
        "batch 7 | 1,000 rows of 3 files | 2,000 rows/s | lag 3.1 s | "
        "dropped NO_ROUTE 12, EXPIRED 1 | 2 missing | 1 rejected"
    )


@async_test
async def test_an_alert_is_sent_as_a_message() -> None:
    got: list[bytes] = []
    async with Node("office") as office:

        @office.worker("ops")
        async def ops(message: Message, context: Context) -> None:
            del context
            got.append(message.payload)

        door = await office.listen("tcp://127.0.0.1:0")
        files = ("token_file", "tls_authorities", "tls_certificate", "tls_key", "identity")
        options = dict.fromkeys(["token", "tls", *files])
        [found] = Watchman(Alerts(print))._found("hub", Report(messages=20, missing=3))

        def send() -> None:
            route = f"tcp#{door.place} => ops"
            with pipeline_watch._fabric(route, {**options, "tls_name": None}) as tell:
                tell(found)

        await asyncio.to_thread(send)
        await until(lambda: got != [])
    assert json.loads(got[0])["kind"] == "missing"


@pytest.mark.timeout(600)
def test_the_command_runs_once_and_reports_drops(
    spark: SparkSession, run: Run, tmp_path: Path
) -> None:
    del spark
    journal, alerts = tmp_path / "journal", tmp_path / "alerts.jsonl"
    dropped: dict[str, Any] = {"outcome": "DROPPED", "reason": "NO_ROUTE", "recipient": None}
    rows = [row("messages", seq, message_id=f"{seq:032x}", **dropped) for seq in range(30)]
    put_rows(journal, "messages", rows)
    place = ("--out", tmp_path / "tables", "--checkpoint", tmp_path / "checkpoint", "--once")
    command = ("pipeline", "watch", "--journal", journal, *place, "--alert-file", alerts)
    code, out, err = run(*command, "--json")
    assert code == 0
    first, last = map(json.loads, out.splitlines())
    assert first["batch"]["dropped"] == {"NO_ROUTE": 30}
    assert last["done"]["rows"] == 30
    incident, drops = err.splitlines()
    words = "never_registered: a was not known at garage, 29 lost so far; waystation why "
    assert incident.startswith(f"waystation: {words}")
    assert drops == "waystation: garage dropped 30 of 30 messages, most NO_ROUTE"
    kinds = [json.loads(line)["kind"] for line in alerts.read_text().splitlines()]
    assert kinds == ["incident", "drops"]
    code, out, err = run(*command)
    assert (code, err) == (0, "")
    assert out.startswith("processed 0 rows of 0 files in 0 batches, ")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--journal . --out x", "Missing option '--checkpoint'"),
        ("--journal nowhere --out x --checkpoint y", "'nowhere' does not exist"),
        ("--journal . --out x --checkpoint y --alert-route 999#", "--alert-route"),
        ("--journal . --out x --checkpoint y --alert-drops 7", "--alert-drops"),
    ],
)
def test_wrong_usage_of_watch_is_one_line_and_exit_2(
    run: Run, arguments: str, complaint: str
) -> None:
    code, out, err = run("pipeline", "watch", *arguments.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert complaint in err
