"""Chains of queues: a message that comes of others is put as they become DONE, and recovery after a failure (rows Q22, Q23)."""
