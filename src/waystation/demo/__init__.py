"""The demonstration: a small fleet on this machine, broken on purpose, and what its journals tell.

It stands on everything but the command line, which calls it. The fleet is made of processes of its
own; what happened to them is found out from their journals alone, and only then compared with what
was done. Spark is imported by nobody here: whoever has built the tables hands over the directory.
"""
