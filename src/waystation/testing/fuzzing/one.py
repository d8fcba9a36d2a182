"""Fuzz one target in this process, until the fuzzer ends it: see `__main__`."""

from __future__ import annotations

import logging
import sys


def main() -> None:
    """Fuzz the target that the command line names; all else is for the fuzzer."""
    import atheris  # noqa: PLC0415 - `make fuzz` installs it, and nothing else needs it

    with atheris.instrument_imports(include=["waystation"]):
        from waystation.testing.fuzzing.targets import TARGETS, run  # noqa: PLC0415
    logging.disable(logging.CRITICAL)
    program, name, *rest = sys.argv
    target = TARGETS[name]
    atheris.Setup([program, *rest], lambda data: run(target, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
