"""The faulty path passes bytes on, until it is told not to."""

from __future__ import annotations

import asyncio

import pytest

from tests.node.live import RawPeer, raw_listener, runs_on_every_loop
from waystation.testing import settle, tcp_path, until


async def _echo(peer: RawPeer) -> None:
    while data := await peer.reader.read(65536):
        peer.say(data)
    peer.close()


@runs_on_every_loop
async def test_bytes_and_ends_pass_both_ways() -> None:
    async with raw_listener(_echo) as target, tcp_path(target) as path:
        peer = await RawPeer.dial(path.place, b"hello")
        assert await peer.reader.readexactly(5) == b"hello"
        peer.writer.write_eof()
        assert await peer.reader.read() == b""
        peer.close()


@runs_on_every_loop
async def test_a_frozen_path_passes_nothing_until_it_thaws() -> None:
    async with raw_listener(_echo) as target, tcp_path(target) as path:
        peer = await RawPeer.dial(path.place, b"1")
        assert await peer.reader.readexactly(1) == b"1"
        path.freeze()
        peer.say(b"2")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await peer.reader.readexactly(1)
        path.thaw()
        assert await peer.reader.readexactly(1) == b"2"
        peer.close()


@runs_on_every_loop
async def test_a_path_can_be_cut_at_once_or_after_so_many_bytes() -> None:
    heard: list[bytes] = []

    async def listen(peer: RawPeer) -> None:
        heard.append(b"")
        while data := await peer.reader.read(65536):
            heard[-1] += data

    async with raw_listener(listen) as target, tcp_path(target) as path:
        peer = await RawPeer.dial(path.place, b"before")
        await until(lambda: heard == [b"before"])
        path.cut()
        await peer.ended()
        path.cut_after(3)
        peer = await RawPeer.dial(path.place, b"behind")
        await peer.ended()
        await settle()
        assert heard == [b"before", b"beh"]


@runs_on_every_loop
async def test_a_path_can_refuse_and_its_target_can_be_gone() -> None:
    async with raw_listener(_echo) as target, tcp_path(target) as path:
        path.refuse(refuse=True)
        await (await RawPeer.dial(path.place, b"x")).ended()
        path.refuse(refuse=False)
        peer = await RawPeer.dial(path.place, b"x")
        assert await peer.reader.readexactly(1) == b"x"
        peer.close()
    async with tcp_path(target) as path:
        await (await RawPeer.dial(path.place, b"x")).ended()
