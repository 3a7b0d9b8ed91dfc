"""The mesh's shell in one broker: sockets, timers and logs around the cores in `mesh/`."""
