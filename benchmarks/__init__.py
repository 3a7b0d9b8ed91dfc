"""Closed-loop benchmarks of MQTT brokers: `python -m benchmarks --help` from the root of the repository.

The package stands outside the wheel and uses nothing of mqmesh's insides: mqmesh is a peer like the others, a process
with a port. `generator.py` is the load, `peers.py` the brokers and how they are configured, `scenarios.py` what is
measured and what must be reached.
"""
