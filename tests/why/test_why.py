"""One message, explained from the journals of live nodes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from waystation.cli import main
from waystation.core.address import Address, Route
from waystation.core.message import Message
from waystation.core.multicast import ADDRESS_TYPE as MULTICAST
from waystation.core.routing import RoutingEntry
from waystation.errors import LocalError
from waystation.journal.layout import Stem
from waystation.journal.schema import MESSAGES, SCHEMAS
from waystation.journal.seal import write_sealed
from waystation.node import FAIL, Limits, Node, keyfile
from waystation.node.channels import ANYONE
from waystation.testing import Recorder, async_test, collect, echo, until
from waystation.why import Explanation, explain, explanation_lines

QUIET = Limits(heartbeat=0.0)
NOWHERE = "ffffffffffffffffffffffffffffffff"


def story(explanation: Explanation) -> str:
    return "\n".join(explanation_lines(explanation))


async def one(node: Node, route: str, **options: object) -> str:
    """Send a message and return its id."""
    heard = Recorder(node)
    await node.send(route, b"hello", **options)  # type: ignore[arg-type]
    await until(lambda: heard.messages)
    heard.stop()
    return heard.messages[-1].arrival.message.id


def explained(tmp_path: Path, id: str) -> Explanation:
    return explain(tmp_path, id)


@async_test
async def test_a_message_over_two_nodes_is_explained_hop_by_hop(tmp_path: Path) -> None:
    async with (
        Node("server", journal=tmp_path, limits=QUIET) as server,
        Node("client", journal=tmp_path, limits=QUIET) as client,
    ):
        got = collect(server, "sink")
        listening = await server.listen("tcp://127.0.0.1:0")
        await client.connect(listening.url, name="there")
        id = await one(client, "there => sink")
        await until(lambda: got)
    explanation = explained(tmp_path, id)
    assert [hop.node for hop in explanation.hops] == ["client", "server"]
    assert explanation.summary.startswith("delivered at server after ")
    assert all(hop.as_expected for hop in explanation.hops)
    first, second = explanation.hops
    assert first.expected[0].entry == first.steps[0].next_hop
    assert first.expected[0].since is not None
    assert (second.expected[0].local, second.steps[0].recipient) == (True, "sink")
    assert "local entry 0#sink, since " in story(explanation)


@pytest.mark.rule("ID-2")
@async_test
async def test_who_sent_a_message_is_told_where_that_is_proven(tmp_path: Path) -> None:
    async with (
        Node("server", journal=tmp_path, identity=keyfile.create(tmp_path / "s")) as server,
        Node("client", journal=tmp_path, identity=keyfile.create(tmp_path / "c")) as client,
        Node("stranger", journal=tmp_path) as stranger,
    ):
        got = collect(server, "sink")
        server.secure_listener("secure", trust=ANYONE)
        url = (await server.listen("tcp://127.0.0.1:0")).url
        for node in (client, stranger):
            await node.connect(url, name="there")
        proven, unproven = await one(client, "there => sink"), await one(stranger, "there => sink")
        async with await stranger.secure_channel("there => secure", trust=ANYONE) as channel:
            sealed = (await channel.send("sink", b"")).id
            await until(lambda: len(got) == 3)
    who, sender = f"sent by  {client.identifier} (proven)", "sent by"
    assert story(explained(tmp_path, proven)).count(who) == 1
    assert sender not in story(explained(tmp_path, unproven))
    told = story(explained(tmp_path, sealed))
    assert told.count(f"sent by  {stranger.identifier} (proven)") == told.count(sender) == 1


@async_test
async def test_a_route_that_expired_is_named_with_the_time_since(tmp_path: Path) -> None:
    async with Node("hub", journal=tmp_path) as node:
        far = Address.parse("tcp#127.0.0.1:1")
        soon = node.now() + 20
        node.put_route(RoutingEntry("truck-3", far, local=False, expiry=soon))
        await asyncio.sleep(0.1)
        id = await one(node, "truck-3")
    explanation = explained(tmp_path, id)
    assert explanation.summary.startswith(
        "dropped at hub, NO_ROUTE: the route to truck-3 had expired "
    )
    assert explanation.hops[0].as_expected


@async_test
async def test_participants_that_left_before_or_came_later_are_named(tmp_path: Path) -> None:
    async with Node("hub", journal=tmp_path) as node:
        early = await one(node, "truck-7")
        echo(node, "truck-7")
        await node.stop_worker("truck-7")
        late = await one(node, "truck-7")
        typo = await one(node, "truk-7")
    assert "truck-7 was not known here yet; it came " in story(explained(tmp_path, early))
    assert "truck-7 had left " in story(explained(tmp_path, late))
    assert "the closest names are truck-7" in story(explained(tmp_path, typo))


@async_test
async def test_a_broadcast_without_subscribers_names_the_closest_subscriptions(
    tmp_path: Path,
) -> None:
    async with Node("garage", journal=tmp_path) as node:
        heard = Recorder(node)
        subscription = node.subscribe("garage", "temperature", "eu/+/berlin")
        await node.publish("temperature", b"21", partition="eu/de/munich")
        await subscription.close()
        await node.publish("temperature", b"21", partition="eu/de/berlin")
        ids = [record.arrival.message.id for record in heard.messages]
    closest, gone = (explained(tmp_path, id) for id in ids)
    assert "the closest are garage/temperature/eu/+/berlin" in closest.summary
    assert "garage/temperature/eu/+/berlin subscribed before or after" in gone.summary


@async_test
async def test_a_full_inbox_an_expiry_and_a_lost_peer_have_different_explanations(
    tmp_path: Path,
) -> None:
    async with Node("hub", journal=tmp_path) as node:
        gate = asyncio.Event()

        @node.worker("slow", inbox=1)
        async def slow(message: object, context: object) -> None:  # noqa: ARG001
            await gate.wait()

        await node.send("slow", b"1")
        await asyncio.sleep(0)
        await node.send("slow", b"2")
        full = await one(node, "slow", policy=FAIL)
        gate.set()
        expired = await one(node, "nobody", ttl=0)
    assert "queue was full" in explained(tmp_path, full).summary
    assert not explained(tmp_path, full).hops[0].as_expected
    assert "it had expired" in explained(tmp_path, expired).summary


@async_test
async def test_a_message_to_a_node_without_a_journal_left_the_fleet(
    tmp_path: Path,
) -> None:
    async with (
        Node("silent", limits=QUIET) as silent,
        Node("client", journal=tmp_path, limits=QUIET) as client,
    ):
        collect(silent, "sink")
        listening = await silent.listen("tcp://127.0.0.1:0")
        id = await one(client, f"tcp#{listening.place} => sink")
    found = explained(tmp_path, id)
    assert found.summary == (
        "left the fleet at client, which sent it to silent; silent keeps no journal"
    )
    assert found.ways[0].complete
    assert found.remarks[0].startswith("silent keeps no journal here")


def test_an_unknown_message_is_an_error_that_says_what_to_check(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="check the id"):
        explain(tmp_path, NOWHERE)


@async_test
async def test_the_command_prints_text_or_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Node("hub", journal=tmp_path) as node:
        id = await one(node, "nobody")

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["why", *arguments])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    code, out, _ = await asyncio.to_thread(call, id, "--journal", str(tmp_path))
    assert code == 0
    assert "dropped at hub, NO_ROUTE: nobody was never known here" in out
    code, out, _ = await asyncio.to_thread(call, id.upper(), "--journal", str(tmp_path), "--json")
    assert json.loads(out)["hops"][0]["steps"][0]["reason"] == "NO_ROUTE"
    assert (await asyncio.to_thread(call, id))[0] == 2
    assert (await asyncio.to_thread(call, "xyz", "--journal", str(tmp_path)))[0] == 2
    code, _, err = await asyncio.to_thread(call, NOWHERE, "--journal", str(tmp_path))
    assert (code, err.count("\n")) == (1, 1)


def test_files_that_cannot_be_read_are_mentioned(tmp_path: Path) -> None:
    async def some() -> str:
        async with Node("hub", journal=tmp_path) as node:
            return await one(node, "nobody")

    id = asyncio.run(some())
    broken = tmp_path / "messages" / "node=hub" / "1-1.parquet"
    broken.write_bytes(b"PAR1 no, not really")
    explanation = explain(tmp_path, id)
    assert any("1-1.parquet" in remark for remark in explanation.remarks)


def written(directory: Path, ids: list[str]) -> Path:
    """A sealed file of messages that a node dropped."""
    directory.mkdir(parents=True)
    schema, rows = SCHEMAS[MESSAGES], len(ids)
    at = pa.array([1_767_225_600_000_000] * rows, pa.int64()).cast(pa.timestamp("us", "UTC"))
    known = {
        "incarnation": pa.array([1] * rows),
        "seq": pa.array(range(rows)),
        "at": at,
        "received_at": at,
        "message_id": pa.array(ids),
        "kind": pa.array(["unicast"] * rows),
        "onward": pa.array([["0#nobody"]] * rows),
        "return": pa.array([["0#somebody"]] * rows),
        "outcome": pa.array(["DROPPED"] * rows),
        "reason": pa.array(["NO_ROUTE"] * rows),
    }
    columns = [known.get(f.name, pa.nulls(rows, f.type)) for f in schema]
    batch = pa.RecordBatch.from_arrays(
        [c.cast(f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )
    return write_sealed(directory, MESSAGES, Stem(1, 0), [batch], fsync=False)


def spoil(path: Path) -> None:
    """Make the values in a file unreadable; its footer and its filters remain."""
    group = pq.read_metadata(path).row_group(0)
    first = min(group.column(number).bloom_filter_offset or 2**63 for number in range(16))
    content = bytearray(path.read_bytes())
    content[4:first] = bytes(first - 4)
    path.write_bytes(content)


def test_files_that_do_not_have_the_message_are_not_read(tmp_path: Path) -> None:
    ids = [f"{number * 2_654_435_761 % 2**128:032x}" for number in range(2_000)]
    here = written(tmp_path / MESSAGES / "node=here", ids[1_000:])
    spoil(written(tmp_path / MESSAGES / "node=there", [ids[0], *ids[1:1_000], "f" * 32]))
    told = [explain(tmp_path, id) for id in ids[1_900:]]
    assert all([hop.node for hop in explanation.hops] == ["here"] for explanation in told)
    assert (
        sum(not explanation.remarks for explanation in told) > 80
    )  # a false positive of the Bloom filter, which is reported
    spoil(here)
    with pytest.raises(LocalError):
        explain(tmp_path, ids[1_900])


def test_the_command_does_without_pandas(tmp_path: Path) -> None:
    [id] = ids = [f"{7:032x}"]
    written(tmp_path / MESSAGES / "node=here", ids)
    code = (
        "import atexit, sys; from waystation.cli import main;"
        "atexit.register(lambda: print('pandas' in sys.modules)); main()"
    )
    command = [sys.executable, "-c", code, "why", id, "--journal", str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "False"


@pytest.mark.rule("FL-6")
@async_test
async def test_a_second_copy_does_not_tell_how_a_broadcast_ended(tmp_path: Path) -> None:
    async with Node("garage", journal=tmp_path) as node:
        heard = Recorder(node)
        message = Message(Route((Address(MULTICAST, b"garage/news"),)), Route(), b"", "4bf9" * 8)
        for _ in range(2):
            node.post(message)
        assert heard.counts() == {"NO_SUBSCRIBER": 1, "DUPLICATE": 1}
    found = explained(tmp_path, message.id)
    assert found.summary.startswith("dropped at garage, NO_SUBSCRIBER")
    assert [hop.as_expected for hop in found.hops] == [True, True]
    assert "it was here before" in story(found)
