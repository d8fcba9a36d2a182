"""Sockets, and everything that only has to do with them: who listens, dials, waits and writes."""
