"""Routing rules: conditions over a message and what follows from them (us-9037726, l. 130-158; docs/interchange.md)."""
