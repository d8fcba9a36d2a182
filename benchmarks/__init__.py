"""Side-by-side measurements. `make bench` runs them all; `make bench ONLY=routing` runs one."""
