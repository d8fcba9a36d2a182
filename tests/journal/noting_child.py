"""A process that notes messages and changes until it is killed, and tells how far it came.

After each burst it prints what it has noted and when. With a small seal_bytes it seals all the
time, so that a kill hits every stage.
"""

from __future__ import annotations

import json
import sys
import time

from tests.journal.traffic import change_record, message_record
from waystation.journal import Journal

FLUSH_SECONDS = 0.3


def main(directory: str) -> None:
    journal = Journal(
        directory,
        "garage",
        flush_seconds=FLUSH_SECONDS,
        flush_records=500,
        seal_bytes=200_000,
        seal_seconds=0.2,
    )
    noted = 0
    while True:
        for _ in range(50):
            noted += 1
            journal.note(message_record(noted))
        journal.note(change_record(noted))
        told = {
            "noted": noted,
            "at": time.monotonic(),
            "incarnation": journal.incarnation,
            "interval": FLUSH_SECONDS,
        }
        print(json.dumps(told), flush=True)  # noqa: T201
        time.sleep(0.002)


if __name__ == "__main__":
    main(sys.argv[1])
