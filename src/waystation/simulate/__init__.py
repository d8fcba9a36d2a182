"""The journal of a simulated fleet, written by Spark, and what really happened in it."""
