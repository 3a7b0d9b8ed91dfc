"""What a process of ours asks of Python and of its system: memory, collections, the disk, sockets, systemd."""
