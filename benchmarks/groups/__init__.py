"""The benchmark of groups: routers, a receiver in its own process, and what is measured."""
