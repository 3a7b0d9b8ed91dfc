"""What became of messages: tables of messages, calls and sessions at their home, and who may look into them (us-9037726, l. 246-266)."""
