"""Random bytes that nobody can guess, for whoever needs many of them.

OpenSSL's generator, which the system seeds, gives them six times as fast as the system itself. It
is seeded anew in a process that was forked.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable

random_bytes: Callable[[int], bytes] = ssl.RAND_bytes
"""Gives this many bytes. A simulation puts a function of its own here; so ask the module for it."""
