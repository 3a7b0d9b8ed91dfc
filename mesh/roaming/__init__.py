"""Clients that roam: where each session is, and how it moves. See docs/roaming.md.

`wire.py` has the forms of what brokers say to each other, `places.py` the states of one client at one broker, `port.py` what is decided
over. `roamer.py` decides; `words.py` says it to others, `fences.py` says from where on this broker's own messages go elsewhere, `leaves.py`
sends sessions that go elsewhere, `forwards.py` passes on what still comes for them, and `memory.py` knows the members and the claims' keys.
"""
