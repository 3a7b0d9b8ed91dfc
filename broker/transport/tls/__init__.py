"""TLS of one broker: what is in the certificates' files, the layer between a socket and a connection, and who is let in."""
