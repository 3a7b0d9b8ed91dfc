"""One authenticated connection between two brokers, without sockets."""
