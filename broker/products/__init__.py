"""Clients of other products, which the metabroker and the stores of queues share."""
