"""The journal: records a second, bytes a record, and what a note costs the one who makes it.

Traffic as of a busy hub: a thousand participants, two hundred senders, random message ids, one in
fifty dropped, one in ten a broadcast, an expiry half a minute ahead. "records/s" is from the first
note until everything is sealed, on as many cores as there are; "processor time" is what all threads
together took for a record, "note" what the caller's own thread took.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.harness import Report, seconds
from waystation.core.address import Address, Route
from waystation.core.message import Arrival, Message, message_id
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.core.record import MessageRecord
from waystation.journal import Journal
from waystation.journal.convert import Converter

PACKAGES = ("pyarrow",)
RECORDS = 200_000
BATCH = 4_096
TURNS = 5


def traffic(count: int, rng: random.Random) -> list[MessageRecord]:
    onward = [Route.parse(f"truck-{number}") for number in range(1_000)]
    back = [Route.parse(f"1#10.0.{n // 100}.{n % 100}:4000 => app-{n}") for n in range(200)]
    sent = [Address(1, b"10.1.0.%d:4000" % (number % 50)) for number in range(1_000)]
    forwarded = [Verdict(Outcome.FORWARDED, None, f"truck-{n}", sent[n]) for n in range(1_000)]
    no_route = Verdict.dropped(Reason.NO_ROUTE)
    broadcasts = [f"provider{number}/position/eu" for number in range(100)]
    records = []
    at = 1_700_000_000_000_000
    for _ in range(count):
        at += rng.randrange(1, 10)
        number = min(int(rng.paretovariate(0.5)), 999)
        message = Message(
            onward[number],
            back[rng.randrange(200)],
            bytes(rng.randrange(64, 256)),
            message_id(rng.getrandbits(128)),
            at // 1_000 + 30_000,
        )
        verdict = no_route if rng.random() < 0.02 else forwarded[number]
        broadcast = rng.choice(broadcasts) if rng.random() < 0.1 else None
        took = rng.randrange(20, 200)
        records.append(MessageRecord(Arrival(message, at, False, broadcast), verdict, at + took))
    return records


def run(report: Report) -> None:
    records = traffic(RECORDS, random.Random(5))
    end_to_end(report, records)
    conversion(report, records)


def end_to_end(report: Report, records: list[MessageRecord]) -> None:
    walls, processors, notes = [], [], []
    size = lost = 0
    for _ in range(TURNS):
        with tempfile.TemporaryDirectory() as directory:
            noted = [0.0]

            def work(directory: str = directory, noted: list[float] = noted) -> None:
                nonlocal lost
                with Journal(directory, "hub") as journal:
                    note, start = journal.note, time.thread_time()
                    for record in records:
                        note(record)
                    noted[0] = time.thread_time() - start
                lost += journal.lost

            before = time.process_time()
            walls.append(seconds(work))
            processors.append(time.process_time() - before)
            notes.append(noted[0])
            size = sum(
                path.stat().st_size for path in Path(directory).rglob("messages/*/*.parquet")
            )
    per_record = 1e9 / len(records)
    report.add(
        "note to sealed file", "waystation", len(records) / statistics.median(walls), "records/s"
    )
    report.add("note to sealed file, lost", "waystation", lost, "records")
    report.add(
        "processor time", "waystation", statistics.median(processors) * per_record, "ns/record"
    )
    report.add("note", "waystation", statistics.median(notes) * per_record, "ns/record")
    report.add("on disk", "waystation", size / len(records), "bytes/record")


def conversion(report: Report, records: list[MessageRecord]) -> None:
    """What the interpreter is held for: records to columns, in batches as the writer makes them."""

    def columns() -> int:
        converter = Converter("a", 1)
        for first in range(0, len(records), BATCH):
            converter.convert(records[first : first + BATCH], first)
        return len(records)

    report.compare("records to columns", {"waystation": columns}, turns=TURNS, unit="records/s")
