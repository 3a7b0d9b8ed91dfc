"""Brokers as processes of their own."""
