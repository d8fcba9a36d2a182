"""The programs in examples/ print, step by step, what the routing protocol's own examples show.

The texts below are that document's, with its step numbers as its pictures have them; where it ends
a line with a comma, and where not, means nothing. Only what a hub prints is no document's.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples.line_transport import Lines
from waystation.testing import check_transport

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

FORWARDING_AND_REPLIES = """
1:
{
  onward_route: B -> C,
  return_route: A
}
2:
{
  onward_route: C,
  return_route: B -> A
}
3:
{
  onward_route: B -> A,
  return_route: C
}
4:
{
  onward_route: A,
  return_route: B -> C
}
"""

TRANSPORTS_AND_NODES = """
1:
{
  onward_route: {type: TransportType, data: AddressOfC} -> C1
  return_route: A1
}
2:
or:C1,rr:A1,payload:...
3:
{
  onward_route: C1
  return_route: {type: TransportType, data: AddressOfA} -> A1
}
4:
{
  onward_route: {type: TransportType, data: AddressOfA} -> A1
  return_route: C1
}
5:
or:A1,rr:C1,payload:...
6:
{
  onward_route: A1
  return_route: {type: TransportType, data: AddressOfC} -> C1
}
"""

SESSION_ESTABLISHMENT = """
1:
{
  onward_route: {type: #TCP, data: AddressOfC} -> C1
  return_route: A1
}
2:
{
  onward_route: TCPClientConnectionA1 -> C1
  return_route: A1
}
3:
TCP transport specific; FORWARDED to {type: #TCP, data: AddressOfC}
4:
{
  onward_route: C1
  return_route: TCPServerConnectionC1 -> A1
}
5:
{
  onward_route: TCPServerConnectionC1 -> A1
  return_route: C1
}
6:
TCP transport specific; FORWARDED to {type: #TCP, data: AddressOfA}
7:
{
  onward_route: A1
  return_route: TCPClientConnectionA1 -> C1
}
"""

SERVER_SIDE_ROUTING = """
1:
{
  onward_route: DevServer -> Phone,
  return_route: Dev
}
2:
{
  onward_route: Broker -> PhoneRegistry -> Phone
  return_route: DevServer -> Dev1
}
3:
{
  onward_route: Phone1
  return_route: PhoneRegistry -> Broker -> DevServer -> Dev1
}
4:
{
  onward_route: PhoneRegistry -> Broker -> DevServer -> Dev1
  return_route: Phone1
}
"""

HUB_AND_LEAVES = """
hub: put truck-7
truck: are you locked?
phone: yes
phone: it is at 48.1,11.6
hub: remove truck-7
phone: NO_ROUTE
hub: QUEUED
hub: put truck-7
truck: drive safely!
truck: welcome back!
hub: remove truck-7
"""


def printed_by(example: str) -> list[str]:
    # Not `-X dev`: asyncio would then warn of each callback that a busy machine makes slow.
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "error", EXAMPLES / f"{example}.py"],
        env=os.environ | {"PYTHONIOENCODING": "utf-8", "PYTHONMALLOC": "debug"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def steps(text: str) -> list[str]:
    return re.sub(",$", "", text, flags=re.MULTILINE).strip().splitlines()


@pytest.mark.rule("WK-2")
@pytest.mark.rule("WK-3")
def test_forwarding_and_replies_go_as_the_document_shows() -> None:
    assert printed_by("forwarding_and_replies") == steps(FORWARDING_AND_REPLIES)


@pytest.mark.rule("AD-2")
@pytest.mark.rule("WK-10")
def test_a_transport_of_ones_own_joins_nodes_as_the_document_shows() -> None:
    assert printed_by("transports_and_nodes") == steps(TRANSPORTS_AND_NODES)


@pytest.mark.rule("WK-8")
@pytest.mark.rule("WK-10")
def test_a_session_is_established_in_the_seven_steps_of_the_document() -> None:
    assert printed_by("session_establishment") == steps(SESSION_ESTABLISHMENT)


@pytest.mark.rule("WK-7")
@pytest.mark.rule("WK-9")
def test_a_device_reaches_a_phone_and_back_as_the_document_shows() -> None:
    assert printed_by("server_side_routing") == steps(SERVER_SIDE_ROUTING)


@pytest.mark.rule("RE-12")
@pytest.mark.rule("MC-10")
def test_a_truck_is_found_behind_its_hub_and_found_again_when_it_comes_back() -> None:
    assert printed_by("hub_and_leaves") == steps(HUB_AND_LEAVES)


def test_two_nodes_talk_over_a_transport_that_came_with_the_program() -> None:
    assert printed_by("line_transport") == ["hello from 0#right => 0#echo"]


@pytest.mark.rule("WK-10")
def test_a_transport_written_from_the_manual_passes_the_kit() -> None:
    asyncio.run(check_transport(Lines, "lines://127.0.0.1:0"))


def test_every_example_is_run_here() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == [
        "campaign",  # by tests/pipeline/test_sink_campaign.py
        "forwarding_and_replies",
        "hub_and_leaves",
        "line_transport",
        "pipeline_notebook",  # by tests/pipeline/test_notebook.py
        "server_side_routing",
        "session_establishment",
        "simulated_fleet",  # by test_simulated_fleet.py
        "transports_and_nodes",
    ]
