"""The lab: whole fleets in simulated time, broken by chance and judged by checkers."""
