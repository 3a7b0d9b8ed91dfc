"""Custody: what the origin keeps until each destination has confirmed it."""
