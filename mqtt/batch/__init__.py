"""Batches: messages that came together and are moved together, the unit of work of the broker and the mesh."""
