"""What a queue checks when it receives a message."""
