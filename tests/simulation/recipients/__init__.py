"""Whole brokers in one thread with virtual time: recipients that hang, and everything that can happen to their messages meanwhile."""
