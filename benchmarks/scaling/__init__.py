"""What the benchmarks of scale share: fleets of growing size, and builds in processes apart."""
