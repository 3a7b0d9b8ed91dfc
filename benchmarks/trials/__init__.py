"""Trials: meshes under load that are broken on purpose, every message accounted for."""
