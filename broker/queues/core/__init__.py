"""Queues without effects: states, plans, blocks of messages, and the queue itself."""
