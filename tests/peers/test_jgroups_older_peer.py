"""Real channels of older releases of JGroups: our router tells each what its release knows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.peers import jgroups_older_peer
from tests.peers.jgroups_older_peer import RELEASES, shipped
from tests.peers.jgroups_peer import FETCH_SECONDS, SOURCES, Member, PeerFailed
from tests.peers.test_jgroups_peer import Router, at, quick, routing

pytestmark = [pytest.mark.peer, pytest.mark.timeout(FETCH_SECONDS + 300)]


@pytest.fixture
def router() -> Iterator[Router]:
    with routing() as running:
        yield running


@pytest.mark.rule("GR-11")
@pytest.mark.parametrize("release", RELEASES)
def test_channels_meet_through_tcpgossip(release: str, router: Router) -> None:
    config = at(router, (SOURCES / "tcpgossip5.xml").read_text("utf-8"))
    if release.startswith("4."):  # it has older forms of the same protocols
        config = re.sub(r'<FD_SOCK2 offset="1000"/>', "<FD_SOCK/>", config)
        config = config.replace("VERIFY_SUSPECT2", "VERIFY_SUSPECT").replace("FRAG4", "FRAG3")
        config = config.replace('diag.enabled="false"', 'enable_diagnostics="false"')
        config = config.replace("FD_ALL3", "FD_ALL")
    with jgroups_older_peer.members(release) as start:
        a, b = start(config, "A"), start(config, "B")
        for member in (a, b):
            member.views("A", "B")
        b.say("all hello")
        a.got("B hello")


@pytest.mark.ci
@pytest.mark.rule("GR-8")
@pytest.mark.rule("GR-11")
@pytest.mark.parametrize("release", RELEASES)
def test_one_channel_dies_and_the_others_stay_at_the_router(release: str, router: Router) -> None:
    config = quick(at(router, shipped(release, "tunnel.xml")))
    with jgroups_older_peer.members(release) as start:
        a, b, c = (start(config, name) for name in "ABC")
        for member in (a, b, c):
            member.views("A", "B", "C")
        c.kill()
        for member in (a, b):
            member.views("A", "B")
        b.say("all still here")
        for member in (a, b):
            member.got("B still here")
        assert router.end() == 0  # and what it says last breaks nobody's reader
        router.start()
        until_heard(a, b, "after")


def until_heard(speaker: Member, hearer: Member, text: str) -> None:
    """Say something again and again: what is said before both are back at the router is lost."""
    for number in range(20):
        speaker.say(f"all {text} {number}")
        with suppress(PeerFailed):
            hearer.until(lambda lines: any(f" {text} " in line for line in lines), 5)
            return
    raise PeerFailed(f"{hearer.name} has not heard {text!r} from {speaker.name}")
