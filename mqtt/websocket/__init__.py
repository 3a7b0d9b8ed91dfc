"""WebSocket (RFC 6455) without sockets: the opening handshake of both ends, and frames in and out."""
