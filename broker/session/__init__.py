"""Sessions: what a broker keeps for one client identifier, and its will."""
