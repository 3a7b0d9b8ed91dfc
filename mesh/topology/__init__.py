"""Topology files: reading, checks, simulation."""
