"""Faces of the interchange: each turns its own form of a message into the abstract one and back. They know no sockets."""
