"""Groups over UDP multicast, on the loopback interface of this machine only."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from typing import Any

import pytest

from tests.groups.crowd import (
    LASTING,
    QUICK,
    Ear,
    carrier_of,
    everybody_knows,
    forget,
    members,
    named,
    names,
    numbers,
    stranger,
    stream,
    vanish,
)
from waystation.core.outcome import Outcome, Reason
from waystation.groups import Group
from waystation.testing import async_test, until

HOST = "127.0.0.1"
_PORTS = itertools.count(20_000 + os.getpid() % 20_000)


def address() -> str:
    """A multicast address that no other test uses."""
    return f"udp://239.255.{os.getpid() % 200 + 1}.{random.randrange(1, 255)}:{next(_PORTS)}"


def dropping(group: Group, share: float) -> None:
    """Lose a share of the datagrams that a member sends; which ones is always the same."""
    carrier = carrier_of(group)
    chance = random.Random(7)
    for name in ("to_one", "to_all"):
        original = getattr(carrier, name)

        def lossy(*args: Any, _original: Any = original, **options: Any) -> None:
            if chance.random() >= share:
                _original(*args, **options)

        setattr(carrier, name, lossy)


@pytest.mark.rule("LA-9")
@async_test
async def test_udp_startup() -> None:
    via = address()
    async with members(["a", "b"], via, interface=HOST) as (a, b):
        async with Group("fleet", name="joiner", via=via, interface=HOST) as joiner:
            # The joiner's multicast told them of it, and each answered it alone.
            assert await names(joiner) == {"a", "b", "joiner"}
            await everybody_knows([a, b, joiner])
            assert named(a, "joiner").physical == joiner.me.physical != ()
            ears = [Ear(group) for group in (a, b, joiner)]
            assert (await joiner.send(b"to all")).outcome is Outcome.FORWARDED
            await b.send(b"to one", to=joiner.me)
            await until(lambda: all(ear.heard for ear in ears))
            assert ears[0].heard == ears[1].heard == [("joiner", b"to all")]
        await everybody_knows([a, b])


@pytest.mark.rule("GR-12")
@async_test
async def test_what_the_network_loses_is_sent_again() -> None:
    async with members(["a", "b", "c"], address(), interface=HOST) as (a, b, c):
        for group in (a, b, c):
            dropping(group, 0.2)
        ears = [Ear(b), Ear(c)]
        await asyncio.gather(stream(a, 300, every=10), stream(a, 300, to=named(a, "c"), every=10))
        await until(lambda: len(ears[0].heard) == 300 and len(ears[1].heard) == 600)
        assert ears[0].payloads() == numbers(300)
        assert sorted(ears[1].payloads()) == sorted(2 * numbers(300))


@pytest.mark.rule("LA-6")
@async_test
async def test_who_has_and_i_have_by_multicast() -> None:
    async with members(["a", "b"], address(), interface=HOST) as (a, b):
        lost = forget(a, b)
        ear = Ear(b)
        assert (await a.send(b"where are you?", to=lost)).outcome is Outcome.QUEUED
        await until(lambda: ear.payloads() == [b"where are you?"])
        nobody = stranger()
        assert (await a.send(b"", to=nobody, ttl=0.1)).outcome is Outcome.QUEUED
        await until(lambda: a.counts["EXPIRED"] == 1)


@pytest.mark.rule("LA-11")
@async_test
async def test_the_source_of_a_datagram_says_nothing_about_its_sender() -> None:
    async with members(["a", "b"], address(), interface=HOST) as (a, b):
        before = b.me
        # As a router that translates addresses would, all datagrams leave from another socket.
        carrier_of(b).sockets.reverse()
        ear = Ear(a)
        await b.send(b"who am I?", to="a")
        await until(lambda: ear.heard == [("b", b"who am I?")])
        assert named(a, "b").physical == before.physical
        heard = Ear(b)
        await a.send(b"you are b", to="b")
        await until(lambda: heard.payloads() == [b"you are b"])


@async_test
async def test_who_is_silent_is_suspected() -> None:
    async with members(["a", "b"], address(), interface=HOST, limits=QUICK) as (a, b):
        ear = Ear(a)
        await vanish(b)
        await until(lambda: ("suspect", "b") in ear.events())


@pytest.mark.rule("LA-10")
@async_test
async def test_a_member_moves_to_another_interface_and_stays_who_it_is() -> None:
    async with members(["a", "b"], address(), interface=HOST) as (a, b):
        before = b.me
        ear = Ear(b)
        await b.move("127.0.0.3:0")
        await until(lambda: named(a, "b").physical == b.me.physical)
        assert b.me == before
        assert b.me.physical[0].startswith("127.0.0.3:")
        await a.send(b"hello", to=before)
        await until(lambda: ear.payloads() == [b"hello"])


@async_test
async def test_groups_that_share_an_address_never_meet() -> None:
    via = address()
    async with (
        Group("fleet", name="a", via=via, interface=HOST, limits=LASTING) as a,
        Group("other", name="b", via=via, interface=HOST, limits=LASTING) as b,
    ):
        assert [await names(group) for group in (a, b)] == [{"a"}, {"b"}]


@async_test
async def test_what_no_datagram_can_hold_is_too_large() -> None:
    async with members(["a", "b"], address(), interface=HOST) as (a, b):
        ear = Ear(b)
        assert (await a.send(bytes(60_000))).reason is Reason.TOO_LARGE
        await a.send(bytes(50_000))
        await until(lambda: [len(payload) for payload in ear.payloads()] == [50_000])
