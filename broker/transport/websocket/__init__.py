"""WebSocket listeners: `ws://` and `wss://`."""
