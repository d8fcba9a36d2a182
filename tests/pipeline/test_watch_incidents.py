"""Watching: losses and incidents follow the journal, and each incident is told once."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from msgspec.structs import replace

from tests.pipeline.test_incidents import written
from tests.pipeline.watched import assert_up_to_date, engine, every_file
from waystation.cli import pipeline_watch
from waystation.core.incidents import Incident
from waystation.pipeline.watching import Alert, Alerts, Batch
from waystation.pipeline.watching.alerts import Watchman
from waystation.simulate.fleet import Fleet

pytestmark = pytest.mark.timeout(900)

CRASH = Incident(
    incident_id="1" * 16,
    kind="node_crashed",
    node="truck-7",
    started=1,
    ended=None,
    participants=["truck-7"],
    lost=2,
    cause="truck-7 crashed",
    evidence=["a" * 32],
)
SMALL = replace(CRASH, incident_id="2" * 16, kind="other", lost=2)


def batch(*incidents: Incident) -> Batch:
    return Batch(1, 1, 1, 1, {}, 0, 0, 1.0, 0.0, {}, list(incidents))


def test_an_incident_is_told_once_and_once_more_when_it_is_over(tmp_path: Path) -> None:
    told: list[Alert] = []
    remembered = tmp_path / "alerts.json"

    def watchman() -> Watchman:
        alerts = Alerts(told.append, incidents=3)
        return Watchman(alerts, tables="/a b", remembered=remembered)

    first = watchman()
    first.look_at(batch(CRASH, SMALL))  # the other cost too little
    first.look_at(batch(replace(CRASH, lost=5)))
    [alert] = told
    assert (alert.kind, alert.node, alert.incident_id) == ("incident", "truck-7", "1" * 16)
    command = f"waystation why {'a' * 32} --tables '/a b'"
    assert alert.command == command
    assert alert.text == f"node_crashed: truck-7 crashed, 2 lost so far; {command}"
    after_a_restart = watchman()
    after_a_restart.look_at(batch(CRASH))
    assert len(told) == 1
    after_a_restart.look_at(batch(replace(CRASH, ended=2, lost=5)))
    after_a_restart.look_at(batch(replace(CRASH, ended=2, lost=5)))
    assert [one.kind for one in told] == ["incident", "closed"]
    assert told[-1].text == "over: truck-7 crashed, 5 lost"


LINK = replace(
    CRASH,
    incident_id="3" * 16,
    kind="link_lost",
    node="hub",
    started=1_000_000,
    cause="the link from hub to truck-7 was lost",
)


@pytest.mark.parametrize("restarted", [False, True])
def test_an_incident_that_became_part_of_another_is_closed_with_its_name(
    tmp_path: Path, restarted: bool
) -> None:
    told: list[Alert] = []

    def watchman() -> Watchman:
        return Watchman(Alerts(told.append), remembered=tmp_path / "alerts.json")

    first = watchman()
    first.look_at(batch(LINK))
    later = watchman() if restarted else first
    other = replace(CRASH, incident_id="4" * 16, started=900_000, evidence=["b" * 32])
    later.look_at(batch(other, CRASH))  # that crash cost the message which the link had cost
    later.look_at(batch(other, CRASH))
    assert [(one.kind, one.incident_id) for one in told] == [
        ("incident", LINK.incident_id),
        ("incident", other.incident_id),
        ("incident", CRASH.incident_id),
        ("closed", LINK.incident_id),
    ]
    assert told[-1].text == (
        f"part of incident {CRASH.incident_id}: {LINK.cause}; now: truck-7 crashed"
    )


def test_without_messages_who_and_when_say_what_an_incident_became_part_of() -> None:
    told: list[Alert] = []
    watchman = Watchman(Alerts(told.append))
    watchman.look_at(batch(replace(LINK, evidence=[], lost=0)))
    elsewhere = replace(CRASH, incident_id="5" * 16, node="car", participants=["car"])
    long_ago = replace(CRASH, incident_id="6" * 16, started=-3_600_000_000)
    watchman.look_at(batch(elsewhere, long_ago, replace(CRASH, evidence=[], lost=0)))
    assert told[-1].text.startswith(f"part of incident {CRASH.incident_id}: ")


def test_an_incident_of_which_nothing_is_left_is_closed_as_well(tmp_path: Path) -> None:
    told: list[Alert] = []
    remembered = tmp_path / "alerts.json"
    watchman = Watchman(Alerts(told.append), remembered=remembered)
    watchman.look_at(batch(LINK))
    watchman.look_at(batch())
    watchman.look_at(batch())
    assert [one.kind for one in told] == ["incident", "closed"]
    assert told[-1].text == f"no longer found: {LINK.cause}"
    assert json.loads(remembered.read_text()) == {LINK.incident_id: True}


def test_what_an_earlier_release_remembered_is_still_closed_when_it_is_over(
    tmp_path: Path,
) -> None:
    told: list[Alert] = []
    remembered = tmp_path / "alerts.json"
    remembered.write_text(json.dumps({CRASH.incident_id: False, LINK.incident_id: False}))
    watchman = Watchman(Alerts(told.append), remembered=remembered)
    watchman.look_at(batch(replace(CRASH, ended=2)))  # of the other it kept nothing to tell
    assert [(one.kind, one.incident_id) for one in told] == [("closed", CRASH.incident_id)]


def test_no_incidents_if_they_are_disabled() -> None:
    told: list[Alert] = []
    Watchman(Alerts(told.append, incidents=0)).look_at(batch(CRASH))
    assert told == []


@pytest.mark.rule("SP-3")
def test_losses_and_incidents_follow_the_journal(tmp_path: Path) -> None:
    journal = written(tmp_path / "journal", Fleet(5, 40, 400, seed=2))
    files = sorted(every_file(journal))
    watched = engine(journal, tmp_path)
    try:
        watched.take_in(files[::2])
        done = watched.take_in(files)
        assert done is not None
        assert done.incidents
        assert_up_to_date(tmp_path / "tables", journal, ("losses", "incidents"))
    finally:
        watched.close()


def test_a_webhook_gets_alerts_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    got: list[bytes] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    told: list[Alert] = []
    Watchman(Alerts(told.append)).look_at(batch(CRASH))
    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        place = f"http://127.0.0.1:{server.server_port}/hook"
        Thread(target=server.handle_request, daemon=True).start()
        pipeline_watch._post(place, told[0])  # noqa: SLF001
    assert json.loads(got[0])["incident_id"] == "1" * 16
    pipeline_watch._post(place, told[0])  # noqa: SLF001 - nobody listens any more
    assert "could not send an alert" in capsys.readouterr().err
