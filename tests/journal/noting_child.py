"""A process that notes messages and changes until it is killed; it prints its incarnation first.

With a small seal_bytes it seals all the time, so that kills hit every stage.
"""

from __future__ import annotations

import json
import sys
import time

from tests.journal.traffic import change_record, message_record
from waystation.journal import Journal


def main(directory: str) -> None:
    journal = Journal(
        directory,
        "garage",
        flush_seconds=0.3,
        flush_records=500,
        seal_bytes=200_000,
        seal_seconds=0.2,
    )
    print(json.dumps({"incarnation": journal.incarnation}), flush=True)  # noqa: T201
    noted = 0
    while True:
        for _ in range(50):
            noted += 1
            journal.note(message_record(noted))
        journal.note(change_record(noted))
        time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1])
