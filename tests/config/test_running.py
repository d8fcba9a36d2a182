"""The node that a file describes does what the file says."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
import trustme

from tests.config.files import ECHO, LISTEN, NODE, plan
from waystation.config import running
from waystation.core.message import Message
from waystation.core.outcome import Outcome, Reason
from waystation.core.record import MessageRecord, Record
from waystation.errors import LocalError, UndeliverableError
from waystation.journal.read import JournalReader, RowFilter
from waystation.node import Context, Node
from waystation.node.status import STATUS
from waystation.testing import DEADLINE, async_test, until

WORKERS = """
import asyncio

class Greeter:
    def __init__(self, word):
        self.word = word.encode()

    async def __call__(self, message, context):
        await context.reply(self.word + message.payload)

def loud(message, context, mark="!"):
    return context.reply(message.payload.upper() + mark.encode())
"""


@async_test
async def test_workers_come_with_their_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "workers_of_a_test.py").write_text(WORKERS)
    made = plan(
        tmp_path,
        """\
        [node]
        name = "hub"
        path = "."
        [[worker]]
        names = ["greet", "welcome"]
        handler = "workers_of_a_test:Greeter"
        options = {word = "hello "}
        [[worker]]
        names = "loud"
        handler = "workers_of_a_test:loud"
        options = {mark = "?"}
        inbox = 5
        """,
    )
    async with running(made) as live:
        node = live.node
        for route, answer in [("greet", b"hello x"), ("welcome", b"hello x"), ("loud", b"X?")]:
            assert (await node.request(route, b"x", timeout=DEADLINE)).payload == answer


@async_test
async def test_nodes_connect_as_their_files_say(tmp_path: Path) -> None:
    hub = plan(tmp_path, NODE + "hub = true\ntoken = 'secret'\n" + LISTEN + ECHO)
    async with running(hub) as live:
        [listening] = live.listening
        leaf = plan(
            tmp_path,
            f"""\
            [node]
            name = "leaf"
            [[parent]]
            url = ["{listening.url}"]
            name = "above"
            token = "secret"
            wait = {DEADLINE}
            [[worker]]
            names = "truck-7"
            handler = "waystation.config.workers:echo"
            """,
        )
        async with running(leaf) as below:
            answer = await below.node.request("above => echo", b"up", timeout=DEADLINE)
            assert answer.payload == b"up"
            table = live.node.router.table
            await until(lambda: table.lookup("truck-7", live.node.now()))
            answer = await live.node.request("truck-7", b"down", timeout=DEADLINE)
            assert answer.payload == b"down"


@pytest.mark.rule("OB-2")
@async_test
async def test_what_the_access_rules_forbid_is_refused_and_journalled(tmp_path: Path) -> None:
    text = f"""\
    {NODE}{LISTEN}
    [[worker]]
    names = ["telemetry", "admin"]
    handler = "waystation.config.workers:echo"
    [[access]]
    allow = "truck-*"
    to = ["telemetry"]
    [journal]
    directory = "J"
    """.replace("    ", "")
    async with running(plan(tmp_path, text)) as live:
        [listening] = live.listening
        async with Node("truck-7") as truck, Node("car-1") as car:
            for node in (truck, car):
                await node.connect(listening.url, name="hub", wait=DEADLINE)
            answer = await truck.request("hub => telemetry", b"speed", timeout=DEADLINE)
            assert answer.payload == b"speed"
            for node, address in [(truck, "admin"), (car, "telemetry"), (car, "nobody")]:
                with pytest.raises(UndeliverableError) as error:
                    await node.request(f"hub => {address}", b"no", timeout=DEADLINE)
                assert error.value.reason == Reason.REFUSED
        # The rules are for peers; the node's own programs are free.
        answer = await live.node.request("admin", b"own", timeout=DEADLINE)
        assert answer.payload == b"own"
    wanted = RowFilter(tables=frozenset({"messages"}), reasons=frozenset({"REFUSED"}))
    rows = list(JournalReader(tmp_path / "J", lambda *_: None, wanted).entries())
    assert [row.fields["onward"] for row in rows] == [["0#admin"], ["0#telemetry"], ["0#nobody"]]


@async_test
async def test_the_rules_hold_for_broadcasts_of_peers(tmp_path: Path) -> None:
    text = f"""\
    {NODE}hub = true
    {LISTEN}
    [[access]]
    allow = "truck-*"
    to = "fleet/*"
    """.replace("    ", "")
    async with running(plan(tmp_path, text)) as live:
        heard: list[bytes] = []
        refused: list[bytes] = []

        def observe(record: Record) -> None:
            if isinstance(record, MessageRecord) and record.verdict.reason is Reason.REFUSED:
                refused.append(record.arrival.message.payload)

        live.node.observe(observe)
        for provider in ("fleet", "garage"):
            live.node.subscribe(provider, "news", callback=lambda m: heard.append(m.payload))
        async with Node("truck-7") as truck:
            await truck.connect(live.listening[0].url, wait=DEADLINE, parent=True)
            await truck.publish("news", b"forbidden", provider="garage")
            await truck.publish("news", b"allowed", provider="fleet")
            await until(lambda: heard)
            assert (heard, refused) == ([b"allowed"], [b"forbidden"])


@async_test
async def test_the_rules_hold_for_every_address_of_a_route(tmp_path: Path) -> None:
    text = f"""\
    {NODE}{LISTEN}
    [[worker]]
    names = ["hop", "echo", "admin"]
    handler = "waystation.config.workers:echo"
    [[access]]
    allow = "*"
    to = ["hop", "echo"]
    """.replace("    ", "")
    async with running(plan(tmp_path, text)) as live, Node("truck-7") as truck:
        await truck.connect(live.listening[0].url, name="hub", wait=DEADLINE)
        answer = await truck.request("hub => hop => echo", b"yes", timeout=DEADLINE)
        assert answer.payload == b"yes"
        with pytest.raises(UndeliverableError):
            await truck.request("hub => hop => admin", b"no", timeout=DEADLINE)


@async_test
async def test_answers_to_the_nodes_own_requests_pass_its_rules(tmp_path: Path) -> None:
    rules = '[[access]]\nallow = "nobody"\nto = "nothing"\n'
    async with Node("garage") as garage:

        @garage.worker("echo")
        async def echo(message: Message, context: Context) -> None:
            await context.reply(message.payload)

        listening = await garage.listen("tcp://127.0.0.1:0")
        connect = f'[[connect]]\nurl = "{listening.url}"\nname = "garage"\nwait = {DEADLINE}\n'
        async with running(plan(tmp_path, NODE + connect + rules)) as live:
            answer = await live.node.request("garage => echo", b"hi", timeout=DEADLINE)
            assert answer.payload == b"hi"


@async_test
async def test_a_port_in_use_is_told_with_its_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        made = plan(tmp_path, f'{NODE}[[listen]]\nurl = "{url}"\n[journal]\ndirectory = "J"\n')
        with pytest.raises(LocalError) as error:
            async with running(made):
                raise AssertionError
        assert f"{tmp_path}/node.toml:4: listen[0].url: " in str(error.value)


@async_test
async def test_a_peer_that_does_not_answer_in_time_is_told_with_its_line(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"tcp://127.0.0.1:{closed.getsockname()[1]}"
    text = f'{NODE}[[connect]]\nurl = "{url}"\n'
    with pytest.raises(LocalError, match="cannot connect") as error:
        async with running(plan(tmp_path, f"{text}wait = 0.3\n")):
            raise AssertionError
    assert "node.toml:4: connect[0].url" in str(error.value)
    async with running(plan(tmp_path, text)) as live:  # without `wait`, it goes on trying
        assert live.node.sessions == []


@async_test
async def test_listeners_with_and_without_tls_stand_side_by_side(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "hub.pem")
    hub = plan(
        tmp_path,
        f"""\
        {NODE}
        [tls]
        certificate = "hub.pem"
        [[listen]]
        url = "tcp://127.0.0.1:0"
        [[listen]]
        url = "tcp://localhost:0"
        tls = false
        """.replace("        ", "")
        + ECHO,
    )
    async with running(hub) as live:
        safe, plain = live.listening
        places = {
            "safe": (safe.url, "{authorities = 'authority.pem'}"),
            "plain": (plain.url, "false"),
        }
        tables = [
            f'[[connect]]\nurl = "{url}"\nname = "{name}"\ntls = {tls}\nwait = {DEADLINE}\n'
            for name, (url, tls) in places.items()
        ]
        async with running(plan(tmp_path, '[node]\nname = "leaf"\n' + "".join(tables))) as leaf:
            for name in places:
                answer = await leaf.node.request(f"{name} => echo", b"hi", timeout=DEADLINE)
                assert answer.payload == b"hi"
        async with Node("stranger") as stranger:
            with pytest.raises(ConnectionError):
                await stranger.connect(safe.url, name="hub", wait=0.5)


@async_test
async def test_the_status_is_there_only_if_the_file_says_so(tmp_path: Path) -> None:
    async with running(plan(tmp_path, NODE)) as live:
        verdict = await live.node.send(STATUS, b"")
        assert verdict.reason is Reason.NO_ROUTE
    async with running(plan(tmp_path, f"{NODE}[status]\nenabled = true\n")) as live:
        answer = await live.node.request(STATUS, b"", timeout=DEADLINE)
        assert b'"node":"hub"' in answer.payload


@async_test
async def test_the_directory_is_hosted_and_asked(tmp_path: Path) -> None:
    hub = f"{NODE}hub = true\n{LISTEN}{ECHO}[directory]\nhost = true\n"
    async with running(plan(tmp_path, hub)) as live:
        [listening] = live.listening
        await live.node.register("echo", "test", "echoes", everywhere=True)
        asking = f'[node]\nname = "leaf"\n[directory]\nask = "{listening.address}"\n{LISTEN}'
        async with running(plan(tmp_path, asking)) as leaf:
            found = await leaf.node.discover("test", "echoes")
            assert [provider.participant for provider in found] == ["echo"]


@async_test
async def test_what_the_workers_have_is_finished_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    slow = "import asyncio\nasync def slow(message, context):\n    await asyncio.sleep(0.01)\n"
    (tmp_path / "slow_worker_of_a_test.py").write_text(slow)
    text = f'{NODE}path = "."\ndrain = {DEADLINE}\n[[worker]]\nnames = "slow"\nhandler = '
    outcomes: list[Outcome] = []
    async with running(plan(tmp_path, f'{text}"slow_worker_of_a_test:slow"\n')) as live:
        live.node.observe(
            lambda record: (
                outcomes.append(record.verdict.outcome)
                if isinstance(record, MessageRecord)
                else None
            )
        )
        for _ in range(20):
            await live.node.send("slow", b"")
    assert outcomes == [Outcome.DELIVERED] * 20
