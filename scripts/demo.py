"""`make demo`: two live nodes, a fault on purpose, and the journal that tells what happened.

The whole fleet (gossip router, MQTT, WebSocket, the Spark pipeline) will join as it is built.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import waystation
from waystation import Message, Node
from waystation.journal.reader import Entry, JournalReader
from waystation.node import FAIL, Context


async def live(journal: Path) -> None:
    """A hub asks a truck for its position, before and after the truck is gone."""
    async with Node("hub", journal=journal) as hub:
        async with Node("truck-3", journal=journal) as truck:

            @truck.worker("position")
            async def position(message: Message, context: Context) -> None:
                del message
                await context.reply(b"48.1 N 11.6 E")

            listening = await truck.listen("tcp://127.0.0.1:0")
            await hub.connect(listening.url, name="truck-3")
            answer = await hub.request("truck-3 => position", b"?")
            print(f"hub asks truck-3 over TCP ({listening.place}): {answer.payload.decode()}")
            print(f"  the answer came along {answer.return_route}")
        print("truck-3 ends. The hub asks again:")
        while any(session.is_open for session in hub.sessions):  # noqa: ASYNC110 - soon
            await asyncio.sleep(0.01)
        verdict = await hub.send("truck-3 => position", b"?", policy=FAIL)
        print(f"  {verdict.outcome}, {verdict.reason}")


def shown(entry: Entry) -> str:
    """One row of the journal, shortly."""
    row = entry.fields
    if entry.table == "routes":
        return f"route {row['kind']} {row['participant']} at {row['address']}"
    why = row["reason"] or row["next_hop"] or row["recipient"]
    return f"{row['outcome']} ({why}): {' => '.join(row['onward'])}"


def main() -> None:
    """Run the nodes, then read their journals."""
    with tempfile.TemporaryDirectory(prefix="waystation-demo-") as folder:
        waystation.run(live(Path(folder)))
        print("\nWhat the two journals say, in the order of time:")
        for entry in JournalReader(Path(folder), print).entries():
            if entry.table in ("routes", "messages"):
                print(f"  {entry.node:<8} {shown(entry)}")
    print("\nNext: `.venv/bin/waystation journal --help`, and docs/tutorial/first-node.md.")


if __name__ == "__main__":
    main()
