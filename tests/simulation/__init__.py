"""A deterministic simulation of N brokers in one thread: virtual time, one seeded source of chance, no sockets.

    clock.py      virtual time: a heap of things to do
    wire.py       links between two brokers: bandwidth, delay, bounds, cuts, reconnects
    site.py       one broker's shell: a `Node`, its subscribers, its disk (disk.py)
    borders.py    what policies let pass, computed apart from the code under test
    ledger.py     what was published and delivered, and the invariants
    scenario.py   a seed -> a mesh, traffic and faults; runs it and checks it

`python -m tests.simulation --seeds 2000` runs many seeds; a failing one is shown with the command that repeats it.
"""
