"""The metabroker's machine, without sockets and clocks."""
