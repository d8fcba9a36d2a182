"""The demonstration: a small fleet on this machine, broken on purpose, and what its journals show.

It depends on everything except the command line, which calls it. The fleet consists of separate
processes; what happened to them is derived from their journals alone, and only then compared with
the injected faults. Spark is not imported here: the caller builds the tables and passes their
directory.
"""
