"""Whole brokers in one thread with virtual time: queues with homes, members and publishers at several sites, and everything that breaks."""
