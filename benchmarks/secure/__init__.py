"""Secure channels and proofs of identity, measured beside others that do the same."""
