"""The subjects of bench_websocket.py."""
