"""The other metabrokers of a mesh: who of all answers a request."""
