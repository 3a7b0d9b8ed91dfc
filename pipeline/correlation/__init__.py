"""Correlation: messages, hops, calls, sessions, and what has no end."""
