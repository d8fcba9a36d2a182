"""Fleets that are run twice, without and with a change: is what a what-if forecasts what happens?

The nodes are real, their time is virtual. Everything that comes from outside is the same in both
runs: what is sent and when, what breaks, and how long the network takes at each instant.
"""
