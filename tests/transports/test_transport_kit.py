"""Our own transports pass the kit that everybody's transports have to pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.node.live import LOOPS
from tests.transports.certificates import authority
from waystation.testing import CHECKS, MemoryNetwork, check_transport, run_checked
from waystation.transports.tcp import Tcp, TcpLimits
from waystation.transports.transport import Transport

# A peer that does not read is noticed soon, and what is too large need not be so very large.
LIMITS = TcpLimits(frame=2 * 1024 * 1024, unsent=64 * 1024)
TOO_LARGE = 3 * 1024 * 1024


def _plain() -> Transport:
    return Tcp(limits=LIMITS)


def _encrypted() -> Transport:
    return Tcp(tls=authority().tls("127.0.0.1", mutual=True), limits=LIMITS)


@pytest.mark.rule("WK-10")
@pytest.mark.rule("WK-8")
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("make", [_plain, _encrypted], ids=["plain", "tls"])
def test_tcp_passes_the_kit(make: Callable[[], Transport], loop: str) -> None:
    async def scenario() -> None:
        result = await check_transport(make, "tcp://127.0.0.1:0", too_large=TOO_LARGE)
        assert result.passed == tuple(CHECKS)

    run_checked(scenario, LOOPS[loop], seconds=110)


def test_tcp_passes_the_kit_between_nodes_with_a_token() -> None:
    async def scenario() -> None:
        await check_transport(_plain, "tcp://127.0.0.1:0", too_large=TOO_LARGE, token=b"secret")

    run_checked(scenario, LOOPS["uvloop"], seconds=110)


@pytest.mark.rule("WK-10")
@pytest.mark.parametrize("loop", LOOPS)
def test_the_network_in_memory_passes_the_kit(loop: str) -> None:
    async def scenario() -> None:
        network = MemoryNetwork(limit=LIMITS.frame)
        await check_transport(
            network.transport, "mem://any", path=network.path, too_large=TOO_LARGE
        )
        assert network.links == set()
        assert network.listeners == {}

    run_checked(scenario, LOOPS[loop], seconds=110)
