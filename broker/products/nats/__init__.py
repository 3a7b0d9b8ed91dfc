"""NATS: nats-py's client, where it is made to differ, and what it writes to and reads from."""
