"""Stores and disks that fail, and a process that commits until it is killed."""
