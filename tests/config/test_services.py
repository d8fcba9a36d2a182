"""Every kind of place that a file can name leads to a peer that answers."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.config.files import ECHO, NODE, plan, problems
from tests.joynr.app import app
from waystation.config import running
from waystation.errors import LocalError
from waystation.gossip_router import GossipServer
from waystation.mqtt.broker import Broker
from waystation.testing import DEADLINE, async_test, until
from waystation.transports.schemes import OVER, SCHEMES, Scheme

LEAF = '[node]\nname = "leaf"\n'


@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme not in OVER])
@async_test
async def test_every_transport_listens_and_connects(scheme: str, tmp_path: Path) -> None:
    listen = f'[[listen]]\nurl = "{scheme}://127.0.0.1:0"\n'
    async with running(plan(tmp_path, NODE + listen + ECHO)) as hub:
        [listening] = hub.listening
        connect = f'[[connect]]\nurl = "{listening.url}"\nname = "hub"\nwait = {DEADLINE}\n'
        async with running(plan(tmp_path, LEAF + connect)) as leaf:
            answer = await leaf.node.request("hub => echo", b"hello", timeout=DEADLINE)
            assert answer.payload == b"hello"


@async_test
async def test_joynr_s_applications_connect_and_find_what_is_at_the_broker(tmp_path: Path) -> None:
    broker = Broker()
    await broker.start("127.0.0.1:0")
    mqtt = f'[mqtt]\nurl = "mqtt://{broker.place}"\nformat = "joynr"\ntopic = '
    listen = '[[listen]]\nurl = "joynr+ws://127.0.0.1:0"\n'
    first = f'{NODE}hub = true\njoynr_directory = true\n{mqtt}"hubs/one"\n{listen}'
    second = f'{LEAF}hub = true\n{mqtt}"hubs/two"\n{listen}'
    async with (
        running(plan(tmp_path, first)) as one,
        running(plan(tmp_path, second)) as two,
        app(one.listening[0].place, "alice") as alice,
        app(two.listening[0].place, "bob") as bob,
    ):
        assert one.listening[0].url.startswith("joynr+ws://")
        await alice.provide("door-1", everywhere=True)
        (found,) = await bob.lookup(scope="GLOBAL_ONLY")
        assert found["participantId"] == "door-1"
        assert "hubs/two" in await bob.route("getReplyToAddress")
    await broker.drain()


@async_test
async def test_members_of_a_group_are_reached_through_its_router(tmp_path: Path) -> None:
    router = GossipServer()
    await router.start("127.0.0.1:0")
    groups = f'[groups]\nvia = "gossip://{router.place}"\n'
    listen = '[[listen]]\nurl = "gossip://fleet/hub"\n'
    connect = f'[[connect]]\nurl = "gossip://fleet/hub"\nname = "hub"\nwait = {DEADLINE}\n'
    async with (
        running(plan(tmp_path, NODE + groups + listen + ECHO)),
        running(plan(tmp_path, LEAF + groups + connect)) as leaf,
    ):
        answer = await leaf.node.request("hub => echo", b"hello", timeout=DEADLINE)
        assert answer.payload == b"hello"
    await router.drain()


@async_test
async def test_peers_and_broadcasts_are_reached_through_a_broker(tmp_path: Path) -> None:
    broker = Broker()
    await broker.start("127.0.0.1:0")
    mqtt = f'[mqtt]\nurl = "mqtt://{broker.place}"\nprefix = "test"\ntopic = '
    connect = f'[[connect]]\nurl = "mqtt://hubs/hub"\nname = "hub"\nwait = {DEADLINE}\n'
    async with (
        running(plan(tmp_path, f'{NODE}hub = true\n{mqtt}"hubs/hub"\n{ECHO}')) as hub,
        running(plan(tmp_path, f'{LEAF}hub = true\n{mqtt}"hubs/leaf"\n{connect}')) as leaf,
    ):
        assert [listening.place for listening in hub.listening] == ["hubs/hub"]
        answer = await leaf.node.request("hub => echo", b"hello", timeout=DEADLINE)
        assert answer.payload == b"hello"
        heard: list[bytes] = []
        leaf.node.subscribe("hub", "news", callback=lambda m: heard.append(m.payload))

        while not heard:  # the broker may not know of the subscription yet
            await hub.node.publish("news", b"snow")
            with contextlib.suppress(AssertionError):
                await until(lambda: heard, seconds=0.2)
        assert heard[0] == b"snow"
    await broker.drain()


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ('[[listen]]\nurl = "gossip://a/b"', "listen[0].url", "needs a table [groups]"),
        ('[[listen]]\nurl = "joynr+ws://127.0.0.1:0"', "listen[0].url", "connect to a hub"),
        ('[[listen]]\nurl = "joynr://127.0.0.1:0"', "listen[0].url", "unsupported URL"),
        ('[[connect]]\nurl = "mqtt://a/b"', "connect[0].url", "needs a table [mqtt]"),
        (
            '[groups]\nvia = "gossip://a:1"\n[[listen]]\nurl = "gossip://a/b"\ntls = false',
            "listen[0].url",
            "belong in [groups]",
        ),
        ('[groups]\nvia = "nowhere"', "groups", "nowhere"),
        ('[mqtt]\nurl = "nowhere"\ntopic = "a"', "mqtt", "nowhere"),
        ('[mqtt]\nurl = "mqtt://a:1"\ntopic = "#"', "mqtt", "#"),
        (
            '[mqtt]\nurl="mqtt://a:1"\ntopic="a"\npassword_env="NONE_SUCH"',
            "mqtt.password_env",
            "NO",
        ),
    ],
)
def test_what_a_service_needs_is_told(tmp_path: Path, text: str, key: str, said: str) -> None:
    [problem] = problems(tmp_path, NODE + text)
    assert problem.key == key
    assert said in str(problem)


def test_what_is_not_installed_is_told_with_the_way_to_get_it() -> None:
    missing = Scheme("waystation.transports.of_nothing", "Nothing", extra="ws")
    with pytest.raises(LocalError, match="pip install") as error:
        missing.load_transport()
    assert error.value.hint == "pip install 'waystation[ws]'"
    with pytest.raises(ImportError):  # ours, and broken: nobody could install anything for it
        Scheme("waystation.transports.of_nothing", "Nothing").load_transport()


def test_what_joynr_needs_is_checked_with_the_file(tmp_path: Path) -> None:
    hub = f"{NODE}hub = true\n"
    listen = '[[listen]]\nurl = "joynr+ws://127.0.0.1:0"\n'
    [problem] = problems(tmp_path, f"{hub}token = 'secret'\n{listen}")
    assert "know no token" in str(problem)
    [problem] = problems(tmp_path, f"{hub}joynr_directory = true\n")
    assert "no broker" in str(problem)
    assert not problems(tmp_path, hub + listen)
