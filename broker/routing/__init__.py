"""Who gets a message: subscriptions, routes, shared subscriptions, retained messages."""
