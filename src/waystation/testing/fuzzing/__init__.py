"""Fuzzing, guided by coverage: every decoder, and the life of a session."""
