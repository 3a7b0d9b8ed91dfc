"""The load generator: one process that is every publisher and subscriber of one measurement."""
