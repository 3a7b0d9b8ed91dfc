"""The commands that publish and receive messages."""
