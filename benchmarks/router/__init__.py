"""The load for gossip routers, and the routers that bear it; bench_router.py compares them."""
