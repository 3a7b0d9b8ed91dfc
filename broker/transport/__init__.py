"""What stands between a socket and a connection: TLS, WebSocket, the in-process transport."""
