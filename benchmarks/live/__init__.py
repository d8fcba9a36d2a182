"""Live measurements: the same work done by several messaging systems, each role its own process."""
