"""Clients that roam: where each session is, and how it moves. See docs/roaming.md.

`wire.py` has the forms of what brokers say to each other, `places.py` the states of one client at one broker, `roamer.py` decides.
"""
