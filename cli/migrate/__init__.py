"""Turns the files of other brokers into files of ours: `mqmesh migrate`."""
