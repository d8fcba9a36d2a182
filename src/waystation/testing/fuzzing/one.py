"""Fuzz one target in this process, until the fuzzer ends it: see `__main__`."""

from __future__ import annotations

import logging
import sys

import atheris

with atheris.instrument_imports(include=["waystation"]):
    from waystation.testing.fuzzing.targets import TARGETS, run


def main() -> None:
    """Fuzz the target that the command line names; all else is for the fuzzer."""
    logging.disable(logging.CRITICAL)
    program, name, *rest = sys.argv
    target = TARGETS[name]
    atheris.Setup([program, *rest], lambda data: run(target, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
