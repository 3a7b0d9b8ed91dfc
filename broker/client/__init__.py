"""The connection of one client: admission, CONNECT, packets in and out, backpressure."""
