"""One community broker: listeners, connections, router, sessions, retained messages, mesh links."""
