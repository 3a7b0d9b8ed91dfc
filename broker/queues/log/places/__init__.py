"""Where the log of the queues is kept: files, databases, memory."""
