"""Tables that are kept current while the journal grows, by Structured Streaming."""
