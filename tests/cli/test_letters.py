"""`waystation parked` and `waystation dead`, beside a node that runs or does not (DU-5)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.cli.live_commands import Commands, started
from waystation.cli import waystation
from waystation.core.message import Message
from waystation.node import Context, Node, StoreSettings
from waystation.testing import until
from waystation.testing.workers import collect


def run(*arguments: object) -> Result:
    return CliRunner().invoke(waystation, [str(one) for one in arguments])


def settings(directory: Path) -> StoreSettings:
    return StoreSettings(directory=directory, fsync="off", attempts=1, pause=0.01)


def make_store(directory: Path) -> list[str]:
    """A store with two messages that wait and one that is dead; the ids."""

    async def scenario() -> list[str]:
        async with Node("hub", store=settings(directory)) as node:

            @node.worker("broken")
            def broken(message: Message, context: Context) -> None:  # noqa: ARG001
                raise ValueError("no paper")

            sent = [await node.send(to, b"hello", durable=True) for to in ("a", "b", "broken")]
            await until(lambda: node.custody and node.custody.dead == 1)
            return [one.id for one in sent]

    return asyncio.run(scenario())


@pytest.mark.rule("DU-5")
def test_what_lies_in_a_store_is_listed_and_shown(tmp_path: Path) -> None:
    a, b, broken = make_store(tmp_path)
    listed = run("parked", "list", "--store", tmp_path).output.splitlines()
    assert [line.split()[0] for line in listed] == [a, b, "2"]
    only = run("parked", "list", "--store", tmp_path, "--participant", "b", "--json").output
    assert json.loads(only)["id"] == b
    assert run("parked", "list", "--store", tmp_path, "--older", "1h").output == "0 messages\n"
    dead = run("dead", "list", "--store", tmp_path, "--reason", "FAILED").output
    assert broken in dead
    assert "FAILED  1 attempt  ValueError: no paper" in dead
    assert run("dead", "list", "--store", tmp_path, "--reason", "EXPIRED").output == "0 messages\n"
    shown = run("dead", "show", broken[:8], "--store", tmp_path).output
    assert "from      hub\n  to        broken (0#broken)" in shown
    assert "ValueError: no paper" in shown
    assert "5 bytes: b'hello'" in shown
    assert "expires" in run("parked", "show", a, "--store", tmp_path).output
    assert json.loads(run("dead", "show", broken, "--store", tmp_path, "--json").output)["size"]


@pytest.mark.rule("DU-5")
def test_messages_are_retried_and_dropped_by_the_node_that_runs(tmp_path: Path) -> None:
    a, b, broken = make_store(tmp_path)

    async def scenario() -> None:
        async with Node("hub", store=settings(tmp_path)) as node:

            async def told(*arguments: object) -> str:
                return (await asyncio.to_thread(run, *arguments, "--store", tmp_path)).output

            found = collect(node, "broken")
            assert await told("dead", "retry", broken) == "1 message is sent again\n"
            await until(lambda: [message.id for message in found] == [broken])
            assert await told("parked", "drop", "--participant", "a") == (
                "1 message is a dead letter now\n"
            )
            assert "tried now" in await told("parked", "retry", b)
            dead = await told("dead", "list")
            assert a in dead
            assert "REFUSED  dropped by hand" in dead
            dropped = json.loads(await told("dead", "drop", a, "--json"))
            assert dropped == {"messages": [a], "done": True, "result": "1 dead letter is gone"}
            assert await told("dead", "list") == "0 messages\n"
            assert node.custody is not None
            assert (node.custody.messages, node.custody.dead) == (1, 0)

    asyncio.run(scenario())


@pytest.mark.rule("DU-5")
def test_what_is_wished_while_the_node_is_away_is_done_when_it_comes(tmp_path: Path) -> None:
    a, _, _ = make_store(tmp_path)
    said = run("parked", "drop", a, "--store", tmp_path).output
    assert said == "the node is not running; this will be done when it starts\n"

    async def scenario() -> None:
        async with Node("hub", store=settings(tmp_path)) as node:
            await until(lambda: node.custody and node.custody.messages == 1)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("dead", "retry"), "give the ID"),
        (("dead", "drop", "abc"), "no message in the store matches"),
    ],
)
def test_a_command_that_means_nothing_says_so(
    tmp_path: Path, arguments: tuple[str, ...], why: str
) -> None:
    make_store(tmp_path)
    result = run(*arguments, "--store", tmp_path)
    assert why in f"{result.output}{result.exception}"


def test_a_directory_that_is_no_store_is_named(tmp_path: Path) -> None:
    result = run("dead", "list", "--store", tmp_path)
    assert "is not a store" in f"{result.output}{result.exception}"


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


@pytest.mark.rule("DU-1")
def test_a_message_is_sent_into_the_custody_of_a_node(tmp_path: Path, call: Commands) -> None:
    """With real processes: it waits there, and a node without a store cannot have it."""
    file = tmp_path / "hub.toml"
    listen = '[[listen]]\nurl = "tcp://127.0.0.1:0"\n'
    file.write_text(f'[node]\nname = "hub"\nhub = true\nstore = "store"\n{listen}')
    with started("node", "--config", str(file), ready="is ready") as (_, lines):
        url = next(line for line in lines if line.startswith("listening")).split()[-1]
        sent = ("send", "truck-7", "come home", "--durable", "--via", url)
        code, out, _ = call(*sent)
        assert (code, out.split()[0]) == (0, "QUEUED")
        id = out.split()[1]
        code, out, _ = call(*sent, "--count", "3", "--json")
        assert json.loads(out)["outcomes"] == {"QUEUED": 3}
        code, out, _ = call("parked", "list", "--store", str(tmp_path / "store"))
        assert [line.split()[0] for line in out.splitlines()][::4] == [id, "4"]
    file.write_text(f'[node]\nname = "hub"\nhub = true\n{listen}')
    with started("node", "--config", str(file), ready="is ready") as (_, lines):
        url = next(line for line in lines if line.startswith("listening")).split()[-1]
        code, _, error = call("send", "truck-7", "come home", "--durable", "--via", url)
        assert (code, "'hub' has no store for durable messages" in error) == (1, True)


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--durable"], "needs a node that has a store"), (["--durable", "--request"], "exclude")],
)
def test_what_cannot_be_sent_durably_is_a_mistake(options: list[str], said: str) -> None:
    assert said in run("send", "truck-7", "x", *options).output


@pytest.mark.rule("DU-5")
def test_a_copy_for_a_subscriber_is_found_by_its_name(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node("hub", store=settings(tmp_path)) as node:
            async with node.subscribe("garage/news", durable="archive"):
                pass
            await node.publish("news", b"open", provider="garage", durable=True)
            await until(lambda: node.custody and node.custody.parked == 1)

    asyncio.run(scenario())
    one = json.loads(run("parked", "list", "--store", tmp_path, "--json").output)
    name = one["participant"]
    assert name.startswith("subscriber-")
    assert "\n" not in name
    found = run("parked", "list", "--store", tmp_path, "--participant", name).output
    assert found.endswith("1 message\n")
    wrong = run("parked", "drop", "%", "--store", tmp_path).exception
    assert "invalid message id '%'" in str(wrong)
