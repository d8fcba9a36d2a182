# %% [markdown]
# # Where did my message go?
# A notebook in cells: open it in an editor that knows `# %%`, or run it as a program. It makes a
# small journal with two nodes, loses a message on purpose, and finds out why.

# %%
"""Find a lost message with the pipeline, cell by cell."""

import asyncio
import tempfile
from pathlib import Path

import waystation
from waystation import pipeline

journal_directory = Path(tempfile.mkdtemp()) / "journal"


# %% [markdown]
# ## A fleet of two, and a worker that leaves too early


# %%
async def traffic() -> None:
    async with (
        waystation.Node("hall", journal=journal_directory) as hall,
        waystation.Node("truck", journal=journal_directory) as truck,
    ):
        heard = asyncio.Event()
        hall.start_worker(("scale",), lambda *_: heard.set())
        door = await hall.listen("tcp://127.0.0.1:0")
        await truck.send(f"tcp#{door.place} => scale", b"7.5 t")
        await heard.wait()
        await hall.stop_worker("scale")
        await truck.send(f"tcp#{door.place} => scale", b"7.6 t")


asyncio.run(traffic())

# %% [markdown]
# ## The routing table of the hall, as it changed

# %%
spark = pipeline.session(master="local[2]")
journal = pipeline.read_journal(spark, journal_directory)
history = pipeline.route_history(journal.routes)
scale = history.where("node = 'hall' and participant = 'scale'").collect()
for interval in scale:
    print(f"scale: {interval.valid_from} to {interval.valid_to}, {interval.closed_by}")

# %% [markdown]
# ## What was lost, and why

# %%
subscriptions = pipeline.subscription_history(journal.subscriptions)
expected = pipeline.expected(journal.messages, history, subscriptions)
audit = pipeline.audit(expected, journal.messages)
dropped = audit.where("actual = 'DROPPED'").collect()
for row in dropped:
    print(f"{row.node}: {row.recipient} got nothing, {row.reason} ({row.verdict})")

# %%
traces = {trace.message_id: trace for trace in pipeline.traces(journal.messages).collect()}
for row in dropped:
    for hop in traces[row.message_id].path:
        print(f"  {hop.at} {hop.node}: {hop.outcome} {hop.next_hop or hop.reason or ''}")
