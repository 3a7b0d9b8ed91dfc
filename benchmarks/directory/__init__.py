"""Figures of the directory."""
