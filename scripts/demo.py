"""`make demo`: says what the demo will show, until there is a live fleet to show it with."""

from __future__ import annotations

from waystation import Address, Message, Route
from waystation.core.router import Router
from waystation.core.routing import RoutingEntry

PLAN = """\
The demo will start a small fleet on this machine (a gossip router, an MQTT broker, two hubs, leaves
over TCP, WebSocket, MQTT and the tunnel), send real traffic, break things on purpose, run the Spark
pipeline over the journal, and explain every message that was lost.

The live side is not built yet. What is there are the rules, as pure code. A taste of them:
"""


def main() -> None:
    """Route one message while its entry lives, and once more after it expired."""
    print(PLAN)
    router = Router()
    truck = RoutingEntry("truck-3", Address(1, b"10.0.0.7:4000"), local=False, expiry=1_200)
    router.table.put(truck, now=0)
    message = Message(Route.parse("truck-3"), Route.parse("app"), b"hello")
    for now in (1_199, 1_200):
        verdict = router.decide(message, now)
        why = f"to {verdict.address}" if verdict.address else f"because of {verdict.reason}"
        print(f"  at {now} ms, {message}: {verdict.outcome} {why}")
    print("\nNext: `.venv/bin/waystation rules RE-10` shows the rule behind it, and its tests.")


if __name__ == "__main__":
    main()
