"""What travels between brokers: envelope, visited bits, control packets, batches."""
