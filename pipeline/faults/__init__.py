"""Faults: when links and recipients failed, how long that took, and what was available."""
