"""Programs: which loop they run on, and that they end well when they are told to."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from waystation.core.message import Message
from waystation.node import Context, Node, run

PROGRAM = """
import asyncio, sys
from waystation.node import Node, run

async def main():
    node = Node("child")
    ended = []
    node.observe(lambda r: ended.append(r) if type(r).__name__ == "MessageRecord" else None)
    free = asyncio.Event()

    @node.worker("slow")
    async def slow(message, context):
        await free.wait()
        await asyncio.sleep(0.01)

    for number in range(20):
        await node.send("slow", b"%d" % number)
    loop = asyncio.get_running_loop()
    loop.call_soon(lambda: print("ready", flush=True))  # by then it serves
    loop.call_later(0.1, free.set)
    await node.serve(drain=float(sys.argv[1]))
    verdicts = sorted({(r.verdict.reason or r.verdict.outcome).value for r in ended})
    print(len(ended), *verdicts, flush=True)

run(main())
"""


def _child(drain: str, *signals: int) -> tuple[int, str, str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM, drain],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        for number in signals:
            child.send_signal(number)
        said, errors = child.communicate(timeout=60)
    return child.returncode, said, errors


@pytest.mark.rule("OB-1")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_that_is_told_to_stop_finishes_what_it_has(number: int) -> None:
    assert _child("30", number) == (0, "20 DELIVERED\n", "")


@pytest.mark.rule("OB-1")
def test_a_program_without_time_to_drain_says_what_it_did_not_do() -> None:
    code, said, errors = _child("0", signal.SIGTERM)
    assert (code, errors) == (0, "")
    assert said == "20 TRANSPORT_DOWN\n"


def test_being_told_twice_is_like_once() -> None:
    assert _child("30", signal.SIGTERM, signal.SIGTERM, signal.SIGINT) == (0, "20 DELIVERED\n", "")


def test_run_returns_what_the_program_returns_and_raises_what_it_raises() -> None:
    async def fails() -> None:
        raise LookupError("nothing there")

    async def echo() -> bytes:
        async with Node("node") as node:

            @node.worker("echo")
            async def answer(message: Message, context: Context) -> None:
                await context.reply(message.payload)

            return (await node.request("echo", b"x")).payload

    assert run(echo()) == b"x"
    with pytest.raises(LookupError):
        run(fails())


def test_run_takes_uvloop_where_it_is_and_asyncio_where_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def which() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert run(which()).startswith("uvloop")
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert run(which()).startswith("asyncio")
