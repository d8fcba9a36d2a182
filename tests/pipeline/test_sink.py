"""Rows become messages: which ones, with which ids, and none is lost, whatever process dies."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, IntegerType, StringType, StructField, StructType

from tests.pipeline.sink_fleet import PATIENCE, Fleet, until
from tests.transports.certificates import authority
from waystation.core.message import check_message_id
from waystation.errors import LocalError, UnreachableError
from waystation.node import MessageRecord, Node, Record
from waystation.pipeline.sink.options import Sending
from waystation.pipeline.sink.rows import BadRowError, Ids, Outgoing, outgoing
from waystation.pipeline.sink.writer import (
    AHEAD,
    FrameSender,
    NotConfirmedError,
    Sent,
    StreamSender,
    send_all,
)
from waystation.transports.tcp import Tcp

SECRET = "a shared one"  # noqa: S105
VIA = "tcp://127.0.0.1:9"


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch(columns)


def rows(found: pa.RecordBatch, campaign: str = "c", **options: Any) -> list[Outgoing]:
    return list(outgoing(found, options.get("key", ()), Ids(campaign, options.get("batch")), 0))


def ids(found: pa.RecordBatch, campaign: str = "c", **options: Any) -> list[str]:
    return [row.id for row in rows(found, campaign, **options)]


def to_trucks(*payloads: str, **columns: Any) -> pa.RecordBatch:
    return batch(route=["truck-7"] * len(payloads), payload=list(payloads), **columns)


# Ids


def test_a_row_has_the_same_id_each_time_and_another_in_another_campaign() -> None:
    found = to_trucks("a", "b")
    assert ids(found) == ids(found)
    assert (
        len(
            {*ids(found), *ids(found, "other"), *ids(found, batch="1"), *ids(found, "c", batch="2")}
        )
        == 8
    )
    for id in ids(found):
        assert check_message_id(id) == id


def test_ids_do_not_depend_on_batches() -> None:
    payloads = [str(number % 40) for number in range(100)]
    whole = ids(to_trucks(*payloads))
    assert len(set(whole)) == 100
    one_by_one = Ids("c", None)
    assert [
        row.id for payload in payloads for row in outgoing(to_trucks(payload), (), one_by_one, 0)
    ] == whole


def test_equal_rows_have_different_ids_in_any_order() -> None:
    assert len(set(ids(to_trucks("a", "a", "b", "a")))) == 4
    assert sorted(ids(to_trucks("a", "a", "b", "a"))) == sorted(ids(to_trucks("b", "a", "a", "a")))


def test_an_id_is_made_of_what_is_sent_or_of_the_key() -> None:
    noise = to_trucks("a", "b", order=[1, 2])
    assert ids(noise) == ids(to_trucks("a", "b", order=[3, 4]))
    assert ids(noise, key=("order",)) == ids(to_trucks("x", "y", order=[1, 2]), key=("order",))
    assert ids(noise, key=("order",)) != ids(noise)
    binary = batch(route=["truck-7", "truck-7"], payload=[b"a", b"b"])
    assert ids(binary) == ids(noise)
    assert ids(to_trucks("a", "b", ttl=[5, 5])) != ids(noise)


def test_a_row_may_bring_its_id() -> None:
    own = ["4bf92f3577b34da6a3ce929d0e0e4736"]
    assert ids(to_trucks("a", message_id=own)) == own
    with pytest.raises(BadRowError, match=r"row 1 of this task .* invalid message id"):
        rows(to_trucks("a", "b", message_id=[*own, "XYZ"]))


# Rows


def test_the_destination_of_a_row_has_three_forms() -> None:
    found = batch(
        route=["hub => truck-7", None, None, None],
        multicast_id=[None, "office/recall/eu/de", None, None],
        provider=[None, None, "office", "office"],
        broadcast=[None, None, "recall", "recall"],
        partition=[None, None, "eu/de", None],
        payload=["a", "b", "c", "d"],
        ttl=[1.5, None, 2.0, None],
    )
    assert [(row.route, row.multicast_id, row.payload, row.ttl) for row in rows(found)] == [
        ("hub => truck-7", None, b"a", 1.5),
        (None, "office/recall/eu/de", b"b", None),
        (None, "office/recall/eu/de", b"c", 2.0),
        (None, "office/recall", b"d", None),
    ]
    segments = batch(
        provider=["office"], broadcast=["recall"], partition=[["eu", "de"]], payload=[b""]
    )
    assert [row.multicast_id for row in rows(segments)] == ["office/recall/eu/de"]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"route": ["a", None]}, "row 1 .* needs either a route or a multicast id"),
        ({"route": ["a", "a"], "multicast_id": [None, "p/b"]}, "row 1 .* either a route or"),
        ({"route": ["a", "a"], "payload": ["", None]}, "row 1 .* its payload is null"),
        ({"route": ["a", "a"], "ttl": [0, -1]}, "row 1 .* invalid ttl -1: give seconds"),
        ({"route": ["a", "a"], "ttl": [0.0, float("nan")]}, "row 1 .* invalid ttl nan"),
        ({"multicast_id": ["p/b", "p/b/+"]}, "row 1 .* has the wildcard"),
    ],
)
def test_the_first_row_that_cannot_be_sent_is_named(columns: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadRowError, match=problem):
        rows(batch(**{"payload": ["", ""], **columns}))


def frame(**kinds: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


TEXTS = {"route": StringType(), "payload": StringType()}


@pytest.mark.parametrize(
    ("options", "columns", "problem"),
    [
        ({}, TEXTS, "the option via is missing; set it"),
        ({"via": "hub:4000"}, TEXTS, "invalid via 'hub:4000'"),
        ({"via": "tcp://a:1,ws://b:2"}, TEXTS, "several of one scheme"),
        ({"via": VIA, "campain": "x"}, TEXTS, "unknown option 'campain'"),
        ({"via": VIA, "timeout": "soon"}, TEXTS, "the option timeout is 'soon'; give seconds"),
        ({"via": VIA, "token": "x", "tokenFile": "y"}, TEXTS, "both token and tokenFile are given"),
        ({"via": VIA, "key": "order"}, TEXTS, "the frame has no column 'order'"),
        ({"via": VIA}, {"payload": StringType()}, "give route .* or multicast_id"),
        ({"via": VIA}, {"route": StringType()}, "give route .* with payload"),
        ({"via": VIA}, {**TEXTS, "ttl": StringType()}, "the column ttl is of type string"),
        ({"via": VIA}, {**TEXTS, "payload": IntegerType()}, "the column payload is of type int"),
    ],
)
def test_an_invalid_frame_or_option_is_reported_before_any_task_runs(
    options: dict[str, str], columns: dict[str, Any], problem: str
) -> None:
    with pytest.raises(LocalError, match=problem):
        FrameSender(options, frame(**columns), overwrite=False)


def test_only_append_is_supported_and_a_stream_needs_a_campaign() -> None:
    with pytest.raises(LocalError, match="cannot be overwritten; use mode append"):
        FrameSender({"via": VIA}, frame(**TEXTS), overwrite=True)
    with pytest.raises(LocalError, match="needs a campaign; set"):
        StreamSender({"via": VIA}, frame(**TEXTS), overwrite=False)
    parts = {"provider": StringType(), "broadcast": StringType()}
    segments = {**parts, "partition": ArrayType(StringType()), "payload": StringType()}
    FrameSender({"via": VIA}, frame(**segments), overwrite=False)


def test_the_token_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    assert Sending.of({"via": VIA, "tokenFile": str(file)}, streaming=False).secret() == "secret"
    file.write_text("\n")
    with pytest.raises(LocalError, match="put the token there"):
        Sending.of({"via": VIA, "tokenFile": str(file)}, streaming=False).secret()


# Sending


class Served:
    """A node in another thread, and what its worker `truck-7` got."""

    def __init__(self) -> None:
        self.got: list[tuple[str, bytes]] = []
        self.url = ""
        self._ready, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self.options: dict[str, Any] = {}
        self.dropped: list[str] = []

    def hear(self, record: Record) -> None:
        if isinstance(record, MessageRecord) and record.verdict.reason is not None:
            self.dropped.append(record.verdict.reason)

    async def _serve(self) -> None:
        async with Node("server", **self.options) as node:
            node.observe(self.hear)
            node.start_worker(("truck-7",), lambda m, _: self.got.append((m.id, m.payload)))
            node.subscribe(
                "office", "recall", "eu/+", callback=lambda m: self.got.append((m.id, m.payload))
            )
            self.url = (await node.listen("tcp://127.0.0.1:0")).url
            self._ready.set()
            await asyncio.to_thread(self._end.wait)

    @contextmanager
    def running(self, **options: Any) -> Iterator[Served]:
        self.options = options
        self._thread.start()
        assert self._ready.wait(PATIENCE)
        try:
            yield self
        finally:
            self._end.set()
            self._thread.join(PATIENCE)


def sending(url: str, **options: str) -> Sending:
    usual = {"via": url, "campaign": "c", "window": "100", "timeout": "60"}
    return Sending.of({**usual, **options}, streaming=False)


def test_messages_and_broadcasts_arrive_with_the_ids_of_their_rows() -> None:
    with Served().running() as server:
        found = batch(
            route=["truck-7", None], multicast_id=[None, "office/recall/eu/de"], payload=["a", "b"]
        )
        expired = batch(route=["truck-7"], payload=["too late"], ttl=[0])
        sent = send_all(iter([found, expired]), sending(server.url), batch=None)
        until(lambda: len(server.got) == 2)
    assert (sent.messages, sent.expired, sent.repeated) == (3, 1, 0)
    assert server.got == list(zip(ids(found), [b"a", b"b"], strict=True))


def test_confirmations_leave_no_drops_in_the_journal_of_a_hub() -> None:
    found = to_trucks(*map(str, range(1_000)))
    with Served().running(hub=True) as hub:
        send_all(iter([found]), sending(hub.url, window="20"), batch=None)
    assert set(hub.dropped) == {"UNKNOWN_TYPE"}  # until the announcement is known to be accepted
    assert len(hub.dropped) <= AHEAD + 1
    with Served().running() as other:
        assert (
            send_all(iter([found]), sending(other.url, window="20"), batch=None).messages == 1_000
        )
    assert len(other.dropped) == 50


def test_large_messages_are_confirmed_after_a_few() -> None:
    found = batch(route=["truck-7"] * 20, payload=[b"x" * 2**20] * 20)
    with Served().running() as server:
        assert send_all(iter([found]), sending(server.url), batch=None).bytes == 20 * 2**20
        until(lambda: len(server.got) == 20)
    assert len(server.dropped) == 5  # one request for each window


def test_a_task_needs_the_right_token() -> None:
    with Served().running(token=SECRET) as server:
        sent = send_all(iter([to_trucks("a")]), sending(server.url, token=SECRET), batch=None)
        assert sent.messages == 1
        with pytest.raises(UnreachableError):
            send_all(iter([to_trucks("a")]), sending(server.url, timeout="0.5"), batch=None)
        until(lambda: server.got)
    assert len(server.got) == 1


def test_a_task_uses_tls_and_trusts_only_the_given_authorities() -> None:
    with Served().running(transports=[Tcp(tls=authority().tls("127.0.0.1"))]) as server:
        believing = sending(server.url, tlsAuthorities=str(authority().file))
        assert send_all(iter([to_trucks("a")]), believing, batch=None).messages == 1
        doubting = sending(server.url, tls="true", timeout="1")
        with pytest.raises(UnreachableError, match="certificate"):
            send_all(iter([to_trucks("b")]), doubting, batch=None)
        until(lambda: server.got)
    assert [payload for _, payload in server.got] == [b"a"]


def test_an_empty_frame_sends_nothing() -> None:
    with Served().running() as server:
        assert send_all(iter([]), sending(server.url), batch=None) == Sent()


def test_a_bad_row_fails_its_task_with_an_error_that_names_it() -> None:
    with Served().running() as server:
        bad = batch(route=["truck-7", "what#"], payload=["a", "b"])
        with pytest.raises(
            BadRowError,
            match="row 3 of this task cannot be sent: unknown type 'what' in address 'what#'",
        ):
            send_all(iter([to_trucks("x", "y"), bad]), sending(server.url), batch=None)
        large = batch(route=["truck-7"], payload=[b"x" * (17 * 2**20)])
        with pytest.raises(BadRowError, match=r"row 0 of this task .* TOO_LARGE"):
            send_all(iter([large]), sending(server.url), batch=None)
        with pytest.raises(BadRowError, match="its route is empty"):
            send_all(iter([batch(route=[" "], payload=["a"])]), sending(server.url), batch=None)


def test_an_unreachable_node_is_named_in_the_error() -> None:
    with pytest.raises(UnreachableError, match=r"127.0.0.1:9"):
        send_all(iter([to_trucks("a")]), sending(VIA, timeout="0.2"), batch=None)


def test_a_peer_that_confirms_nothing_fails_the_task() -> None:
    """Like another implementation: it greets, but does not reply to our requests."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        taken = []

        def greet() -> None:
            peer, _ = door.accept()
            peer.sendall(b"\x01")
            while data := peer.recv(65536):
                taken.append(data)
            peer.close()

        thread = threading.Thread(target=greet)
        thread.start()
        url = f"tcp://127.0.0.1:{door.getsockname()[1]}"
        with pytest.raises(NotConfirmedError, match=r"confirmed nothing for .* Waystation node"):
            send_all(iter([to_trucks("a")]), sending(url, timeout="0.5"), batch=None)
        thread.join(PATIENCE)
    assert b"truck-7" in b"".join(taken)


def test_nothing_is_lost_when_the_hub_is_killed_and_restarted(
    tmp_path: Path,
) -> None:
    with Fleet(tmp_path) as fleet:
        made = [to_trucks(*(f"{n}-{row}" for row in range(500))) for n in range(6)]

        def batches() -> Iterator[pa.RecordBatch]:
            yield from made[:2]
            until(lambda: len(fleet.payloads()) > 300)
            fleet.hub.kill()
            comes_back = threading.Thread(target=fleet.hub.start)
            comes_back.start()  # while the next rows are being sent
            yield from made[2:4]
            comes_back.join(PATIENCE)
            until(lambda: len(fleet.payloads()) > 1_000)
            fleet.hub.kill()
            fleet.hub.start()
            yield from made[4:]

        sent = send_all(batches(), sending(fleet.url), batch=None)
        wanted = {f"{n}-{row}" for n in range(6) for row in range(500)}
        until(lambda: fleet.payloads() == wanted)
        got = fleet.got()
    assert sent.messages == 3_000
    assert sent.repeated > 0
    # Duplicates have the same id, so they differ from messages that were sent twice.
    assert len({id for id, _ in got}) == 3_000
    by_id = Counter(dict(got).values())
    assert set(by_id.values()) == {1}
