"""Brokers that are no members of the mesh: messages cross to and from them (docs/attach.md)."""
