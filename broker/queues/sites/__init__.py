"""Queues of one site for clients of all sites: who is home of a queue, messages on their way to it, members elsewhere."""
